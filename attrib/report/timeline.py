"""One median step as launches on lanes: what a timeline draws, in integer ns from the step's begin.

A stage of a persistent kernel that timed itself counts as a launch here, as it does in an attribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attrib.attribution import Attribution

MOST_LAUNCHES = 20_000
"""More launches than this make a page slow to open; a whole trace is cut there and says so."""


@dataclass(frozen=True)
class Timeline:
    """Launches of one step in start order; arrays of shape (launches,), times in ns from the step's begin.

    `exclusive` and `idle` are the ledger: together they add up to `span` where no launch was `omitted`. `lane` tells
    overlapping launches of a stream apart, `row` numbers (stream, lane) from the top. `idle` and `copies` have one
    (start, length) a row.
    """

    step: int
    steps: int
    span: int
    omitted: int
    start: NDArray[np.int64]
    duration: NDArray[np.int64]
    exclusive: NDArray[np.int64]
    site: NDArray[np.int64]
    """index into the traffic's sites"""
    layer: NDArray[np.int64]
    stream: NDArray[np.int64]
    lane: NDArray[np.int64]
    variant: NDArray[np.int64]
    """index into the trace's kernel variants"""
    weight_bytes: NDArray[np.float64]
    kv_bytes: NDArray[np.float64]
    wait: NDArray[np.float64]
    """mean wait of a persistent kernel's blocks in front of a stage; NaN for launches"""
    idle: NDArray[np.int64]
    copies: NDArray[np.int64]

    def to_json(self, variants: dict[int, int]) -> dict[str, Any]:
        """Columns by name; `variants` renumbers kernel variants to places in the page's list of them."""
        streams = [int(stream) for stream in np.unique(self.stream)]
        return {
            "step": self.step,
            "steps": self.steps,
            "span_ns": self.span,
            "omitted": self.omitted,
            "streams": [
                {"stream": stream, "lanes": int(self.lane[self.stream == stream].max()) + 1} for stream in streams
            ],
            "start_ns": self.start.tolist(),
            "duration_ns": self.duration.tolist(),
            "exclusive_ns": self.exclusive.tolist(),
            "site": self.site.tolist(),
            "layer": self.layer.tolist(),
            "stream": np.searchsorted(streams, self.stream).tolist(),
            "lane": self.lane.tolist(),
            "variant": [variants[int(v)] for v in self.variant],
            "weight_bytes": _counts(self.weight_bytes),
            "kv_bytes": _counts(self.kv_bytes),
            "wait_ns": _counts(self.wait) if np.isfinite(self.wait).any() else None,
            "idle_ns": self.idle.tolist(),
            "copies_ns": self.copies.tolist(),
        }


def timeline(attribution: Attribution, most: int = MOST_LAUNCHES) -> Timeline:
    """The step whose span is nearest the median, at most `most` launches of it."""
    kernels, ledger, traffic = attribution.trace.kernels, attribution.ledger, attribution.traffic
    chosen = int(np.argmin(np.abs(ledger.span - np.median(ledger.span))))
    rows = attribution.steps.rows[chosen]
    order = np.lexsort((kernels.end[rows], kernels.start[rows]))
    kept = order[:most]
    rows = rows[kept]
    begin = int(kernels.start[rows[0]])
    start, end = kernels.start[rows] - begin, kernels.end[rows] - begin
    stream = kernels.stream[rows].astype(np.int64)
    lane = np.zeros(len(rows), np.int64)
    for number in np.unique(stream):
        mine = stream == number
        lane[mine] = lanes(start[mine], end[mine])
    return Timeline(
        step=chosen,
        steps=attribution.steps.count,
        span=int(end.max()),
        omitted=len(order) - len(kept),
        start=start,
        duration=end - start,
        exclusive=ledger.exclusive[chosen][kept],
        site=traffic.site[kept],
        layer=traffic.layer[kept],
        stream=stream,
        lane=lane,
        variant=kernels.variant[rows].astype(np.int64),
        weight_bytes=traffic.weight_bytes[kept],
        kv_bytes=traffic.kv_bytes[kept],
        wait=np.where(attribution.staged, attribution.waiting[chosen], np.nan)[kept],
        idle=gaps(start, end),
        copies=_copies(attribution, begin, int(end.max())),
    )


def lanes(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """(launches,) lowest lane that is free at each launch, for launches in start order: lanes never overlap."""
    free: list[int] = []
    found = np.empty(len(start), np.int64)
    for i, (first, last) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        lane = next((n for n, until in enumerate(free) if until <= first), len(free))
        free[lane : lane + 1] = [last]
        found[i] = lane
    return found


def gaps(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """(gaps, 2) start and length of the times between launches in start order that no launch covers."""
    latest = np.maximum.accumulate(end)[:-1]
    length = start[1:] - latest
    idle = length > 0
    return np.stack((latest[idle], length[idle]), axis=1)


def _copies(attribution: Attribution, begin: int, span: int) -> NDArray[np.int64]:
    """(copies, 2) start and length of this process's memory copies and sets that lie in the step, cut to it."""
    copies, steps = attribution.trace.copies, attribution.steps
    mine = (copies.device == steps.device) & ((copies.process == steps.process) | (copies.process < 0))
    start, end = (np.clip(times[mine] - begin, 0, span) for times in (copies.start, copies.end))
    inside = end > start
    return np.stack((start[inside], end[inside] - start[inside]), axis=1)[:MOST_LAUNCHES]


def _counts(values: NDArray[np.float64]) -> list[int | None]:
    return [int(value) if np.isfinite(value) else None for value in values]
