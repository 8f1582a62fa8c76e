"""NVTX ranges by their text, without holding those that do not match, and the steps that they are.

A trace may have millions of ranges, so nothing here visits them one by one but SQLite.
"""

from __future__ import annotations

import re
import sqlite3
from array import array
from collections import Counter
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from attrib import schema as sch
from attrib.errors import SchemaError
from attrib.trace import THREAD_MASK, Api, Ranges, Trace

RANGE_TYPES = (59, 60, 70, 71)
"""`eventType` of push/pop and start/end ranges, the first two as recorded and the last two as older exports say."""
COMMON = 3


def matching_ranges(trace: Trace, regex: re.Pattern[str]) -> Ranges:
    """Ranges whose text matches, without it, by start, the longer first; `end` is -1 where one was never closed.

    The text is the interned one, the inline one where there is none. SQLite is asked for the matching rows alone, so
    memory is that of what matches. Raises SchemaError for a damaged table.
    """
    empty = np.empty(0, np.int64)
    if not trace.schema.has(sch.NVTX, "start", "end"):
        return Ranges(empty, empty, empty, empty, ())
    values = array("q")
    try:
        with trace.connect() as connection:
            readable = connection.text_factory
            connection.create_function(
                "attrib_matches", 1, lambda raw: bool(regex.search(readable(raw or b""))), deterministic=True
            )
            thread = "IFNULL(n.globalTid, -1)" if trace.schema.has(sch.NVTX, "globalTid") else "-1"
            rows = connection.execute(
                f'SELECT n.start, IFNULL(n."end", -1), {thread} FROM {sch.NVTX} n '
                f"WHERE {_is_range(trace)} AND {_condition(trace, connection, regex)}"
            )
            values.extend(chain.from_iterable(rows))
    except TypeError as error:
        raise SchemaError(f"{trace.path}: table {sch.NVTX} holds text where nsys writes an integer") from error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise SchemaError(f"{trace.path}: table {sch.NVTX} is damaged ({error}); copy or export it again") from error
    table: NDArray[np.int64] = np.frombuffer(values, np.int64).reshape(-1, 3)
    before, after = table[:-1], table[1:]
    tied = after[:, 0] == before[:, 0]
    if not bool(((after[:, 0] > before[:, 0]) | (tied & (after[:, 1] <= before[:, 1]))).all()):
        table = table[np.lexsort((-table[:, 1], table[:, 0]))]
    start, end, tid = (np.ascontiguousarray(table[:, column]) for column in range(3))
    return Ranges(start, end, np.where(tid < 0, tid, tid & THREAD_MASK), tid, ())


def common_texts(trace: Trace) -> str:
    """The texts that most ranges have, for a message about a pattern that matches none."""
    if not trace.schema.has(sch.NVTX, "start", "end"):
        return "no NVTX range at all"
    rows = trace.query(
        f"SELECT {_text(trace)} AS said, COUNT(*) AS number FROM {sch.NVTX} n WHERE {_is_range(trace)} "
        f"GROUP BY said ORDER BY number DESC, MIN(n.start) LIMIT {COMMON}"
    )
    return ", ".join(repr(text) for text, _ in rows) or "no NVTX range at all"


def _is_range(trace: Trace) -> str:
    listed = ", ".join(map(str, RANGE_TYPES))
    return f"n.eventType IN ({listed})" if trace.schema.has(sch.NVTX, "eventType") else "1"


def _interned(trace: Trace) -> bool:
    return trace.schema.has(sch.NVTX, "textId") and trace.schema.has("StringIds", "id", "value")


def _inline(trace: Trace) -> str:
    return "n.text" if trace.schema.has(sch.NVTX, "text") else "NULL"


def _text(trace: Trace) -> str:
    interned = "(SELECT value FROM StringIds WHERE id = n.textId), " if _interned(trace) else ""
    return f"COALESCE({interned}{_inline(trace)}, '')"


def _condition(trace: Trace, connection: sqlite3.Connection, regex: re.Pattern[str]) -> str:
    """SQL that is true of matching rows. Interned texts are matched once each, inline ones row by row."""
    inline = f"attrib_matches(CAST({_inline(trace)} AS BLOB))"
    if not _interned(trace):
        return inline
    strings = connection.execute("SELECT id, value FROM StringIds WHERE value NOT NULL")
    listed = ", ".join(str(int(number)) for number, value in strings if regex.search(value))
    known = "EXISTS (SELECT 1 FROM StringIds WHERE id = n.textId AND value NOT NULL)"
    return f"(n.textId IN ({listed}) OR (NOT {known} AND {inline}))"


def steps_of_calls(ranges: Ranges, api: Api, owner: int, excluded: Counter[str]) -> tuple[NDArray[np.int64], int]:
    """(calls,) the step each API call belongs to, -1 for none, and the number of steps.

    A step is an outermost of the ranges on its thread. A call belongs to the one around it on its own thread; a call
    from a thread without such ranges (a worker that launches for another) to the first that was open at that time.
    `owner` is the process whose ranges and calls count, -1 for any. Open ranges are counted in `excluded`.
    """
    mine = (ranges.process == owner) | (ranges.process < 0) if owner >= 0 else np.ones(len(ranges.start), bool)
    closed = mine & (ranges.end >= 0)
    unclosed = int(np.count_nonzero(mine & ~closed))
    if unclosed:
        excluded["NVTX range without an end"] += unclosed
    kept = [np.empty(0, np.int64)]
    for thread in np.unique(ranges.thread[closed]):
        of_thread = np.flatnonzero(closed & (ranges.thread == thread))
        kept.append(of_thread[outermost(ranges.start[of_thread], ranges.end[of_thread])])
    steps = np.concatenate(kept)
    steps = steps[np.lexsort((ranges.thread[steps], ranges.end[steps], ranges.start[steps]))]
    thread_of = ranges.thread[steps]
    marked = np.unique(thread_of)
    others = np.flatnonzero(~np.isin(api.thread, marked) & ((api.process == owner) | (owner < 0)))
    found = np.full(len(api.start), -1, np.int64)
    first = np.full(len(others), len(steps), np.int64)
    for thread in marked:
        number = np.flatnonzero(thread_of == thread)
        begin, end = ranges.start[steps[number]], ranges.end[steps[number]]
        calls = np.flatnonzero(api.thread == thread)
        found[calls] = _around(api.start[calls], begin, end, number, -1)
        first = np.minimum(first, _around(api.start[others], begin, end, number, len(steps)))
    found[others] = np.where(first < len(steps), first, -1)
    return found, len(steps)


def _around(
    times: NDArray[np.int64], begin: NDArray[np.int64], end: NDArray[np.int64], number: NDArray[np.int64], none: int
) -> NDArray[np.int64]:
    """(times,) the number of the range around each time, `none` without; ranges ascend, apart, their ends outside."""
    at = np.searchsorted(begin, times, "right") - 1
    covered = (at >= 0) & (times < end[np.maximum(at, 0)])
    return np.where(covered, number[np.maximum(at, 0)], none)


def outermost(begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indexes of ranges that begin when none of those before them is open; given by start, the longer first."""
    before = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]))
    kept = begin >= before
    if bool((kept | (end <= before)).all()):  # every other range lies in one of these
        return np.flatnonzero(kept)
    walked, at = [], 0
    while at < len(begin):
        walked.append(at)
        at = max(at + 1, int(np.searchsorted(begin, end[at])))
    return np.array(walked, np.int64)
