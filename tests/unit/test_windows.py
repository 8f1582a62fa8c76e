"""Windows in turn: order, journal, disturbance and continuing."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from attrib import windows as w
from attrib.builds import Side
from attrib.capture import CaptureError
from attrib.environment import Environment, Sample, from_json, summarize, watching
from attrib.errors import JoinError, RefusedError
from attrib.record import parse_target
from tests.helpers import fake_ab as fake

SIDES = {
    w.BASE: Side("reference", "reference", fake.RATES["reference"][1]),
    w.NEW: Side("better", "better", fake.RATES["better"][1]),
}
TARGETS = {"14b:tg128": parse_target("14b:tg128")}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fake.engine_here(tmp_path / "work", monkeypatch)


def experiment(**changes: Any) -> w.Experiment:
    fields: dict[str, Any] = {
        "anchors": ("14b:tg128",), "base": "reference", "base_hash": "a" * 16, "new": "better", "new_hash": "b" * 16,
        "bar": 0.004, "pairs": 2, "processes": 1, "repeats": 2,
    }  # fmt: skip
    return w.Experiment(**fields | changes)


def window(**changes: Any) -> w.Window:
    fields: dict[str, Any] = {
        "anchor": "14b:tg128", "pair": 0, "turn": 0, "side": "base", "session": "s", "started_utc": "t", "seconds": 1.0,
        "rate": 100.0, "step": 0.01, "repeats": (100.0, 100.5), "build_hash": "a", "device": "d",
        "environment": Environment(sm_mhz=1980.0, throttle=("hardware thermal",)),
    }  # fmt: skip
    return w.Window(**fields | changes)


def measure(journal: w.Journal) -> None:
    w.measure(journal, TARGETS, SIDES, limit_s=30)


# ---------------------------------------------------------------- order and journal


def test_pairs_alternate() -> None:
    order = [side for _, _, side in w.schedule(4, 1)]
    assert order == ["base", "new", "new", "base", "base", "new", "new", "base"]
    assert [pair for pair, _, _ in w.schedule(3, 1)] == [0, 0, 1, 1, 2, 2]


def test_pairs_of_several_processes_alternate_within() -> None:
    letters = "".join(side[0] for _, _, side in w.schedule(2, 2)), "".join(side[0] for _, _, side in w.schedule(2, 3))
    assert letters == ("bnnb" + "nbbn", "bnnbbn" + "nbbnnb")
    assert [(pair, turn) for pair, turn, _ in w.schedule(2, 2)][::2] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_pair_counts_when_all_its_windows_are_there(tmp_path: Path) -> None:
    journal = w.open_journal(tmp_path, experiment(processes=2))
    for pair, turn, side in [*w.schedule(2, 2)][:-1]:
        journal.append(window(pair=pair, turn=turn, side=side, rate=100.0 + pair + 10 * turn))
    assert [[[x.rate for x in pair] for pair in side] for side in journal.pairs("14b:tg128")] == [[[100, 110]]] * 2
    journal.append(window(pair=1, turn=1, side="new", disturbed=("hot",)))
    assert len(journal.pairs("14b:tg128")[0]) == 1
    journal.append(window(pair=1, turn=1, side="new"))
    assert len(journal.pairs("14b:tg128")[1]) == 2


def test_a_journal_keeps_every_field(tmp_path: Path) -> None:
    journal = w.open_journal(tmp_path, experiment())
    written = [window(), window(side="new", pair=3, disturbed=("throttled: hardware thermal",))]
    for each in written:
        journal.append(each)
    again = w.open_journal(tmp_path, experiment())
    assert again.path == journal.path
    assert again.windows[1].disturbed == ("throttled: hardware thermal",)
    assert math.isnan(again.windows[0].environment.power_w)
    assert [x.to_json() for x in again.windows] == [x.to_json() for x in written]
    assert again.counted("14b:tg128", "new") == {}
    assert list(again.counted("14b:tg128", "base")) == [(0, 0)]


def test_a_line_cut_short_by_a_kill_is_dropped_and_the_file_stays_whole(tmp_path: Path) -> None:
    journal = w.open_journal(tmp_path, experiment())
    journal.append(window())
    with journal.path.open("a") as out:
        out.write('{"kind": "window", "anch')
    again = w.open_journal(tmp_path, experiment())
    assert len(again.windows) == 1
    again.append(window(pair=1))
    lines = [json.loads(line) for line in journal.path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["experiment", "window", "window"]


def test_a_finished_experiment_is_not_continued(tmp_path: Path) -> None:
    first = w.open_journal(tmp_path, experiment())
    first.append(window())
    first.finish({"verdict": "faster"})
    second = w.open_journal(tmp_path, experiment())
    assert second.path.name == first.path.stem + "-2.jsonl"
    assert second.windows == []
    assert len(w.read_journal(first.path)) == 1


def test_another_bar_or_number_of_pairs_is_another_experiment(tmp_path: Path) -> None:
    names = {
        experiment(**change).name
        for change in ({}, {"bar": 0.002}, {"pairs": 3}, {"processes": 2}, {"new_hash": "c" * 16})
    }
    assert len(names) == 5


@pytest.mark.parametrize("text", ["", "not json\n", '{"schema": "other/1", "kind": "experiment"}\n', "[]\n"])
def test_a_damaged_journal_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / f"{experiment().name}.jsonl"
    path.write_text(text)
    with pytest.raises(RefusedError, match="cannot be continued"):
        w.open_journal(tmp_path, experiment())
    assert path.read_text() == text


# ---------------------------------------------------------------- measuring


def test_windows_of_both_sides(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.quiet_gpu(monkeypatch)
    journal = w.open_journal(work / "ab", experiment())
    measure(journal)
    base, new = ([x for [x] in side] for side in journal.pairs("14b:tg128"))
    assert [x.pair for x in base] == [x.pair for x in new] == [0, 1]
    assert all(abs(x.rate - 100) < 0.2 and len(x.repeats) == 2 for x in base)
    assert all(abs(x.rate - 102) < 0.2 and x.step == pytest.approx(1 / x.rate) for x in new)
    built = [line.split("--build ")[1].split()[0] for line in fake.calls(work)]
    assert built == ["reference", "better", "better", "reference"]
    assert all("--anchor tg128" in line and "--windows 2" in line for line in fake.calls(work))
    seen = base[0].environment
    assert (seen.sm_mhz, seen.memory_mhz, seen.temperature_c, seen.power_w) == (1980, 3201, 41, 350)
    assert seen.samples > 0
    assert seen.unknown == ""


def test_an_engine_that_fails_loses_no_window(work: Path) -> None:
    journal = w.open_journal(work / "ab", experiment())
    fake.configure(work, fails_at=3)
    with pytest.raises(CaptureError, match="no NVIDIA GPU"):
        measure(journal)
    again = w.open_journal(work / "ab", experiment())
    assert len(again.windows) == 2
    measure(again)
    assert len(fake.calls(work)) == 5
    assert len({x.session for x in again.windows}) == 2


def test_another_build_or_device_in_between_is_refused(work: Path) -> None:
    fake.configure(work, runs_hash="cccc")
    journal = w.open_journal(work / "ab", experiment())
    with pytest.raises(JoinError, match="sources changed"):
        measure(journal)
    fake.configure(work)
    journal.append(window(device="NVIDIA A100"))
    with pytest.raises(JoinError, match="NVIDIA A100"):
        measure(journal)


def test_the_device_is_told_before_the_second_window(work: Path) -> None:
    told: list[str] = []

    def refuse(device: str) -> None:
        told.append(device)
        raise RefusedError("not here")

    journal = w.open_journal(work / "ab", experiment())
    for expected in (1, 2):
        with pytest.raises(RefusedError, match="not here"):
            w.measure(journal, TARGETS, SIDES, limit_s=30, started=refuse)
        assert len(told) == expected
        assert len(journal.windows) == 1


def test_one_experiment_is_measured_once_at_a_time(tmp_path: Path) -> None:
    journal = w.open_journal(tmp_path, experiment())
    with w.alone(journal), pytest.raises(RefusedError, match="another run is measuring"), w.alone(journal):
        pass
    with w.alone(journal):
        pass


# ---------------------------------------------------------------- disturbance


def test_a_disturbed_window_is_marked_and_repeated(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = fake.quiet_gpu(monkeypatch)
    said: list[str] = []

    def progress(text: str) -> None:
        said.append(text)
        gpu.reasons = 0x40 if text == "14b:tg128 pair 2/2 new" else 0

    journal = w.open_journal(work / "ab", experiment())
    w.measure(journal, TARGETS, SIDES, limit_s=30, progress=progress)
    assert [(x.pair, x.side, x.disturbed) for x in journal.windows] == [
        (0, "base", ()),
        (0, "new", ()),
        (1, "new", ("throttled: hardware thermal",)),
        (1, "new", ()),
        (1, "base", ()),
    ]
    assert "14b:tg128 pair 2/2 new, again (1 of 3)" in said
    assert len(journal.pairs("14b:tg128")[0]) == 2


def test_a_machine_that_stays_disturbed_is_given_up_and_continued_later(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = fake.quiet_gpu(monkeypatch)
    gpu.others = 1
    journal = w.open_journal(work / "ab", experiment())
    with pytest.raises(RefusedError, match="disturbed 4 times, at last by 1 other process on the GPU"):
        measure(journal)
    assert [bool(x.disturbed) for x in journal.windows] == [True] * 4
    gpu.others = 0
    measure(journal)
    assert len(journal.windows) == 8


def test_a_clock_drop_disturbs_once_the_usual_clock_is_known(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = fake.quiet_gpu(monkeypatch)
    dropped = False

    def progress(text: str) -> None:
        nonlocal dropped
        gpu.sm_mhz = 1500 if text.endswith("pair 2/2 base") else 1980

    journal = w.open_journal(work / "ab", experiment())
    w.measure(journal, TARGETS, SIDES, limit_s=30, progress=progress)
    assert [x.disturbed for x in journal.windows] == [(), (), (), ("SM clock 1500 MHz, usually 1980",), ()]


def test_what_disturbs() -> None:
    calm = Environment(sm_mhz=1950.0, power_capped=True)
    assert calm.disturbed(1980.0) == ()
    assert calm.disturbed(math.nan) == ()
    assert Environment(unknown="no NVML").disturbed(1980.0) == ()
    assert Environment(others=2).disturbed(math.nan) == ("2 other processes on the GPU",)
    assert Environment(foreign_bytes=3 << 30).disturbed(math.nan) == ("3.2 GB of the GPU's memory in use by others",)


def test_a_window_is_summarized() -> None:
    idle = Sample(300.0, 405.0, 35.0, 70.0, 0.0)
    busy = [Sample(float(mhz), 3201.0, 50.0 + i, 400.0, 99.0, 0x04, 1) for i, mhz in enumerate((1980, 1965, 1980))]
    found = summarize(Sample(processes=0), 1 << 20, [idle, *busy, Sample(processes=3)])
    assert (found.sm_mhz, found.memory_mhz, found.power_w, found.temperature_c) == (1980, 3201, 400, 52)
    assert (found.power_capped, found.throttle, found.others, found.samples) == (True, (), 2, 5)
    assert summarize(Sample(processes=1), 0, []).others == 1
    assert math.isnan(summarize(Sample(), 0, []).sm_mhz)
    assert from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_gpu_is_found_where_cuda_renumbers(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = fake.quiet_gpu(monkeypatch)
    for visible, wanted in (("", 1), ("3,5", 5), ("GPU-aa,GPU-bb", "GPU-bb"), ("3", 1)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with watching(1):
            pass
        assert gpu.asked[-1] == wanted


def test_memory_shared_with_the_host_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = fake.quiet_gpu(monkeypatch)
    gpu.used = -1
    with watching(0) as watch:
        time.sleep(0.05)
    assert (watch.result.unknown, watch.result.foreign_bytes, watch.result.sm_mhz) == ("", 0, 1980)


def test_unknown_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = fake.quiet_gpu(monkeypatch)
    gpu.fails = True
    with watching(0) as watch:
        pass
    assert watch.result.unknown == "NVML cannot read the GPU: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with watching(0) as watch:
        pass
    assert "nvidia-ml-py is not installed" in watch.result.unknown
    assert watch.result.disturbed(1980.0) == ()


# ---------------------------------------------------------------- killed half-way


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_experiment_continues(work: Path, number: signal.Signals) -> None:
    fake.configure(work, seconds=0.05)
    command = [sys.executable, "-c", "from attrib.cli import main; main()", "ab", "--anchor", "14b:tg128"]
    command += ["--base", "reference", "--new", "better", "--pairs", "5", "--processes", "1", "--json"]
    process = subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = work / "runs" / "ab"
    deadline = time.monotonic() + 30
    while not any(path.read_text().count("\n") >= 4 for path in folder.glob("*.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, number)
    process.communicate(timeout=30)
    assert process.returncode not in (0, None)
    [path] = folder.glob("*.jsonl")
    before = path.read_text()
    kept = before[: before.rfind("\n") + 1]
    done = kept.count("\n") - 1
    assert 3 <= done < 10

    finished = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=120, check=True)
    assert f"after {done} windows" in finished.stderr
    assert path.read_text().startswith(kept)
    assert list(folder.glob("*.jsonl")) == [path]
    document = json.loads(finished.stdout)
    assert len(document["windows"]) == 10
    assert document["anchors"][0]["verdict"] == "faster"
    assert [(x["pair"], x["turn"], x["side"]) for x in document["windows"]] == list(w.schedule(5, 1))
