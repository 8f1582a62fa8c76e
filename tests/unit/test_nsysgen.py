"""The trace generator writes what nsys writes: same tables, same columns, rows that mean the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.helpers import data
from tests.helpers import nsysgen_oracle as oracle
from tests.helpers.nsysgen import H200, Kernel, Node, Trace
from tests.helpers.nsysgen_schema import KERNEL, SCHEMAS

RECORDED = {
    "2022.2": "saxpy-mpi-null-end",
    "2023.4": "incomplete-capture",
    "2024.5": "cloverleaf-a100-2024.5",
    "2025.3": "llama.cpp-14b-tg16-h200",
    "2026.1-trimmed": "trimmed-2026.1",
    "2026.2": "train-2gpu-before-2026.2",
}
GEMV = Kernel("gemv", "void gemv<(int)4>(float *)", grid=(64, 2, 1), block=(32, 4, 1))
NORM = Kernel("norm")


def connect(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True))


def columns(db: sqlite3.Connection, table: str) -> list[tuple[object, ...]]:
    return [row[1:4] + row[5:] for row in db.execute(f'PRAGMA table_info("{table}")')]


@pytest.mark.parametrize("version", SCHEMAS)
def test_tables_have_the_columns_of_recorded_exports(version: str) -> None:
    schema = SCHEMAS[version]
    compared = 0
    with connect(data.trace(RECORDED[version])) as real, closing(sqlite3.connect(":memory:")) as own:
        for table in schema.tables:
            own.execute(schema.ddl(table))
            if recorded := columns(real, table):
                assert columns(own, table) == recorded, table
                compared += 1
        assert schema.metadata in {n for (n,) in real.execute("SELECT name FROM sqlite_master")}
    assert compared >= 6


def two_step_trace(version: str) -> Trace:
    trace = Trace(version)
    process = trace.process(pid=77)
    process.device(trace.gpu(H200))
    graph = process.graph([Node(GEMV, 4000), Node(NORM, 1500, gap=-200), Node(GEMV, 3000, gap=70)])
    end = process.replay(graph, 1_000_000)
    process.replay(graph, end + 10_000, scale=2)
    return trace


@pytest.mark.parametrize("version", ["2022.2", "2023.4", "2024.5", "2025.3", "2026.2"])
def test_replays_place_nodes_by_gap_duration_and_scale(version: str, tmp_path: Path) -> None:
    first, second = oracle.replays(two_step_trace(version).write(tmp_path / "t.sqlite"))
    # 0 +4000; 3800 +1500 = 5300; 5370 +3000 = 8370
    assert oracle.intervals(first) == [(1_000_000, 1_004_000), (1_003_800, 1_005_300), (1_005_370, 1_008_370)]
    # starts 10 us later; durations doubled, gaps as given: 0 +8000; 7800 +3000; 10870 +6000
    at = 1_018_370
    assert oracle.intervals(second) == [(at, at + 8000), (at + 7800, at + 10_800), (at + 10_870, at + 16_870)]
    assert [row.node for row in first] == [2 << 32, 2 << 32 | 1, 2 << 32 | 2]
    assert {row.correlation for row in first}.isdisjoint(row.correlation for row in second)
    assert (first[0].short, first[0].demangled, first[0].grid) == (
        "gemv",
        "void gemv<(int)4>(float *)",
        (64, 2, 1),
    )


def test_a_replay_joins_its_launch_call_by_process_and_correlation(tmp_path: Path) -> None:
    path = two_step_trace("2025.3").write(tmp_path / "t.sqlite")
    with connect(path) as db:
        joined = db.execute(
            f"SELECT COUNT(DISTINCT k.correlationId), COUNT(*) FROM {KERNEL} k "
            "JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId "
            "AND r.globalTid & ~0xFFFFFF = k.globalPid JOIN StringIds s ON s.id = r.nameId "
            "WHERE s.value LIKE 'cudaGraphLaunch%' AND r.start < k.start"
        ).fetchone()
        created = db.execute("SELECT COUNT(*) FROM CUDA_GRAPH_NODE_EVENTS").fetchone()
    assert joined == (2, 6)
    assert created == (6,)  # three nodes captured, three instantiated


def test_node_creations_move_to_their_own_table_after_3_7(tmp_path: Path) -> None:
    tables = {}
    for version in ("2023.4", "2024.5"):
        with connect(two_step_trace(version).write(tmp_path / f"{version}.sqlite")) as db:
            tables[version] = {n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'CUDA_GRAPH%'")}
    assert tables == {"2023.4": {"CUDA_GRAPH_EVENTS"}, "2024.5": {"CUDA_GRAPH_NODE_EVENTS"}}


def test_tables_are_created_only_when_something_is_in_them(tmp_path: Path) -> None:
    trace = Trace("2025.3")
    process = trace.process()
    process.nvtx("token 1", 10, 20)
    process.nvtx("token 2", 30, None, by_id=True)
    with connect(trace.write(tmp_path / "t.sqlite")) as db:
        names = {n for (n,) in db.execute("SELECT name FROM sqlite_master")}
        texts = db.execute(
            "SELECT COALESCE(s.value, n.text), n.text IS NULL, n.end FROM NVTX_EVENTS n "
            "LEFT JOIN StringIds s ON s.id = n.textId ORDER BY n.start"
        ).fetchall()
    assert KERNEL not in names
    assert texts == [("token 1", 0, 20), ("token 2", 1, None)]


def test_processes_repeat_correlation_ids(tmp_path: Path) -> None:
    trace = Trace("2026.2")
    for pid in (11, 12):
        process = trace.process(pid)
        for i in range(3):
            process.launch(NORM, 1000 * i + pid, 100)
    found = oracle.rows(trace.write(tmp_path / "t.sqlite"))
    assert {(r.pid >> 24 & 0xFFFFFF, r.correlation) for r in found} == {(p, c) for p in (11, 12) for c in (1, 2, 3)}


def test_damage_is_written_as_asked(tmp_path: Path) -> None:
    trace = Trace("2025.3")
    process = trace.process()
    graph = process.graph([Node(NORM, 100), Node(Kernel("lost", name_id=999_999), 100), Node(NORM, 100)])
    process.replay(graph, 1_000_000, override={0: {"start": 0, "end": 0}}, keep=2)
    process.launch(NORM, 2_000_000, -50)
    with connect(trace.write(tmp_path / "t.sqlite", reverse=True)) as db:
        found = db.execute(f'SELECT start, "end", shortName FROM {KERNEL}').fetchall()
        known = {i for (i,) in db.execute("SELECT id FROM StringIds")}
    assert [row[:2] for row in found] == [(2_000_000, 1_999_950), (1_000_100, 1_000_200), (0, 0)]
    assert found[1][2] == 999_999
    assert 999_999 not in known


def test_graph_level_capture_has_no_kernel(tmp_path: Path) -> None:
    trace = Trace("2025.3", capture_mode="Graph")
    process = trace.process()
    graph = process.graph([Node(NORM, 100)] * 4)
    for i in range(3):
        process.replay_unseen(graph, 1_000_000 * (i + 1), 400)
    with connect(trace.write(tmp_path / "t.sqlite")) as db:
        names = {n for (n,) in db.execute("SELECT name FROM sqlite_master")}
        graphs = db.execute(
            'SELECT graphId, graphExecId, "end" - start FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE'
        ).fetchall()
    assert KERNEL not in names
    assert graphs == [(1, 2, 400)] * 3


def test_a_table_the_version_lacks_is_refused(tmp_path: Path) -> None:
    trace = Trace("2026.1-trimmed")
    trace.add("PROCESSES", globalPid=1, pid=1, name="x")
    with pytest.raises(KeyError, match="PROCESSES"):
        trace.write(tmp_path / "t.sqlite")


def test_oracle_by_hand() -> None:
    # 0..10; 5..8 inside it; 9..15 adds 5; a gap of 5; 20..30
    launches = [(0, 10), (5, 8), (9, 15), (20, 30)]
    assert oracle.exclusive(launches) == [10, 0, 5, 10]
    assert oracle.span(launches) == 30
    # two that start together: the first listed takes the shared part
    assert oracle.exclusive([(0, 4), (0, 9)]) == [4, 5]


def test_recorded_traces_are_read_only() -> None:
    path = data.trace("trimmed-2026.1")
    assert path.stat().st_mode & 0o777 == 0o444
    assert data.trace("trimmed-2026.1") == path
