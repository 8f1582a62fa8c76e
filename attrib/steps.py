"""Launches cut into decode steps, and what was left out with the reason.

A step is one replay of the decode graph, the launches of one NVTX range, or one period of a repeating launch
pattern. All steps kept have the same sequence of launches, so position p means the same launch in each of them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from attrib.columns import KernelColumns
from attrib.errors import NoDataError, RefusedError
from attrib.nvtx import common_texts, matching_ranges, steps_of_calls
from attrib.periods import MIN_REPEATS, longest_repetition
from attrib.replays import GRAPH_SHIFT, NODE_MASK, Replays, choose
from attrib.rowgroups import Groups, group, signatures, take
from attrib.trace import PID_MASK, PID_SHIFT, Trace
from attrib.words import counted

HOUR_NS = 3_600_000_000_000
NO_DEVICE = (1 << 32) - 1
"""Device -1, which an export that does not say has, in the low half of a (process, device) code."""
SLOW_FIRST = 3.0
"""A leading step this many times slower than the median is warm-up."""
SOURCES = ("auto", "graph", "pattern", "whole")


@dataclass(frozen=True)
class Steps:
    """Steps of one device. `rows[s, p]` is the kernel row of position p in step s, positions in node order."""

    source: str
    rows: NDArray[np.int64]
    device: int
    process: int
    graphs: tuple[int, ...] = ()
    excluded: dict[str, int] = field(default_factory=dict)
    outside: int = 0
    warnings: tuple[str, ...] = ()
    place: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    """(steps,) place in time among all `of` steps of this source in the trace, kept or not; joins records of the run"""
    of: int = 1
    variant: NDArray[np.int32] | None = None
    """(positions,) kernel variant of each position; None where the kernel rows are at hand for that"""

    @property
    def count(self) -> int:
        """Number of steps kept; 1 for a whole-trace census."""
        return int(self.rows.shape[0])

    @property
    def launches(self) -> int:
        """Launches per step; a stage of a divided kernel counts as one."""
        return int(self.rows.shape[1])


def find_steps(
    trace: Trace,
    nvtx: str | None = None,
    graph: int | None = None,
    device: int | None = None,
    process: int | None = None,
    source: str = "auto",
) -> Steps:
    """Cut a trace into steps: `nvtx` ranges when a pattern is given, else graph replays, else a repeating pattern.

    A trace without steps gives one step that holds every launch of the device, with a warning that says so.
    Raises NoDataError when a given pattern, graph, device or process (its pid) matches nothing.
    """
    if source not in SOURCES:
        raise RefusedError(f"--steps {source!r} is not one of {', '.join(SOURCES)}")
    kernels = trace.kernels
    excluded: Counter[str] = Counter()
    warnings: list[str] = []
    good = believable(trace, excluded)
    usable = np.arange(len(good)) if good.all() else np.flatnonzero(good)
    usable = _one_gpu(kernels, usable, device, process, warnings)
    chosen_device = int(kernels.device[usable[0]])
    warnings += common_warnings(trace, len(usable), graphs=bool(np.any(take(kernels.node, usable) >= 0)))

    found: Steps | None = None
    if nvtx is not None:
        found = _nvtx_steps(trace, usable, nvtx, excluded)
    elif source in ("auto", "graph") or graph is not None:
        found = _graph_steps(kernels, usable, graph, excluded, warnings)
        if found is None and (source == "graph" or graph is not None):
            wanted = f"graph {graph}" if graph is not None else "any CUDA graph"
            raise NoDataError(f"{trace.path} has no replay of {wanted} on device {chosen_device}")
    if found is None and source in ("auto", "pattern") and nvtx is None:
        found = _pattern_steps(kernels, usable)
        if found is None and source == "pattern":
            raise NoDataError(f"{trace.path} has no launch pattern that repeats {MIN_REPEATS} times")
    if found is None:
        found = Steps("whole trace", usable[None, :], 0, 0)
        if source == "auto":
            warnings.append("no steps found (no graph replay, no repeating pattern): numbers are for the whole trace")
    rows = _drop_slow_first(kernels, found.rows, excluded)
    kept_rows = rows.size
    return Steps(
        source=found.source,
        rows=rows,
        device=chosen_device,
        process=int(kernels.processes[kernels.process[rows[0, 0]]]),
        graphs=found.graphs,
        excluded=dict(excluded),
        outside=len(usable) - kept_rows,
        warnings=(*warnings, *found.warnings),
        place=found.place[len(found.place) - len(rows) :],
        of=found.of,
    )


def common_warnings(trace: Trace, usable: int, graphs: bool) -> list[str]:
    """What to know of a trace however it is cut; `usable` of its launches are, and `graphs` says if any is a node's."""
    warnings = []
    if trace.names.missing:
        have = counted(trace.names.missing, "kernel variant has", "kernel variants have")
        warnings.append(f"{have} a name id that StringIds lacks; shown by id")
    created = trace.created_nodes()
    if usable < created and not graphs:
        warnings.append(
            f"incomplete capture: {counted(created, 'graph node was', 'graph nodes were')} created and "
            f"{counted(usable, 'kernel')} recorded; "
            "record again with an nsys that knows this driver"
        )
    if trace.graph_mode() == "graph" and trace.count("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
        warnings.append("graph launches were traced as a whole and are missing; use --cuda-graph-trace=node")
    return warnings


def step_variants(trace: Trace, steps: Steps) -> NDArray[np.int32]:
    """(positions,) kernel variant of each position of a step."""
    return trace.kernels.variant[steps.rows[0]] if steps.variant is None else steps.variant


def unbelievable(
    start: NDArray[np.int64], end: NDArray[np.int64], first_api_ns: int | None
) -> dict[str, NDArray[np.bool_]]:
    """By reason, which of some launches (in start order) have times that cannot be."""
    reasons = {
        "launch without timestamps": (start == 0) & (end == 0),
        "launch that ends before it starts": end < start,
    }
    if start[0] < 0 or end.max() - max(int(start[0]), 0) > HOUR_NS:
        reasons["launch with a time before 0 or longer than an hour"] = (start < 0) | (end - HOUR_NS > start)
    if first_api_ns is not None:
        reasons["launch before the first API call"] = start < first_api_ns
    return reasons


def believable(trace: Trace, excluded: Counter[str]) -> NDArray[np.bool_]:
    """Which launches have times that can be; the others are counted by reason. Raises NoDataError when none has."""
    start, end = trace.kernels.start, trace.kernels.end
    good = np.ones(len(start), bool)
    for reason, bad in unbelievable(start, end, trace.first_api_ns).items():
        number = int(np.count_nonzero(bad & good))
        if number:
            excluded[reason] += number
            good &= ~bad
    if not good.any():
        listed = ", ".join(f"{number} × {reason}" for reason, number in excluded.items())
        raise NoDataError(f"{trace.path}: of {counted(len(start), 'launch')} none has usable timestamps ({listed})")
    return good


def _one_gpu(
    kernels: KernelColumns,
    usable: NDArray[np.int64],
    device: int | None,
    process: int | None,
    warnings: list[str],
) -> NDArray[np.int64]:
    """Keep the launches of one process on one device: what is asked for, else the busiest pair.

    CUDA numbers devices per process, so the same ordinal in two processes can be two GPUs; and two processes on
    one GPU each have steps of their own. Nothing is ever pooled.
    """
    pid = (kernels.processes >> PID_SHIFT) & PID_MASK
    wanted = np.ones(len(usable), bool)
    if device is not None:
        wanted &= kernels.device[usable] == device
    if process is not None:
        wanted &= pid[kernels.process[usable]] == process
    if not wanted.any():
        raise NoDataError(
            f"no launch ran on device {device if device is not None else 'any'} in process "
            f"{process if process is not None else 'any'}; the trace has devices "
            f"{np.unique(kernels.device[usable]).tolist()} and processes {pid.tolist()}"
        )
    usable = usable if wanted.all() else usable[wanted]
    owner, gpu = take(kernels.process, usable), take(kernels.device, usable)
    if not np.any(owner != owner[0]) and not np.any(gpu != gpu[0]):
        return usable
    code = owner.astype(np.int64) << GRAPH_SHIFT | gpu.astype(np.int64) & NO_DEVICE
    pairs, pair = np.unique(code, return_inverse=True)
    busy = np.bincount(pair, weights=kernels.end[usable] - kernels.start[usable])
    best = int(np.argmax(busy))
    found = [(int(pid[p >> GRAPH_SHIFT]), -1 if p & NO_DEVICE == NO_DEVICE else p & NO_DEVICE) for p in pairs.tolist()]
    listed = ", ".join(f"device {d} of process {p}" for p, d in found)
    warnings.append(
        f"launches on {listed}; this is device {found[best][1]} of process {found[best][0]}, "
        "choose with --device and --process"
    )
    chosen: NDArray[np.int64] = usable[pair == best]
    return chosen


def _graph_steps(
    kernels: KernelColumns,
    usable: NDArray[np.int64],
    graph: int | None,
    excluded: Counter[str],
    warnings: list[str],
) -> Steps | None:
    """Replays that `choose` takes for steps.

    A replay is the launches with one (globalPid, correlationId, exec graph); correlation ids repeat across
    processes.
    """
    inside = take(kernels.node, usable) >= 0
    rows = usable if inside.all() else usable[inside]
    del inside  # the next arrays are as long as the trace
    if not len(rows):
        return None
    groups = group(
        rows, (take(kernels.process, rows), take(kernels.correlation, rows), take(kernels.node, rows) >> GRAPH_SHIFT)
    )
    index = take(kernels.node, groups.rows) & NODE_MASK
    signature = signatures(groups, index, kernels.variant)
    calls, last = groups.rows[groups.begin[:-1]], groups.rows[groups.begin[1:] - 1]
    replays = Replays(
        executable=kernels.node[calls] >> GRAPH_SHIFT,
        signature=signature,
        size=groups.sizes(),
        start=kernels.start[calls],
        span=kernels.end[last] - kernels.start[calls],
        correlation=kernels.correlation[calls],
        process=kernels.process[calls].astype(np.int64),
    )
    chosen = choose(replays, graph, excluded, warnings)
    if chosen is None:
        return None
    matrix = groups.matrix(chosen.index, int(replays.size[chosen.index[0]]))
    return Steps(
        "graph replays", _by_node(kernels, matrix), 0, 0, graphs=chosen.graphs, place=chosen.place, of=chosen.of
    )


def _by_node(kernels: KernelColumns, matrix: NDArray[np.int64]) -> NDArray[np.int64]:
    """Order each step by node, so that a position means the same launch where overlap swapped two of them."""
    node = take(kernels.node, matrix.ravel()).reshape(matrix.shape)
    if np.all(node[:, 1:] >= node[:, :-1]):
        return matrix
    return np.take_along_axis(matrix, np.argsort(node, axis=1, kind="stable"), axis=1)


def _nvtx_steps(trace: Trace, usable: NDArray[np.int64], pattern: str, excluded: Counter[str]) -> Steps:
    """Launches whose API call started inside an outermost matching range of the same process."""
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise NoDataError(f"--step-nvtx {pattern!r} is not a regular expression: {error}") from error
    kernels, ranges, api = trace.kernels, matching_ranges(trace, regex), trace.api()
    if not len(ranges.start):
        raise NoDataError(f"no NVTX range matches {pattern!r}; the trace has {common_texts(trace)}")
    if not len(api.start):
        raise NoDataError("the trace has no API rows, so launches cannot be assigned to NVTX ranges")
    owner = int(kernels.processes[kernels.process[usable[0]]])
    step_of_call, step = steps_of_calls(ranges, api, owner, excluded)
    keys = np.rec.fromarrays([api.process, api.correlation])
    order = np.argsort(keys, kind="stable")
    mine = np.rec.fromarrays([kernels.processes[kernels.process[usable]], kernels.correlation[usable]])
    at = np.minimum(np.searchsorted(keys[order], mine), len(order) - 1)
    joined = keys[order][at] == mine
    steps = np.where(joined, step_of_call[order][at], -1)
    rows = usable[steps >= 0]
    if not len(rows):
        raise NoDataError(f"no launch was issued inside the NVTX ranges that match {pattern!r}")
    groups = group(rows, (steps[steps >= 0],))
    empty = step - len(groups.sizes())
    if empty:
        excluded["NVTX range without launches"] += empty
    return _same_sequence(kernels, groups, f"NVTX {pattern}", excluded)


def _same_sequence(kernels: KernelColumns, groups: Groups, source: str, excluded: Counter[str]) -> Steps:
    """Keep the largest family of groups with the same launches in the same order."""
    place = np.arange(len(groups.rows)) - np.repeat(groups.begin[:-1], groups.sizes())
    signature = signatures(groups, place, kernels.variant)
    families, counts = np.unique(signature, return_counts=True)
    chosen = np.flatnonzero(signature == families[np.argmax(counts)])
    others = len(signature) - len(chosen)
    warnings: tuple[str, ...] = ()
    if others:
        excluded["step with other launches"] += others
        if others > len(chosen):
            warnings = (f"only {len(chosen)} of {counted(len(signature), 'step')} have the same launches",)
    rows = groups.matrix(chosen, int(groups.sizes()[chosen[0]]))
    return Steps(source, rows, 0, 0, warnings=warnings, place=chosen, of=len(signature))


def _pattern_steps(kernels: KernelColumns, usable: NDArray[np.int64]) -> Steps | None:
    """Repeats of the launch pattern that covers the most launches, begun where the largest idle gap precedes it."""
    found = longest_repetition(take(kernels.variant, usable))
    if found is None or found.length < len(usable) // 4:
        return None
    rows = usable[found.begin : found.begin + found.length]
    gap = np.zeros(len(rows), np.int64)
    gap[1:] = kernels.start[rows[1:]] - np.maximum.accumulate(kernels.end[rows])[:-1]
    whole = found.length - found.length % found.period
    phase = int(np.argmax(np.median(gap[found.period : whole].reshape(-1, found.period), axis=0)))
    repeats = (len(rows) - phase) // found.period
    rows = rows[phase : phase + repeats * found.period]
    place = np.arange(repeats)
    return Steps("launch pattern", rows.reshape(repeats, found.period), 0, 0, place=place, of=repeats)


def _drop_slow_first(kernels: KernelColumns, rows: NDArray[np.int64], excluded: Counter[str]) -> NDArray[np.int64]:
    """Drop leading steps many times slower than the median: they are warm-up, not decode."""
    if len(rows) < MIN_REPEATS:
        return rows
    end, start = (take(column, rows.ravel()).reshape(rows.shape) for column in (kernels.end, kernels.start))
    spans = end.max(axis=1) - start.min(axis=1)
    return rows[slow_first(spans, excluded) :]


def slow_first(spans: NDArray[np.int64], excluded: Counter[str]) -> int:
    """How many leading steps are warm-up, by the (steps,) spans in ns; they are counted in `excluded`."""
    if len(spans) < MIN_REPEATS:
        return 0
    limit = SLOW_FIRST * float(np.median(spans))
    first = 0
    while first < len(spans) - 1 and spans[first] > limit:
        first += 1
    if first:
        excluded["slow first step"] += first
    return first
