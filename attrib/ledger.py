"""Where the time of a step went: exclusive time of each launch, idle time, and the proof that they add up.

Launches in start order: exclusive = max(0, end − max(start, latest end so far)); idle before a launch =
max(0, start − latest end so far). Their sum is the span of the step, to the nanosecond, whatever overlaps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attrib.rowgroups import take

NS = 1e-9
"""Seconds in a nanosecond, the unit of a ledger."""
BLOCK_LAUNCHES = 1 << 18
"""Launches handled at once: large enough for numpy, small enough to stay in cache and to add no memory."""


@dataclass(frozen=True)
class Ledger:
    """Times in ns. Arrays of shape (steps, launches) are in the positions of the input, not in start order."""

    duration: NDArray[np.int64]
    exclusive: NDArray[np.int64]
    span: NDArray[np.int64]
    """(steps,) first start to last end"""
    idle: NDArray[np.int64]
    """(steps,) time in the span that no launch covers"""
    begin: NDArray[np.int64]
    """(steps,) first start"""
    offset: NDArray[np.int64] | None = None
    """(steps, launches) start of each launch since its step's; None where the kernel rows are at hand for that"""

    @property
    def closure_ns(self) -> int:
        """Largest |Σ exclusive + Σ idle − span| over the steps; anything but 0 is a fault."""
        return int(np.abs(self.exclusive.sum(axis=1) + self.idle - self.span).max())

    def between_steps(self) -> NDArray[np.int64]:
        """(steps − 1,) time from the end of a step to the start of the next one kept; host work and readback."""
        return self.begin[1:] - (self.begin + self.span)[:-1]


def close_rows(start: NDArray[np.int64], end: NDArray[np.int64], rows: NDArray[np.int64]) -> Ledger:
    """Ledger of the steps whose launches are `rows` (steps, launches) of the columns `start` and `end`, in ns."""
    steps, launches = rows.shape
    each = max(BLOCK_LAUNCHES // launches, 1)
    found = Ledger(
        np.empty((steps, launches), np.int64), np.empty((steps, launches), np.int64),
        np.empty(steps, np.int64), np.empty(steps, np.int64), np.empty(steps, np.int64),
    )  # fmt: skip
    for first in range(0, steps, each):
        block = slice(first, first + each)
        closed = close(*(take(column, rows[block].ravel()).reshape(-1, launches) for column in (start, end)))
        for name in ("duration", "exclusive", "span", "idle", "begin"):
            getattr(found, name)[block] = getattr(closed, name)
    return found


def divide(
    whole: Ledger,
    finish: NDArray[np.int64],
    launch: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
) -> Ledger:
    """The ledger of launches that are divided into parts without gaps.

    `finish` (steps, launches) is when each launch of the ledger `whole` ended; part p is of launch `launch[p]` and
    reaches from `start` to `end` (steps, parts). The exclusive time of a launch is one interval that ends with it; a
    part has what of that lies inside it, so span, idle and closure are those of the whole launches.
    """
    own = (finish - whole.exclusive)[:, launch]
    exclusive = np.maximum(end - np.maximum(start, own), 0)
    return Ledger(end - start, exclusive, whole.span, whole.idle, whole.begin)


def close(start: NDArray[np.int64], end: NDArray[np.int64]) -> Ledger:
    """Ledger of steps given as (steps, launches) start and end times in ns, launches in any order."""
    order = None
    tied = start[:, 1:] == start[:, :-1]
    if not np.all((start[:, 1:] > start[:, :-1]) | (tied & (end[:, 1:] >= end[:, :-1]))):
        # ties by end, so that the order of the input never changes a number
        order = np.lexsort((end, start), axis=1)
        start = np.take_along_axis(start, order, axis=1)
        end = np.take_along_axis(end, order, axis=1)
    latest = np.maximum.accumulate(end, axis=1)
    before = np.empty_like(latest)
    before[:, 1:] = latest[:, :-1]
    before[:, 0] = start[:, 0]
    exclusive = np.maximum(end - np.maximum(start, before), 0)
    idle = np.maximum(start - before, 0).sum(axis=1)
    span = latest[:, -1] - start[:, 0]
    duration = end - start
    if order is not None:
        duration, exclusive = _restore(duration, order), _restore(exclusive, order)
    return Ledger(duration, exclusive, span, idle, start[:, 0].copy())


def idle_under_copies(
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    copy_start: NDArray[np.int64],
    copy_end: NDArray[np.int64],
) -> NDArray[np.int64]:
    """(steps,) ns of a step's idle time during which a memory copy or set ran: no launch covers it, yet the GPU worked.

    Launch times have shape (steps, launches) in any order, copy times shape (copies,) by start. It is the measure
    of the union of launches and copies, cut to the span, less that of the launches alone.
    """
    covered = np.zeros(len(start), np.int64)
    begin, finish = start.min(axis=1), end.max(axis=1)
    lo = np.searchsorted(np.maximum.accumulate(copy_end), begin, "right")
    hi = np.searchsorted(copy_start, finish, "left")
    for step in np.flatnonzero(lo < hi):
        copied = slice(lo[step], hi[step])
        first = np.concatenate((start[step], np.clip(copy_start[copied], begin[step], finish[step])))
        last = np.concatenate((end[step], np.clip(copy_end[copied], begin[step], finish[step])))
        both = close(first[None, :], last[None, :]).exclusive.sum()
        covered[step] = both - close(start[step : step + 1], end[step : step + 1]).exclusive.sum()
    return covered


def _restore(values: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    restored = np.empty_like(values)
    np.put_along_axis(restored, order, values, axis=1)
    return restored
