"""Parts of a trace: windows and NVTX ranges by hand, and options that are what they say in every command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrib.errors import NoDataError, RefusedError
from attrib.selection import parse_range, select
from attrib.trace import open_trace
from tests.conftest import Attrib
from tests.helpers.nsysgen import H200, Kernel, Node, Trace

GEMV, NORM = Kernel("gemv_q4", grid=(5120, 1, 1)), Kernel("rms_norm")
MS = 1_000_000


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Six replays of 9,100 ns from 1 ms on, a millisecond apart; 0-2 in a range `warm`, 3-5 in a range `decode`."""
    made = Trace("2025.3")
    process = made.process(pid=7)
    process.device(made.gpu(H200))
    graph = process.graph([Node(NORM, 2000), Node(GEMV, 7000, gap=100)])
    for i in range(6):
        process.replay(graph, (i + 1) * MS)
    process.nvtx("warm", MS - 20_000, 4 * MS - 20_000)
    process.nvtx("decode", 4 * MS - 20_000, 7 * MS)
    process.nvtx("decode open", 4 * MS, None)
    return made.write(tmp_path / "trace.sqlite")


def steps(attrib: Attrib, trace: Path, *options: object) -> dict[str, Any]:
    document = attrib("census", trace, "--json", *options).json()
    return {**document["steps"], "warnings": document["warnings"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:5", (0, 5)),
        ("1200ms:1.5s", (1_200_000_000, 1_500_000_000)),
        ("1us:2µs", (1000, 2000)),
        (" 3ns : 4 ns ", (3, 4)),
        ("1.5:2.6", (2, 3)),
        ("5:", (5, 2**63 - 1)),
        (":5", (0, 5)),
    ],
)
def test_windows(text: str, expected: tuple[int, int]) -> None:
    assert parse_range(text) == expected


@given(st.integers(0, 2**62), st.integers(1, 2**61))
def test_whole_nanoseconds_are_exact(begin: int, length: int) -> None:
    assert parse_range(f"{begin}:{begin + length}ns") == (begin, begin + length)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not T0:T1"),
        (":", "is not T0:T1"),
        ("5", "is not T0:T1"),
        ("1:2:3", "is not T0:T1"),
        ("a:b", "'a' is no time"),
        ("-5:7", "'-5' is no time"),
        ("1m:2m", "'1m' is no time"),
        ("nan:1", "'nan' is no time"),
        ("7:7", "ends before it begins"),
        ("2ms:1ms", "ends before it begins"),
        ("1:99999999999999999999", "later than any trace"),
        ("1:1e9s", "is no time"),
    ],
)
def test_what_is_no_window(text: str, said: str) -> None:
    with pytest.raises(RefusedError, match="--range") as error:
        parse_range(text)
    assert said in str(error.value)


def test_a_window_keeps_whole_launches(attrib: Attrib, trace: Path) -> None:
    """Replays 1 and 2, and of replay 3 the first launch alone: it ends at 4.002 ms, the second at 4.0091 ms."""
    found = steps(attrib, trace, "--range", "1.5ms:4.005ms")
    assert (found["count"], found["launches"], found["excluded"]) == (2, 2, {"step cut short": 1})
    assert found["warnings"][0] == "--range 1.5ms:4.005ms keeps 5 of 12 launches"
    assert found["span_ms"] == pytest.approx(0.0091)


def test_nvtx_ranges_by_the_time_of_the_call(attrib: Attrib, trace: Path) -> None:
    """Calls begin 9 us before their replay. A range that was never closed holds nothing."""
    for name in ("warm", "decode"):
        found = steps(attrib, trace, "--range-nvtx", f"^{name}")
        assert (found["count"], found["launches"]) == (3, 2)
        assert found["warnings"][0] == f"--range-nvtx ^{name} keeps 6 of 12 launches"
    found = steps(attrib, trace, "--range-nvtx", "decode", "--range", "0:5.5ms")
    assert found["count"] == 2
    assert found["warnings"][0] == "--range 0:5.5ms and --range-nvtx decode keeps 4 of 12 launches"


def test_ranges_of_another_process_hold_nothing(tmp_path: Path) -> None:
    made = Trace("2025.3")
    one, other = made.process(1), made.process(2)
    for i in range(4):
        one.launch(NORM, (i + 1) * MS, 100)
    other.launch(NORM, 9 * MS, 100)
    other.nvtx("all", 0, 20 * MS)
    part = select(open_trace(made.write(tmp_path / "t.sqlite")), nvtx="all")
    assert part.kernels.start.tolist() == [9 * MS]


def test_a_part_says_nothing_of_the_capture(tmp_path: Path) -> None:
    """Graph nodes made outside the window are no sign of lost launches inside it."""
    made = Trace("2025.3")
    process = made.process()
    process.graph([Node(NORM, 100)] * 40)
    for i in range(50):
        process.launch(NORM, (i + 1) * MS, 100)
    whole = open_trace(made.write(tmp_path / "t.sqlite"))
    part = select(whole, window="0:3ms")
    assert whole.created_nodes() == 80
    assert part.created_nodes() == 0
    assert (len(part.kernels.start), len(whole.kernels.start)) == (2, 50)
    assert select(whole) is whole


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--range", "1s:2s"), "they run from 1.000ms to 6.009ms"),
        (("--range-nvtx", "zzz"), "no closed NVTX range matches --range-nvtx 'zzz'"),
        (("--range-nvtx", "open"), "no closed NVTX range"),
        (("--range-nvtx", "("), "is not a regular expression"),
        (("--range-nvtx", "warm", "--range", "5ms:6ms"), "no launch was issued within"),
        (("--range", "yesterday"), "is not T0:T1"),
    ],
)
@pytest.mark.parametrize("command", ["census", "stragglers", "anatomy"])
def test_refusals(attrib: Attrib, trace: Path, command: str, options: tuple[str, ...], said: str) -> None:
    assert said in attrib(command, trace, *options).refusal()


def test_an_export_without_calls_cannot_be_cut_by_nvtx(tmp_path: Path) -> None:
    made = Trace("2025.3")
    process = made.process()
    process.launch(NORM, MS, 100)
    process.nvtx("all", 0, 2 * MS)
    made.rows.pop("CUPTI_ACTIVITY_KIND_RUNTIME")
    with pytest.raises(NoDataError, match="no API rows"):
        select(open_trace(made.write(tmp_path / "t.sqlite")), nvtx="all")


def test_both_spellings_of_step_ranges(attrib: Attrib, trace: Path) -> None:
    for option in ("--step-nvtx", "--nvtx"):
        assert steps(attrib, trace, option, "warm|decode")["count"] == 2


def test_compare_and_gate_take_the_same_selection(attrib: Attrib, trace: Path) -> None:
    options = ("--range", "1.5ms:", "--process", "7", "--device", "0")
    found = attrib("compare", trace, trace, *options, "--json").json()
    assert "keeps 10 of 12 launches" in str(found["warnings"])
    assert attrib("gate", trace, "--against", trace, *options, "--min-steps", "2").code == 0
    assert "process 8" in attrib("compare", trace, trace, "--process", "8").refusal()
