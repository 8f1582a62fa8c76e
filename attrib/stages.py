"""Times a persistent kernel wrote of itself: `stages.json` beside the manifest, and its launch divided by them.

A kernel that runs a whole step is one launch in a trace. Each of its blocks reads the GPU's global timer at every
grid-wide dependency; the engine's traced run writes what the blocks say together, one entry a replay.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attrib.columns import KernelColumns
from attrib.errors import JoinError
from attrib.files import read_text
from attrib.manifest import Launch
from attrib.words import counted

SCHEMA = "attrib.stages/1"
TOLERANCE = 0.05
"""Stamps that add up to a duration further than this from the traced one are scaled to it, with a warning."""
BEYOND = 2
"""Stamps that add up to more than so many times the traced duration, or to less than that part, are of another run."""
MOST_NS = 10**15  # eleven days: no kernel runs longer, and float64 still holds it exactly


@dataclass(frozen=True)
class Stamps:
    """What the kernel of graph node `node` wrote; arrays of shape (replays, stages), ns."""

    path: Path
    node: int
    end: NDArray[np.int64]
    """from the kernel's first stamp to the last block's end of the stage; nondecreasing along a replay"""
    wait: NDArray[np.int64]
    """mean over blocks of the wait at the dependency in front of the stage"""

    @property
    def tick(self) -> int:
        """The greatest step in ns that the stamps are whole multiples of: how finely the timer counts."""
        return int(np.gcd.reduce(self.end, axis=None))


@dataclass(frozen=True)
class Timeline:
    """Steps with one launch divided into stages; a position is a stage or a whole launch, in node order."""

    node: int
    launch: NDArray[np.int64]
    """(positions,) the launch of the step each belongs to"""
    start: NDArray[np.int64]
    """(steps, positions) ns, as `end`"""
    end: NDArray[np.int64]
    wait: NDArray[np.float64]
    """(steps, positions) ns; 0 outside the stages"""
    off: NDArray[np.float64]
    """(steps scaled,) stamped over traced duration where they differ by more than TOLERANCE"""

    @property
    def staged(self) -> NDArray[np.bool_]:
        """(positions,) whether it is a stage."""
        found: NDArray[np.bool_] = self.launch == self.node
        return found

    def warnings(self, kernel: str) -> tuple[str, ...]:
        """What was done to the stamps of the kernel of this name, if anything."""
        if not len(self.off):
            return ()
        return (
            f"in {len(self.off)} of {counted(len(self.start), 'step')} the stamps of {kernel} reach over "
            f"{self.off.min():.3f} to {self.off.max():.3f} of its traced duration, more than {100 * TOLERANCE:.0f} % "
            "off; they were scaled to it, so shares are the kernel's own and times are not",
        )


@dataclass(frozen=True)
class Summary:
    """The stages of one kernel in a step; seconds are medians over steps."""

    kernel: str
    sites: int
    stages: int
    seconds: float
    waiting: float
    tick: int
    """ns"""

    def to_json(self) -> dict[str, Any]:
        """Fields with their units."""
        return {
            "kernel": self.kernel,
            "sites": self.sites,
            "stages": self.stages,
            "ms": self.seconds * 1e3,
            "waiting_ms": self.waiting * 1e3,
            "timer_tick_ns": self.tick,
        }

    def describe(self) -> str:
        """The note under a table whose rows are stages."""
        who, what = counted(self.sites, "site is", "sites are"), counted(self.stages, "stage")
        tick = f", ticks of {self.tick} ns" if self.tick > 1 else ""
        share = f" ({100 * self.waiting / self.seconds:.1f} %)" if self.seconds else ""
        return (
            f"{who} {what} of one kernel, {self.kernel}, timed by the kernel itself (globaltimer{tick}): "
            f"{self.seconds * 1e3:.3f} ms a step, of it waiting at dependencies {self.waiting * 1e3:.3f} ms{share}, "
            "mean over blocks"
        )


def load(path: Path) -> Stamps:
    """Read stamps; raises JoinError naming the file and what is missing or wrong in it."""
    try:
        document = json.loads(read_text(path))
    except OSError as error:
        raise JoinError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise JoinError(f"{path} is not JSON: {error}") from error
    found = document.get("schema") if isinstance(document, dict) else type(document).__name__
    if found != SCHEMA:
        raise JoinError(f"{path} has schema {found!r}; this version reads {SCHEMA!r}")
    try:
        stages = _whole(document, "stages")
        _whole(document, "sms")
        replays = document.get("replays")
        if not isinstance(replays, list) or not replays:
            raise ValueError("replays is no list of at least one replay")
        if not stages:
            raise ValueError("stages is 0")
        ends = [_times(replay, place, "end_ns", stages) for place, replay in enumerate(replays)]
        waits = [_times(replay, place, "wait_ns", stages) for place, replay in enumerate(replays)]
        stamps = Stamps(path, _whole(document, "node"), np.array(ends, np.int64), np.array(waits, np.int64))
    except ValueError as error:
        raise JoinError(f"{path} has a missing or wrong field: {error}") from error
    _check_order(stamps)
    _check_waits(stamps)
    return stamps


def _whole(fields: dict[str, Any], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or not 0 <= value <= MOST_NS:
        raise ValueError(f"{key} is {str(value)[:40]}, not a whole number from 0 to {MOST_NS:.0e}")
    return value


def _times(replay: object, place: int, key: str, stages: int) -> list[int]:
    times = replay.get(key) if isinstance(replay, dict) else None
    if not isinstance(times, list) or len(times) != stages:
        held = f"{len(times)} times" if isinstance(times, list) else "no list of times"
        raise ValueError(f"{key} of replay {place} has {held}, not {stages}")
    for stage, value in enumerate(times):
        if type(value) is not int or not 0 <= value <= MOST_NS:
            raise ValueError(f"{key} of replay {place}, stage {stage} is {str(value)[:40]}, not ns from 0 on")
    return times


def _check_order(stamps: Stamps) -> None:
    if (silent := np.flatnonzero(stamps.end[:, -1] == 0)).size:
        raise JoinError(f"{stamps.path}: all stamps of replay {silent[0]} are 0, so the kernel wrote none")
    early = np.argwhere(np.diff(stamps.end, axis=1) < 0)
    if len(early):
        replay, stage = early[0]
        raise JoinError(f"{stamps.path}: stage {stage + 1} of replay {replay} ends before stage {stage}")


def _check_waits(stamps: Stamps) -> None:
    """A block waits between the first stamp and its stage's end, for one dependency at a time.

    One that was done early waits longer than the next stage lasts, so that is no bound.
    """
    longer = np.argwhere(stamps.wait > stamps.end)
    if len(longer):
        replay, stage = longer[0]
        raise JoinError(
            f"{stamps.path}: blocks waited {stamps.wait[replay, stage]} ns for stage {stage} of replay {replay}, which "
            f"ends {stamps.end[replay, stage]} ns after the kernel's first stamp"
        )
    waited, last, stages = stamps.wait.sum(axis=1), stamps.end[:, -1], stamps.end.shape[1]
    over = np.flatnonzero(waited > last + stages)  # each is rounded to a whole ns
    if over.size:
        replay = over[0]
        raise JoinError(
            f"{stamps.path}: the waits of replay {replay} add up to {waited[replay]} ns, more than the {last[replay]} "
            "ns from its first stamp to its last"
        )


def check(stamps: Stamps, nodes: Sequence[Launch]) -> None:
    """Raise JoinError where the stamps are not of the stages that the manifest's graph lists."""
    described = [node.i for node in nodes if node.stages]
    if stamps.node not in described:
        raise JoinError(
            f"{stamps.path} has stamps of node {stamps.node} and the manifest stages of {described}; "
            "they are not from the same run"
        )
    listed = len(nodes[stamps.node].stages)
    if stamps.end.shape[1] != listed:
        raise JoinError(
            f"{stamps.path} has stamps of {counted(stamps.end.shape[1], 'stage')} and the manifest lists {listed} in "
            f"node {stamps.node}; they are not from the same run"
        )


def replay_of(stamps: Stamps, place: NDArray[np.int64], of: int) -> NDArray[np.int64]:
    """(steps,) the stamped replay each step is, -1 for none.

    `place` (steps,) is a step's place among the `of` replays in the trace, -1 where it has none. The traced steps
    come last in a run, so both are counted from their ends. Raises JoinError when no step was stamped.
    """
    replay = np.where(place < 0, -1, place - of + len(stamps.end))
    if not np.any(replay >= 0):
        raise JoinError(
            f"{stamps.path} is of the last {len(stamps.end)} of {counted(of, 'replay')} in the trace and no step "
            "kept is among them, so they cannot be matched; record again"
        )
    return np.maximum(replay, -1)


def divide(start: NDArray[np.int64], end: NDArray[np.int64], stamps: Stamps, replay: NDArray[np.int64]) -> Timeline:
    """Divide launch `stamps.node` of each step, launches of shape (steps, launches), by its replay's stamps.

    Stage k reaches from the end of stage k − 1 to its own stamp after the start of the kernel. The first begins and
    the last ends with the kernel, so what the trace adds before the first stamp and after the last is theirs. Raises
    JoinError where the stamps of a step are so far from its traced duration that they are not of this run.
    """
    node, stages = stamps.node, stamps.end.shape[1]
    counts = np.ones(start.shape[1], np.int64)
    counts[node] = stages
    launch = np.repeat(np.arange(start.shape[1]), counts)
    inside = slice(node, node + stages)
    duration = (end - start)[:, node, None]
    stamped = stamps.end[replay]
    total = stamped[:, -1:]
    strange = np.flatnonzero((total > BEYOND * duration) | (BEYOND * total < duration))
    if strange.size:
        step = strange[0]
        raise JoinError(
            f"{stamps.path} has stamps over {total[step, 0]} ns of a replay whose kernel ran {duration[step, 0]} ns in "
            "the trace; they are not from the same run"
        )
    off = np.abs(total - duration) > TOLERANCE * duration
    scale = np.where(off, duration / total, 1.0)
    reached = np.minimum(np.rint(stamped * scale).astype(np.int64), duration)
    reached[:, -1:] = duration
    waits = np.zeros((len(start), len(launch)))
    divided = Timeline(node, launch, start[:, launch], end[:, launch], waits, (total / np.maximum(duration, 1))[off])
    divided.end[:, inside] = start[:, node, None] + reached
    divided.start[:, inside][:, 1:] = divided.end[:, inside][:, :-1]
    divided.wait[:, inside] = stamps.wait[replay] * scale
    return divided


def columns(
    kernels: KernelColumns, rows: NDArray[np.int64], found: Timeline
) -> tuple[KernelColumns, NDArray[np.int64]]:
    """The kernel columns with a row for each stage in place of the divided launch, and the (steps, positions) rows.

    `rows` (steps, launches) are the rows of the steps in `kernels`. A stage has everything of its kernel but the times.
    """
    whole, stages = rows[:, found.node], int(np.count_nonzero(found.staged))
    kept = np.delete(np.arange(len(kernels.start)), whole)
    source = np.concatenate((kept, np.repeat(whole, stages)))
    start, end = (
        np.concatenate((column[kept], times[:, found.staged].ravel()))
        for column, times in ((kernels.start, found.start), (kernels.end, found.end))
    )
    order = np.lexsort((end, start))
    names = ("device", "process", "stream", "correlation", "node", "variant")
    others = {name: getattr(kernels, name)[source[order]] for name in names}
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    before = np.zeros(len(kernels.start), np.int64)
    before[kept] = np.arange(len(kept))
    divided = before[rows][:, found.launch]
    divided[:, found.staged] = len(kept) + np.arange(len(rows) * stages).reshape(len(rows), stages)
    return replace(kernels, start=start[order], end=end[order], **others), place[divided]
