"""The gate: what fails, what passes, what cannot be judged, and how each is reported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from attrib.errors import NoDataError, RefusedError
from attrib.gate import OK, REGRESSED, UNJUDGED, parse_bar, read_windows
from tests.conftest import Attrib
from tests.helpers import data
from tests.helpers.nsysgen import GB10, Trace
from tests.helpers.small_step import NORM, PARTS, write

STEADY = (1.0, 1.002, 0.998, 1.001, 0.999, 1.0)
DOWN, HEAD = "ffn_down/q4_K", "output/q6_K"


def run(folder: Path, slower: float = 1.0, scales: Sequence[float] = STEADY, windows: Sequence[float] = ()) -> Path:
    """A run directory of the small step with a head `slower` times as long, and untraced windows of these ms."""
    folder.mkdir()
    parts = (*PARTS[:-1], replace(PARTS[-1], node=replace(PARTS[-1].node, duration=round(10_000 * slower))))
    write(folder, parts, scales)
    if windows:
        body = {"windows": [{"step_ns": [ms * 1e6] * 4} for ms in windows]}
        (folder / "bench.json").write_text(json.dumps(body), encoding="utf-8")
    return folder


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {case["name"]: case["verdict"] for case in document["cases"]}


def judged(attrib: Attrib, new: Path, base: Path, *options: object) -> tuple[int, dict[str, Any]]:
    outcome = attrib("gate", new, "--against", base, "--bar", "2%", "--json", *options)
    return outcome.code, json.loads(outcome.out)


def test_a_slower_site_fails_by_name(attrib: Attrib, tmp_path: Path) -> None:
    base, new = run(tmp_path / "base"), run(tmp_path / "new", slower=1.1)
    code, found = judged(attrib, new, base)
    assert code == found["exit_code"] == 1
    assert found["verdict"] == REGRESSED
    # the head took 10 of 30 µs, and takes 11 of 31
    assert verdicts(found) == {"step": REGRESSED, HEAD: REGRESSED, DOWN: OK, "rms_norm": OK}
    head = next(case for case in found["cases"] if case["name"] == HEAD)
    assert (head["base_ms"], head["run_ms"]) == pytest.approx((0.010, 0.011), rel=1e-3)
    assert head["delta_pct"] == pytest.approx(10, abs=0.01)
    text = attrib("gate", new, "--against", base, "--bar", "2%")
    assert text.code == 1
    assert f"REGRESSED beyond 2 % and beyond its spread: step, {HEAD}" in " ".join(text.out.split())
    assert "one capture each" in text.out
    assert max(map(len, text.out.splitlines())) <= 100


@pytest.mark.parametrize(("bar", "code"), [("5%", 1), ("15%", 0), ("0.15", 0), ("0%", 1)])
def test_the_bar_decides(attrib: Attrib, tmp_path: Path, bar: str, code: int) -> None:
    base, new = run(tmp_path / "base"), run(tmp_path / "new", slower=1.1)
    assert attrib("gate", new, "--against", base, "--bar", bar, "--site", HEAD).code == code


def test_the_same_run_and_a_faster_one_pass(attrib: Attrib, tmp_path: Path) -> None:
    base, new = run(tmp_path / "base"), run(tmp_path / "new", slower=0.8)
    for other in (base, new):
        code, found = judged(attrib, other, base)
        assert (code, found["verdict"]) == (0, OK)
        assert set(verdicts(found).values()) == {OK}


def test_growth_within_the_spread_passes(attrib: Attrib, tmp_path: Path) -> None:
    noisy = (0.8, 1.2, 0.9, 1.1, 0.7, 1.3)
    base, new = run(tmp_path / "base", scales=noisy), run(tmp_path / "new", slower=1.1, scales=noisy)
    code, found = judged(attrib, new, base, "--site", HEAD)
    head = found["cases"][0]
    assert (code, head["verdict"]) == (0, OK)
    assert head["delta_pct"] > 2
    assert 0 < head["delta_ms"] < head["spread_ms"]


def test_too_few_steps_cannot_be_judged(attrib: Attrib, tmp_path: Path) -> None:
    base, new = run(tmp_path / "base"), run(tmp_path / "new", slower=2, scales=STEADY[:4])
    code, found = judged(attrib, new, base)
    assert (code, found["verdict"]) == (2, UNJUDGED)
    assert {case["why"] for case in found["cases"]} == {"run has 4 steps and 5 are needed"}
    assert judged(attrib, new, base, "--min-steps", 4)[0] == 1


def test_a_site_the_run_lacks_cannot_be_judged(attrib: Attrib, tmp_path: Path) -> None:
    base, new = run(tmp_path / "base"), tmp_path / "new"
    new.mkdir()
    write(new, PARTS[1:], STEADY)
    code, found = judged(attrib, new, base)
    assert (code, found["verdict"]) == (2, UNJUDGED)
    assert verdicts(found) == {"step": OK, HEAD: OK, DOWN: OK, "rms_norm": UNJUDGED}
    assert judged(attrib, new, base, "--site", DOWN, "--site", "step")[0] == 0
    code, found = judged(attrib, base, new, "--site", "rms_norm")
    assert (code, found["cases"][0]["why"]) == (2, "the base has none")
    assert judged(attrib, base, new)[0] == 1  # the norm that came back costs the step 2 µs and has no base itself
    message = attrib("gate", new, "--against", base, "--bar", "2%", "--site", "lm_head").refusal()
    assert "neither base nor new has lm_head; there are" in message


def test_a_regression_outweighs_what_cannot_be_judged(attrib: Attrib, tmp_path: Path) -> None:
    base, new = run(tmp_path / "base"), tmp_path / "new"
    new.mkdir()
    slow = replace(PARTS[-1], node=replace(PARTS[-1].node, duration=14_000))
    write(new, (*PARTS[1:-1], slow), STEADY)
    code, found = judged(attrib, new, base)
    assert (code, verdicts(found)[HEAD], verdicts(found)["rms_norm"]) == (1, REGRESSED, UNJUDGED)


def capture(folder: Path, lose: bool) -> Path:
    """A run directory of eight replays, of which one was recorded without its last launch."""
    folder.mkdir()
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(GB10))
    graph = process.graph([part.node for part in PARTS])
    at = 1_000_000
    for step in range(8):
        at = process.replay(graph, at, keep=3 if lose and step == 4 else None) + 20_000
    trace.write(folder / "trace.sqlite")
    write(folder.parent, PARTS)
    (folder.parent / "manifest.json").rename(folder / "manifest.json")
    return folder


def test_an_incomplete_capture_cannot_be_judged(attrib: Attrib, tmp_path: Path) -> None:
    base, new = capture(tmp_path / "base", False), capture(tmp_path / "new", True)
    assert judged(attrib, base, base)[0] == 0
    for one, other, name in ((new, base, "run"), (base, new, "base")):
        code, found = judged(attrib, one, other)
        assert code == 2
        assert {case["why"] for case in found["cases"]} == {f"incomplete capture of {name}: 1 × step cut short"}
        text = attrib("gate", one, "--against", other, "--bar", "2%")
        assert text.code == 2
        assert f"4 cannot be judged: incomplete capture of {name}: 1 × step cut short CANNOT JUDGE 4 of 4" in " ".join(
            text.out.split()
        )


def test_replays_that_were_launched_and_not_recorded_are_noticed(attrib: Attrib, tmp_path: Path) -> None:
    base, new = capture(tmp_path / "base", False), tmp_path / "new"
    new.mkdir()
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(GB10))
    graph = process.graph([part.node for part in PARTS])
    at = 1_000_000
    for _ in range(8):
        at = process.replay(graph, at) + 20_000
    process.api("cudaGraphLaunch_v10000", at, at + 5000)
    trace.write(new / "trace.sqlite")
    (new / "manifest.json").write_bytes((base / "manifest.json").read_bytes())
    code, found = judged(attrib, new, base)
    assert code == 2
    assert "lost 1 of 9 graph replays" in found["cases"][0]["why"]


def test_a_trace_without_steps_cannot_be_judged(attrib: Attrib, tmp_path: Path) -> None:
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(GB10))
    process.launch(NORM, 1_000_000, 2000)
    path = trace.write(tmp_path / "t.sqlite")
    code, found = judged(attrib, path, path)
    assert (code, found["verdict"]) == (2, UNJUDGED)
    assert "base has no steps" in found["cases"][0]["why"]


def test_untraced_windows(attrib: Attrib, tmp_path: Path) -> None:
    base = run(tmp_path / "base", windows=(10.0, 10.1, 10.2))
    cases = {
        "slow": ((10.5, 10.6, 10.7), REGRESSED, 1),
        "overlap": ((10.15, 10.6, 10.9), OK, 0),
        "within": ((10.21, 10.22, 10.23), OK, 0),
        "few": ((12.0, 12.0), UNJUDGED, 2),
    }
    for name, (windows, verdict, code) in cases.items():
        found = judged(attrib, run(tmp_path / name, windows=windows), base)
        assert (found[0], verdicts(found[1])["step untraced"]) == (code, verdict), name
    without = run(tmp_path / "without")
    code, found = judged(attrib, without, base)
    assert (code, "step untraced" in verdicts(found)) == (0, False)
    assert judged(attrib, without, base, "--site", "step untraced")[0] == 2
    (without / "bench.json").write_text('{"windows": [{}]}', encoding="utf-8")
    assert "bench.json holds no windows" in attrib("gate", without, "--against", base, "--bar", "2%").refusal()


def test_junit(attrib: Attrib, tmp_path: Path) -> None:
    base, new, report = run(tmp_path / "base"), tmp_path / "new", tmp_path / "gate.xml"
    new.mkdir()
    slow = replace(PARTS[-1], node=replace(PARTS[-1].node, duration=14_000))
    write(new, (*PARTS[1:-1], slow), STEADY)
    assert attrib("gate", new, "--against", base, "--bar", "2%", "--junit", report).code == 1
    suite = ET.parse(report).getroot()
    assert suite.attrib == {"name": "new against base", "tests": "4", "failures": "2", "errors": "1"}
    outcomes = {case.attrib["name"]: [child.tag for child in case] for case in suite}
    assert outcomes == {"step": ["failure"], HEAD: ["failure"], DOWN: [], "rms_norm": ["error"]}
    failure = suite.find(f"testcase[@name='{HEAD}']/failure")
    assert failure is not None
    assert failure.attrib["message"].startswith("0.0100 → 0.0140 ms per step (+40.00 %), bar 2 %, spread 0.0000")


def test_what_cannot_even_be_read_is_an_error_in_the_report(attrib: Attrib, tmp_path: Path) -> None:
    base, report = run(tmp_path / "base"), tmp_path / "gate.xml"
    outcome = attrib("gate", data.trace("not-an-export"), "--against", base, "--bar", "2%", "--junit", report)
    assert outcome.refusal().startswith("attrib: ")
    error = ET.parse(report).getroot().find("testcase/error")
    assert error is not None
    assert error.attrib["message"] in outcome.err


def test_unlike_runs_are_refused(attrib: Attrib, tmp_path: Path) -> None:
    base = run(tmp_path / "base")
    message = attrib("gate", data.trace("llama.cpp-14b-tg16-h200"), "--against", base, "--bar", "2%").refusal()
    assert "differ in device: NVIDIA GB10 and NVIDIA H200" in message


@pytest.mark.parametrize(("text", "bar"), [("2%", 0.02), ("0.4 %", 0.004), ("0.02", 0.02), (".5%", 0.005), ("0%", 0)])
def test_bars(text: str, bar: float) -> None:
    assert parse_bar(text) == pytest.approx(bar)


@pytest.mark.parametrize("text", ["", "fast", "-2%", "2", "100%", "nan", "1e-2"])
def test_bars_that_are_none(text: str) -> None:
    with pytest.raises(RefusedError, match="--bar"):
        parse_bar(text)


@pytest.mark.parametrize("value", [float("nan"), 0, -5, True, 1e300, "5"])
def test_untraced_windows_that_are_no_times_cannot_be_judged(tmp_path: Path, value: object) -> None:
    (tmp_path / "bench.json").write_text(json.dumps({"windows": [{"step_ns": [value, 1000]}] * 3}))
    with pytest.raises(NoDataError, match="holds no windows that can be read"):
        read_windows(tmp_path)
