"""Steps from NVTX ranges: nested, open, empty, and of another process."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from attrib.errors import NoDataError
from attrib.nvtx import steps_of_calls
from attrib.steps import find_steps
from attrib.trace import Api, Ranges
from tests.helpers.nsysgen import H200, Kernel
from tests.helpers.recording import Recording, account

A, B, C = (Kernel(name, grid=(size, 1, 1)) for name, size in (("a", 8), ("b", 16), ("c", 32)))


@pytest.fixture
def recording() -> Recording:
    return Recording.new()


def ranged(recording: Recording, text: str, *kernels: Kernel, close: bool = True, by_id: bool = False) -> None:
    begin = recording.at - 10_000
    recording.eager(*kernels)
    recording.process.nvtx(text, begin, recording.at if close else None, by_id=by_id)
    recording.at += 30_000


def test_nested_open_empty_and_deviating_ranges(recording: Recording, tmp_path: Path) -> None:
    for i in range(4):
        begin = recording.at - 10_000
        ranged(recording, "decode layer", A, B, by_id=bool(i % 2))
        recording.process.nvtx(f"decode step {i}", begin, recording.at - 10_000, by_id=bool(i % 2))
    ranged(recording, "decode step 4", A, C)
    ranged(recording, "decode step 5", A, B, close=False)
    ranged(recording, "decode step 6")
    ranged(recording, "prefill", A, B)
    trace = recording.open(tmp_path)
    steps = find_steps(trace, nvtx=r"^decode (step|layer)")
    assert (steps.source, steps.count, steps.launches) == ("NVTX ^decode (step|layer)", 4, 2)
    assert steps.excluded == {
        "NVTX range without an end": 1,
        "NVTX range without launches": 1,
        "step with other launches": 1,
    }
    account(trace, steps)


def test_the_outer_of_two_ranges_that_start_together_counts(recording: Recording, tmp_path: Path) -> None:
    for _ in range(4):
        begin = recording.at - 10_000
        recording.eager(A)
        recording.process.nvtx("token/inner", begin, recording.at)
        recording.at += 20_000
        recording.eager(B)
        recording.process.nvtx("token", begin, recording.at)
        recording.at += 30_000
    steps = find_steps(recording.open(tmp_path), nvtx="token")
    assert (steps.count, steps.launches, steps.excluded) == (4, 2, {})


def test_ranges_of_another_process_are_not_this_ones(tmp_path: Path) -> None:
    recording = Recording.new()
    other = recording.trace.process(12)
    other.device(recording.trace.gpu(H200), 0)
    for _ in range(4):
        ranged(recording, "token", A, B)
        other.nvtx("token", recording.at, recording.at + 9000)
        recording.at = other.launch(C, recording.at + 8000, 100) + 30_000
    trace = recording.open(tmp_path)
    steps = find_steps(trace, nvtx="token")
    assert (steps.count, steps.launches, steps.excluded) == (4, 2, {})
    account(trace, steps)
    found = find_steps(trace, nvtx="token", process=12)
    assert (found.count, found.launches) == (4, 1)


def test_nvtx_without_ranges_and_without_launches_inside(recording: Recording, tmp_path: Path) -> None:
    recording.eager(A)
    with pytest.raises(NoDataError, match="the trace has no NVTX range at all"):
        find_steps(recording.open(tmp_path), nvtx="x")
    recording.process.nvtx("x", recording.at + 50_000, recording.at + 60_000)
    with pytest.raises(NoDataError, match="no launch was issued inside the NVTX ranges"):
        find_steps(recording.open(tmp_path), nvtx="x")


def columns(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def test_ranges_of_two_threads_overlap_without_nesting() -> None:
    """Each thread's calls go to its own range; a worker without ranges belongs to the one that is open."""
    pid, one, two, worker = 1 << 24, (1 << 24) + 1, (1 << 24) + 2, (1 << 24) + 3
    begin, end = columns(0, 5, 40, 45), columns(30, 35, 70, 75)
    ranges = Ranges(begin, end, columns(*[pid] * 4), columns(one, two, one, two), ())
    calls = [(1, one), (6, two), (10, one), (20, two), (25, worker), (41, one), (46, two), (60, worker), (90, one)]
    starts, threads = zip(*calls, strict=True)
    api = Api(columns(*starts), columns(*[pid] * 9), columns(*threads), columns(*range(9)))
    excluded: Counter[str] = Counter()
    found, steps = steps_of_calls(ranges, api, pid, excluded)
    assert steps == 4
    assert found.tolist() == [0, 1, 0, 1, 0, 2, 3, 2, -1]
    assert not excluded
