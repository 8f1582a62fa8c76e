"""Reading in batches gives what reading whole gives: steps, ledger, census and anatomy, or leaves it to the other."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib import api, streaming
from attrib import trace as traces
from attrib.attribution import Attribution
from attrib.errors import AttribError
from attrib.ledger import Ledger
from attrib.steps import Steps
from tests.helpers import data
from tests.helpers.nsysgen import H200, Kernel, Node
from tests.helpers.nsysgen import Trace as Written

STREAMED = ("llama.cpp-14b-tg16-h200", "llama.cpp-14b-d3254-tg16-h200", "engine-14b-d3254-h200")


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Attribution | None]:
    """An attribution that read the kernel table in batches of a few rows; None where that was not possible."""

    def read(path: Path, batch: int = 1000, **options: Any) -> Attribution | None:
        with monkeypatch.context() as patch:
            patch.setattr(traces, "STREAMED_BYTES", 0)
            patch.setattr(streaming, "BATCH_ROWS", batch)
            found = api.attribution(path, **options)
        return found if found.ledger.offset is not None else None

    return read


def assert_same(found: Attribution, wanted: Attribution) -> None:
    for kind, a, b in ((Steps, found.steps, wanted.steps), (Ledger, found.ledger, wanted.ledger)):
        for name in (f.name for f in fields(kind)):
            if name not in ("variant", "offset"):
                np.testing.assert_equal(getattr(a, name), getattr(b, name), err_msg=f"{kind.__name__}.{name}")
    assert list(found.steps.excluded) == list(wanted.steps.excluded)
    assert found.warnings == wanted.warnings
    for by in ("site", "kernel", "layer"):
        assert api.census(found, by=by).to_json() == api.census(wanted, by=by).to_json()
    assert api.anatomy(found).to_json() == api.anatomy(wanted).to_json()


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize("batch", [1000, 7919, 10**6])
def test_recorded_traces_are_the_same_either_way(streamed: Any, name: str, batch: int) -> None:
    path = data.trace(name)
    found = streamed(path, batch, model="qwen2.5-14b:q4_k_m" if "llama" in name else None)
    assert found is not None, "read whole"
    assert "kernels" not in vars(found.trace), "nothing needed the whole table"
    assert found.ledger.duration.dtype == found.ledger.exclusive.dtype == np.int32
    assert_same(found, api.attribution(path, model="qwen2.5-14b:q4_k_m" if "llama" in name else None))
    assert "kernels" not in vars(found.trace), "census and anatomy needed the whole table"


def test_a_recording_with_its_manifest(streamed: Any) -> None:
    name = "engine-14b-d3254-h200"
    manifest = data.DATA / f"{name}.manifest.json"
    found = streamed(data.trace(name), manifest=manifest)
    assert found is not None
    assert_same(found, api.attribution(data.trace(name), manifest=manifest))


@pytest.mark.parametrize("name", data.NAMES)
def test_every_recorded_trace_gives_the_same_numbers(streamed: Any, name: str) -> None:
    refused = ""
    try:
        wanted = api.attribution(data.trace(name))
    except AttribError as error:
        refused = str(error)
    if refused:  # whatever reading whole refuses is refused alike
        with pytest.raises(AttribError, match=re.escape(refused)):
            streamed(data.trace(name))
        return
    found = streamed(data.trace(name))
    if found is not None:
        assert_same(found, wanted)


def test_one_graph_of_several(streamed: Any, tmp_path: Path) -> None:
    path = generated(tmp_path, [(0, 1.0, None)] * 4 + [(1, 1.0, None)] * 3)
    graphs = sorted({g for n in (0, 1) for g in api.attribution(path, graph=2 + 2 * n).steps.graphs})
    for graph in graphs:
        found = streamed(path, 5, graph=graph)
        assert found is not None
        assert_same(found, api.attribution(path, graph=graph))


def generated(folder: Path, replays: list[tuple[int, float, int | None]]) -> Path:
    """Replays of two graphs, (graph, scale, launches kept), with overlap and launches that share a start."""
    trace = Written("2025.3")
    process = trace.process()
    process.device(trace.gpu(H200))
    kernels = [Kernel(f"k{i}", grid=(i + 1, 1, 1)) for i in range(4)]
    graphs = [
        process.graph([Node(kernels[0], 500), Node(kernels[1], 900, gap=-300), Node(kernels[2], 900, gap=-900)]),
        process.graph([Node(kernels[3], 700), Node(kernels[0], 200, gap=40)]),
    ]
    at = 1_000_000
    for graph, scale, keep in replays:
        at = max(process.replay(graphs[graph], at, scale=scale, keep=keep), at) + 5000
    folder.mkdir(exist_ok=True)
    return trace.write(folder / "t.sqlite")


@settings(max_examples=40, deadline=None)
@given(
    replays=st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from([0.7, 1.0, 1.3, 9.0]), st.sampled_from([None, None, None, 1])),
        min_size=1, max_size=12,
    ),
    batch=st.integers(1, 12),
)  # fmt: skip
def test_any_order_of_replays(
    tmp_path_factory: pytest.TempPathFactory, replays: list[tuple[int, float, int | None]], batch: int
) -> None:
    path = generated(tmp_path_factory.mktemp("g"), replays)
    wanted = api.attribution(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "STREAMED_BYTES", 0)
        patch.setattr(streaming, "BATCH_ROWS", batch)
        found = api.attribution(path)
    assert_same(found, wanted)


def changed(path: Path, folder: Path, *statements: str) -> Path:
    copy = folder / "changed.sqlite"
    copy.write_bytes(path.read_bytes())
    with closing(sqlite3.connect(copy)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return copy


K = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE {K} SET start = start + 3000000, end = end + 3000000 WHERE rowid = 2",
        f"UPDATE {K} SET deviceId = 1 WHERE rowid = 5",
        f"UPDATE {K} SET globalPid = globalPid + (1 << 24) WHERE rowid = 5",
        f"UPDATE {K} SET correlationId = 100 - correlationId",
        f"UPDATE {K} SET graphNodeId = NULL",
        f"UPDATE {K} SET end = start + 3000000000 WHERE rowid = (SELECT MAX(rowid) FROM {K})",
        f"UPDATE {K} SET gridX = 'x' WHERE rowid = 3",
    ],
    ids=["not in order", "two devices", "two processes", "ids fall", "no graph", "longer than 2 s", "text"],
)
def test_other_layouts_are_read_whole(streamed: Any, tmp_path: Path, statement: str) -> None:
    path = changed(generated(tmp_path, [(0, 1.0, None)] * 6), tmp_path, statement)
    try:
        wanted = api.attribution(path)
    except AttribError as error:
        with pytest.raises(type(error)):
            streamed(path, 4)
    else:
        assert streamed(path, 4) is None
        assert api.attribution(path).steps.count == wanted.steps.count


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE {K} SET start = 0, end = 0 WHERE rowid = 1",
        f"UPDATE {K} SET end = start - 1 WHERE rowid = 8",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = start + 15000",
        f"UPDATE {K} SET graphNodeId = NULL WHERE rowid IN (4, 5, 6)",
    ],
    ids=["no times", "ends before it starts", "before the first call", "launches between replays"],
)
def test_what_is_left_out_is_counted_alike(streamed: Any, tmp_path: Path, statement: str) -> None:
    path = changed(generated(tmp_path, [(0, 1.0, None)] * 6), tmp_path, statement)
    found = streamed(path, 4)
    assert found is not None
    wanted = api.attribution(path)
    assert wanted.steps.excluded or wanted.steps.outside
    assert_same(found, wanted)


def test_small_traces_are_read_whole() -> None:
    assert api.attribution(data.trace(STREAMED[0])).ledger.offset is None


@pytest.mark.parametrize("reader", ["auto", "pages", "sqlite"])
@pytest.mark.parametrize("whole", [False, True])
def test_the_part_read_is_told(monkeypatch: pytest.MonkeyPatch, reader: str, whole: bool) -> None:
    monkeypatch.setattr(traces, "STREAMED_BYTES", 1 << 40 if whole else 0)
    told: list[float] = []
    api.attribution(data.trace(STREAMED[0]), reader, told.append)
    assert told == sorted(told)
    assert told[-1] == 1


def test_ctrl_c_while_reading_leaves_nothing(tmp_path: Path) -> None:
    """The signal comes when a part of the table has been read, for which a terminal is not needed."""
    code = (
        "import os, signal, sys\nfrom attrib import api, cli, trace\ntrace.STREAMED_BYTES = 0\nread = api.attribution\n"
        "def interrupted(path, reader='auto', progress=None, **options):\n"
        "    return read(path, reader, lambda part: os.kill(os.getpid(), signal.SIGINT), **options)\n"
        "api.attribution = interrupted\ncli.main()"
    )
    out = tmp_path / "out"
    out.mkdir()
    arguments = ["census", str(data.trace(STREAMED[0])), "--csv", str(out / "c.csv"), "--plot", str(out / "c.png")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout == ""
    assert list(out.iterdir()) == []
