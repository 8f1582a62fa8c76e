"""Ranges by text: what the matching rows alone give is what all rows, filtered, give."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attrib.errors import SchemaError
from attrib.nvtx import common_texts, matching_ranges, steps_of_calls
from attrib.trace import Api, Ranges, open_trace
from tests.helpers import data

COLUMNS = "start, end, eventType, text, globalTid, textId"


def written(path: Path, rows: list[tuple[object, ...]], strings: dict[int, str | None], columns: str = COLUMNS) -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, shortName)")
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", strings.items())
        db.execute(f"CREATE TABLE NVTX_EVENTS ({columns})")
        db.executemany(f"INSERT INTO NVTX_EVENTS VALUES ({', '.join('?' * len(columns.split(',')))})", rows)
        db.commit()
    return path


TEXTS = st.sampled_from(["step 1", "step 2", "warm-up", "", "STEP", "x\ny"])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 5), st.none() | st.integers(0, 9), st.sampled_from([59, 60, 70, 71, 34]), st.none() | TEXTS,
            st.none() | st.integers(1, 3), st.none() | st.integers(1, 5),
        ),
        max_size=15,
    ),
    pattern=st.sampled_from(["step", "^step 1$", "", "nothing", "(?i)step", "up|^$"]),
)  # fmt: skip
def test_the_same_as_filtering_everything(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[object, ...]], pattern: str
) -> None:
    # ids 3 has no text and 5 is not there: the inline text counts
    path = written(tmp_path_factory.mktemp("n") / "t.sqlite", rows, {1: "step 1", 2: "warm-up", 3: None, 4: "step 44"})
    trace, regex = open_trace(path), re.compile(pattern)
    every, found = trace.ranges(), matching_ranges(trace, regex)
    kept = [i for i, text in enumerate(every.text) if regex.search(text)]

    def listed(*arrays: NDArray[np.int64]) -> list[tuple[int, ...]]:
        columns = (array.tolist() for array in arrays)
        return sorted(zip(*columns, strict=True), key=lambda row: (row[0], -row[1], row))

    assert found.start.tolist() == sorted(found.start.tolist())
    assert listed(found.start, found.end, found.thread, found.process) == listed(
        every.start[kept], every.end[kept], every.thread[kept], every.process[kept]
    )


def test_exports_without_some_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "a.sqlite", [(5, 9, "step"), (1, 2, "other")], {}, "start, end, text")
    found = matching_ranges(open_trace(path), re.compile("step"))
    assert (found.start.tolist(), found.thread.tolist()) == ([5], [-1])
    path = written(tmp_path / "b.sqlite", [(5, 9, 1), (1, 2, 7)], {1: "step"}, "start, end, textId")
    assert matching_ranges(open_trace(path), re.compile("^$")).start.tolist() == [1]
    path = written(tmp_path / "c.sqlite", [(5, "step")], {}, "start, text")
    assert matching_ranges(open_trace(path), re.compile("")).start.tolist() == []
    assert common_texts(open_trace(path)) == "no NVTX range at all"


def test_common_texts(tmp_path: Path) -> None:
    texts = ["a", "b", "b", "c", "c", "d"]
    path = written(tmp_path / "t.sqlite", [(i, i, 59, text, 1, None) for i, text in enumerate(texts)], {})
    assert common_texts(open_trace(path)) == "'b', 'c', 'a'"
    assert common_texts(open_trace(data.trace("llama.cpp-14b-tg16-h200"))) == "no NVTX range at all"


def test_damaged_ranges(tmp_path: Path) -> None:
    path = written(tmp_path / "t.sqlite", [("soon", 2, 59, "step", 1, None)], {})
    with pytest.raises(SchemaError, match="table NVTX_EVENTS holds text where nsys writes an integer"):
        matching_ranges(open_trace(path), re.compile("step"))
    path = written(tmp_path / "u.sqlite", [(1, 2, 59, b"step \xff", 1, None)], {})
    assert matching_ranges(open_trace(path), re.compile("^step")).start.tolist() == [1]


Interval = st.tuples(st.integers(0, 30), st.integers(-1, 12), st.integers(1, 3))


@settings(deadline=None)
@given(
    ranges=st.lists(Interval, max_size=14),
    calls=st.lists(st.tuples(st.integers(0, 45), st.integers(1, 4)), max_size=20),
)
def test_steps_of_calls_as_one_would_walk_them(
    ranges: list[tuple[int, int, int]], calls: list[tuple[int, int]]
) -> None:
    pid = 1 << 24
    given_ranges = sorted(
        (begin, -1 if length < 0 else begin + length, pid + thread) for begin, length, thread in ranges
    )
    given_ranges.sort(key=lambda r: (r[0], -r[1]))
    calls = sorted(calls)
    columns = [np.array(c, np.int64) for c in zip(*given_ranges, strict=True)] or [np.empty(0, np.int64)] * 3
    found_ranges = Ranges(columns[0], columns[1], np.full(len(columns[0]), pid), columns[2], ())
    api = Api(
        np.array([t for t, _ in calls], np.int64), np.full(len(calls), pid),
        np.array([pid + thread for _, thread in calls], np.int64), np.arange(len(calls)),
    )  # fmt: skip
    excluded: Counter[str] = Counter()
    found, number = steps_of_calls(found_ranges, api, pid, excluded)

    steps: list[tuple[int, int, int]] = []
    for thread in {thread for _, _, thread in given_ranges}:
        busy_until = -1
        for begin, end, on in given_ranges:
            if on == thread and end >= 0 and begin >= busy_until:
                busy_until = end
                steps.append((begin, end, thread))
    steps.sort()
    marked = {thread for _, _, thread in steps}
    wanted = []
    for time, thread in calls:
        own = pid + thread
        inside = [
            place for place, (begin, end, on) in enumerate(steps)
            if begin <= time < end and (on == own or own not in marked)
        ]  # fmt: skip
        wanted.append(inside[0] if inside else -1)
    assert number == len(steps)
    assert found.tolist() == wanted
    assert sum(excluded.values()) == sum(end < 0 for _, end, _ in given_ranges)
