"""Where slices lie: lanes without overlap, gaps between launches, bounds of layers. Pure arithmetic on ns."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def lanes(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) lane of each interval, in any order, such that no two of a lane overlap and as few lanes as can be.

    Intervals are taken by (start, end) and each gets the lowest lane that is free (interval partitioning, which
    needs as many lanes as intervals overlap at most). An interval that begins where another ends may follow it.
    """
    found = np.empty(len(start), np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    used = 0
    begins, ends = start.tolist(), end.tolist()
    for i in np.lexsort((end, start)).tolist():
        while busy and busy[0][0] <= begins[i]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        found[i] = lane
        heapq.heappush(busy, (ends[i], lane))
    return found


def gaps(start: NDArray[np.int64], end: NDArray[np.int64]) -> list[tuple[int, int]]:
    """(begin, end) of every time between the first start and the last end that no interval covers."""
    order = np.lexsort((end, start))
    begin, latest = start[order][1:], np.maximum.accumulate(end[order])[:-1]
    idle = begin > latest
    return list(zip(latest[idle].tolist(), begin[idle].tolist(), strict=True))


@dataclass(frozen=True)
class LayerBounds:
    """`begin` and `end` have shape (steps, layers), in ns; `nbytes` are a layer's weight bytes."""

    layer: list[int]
    nbytes: list[float]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]


def layer_bounds(
    layer: NDArray[np.int64], weight_bytes: NDArray[np.float64], start: NDArray[np.int64], end: NDArray[np.int64]
) -> LayerBounds | None:
    """Each layer from its first weight launch to the next layer's; the last to the end of its last launch.

    `layer` and `weight_bytes` are per position, times (steps, positions). None where no launch is known to be of a
    layer and to stream weights.
    """
    streams = np.isfinite(weight_bytes) & (layer >= 0)
    if not streams.any():
        return None
    numbers = np.unique(layer[streams])
    first = np.array([np.flatnonzero(streams & (layer == number))[0] for number in numbers])
    order = np.argsort(first)  # of the step: a model may run its layers in any order
    numbers, first = numbers[order], first[order]
    begin = np.maximum.accumulate(start[:, first], axis=1)  # an overlapped start never precedes its layer's predecessor
    finish = np.empty_like(begin)
    finish[:, :-1] = begin[:, 1:]
    finish[:, -1] = np.maximum(end[:, layer == numbers[-1]].max(axis=1), begin[:, -1])
    nbytes = [float(weight_bytes[streams & (layer == number)].sum()) for number in numbers]
    return LayerBounds(numbers.tolist(), nbytes, begin, finish)
