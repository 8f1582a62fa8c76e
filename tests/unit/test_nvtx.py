"""Ranges by text: what the matching rows alone give is what all rows, filtered, give."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib.errors import SchemaError
from attrib.nvtx import common_texts, matching_ranges
from attrib.trace import open_trace
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

    def listed(start: object, end: object, tid: object, process: object, text: object) -> list[tuple[object, ...]]:
        columns = (np.asarray(c).tolist() for c in (start, end, tid, process, text))
        return sorted(zip(*columns, strict=True), key=lambda row: (row[0], -int(str(row[1])), row))

    assert found.start.tolist() == sorted(found.start.tolist())
    assert listed(found.start, found.end, found.thread, found.process, found.text) == listed(
        every.start[kept], every.end[kept], every.thread[kept], every.process[kept], [every.text[i] for i in kept]
    )


def test_exports_without_some_columns(tmp_path: Path) -> None:
    path = written(tmp_path / "a.sqlite", [(5, 9, "step"), (1, 2, "other")], {}, "start, end, text")
    found = matching_ranges(open_trace(path), re.compile("step"))
    assert (found.start.tolist(), found.thread.tolist(), found.text) == ([5], [-1], ("step",))
    path = written(tmp_path / "b.sqlite", [(5, 9, 1), (1, 2, 7)], {1: "step"}, "start, end, textId")
    assert matching_ranges(open_trace(path), re.compile("^$")).start.tolist() == [1]
    path = written(tmp_path / "c.sqlite", [(5, "step")], {}, "start, text")
    assert matching_ranges(open_trace(path), re.compile("")).text == ()
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
