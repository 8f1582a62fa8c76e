"""The part of a trace that is analysed: launches within a time window, or issued inside named NVTX ranges."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from attrib.columns import KernelColumns
from attrib.errors import NoDataError, RefusedError
from attrib.nvtx import matching_ranges
from attrib.trace import Ranges, Trace
from attrib.words import counted

UNITS = {"": 1, "ns": 1, "us": 1000, "µs": 1000, "ms": 1_000_000, "s": 1_000_000_000}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s|)")
_LATEST = np.iinfo(np.int64).max


def parse_range(text: str) -> tuple[int, int]:
    """(begin, end) in ns of `T0:T1`; a time is a number with ns (the default), us, ms or s, and may be left out.

    Raises RefusedError for anything else and for a window that ends before it begins.
    """
    parts = text.split(":")
    if len(parts) != 2 or not any(part.strip() for part in parts):
        raise RefusedError(f"--range {text!r} is not T0:T1, such as 1200ms:1.5s")
    begin, end = (_nanoseconds(part, text, default) for part, default in zip(parts, (0, _LATEST), strict=True))
    if end <= begin:
        raise RefusedError(f"--range {text!r} ends before it begins")
    return begin, end


def _nanoseconds(part: str, text: str, default: int) -> int:
    if not part.strip():
        return default
    found = _TIME.fullmatch(part.strip())
    if found is None:
        raise RefusedError(f"--range {text!r}: {part.strip()!r} is no time such as 1200000, 1.2ms or 1.5s")
    time = round(Decimal(found[1]) * UNITS[found[2]])
    if time > _LATEST:
        raise RefusedError(f"--range {text!r}: {part.strip()!r} is later than any trace")
    return time


def select(trace: Trace, window: str | None = None, nvtx: str | None = None) -> Trace:
    """The trace with only the launches that lie wholly in `window` and were issued inside ranges that match `nvtx`.

    Times are those of the export, which nsys counts from the start of the trace. A launch is issued when its API call
    begins, whatever thread of the process opened the range. Raises NoDataError when nothing is left.
    """
    if window is None and nvtx is None:
        return trace
    kernels = trace.kernels
    kept = np.ones(len(kernels.start), bool)
    said = []
    if window is not None:
        begin, end = parse_range(window)
        kept &= (kernels.start >= begin) & (kernels.end <= end)
        said.append(f"--range {window}")
        if not kept.any():
            first, last = int(kernels.start[0]) / 1e6, int(kernels.end.max()) / 1e6
            raise NoDataError(
                f"{trace.path}: no launch lies within --range {window}; they run from {first:.3f}ms to {last:.3f}ms"
            )
    if nvtx is not None:
        kept &= _issued_inside(trace, kernels, nvtx)
        said.append(f"--range-nvtx {nvtx}")
        if not kept.any():
            raise NoDataError(f"{trace.path}: no launch was issued within {' and '.join(said)}")
    number = int(np.count_nonzero(kept))
    note = f"{' and '.join(said)} keeps {number:,} of {counted(len(kept), 'launch')}"
    return trace.restricted(subset(kernels, np.flatnonzero(kept)), note)


def subset(kernels: KernelColumns, rows: NDArray[np.int64]) -> KernelColumns:
    """The launches `rows`, which ascend; variants and processes keep their numbers."""
    columns = ("start", "end", "device", "process", "stream", "correlation", "node", "variant")
    return replace(kernels, **{name: getattr(kernels, name)[rows] for name in columns})


def _issued_inside(trace: Trace, kernels: KernelColumns, pattern: str) -> NDArray[np.bool_]:
    """(launches,) whether the API call of each began inside a matching range of its process."""
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise RefusedError(f"--range-nvtx {pattern!r} is not a regular expression: {error}") from error
    ranges, api = matching_ranges(trace, regex), trace.api()
    matches = ranges.end >= ranges.start
    if not matches.any():
        raise NoDataError(
            f"{trace.path}: no closed NVTX range matches --range-nvtx {pattern!r}; `attrib info` counts them"
        )
    if not len(api.start):
        raise NoDataError(f"{trace.path}: it has no API rows, so launches cannot be assigned to NVTX ranges")
    inside = np.zeros(len(api.start), bool)
    for process in np.unique(api.process):
        calls = np.flatnonzero(api.process == process)
        inside[calls] = _covered(
            api.start[calls], ranges, matches & ((ranges.process == process) | (ranges.process < 0))
        )
    calls = np.flatnonzero(inside)
    issued = np.unique(np.rec.fromarrays([api.process[calls], api.correlation[calls]]))
    mine = np.rec.fromarrays([kernels.processes[kernels.process], kernels.correlation])
    if not len(issued):
        return np.zeros(len(mine), bool)
    at = np.minimum(np.searchsorted(issued, mine), len(issued) - 1)
    found: NDArray[np.bool_] = np.asarray(issued[at] == mine)
    return found


def _covered(times: NDArray[np.int64], ranges: Ranges, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each time lies in the union of the wanted ranges, which are sorted by start; an end is outside."""
    begin = ranges.start[wanted]
    if not len(begin):
        return np.zeros(len(times), bool)
    latest = np.maximum.accumulate(ranges.end[wanted])
    before = np.searchsorted(begin, times, "right")
    return (before > 0) & (times < latest[np.maximum(before - 1, 0)])
