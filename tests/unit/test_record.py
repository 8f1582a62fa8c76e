"""Recording end to end with programs that behave as nsys and the engine do."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from attrib import manifest as manifests
from attrib import measured, runs
from attrib.errors import AttribError, RefusedError
from attrib.record import parse_target
from tests.conftest import Attrib
from tests.helpers import fake_tools as fake


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the fakes installed and a good recording to be made."""
    folder = fake.install(tmp_path, monkeypatch)
    monkeypatch.setenv("FAKE_TRACE", str(fake.decode_trace().write(tmp_path / "source.sqlite")))
    monkeypatch.setenv("FAKE_MANIFEST", str(fake.write_manifest(tmp_path / "source.json")))
    monkeypatch.setenv("FAKE_PID", str(tmp_path / "pid"))
    return folder


def stored(folder: Path) -> list[str]:
    """Everything in the runs folder, hidden files too."""
    return sorted(p.name for p in (folder / "runs").iterdir()) if (folder / "runs").exists() else []


# ---------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("text", "model", "anchor", "label"),
    [
        ("14b:tg128", "qwen2.5-14b:q4_k_m", "tg128", "14b:tg128"),
        ("14b:@3254", "qwen2.5-14b:q4_k_m", "@3254", "14b:@3254"),
        ("7b:@1641", "qwen2.5-7b:q4_k_m", "@1641", "7b:@1641"),
        ("7b:pp512", "qwen2.5-7b:q4_k_m", "pp512", "7b:pp512"),
        ("0.5b:tg16", "qwen2.5-0.5b:q4_k_m", "tg16", "0.5b:tg16"),
        ("14B:tg128", "qwen2.5-14b:q4_k_m", "tg128", "14b:tg128"),
        ("qwen2.5-7b:q4_k_m:pp512", "qwen2.5-7b:q4_k_m", "pp512", "qwen2.5-7b:pp512"),
        ("llama-3.1-8b:@100", "llama-3.1-8b:q4_k_m", "@100", "llama-3.1-8b:@100"),
    ],
)
def test_targets(text: str, model: str, anchor: str, label: str) -> None:
    target = parse_target(text)
    assert (target.model, target.anchor, target.label) == (model, anchor, label)


@pytest.mark.parametrize(
    ("suffix", "anchor"), [("@tg128", "tg128"), (":tg128", "tg128"), (":@3254", "@3254"), ("@3254", "@3254")]
)
def test_targets_of_files(tmp_path: Path, suffix: str, anchor: str) -> None:
    path = tmp_path / "my@model:x.gguf"
    path.touch()
    target = parse_target(f"{path}{suffix}")
    assert (target.model, target.anchor) == (str(path), anchor)


@pytest.mark.parametrize("text", ["14b", "14b:3254", "14b:tg", ":tg128", "14b:xx5", "14b:tg128 ", "", "14b:@"])
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(RefusedError, match="MODEL:ANCHOR"):
        parse_target(text)


def test_unknown_models_are_named() -> None:
    with pytest.raises(AttribError, match="15b"):
        parse_target("15b:tg128")
    with pytest.raises(RefusedError, match=r"none\.gguf does not exist"):
        parse_target("none.gguf:tg128")


# ---------------------------------------------------------------- a good recording


def test_a_decode_recording(attrib: Attrib, work: Path) -> None:
    document = attrib("record", "14b:tg128", "--steps", fake.TRACED, "--windows", 2, "--json").json()
    names = stored(work)
    run = document["run"]
    assert names == [run, "runs.db"]
    assert run.endswith("-14b-tg128-reference")
    folder = work / "runs" / run
    assert sorted(p.name for p in folder.iterdir()) == [
        "anatomy.csv", "anatomy.png", "bench.json", "census.csv", "census.png", "manifest.json", "report.html",
        "stragglers.png", "trace.sqlite",
    ]  # fmt: skip

    total = fake.WARM_UP + fake.TRACED
    assert document["complete"] == {
        "replays_asked": fake.TRACED,
        "replays_recorded": total,
        "launches_per_replay": 3,
        "launches_joined": 3,
    }
    assert document["census"]["ledger"]["closure_ns"] == 0
    sites = {site["site"]: site for site in document["census"]["sites"]}
    assert sites["attn_q/q4_K"]["gbps"] == pytest.approx(90e6 / 30e-6 / 1e9)
    # the first six steps of each untraced window take 60 µs, the later ones 120; ranges of the traced steps are 66 µs
    inflation = document["inflation"]
    assert inflation["untraced_step_ms"] == pytest.approx(0.060)
    assert inflation["traced_step_ms"] == pytest.approx(0.066)
    assert inflation["step_inflation_pct"] == pytest.approx(10.0)
    assert inflation["traced_span_ms"] == pytest.approx(0.050)
    assert inflation["device_inflation_pct"] == pytest.approx(0.0)
    assert inflation["span_of_untraced_step_pct"] == pytest.approx(100 * 50 / 60)

    kept = manifests.load(folder / "manifest.json")
    assert len(kept.wall_step_ns) == 2 * 128
    assert kept.graphs == fake.manifest().graphs
    again = attrib("census", folder / "trace.sqlite", "--manifest", folder / "manifest.json", "--json").json()
    assert again["sites"] == document["census"]["sites"]


def test_the_list_of_runs(attrib: Attrib, work: Path) -> None:
    first = attrib("record", "14b:tg128", "--steps", 6, "--json").json()
    second = attrib("record", "14b:@3254", "--steps", 6, "--json").json()
    with closing(sqlite3.connect(work / "runs" / "runs.db")) as db:
        rows = db.execute("SELECT id, anchor, build_hash, tok_per_s, closure_ns, traced_span_ms FROM runs").fetchall()
        sites = db.execute("SELECT run, site, gbps FROM sites WHERE site LIKE 'attn_q%'").fetchall()
        assert db.execute("SELECT COUNT(*) FROM sites").fetchone() == (6,)
    common = ("abcdef0123456789", pytest.approx(1e9 / 60_000), 0, pytest.approx(0.05))
    assert rows == [(first["run"], "14b:tg128", *common), (second["run"], "14b:@3254", *common)]
    assert sites == [(d["run"], "attn_q/q4_K", pytest.approx(3000.0)) for d in (first, second)]


def test_what_is_printed(attrib: Attrib, work: Path) -> None:
    outcome = attrib("record", "14b:tg128", "--steps", 6)
    assert outcome.code == 0, outcome.err
    for text in (
        "Census",
        "Stragglers",
        "Step anatomy",
        "16666.67 tok/s",
        "+10.0 %",
        "10 replays, 3 of 3",
        "stored in",
    ):
        assert text in outcome.out, text
    assert "timing 3 untraced windows" in outcome.err


def test_a_folder_of_the_same_name_is_not_the_engine(attrib: Attrib, work: Path) -> None:
    (work / "engine").mkdir()
    (work / "engine" / "__init__.py").touch()
    (work / "engine" / "__main__.py").write_text("raise SystemExit('the wrong engine')")
    assert attrib("record", "14b:tg128", "--steps", 6).code == 0


def test_two_recordings_of_one_second_do_not_meet(tmp_path: Path) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    name = runs.run_name(when, "14b:@3254", "fast/x y")
    assert name == "20260102T030405Z-14b-@3254-fast_x_y"
    (tmp_path / name).mkdir()
    assert runs.free_folder(tmp_path, name).name == f"{name}-2"


def test_a_prompt_recording(attrib: Attrib, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TRACE", str(fake.prefill_trace().write(tmp_path / "prefill.sqlite")))
    monkeypatch.setenv("FAKE_MANIFEST", str(fake.write_manifest(tmp_path / "prefill.json", "pp512")))
    document = attrib("record", "7b:pp512", "--json").json()
    assert document["complete"] is None
    assert document["stragglers"] is None
    assert not list((work / "runs").glob("*/stragglers.png"))
    assert len(list((work / "runs").glob("*/report.html"))) == 1
    assert document["census"]["steps"]["launches"] == 4
    assert document["inflation"]["traced_span_ms"] == pytest.approx(0.040)
    assert document["inflation"]["traced_step_ms"] == pytest.approx(0.049)


# ---------------------------------------------------------------- losses


def without_kernel_names() -> Any:
    other = fake.gen.Node(fake.gen.Kernel("mmvq_v3", grid=(5120, 1, 1)), 30_000)
    return fake.decode_trace(nodes=(fake.NODES[0], other, fake.NODES[2]))


def with_other_grid() -> Any:
    other = fake.gen.Node(fake.gen.Kernel("mmvq_v2", grid=(4864, 1, 1)), 30_000)
    return fake.decode_trace(nodes=(fake.NODES[0], other, fake.NODES[2]))


def nothing_recorded() -> Any:
    trace = fake.gen.Trace("2025.3")
    trace.process().api("cuInit", 100, 200)
    return trace


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fake.decode_trace(lost=2), "lost 2 of 10 graph replays"),
        (lambda: fake.decode_trace(cut=True), "step cut short"),
        (lambda: fake.decode_trace(steps=1), "has 5 graph replays and 6 were asked for"),
        (lambda: fake.decode_trace(nodes=fake.NODES[:2]), "2"),
        (without_kernel_names, "mmvq_v3"),
        (with_other_grid, "4864"),
        (nothing_recorded, "no GPU kernel was recorded"),
    ],
)
def test_an_incomplete_recording_is_refused(
    attrib: Attrib, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], said: str
) -> None:
    monkeypatch.setenv("FAKE_TRACE", str(make().write(tmp_path / "lossy.sqlite")))
    assert said in attrib_refusal(attrib("record", "14b:tg128", "--steps", 6))
    assert stored(work) == []


def attrib_refusal(outcome: Any) -> str:
    """The sentence of a refusal, without the lines that tell the progress."""
    assert outcome.code == 2, (outcome.code, outcome.out, outcome.err)
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    sentences = [line for line in outcome.err.splitlines() if line.startswith("attrib: ")]
    assert len(sentences) == 1
    return str(sentences[0])


def test_what_nsys_noted_is_told(attrib: Attrib, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, said in (
        ("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES on device 0", "--cap-add=SYS_ADMIN"),
        ("CUDA profiling might have not been started correctly.", "might have not been started"),
    ):
        path = nothing_recorded().write(tmp_path / "noted.sqlite")
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, text TEXT)")
            db.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, ?)", [("Profiling has started.",), (text,)])
        monkeypatch.setenv("FAKE_TRACE", str(path))
        assert said in attrib_refusal(attrib("record", "14b:tg128"))


# ---------------------------------------------------------------- programs that fail


@pytest.mark.parametrize(
    ("variable", "mode", "said"),
    [
        ("FAKE_NSYS", "old", "nsys 2023.4"),
        ("FAKE_NSYS", "refused", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("FAKE_NSYS", "killed", "SIGKILL"),
        ("FAKE_NSYS", "no-report", "without writing a report"),
        ("FAKE_NSYS", "bad-export", "Failed to open the report file"),
        ("FAKE_ENGINE", "no-gpu", "no NVIDIA GPU: the driver finds no device"),
        ("FAKE_ENGINE", "crash", "SIGABRT"),
        ("FAKE_ENGINE", "crash-traced", "Segmentation fault"),
        ("FAKE_ENGINE", "not-json", "no JSON object: hello"),
        ("FAKE_ENGINE", "other-build", "build other"),
    ],
)
def test_a_failing_program_gives_one_sentence(
    attrib: Attrib, work: Path, monkeypatch: pytest.MonkeyPatch, variable: str, mode: str, said: str
) -> None:
    monkeypatch.setenv(variable, mode)
    assert said in attrib_refusal(attrib("record", "14b:tg128"))
    assert stored(work) == []


def test_no_nsys_at_all(attrib: Attrib, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attrib.capture._PLACES", ())
    monkeypatch.setenv("PATH", "/nowhere")
    said = attrib_refusal(attrib("record", "14b:tg128"))
    assert "nsys is not installed" in said
    assert "2024.1 or newer" in said
    monkeypatch.setenv("ATTRIB_NSYS", "/nowhere/nsys")
    assert "/nowhere/nsys cannot be started" in attrib_refusal(attrib("record", "14b:tg128"))


def test_a_hanging_engine_is_ended(attrib: Attrib, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "hang-traced")
    assert "did not end within 3 s" in attrib_refusal(attrib("record", "14b:tg128", "--timeout", 3))
    assert stored(work) == []
    assert ended(int((tmp_path / "pid").read_text()))


def ended(pid: int, seconds: float = 5.0) -> bool:
    """Whether the process ends in time: a kill takes effect when the kernel gets to it, not at once."""
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and waits for its parent does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "hang-traced")
    command = [sys.executable, "-c", "from attrib.cli import main; main()", "record", "14b:tg128"]
    process = subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pid = tmp_path / "pid"
    deadline = time.monotonic() + 30
    while not pid.exists() or not pid.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [name[:11] for name in stored(work)] == [".recording-"]
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=30)
    assert process.returncode not in (0, None)
    assert "Traceback" not in err
    assert stored(work) == []
    assert not alive(int(pid.read_text()))


def test_a_folder_that_cannot_hold_runs(attrib: Attrib, work: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot hold recordings" in attrib_refusal(attrib("record", "14b:tg128", "--out", tmp_path / "file"))


def test_a_damaged_list_does_not_lose_the_recording(attrib: Attrib, work: Path) -> None:
    (work / "runs").mkdir()
    (work / "runs" / "runs.db").write_text("not a database, and long enough to be looked at as one " * 40)
    said = attrib_refusal(attrib("record", "14b:tg128", "--steps", 6))
    assert "runs.db cannot be used" in said
    assert any(name.endswith("-14b-tg128-reference") for name in stored(work))


# ---------------------------------------------------------------- roofline


def test_roofline(attrib: Attrib, work: Path, tmp_path: Path) -> None:
    document = attrib("roofline", "--json").json()
    assert document["t0_us"] == pytest.approx(3.5)
    assert document["bw_gbps"] == pytest.approx(4400)
    assert len(document["points"]) == 11
    assert measured.config_path() == tmp_path / "config" / "rooflines.json"
    found = measured.load_roofline("NVIDIA H200")
    assert found is not None
    assert found == (pytest.approx(3.5e-6), pytest.approx(4.4e12), document["measured_at"])
    assert measured.load_roofline("another") is None
    text = attrib("roofline").out
    assert "t0 3.50 µs, BW 4400 GB/s" in text


def test_roofline_without_a_gpu(attrib: Attrib, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", "no-gpu")
    assert "no NVIDIA GPU" in attrib("roofline").refusal()
    assert not measured.config_path().exists()


def test_rooflines_of_several_devices_and_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTRIB_CONFIG_DIR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = measured.store_roofline("A", 1e-6, 1e12, "2026-01-01")
    assert path == tmp_path / "attrib" / "rooflines.json"
    measured.store_roofline("B", 2e-6, 2e12, "2026-01-02")
    measured.store_roofline("A", 3e-6, 3e12, "2026-01-03")
    assert measured.load_roofline("A") == (3e-6, 3e12, "2026-01-03")
    assert measured.load_roofline("B") == (2e-6, 2e12, "2026-01-02")
    for t0, rate in ((-1e-6, 1e12), (1e-6, 0.0), (float("nan"), 1e12)):
        with pytest.raises(RefusedError, match="impossible"):
            measured.store_roofline("A", t0, rate, "x")
    whole = json.loads(path.read_text())
    del whole["devices"]["A"]["t0_s"]
    path.write_text(json.dumps(whole))
    with pytest.raises(RefusedError, match="damaged"):
        measured.load_roofline("A")
    path.write_text("{")
    with pytest.raises(RefusedError, match="not JSON"):
        measured.load_roofline("A")
    path.write_text("{}")
    with pytest.raises(RefusedError, match="not a file of rooflines"):
        measured.store_roofline("A", 1e-6, 1e12, "x")
