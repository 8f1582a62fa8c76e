"""Graph replays of a large trace with their ledger, read a batch of rows at a time.

A trace of millions of launches need not be in memory at once. Where its kernel table is as nsys writes it (in order
of start, one process on one device, the launches of a replay together), a replay can be closed as soon as its last
row has been read, and what is kept of a launch are four 32-bit numbers. `read` gives the same steps and ledger as
`find_steps` and `close_rows`; for a table that is not like that it gives None, and the whole table must be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from attrib.columns import KernelStream
from attrib.columns_pages import UnsupportedLayoutError
from attrib.ledger import Ledger, close
from attrib.replays import GRAPH_SHIFT, NODE_MASK, Replays, choose
from attrib.rowgroups import Groups, signatures
from attrib.steps import Steps, common_warnings, slow_first, unbelievable
from attrib.trace import Trace

BATCH_ROWS = 1 << 18
"""Rows handled at once: large enough for numpy, small enough to stay in cache and to add no memory."""
MOST_FAMILIES = 64
"""More kinds of replays than this are no decode steps, and each takes memory of its own."""
SLACK = 1.05
"""Replays a later part of the table may have beyond the share of an earlier one."""
NARROW = np.iinfo(np.int32).max
Columns = dict[str, NDArray[Any]]


class _OtherwiseError(Exception):
    """The table is not laid out as it must be to be read in batches."""


def read(trace: Trace, graph: int | None = None) -> tuple[Steps, Ledger] | None:
    """Steps that are graph replays, and their ledger with 32-bit times; None where the trace must be read whole.

    `graph` restricts the choice to one exec id.
    """
    stream = trace.kernel_stream()
    if stream is None:
        return None
    reading = _Reading(trace.first_api_ns)
    try:
        for part, batch in _batches(stream):
            reading.feed(batch, part)
        reading.finish()
    except (UnsupportedLayoutError, _OtherwiseError):
        return None
    rank, variants = stream.ranked_variants()
    trace.know_variants(variants)
    return reading.steps(trace, graph, rank, stream.processes())


def _batches(stream: KernelStream) -> Iterator[tuple[float, Columns]]:
    """The table in batches of about BATCH_ROWS rows, each with the part of the table read with it."""
    waiting: list[Mapping[str, NDArray[Any]]] = []
    rows, part = 0, 0.0
    for part, chunk in stream.chunks():
        waiting.append(chunk)
        rows += len(chunk["start"])
        if rows >= BATCH_ROWS:
            yield part, _joined(waiting)
            waiting, rows = [], 0
    if waiting:
        yield part, _joined(waiting)


def _joined(chunks: list[Mapping[str, NDArray[Any]]]) -> Columns:
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


@dataclass
class _Family:
    """Replays of one signature: per launch four 32-bit arrays, per replay its ledger and its place among all."""

    size: int
    variant: NDArray[np.int32]
    """(size,) codes, not yet ranked"""
    count: int = 0
    index: list[NDArray[np.int64]] = field(default_factory=list)
    span: list[NDArray[np.int64]] = field(default_factory=list)
    idle: list[NDArray[np.int64]] = field(default_factory=list)
    begin: list[NDArray[np.int64]] = field(default_factory=list)
    launches: dict[str, NDArray[np.int32]] = field(default_factory=dict)

    def extend(
        self, index: NDArray[np.int64], closed: Ledger, launches: Mapping[str, NDArray[np.int64]], part: float
    ) -> None:
        """Append replays; `part` of the table has been read with them, from which room for the rest is guessed."""
        before, self.count = self.count, self.count + len(index)
        self.index.append(index)
        for name in ("span", "idle", "begin"):
            getattr(self, name).append(getattr(closed, name))
        for name, values in launches.items():
            if values.max(initial=0) > NARROW:
                raise _OtherwiseError
            if name not in self.launches or self.count > len(self.launches[name]):
                # memory that is never touched costs nothing, so room for all is made at once
                grown = np.empty((int(self.count / part * SLACK) + 1, self.size), np.int32)
                grown[:before] = self.launches[name][:before] if before else 0
                self.launches[name] = grown
            self.launches[name][before : self.count] = values


class _Reading:
    """What has been read so far."""

    def __init__(self, first_api_ns: int | None) -> None:
        self._first_api_ns = first_api_ns
        self._rows = self._usable = self._replays = 0
        self._last = (-1, -1)
        self._owner: tuple[int, int] | None = None
        self._reasons: dict[str, int] = {}
        self._carry: Columns | None = None
        self._table: dict[str, list[NDArray[Any]]] = {
            name: [] for name in ("executable", "signature", "size", "start", "span", "correlation")
        }
        self._families: dict[int, _Family] = {}

    def feed(self, batch: Columns, part: float) -> None:
        """Take the next rows of the table."""
        self._check_order(batch)
        kept = self._believable(batch)
        if kept is not None:
            inside = kept["node"] >= 0
            self._take(kept if inside.all() else {name: c[inside] for name, c in kept.items()}, part, final=False)

    def finish(self) -> None:
        """Close the last replay."""
        if self._carry is not None:
            self._take({name: column[:0] for name, column in self._carry.items()}, 1.0, final=True)
        if not self._families:
            raise _OtherwiseError

    def _check_order(self, batch: Columns) -> None:
        start, end = batch["start"], batch["end"]
        before, after = start[:-1], start[1:]
        ordered = ((after > before) | ((after == before) & (end[1:] >= end[:-1]))).all()
        first = (int(start[0]), int(end[0]))
        if not ordered or (self._rows and first < self._last):
            raise _OtherwiseError
        self._last = (int(start[-1]), int(end[-1]))
        owner = (int(batch["device"][0]), int(batch["process"][0]))
        self._owner = self._owner or owner
        if owner != self._owner or (batch["device"] != owner[0]).any() or (batch["process"] != owner[1]).any():
            raise _OtherwiseError

    def _believable(self, batch: Columns) -> Columns | None:
        """The rows with believable times, numbered; None for none."""
        number = np.arange(self._rows, self._rows + len(batch["start"]))
        self._rows += len(number)
        if self._rows > NARROW:
            raise _OtherwiseError
        good = np.ones(len(number), bool)
        for reason, bad in unbelievable(batch["start"], batch["end"], self._first_api_ns).items():
            self._reasons[reason] = self._reasons.get(reason, 0) + int(np.count_nonzero(bad & good))
            good &= ~bad
        self._usable += int(np.count_nonzero(good))
        names = ("start", "end", "correlation", "node", "variant")
        columns = {name: batch[name] for name in names} | {"number": number}
        if good.all():
            return columns
        return {name: column[good] for name, column in columns.items()} if good.any() else None

    def _take(self, rows: Columns, part: float, final: bool) -> None:
        """Close the replays that end in these rows, the carried ones before them."""
        if self._carry is not None:
            rows = {name: np.concatenate((self._carry[name], column)) for name, column in rows.items()}
        correlation, executable = rows["correlation"], rows["node"] >> GRAPH_SHIFT
        if not len(correlation):
            return
        step = np.diff(correlation)
        hop = np.diff(executable)
        if ((step < 0) | ((step == 0) & (hop < 0))).any():
            raise _OtherwiseError  # launches of several replays are mixed
        edges = np.flatnonzero((step != 0) | (hop != 0)) + 1
        begin = np.concatenate(([0], edges, [len(correlation)]))
        if not final:
            last = int(begin[-2])
            self._carry = {name: column[last:].copy() for name, column in rows.items()}
            begin = begin[:-1]
        if len(begin) > 1:
            self._close(rows, executable, begin, part)

    def _close(self, rows: Columns, executable: NDArray[np.int64], begin: NDArray[np.int64], part: float) -> None:
        groups = Groups(np.arange(int(begin[-1])), begin)
        signature = signatures(groups, rows["node"][: begin[-1]] & NODE_MASK, rows["variant"])
        size, first = groups.sizes(), begin[:-1]
        table = {
            "executable": executable[first], "signature": signature, "size": size, "start": rows["start"][first],
            "span": rows["end"][begin[1:] - 1] - rows["start"][first], "correlation": rows["correlation"][first],
        }  # fmt: skip
        for name, values in table.items():
            self._table[name].append(values)
        for key in np.unique(signature).tolist():
            mine = np.flatnonzero(signature == key)
            place = groups.matrix(mine, int(size[mine[0]]))
            node = rows["node"][place]
            if np.any(node[:, 1:] < node[:, :-1]):
                # a position means the same launch where overlap swapped two of them
                place = np.take_along_axis(place, np.argsort(node, axis=1, kind="stable"), axis=1)
            start, end = rows["start"][place], rows["end"][place]
            closed = close(start, end)
            if key not in self._families:
                if len(self._families) == MOST_FAMILIES:
                    raise _OtherwiseError
                self._families[key] = _Family(place.shape[1], rows["variant"][place[0]])
            launches = {
                "rows": rows["number"][place],
                "offset": start - closed.begin[:, None],
                "duration": closed.duration,
                "exclusive": closed.exclusive,
            }
            self._families[key].extend(self._replays + mine, closed, launches, part)
        self._replays += len(size)

    def steps(
        self, trace: Trace, graph: int | None, rank: NDArray[np.int32], processes: NDArray[np.int64]
    ) -> tuple[Steps, Ledger] | None:
        """The replays that are steps, once all has been read."""
        owner = cast(tuple[int, int], self._owner)
        columns: dict[str, NDArray[Any]] = {name: np.concatenate(parts) for name, parts in self._table.items()}
        found = Replays(**columns, process=np.full(self._replays, owner[1]))
        excluded = Counter({reason: number for reason, number in self._reasons.items() if number})
        warnings = common_warnings(trace, self._usable, graphs=True)
        chosen = choose(found, graph, excluded, warnings)
        if chosen is None:
            return None
        family = self._families[int(found.signature[chosen.index[0]])]
        self._families.clear()
        index = np.concatenate(family.index)
        kept = (
            np.arange(family.count) if len(index) == len(chosen.index) else np.flatnonzero(np.isin(index, chosen.index))
        )
        span = np.concatenate(family.span)[kept]
        first = slow_first(span, excluded)
        kept = kept[first:]
        whole = len(kept) == family.count - int(kept[0])

        def launches(name: str) -> NDArray[np.int64]:
            # 32 bits, which numpy widens where it adds
            values = family.launches.pop(name)
            picked = values[int(kept[0]) : family.count] if whole else values[kept]
            return cast(NDArray[np.int64], picked)

        rows = launches("rows")
        ledger = Ledger(
            duration=launches("duration"),
            exclusive=launches("exclusive"),
            span=span[first:],
            idle=np.concatenate(family.idle)[kept],
            begin=np.concatenate(family.begin)[kept],
            offset=launches("offset"),
        )
        steps = Steps(
            source="graph replays",
            rows=rows,
            device=owner[0],
            process=int(processes[0]),
            graphs=chosen.graphs,
            excluded=dict(excluded),
            outside=self._usable - rows.size,
            warnings=tuple(warnings),
            place=chosen.place[first:],
            of=chosen.of,
            variant=rank[family.variant],
        )
        return steps, ledger
