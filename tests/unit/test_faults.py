"""Traces that are readable and wrong: nothing is averaged in silently, and what was left out is counted."""

from __future__ import annotations

import copy
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attrib import manifest as mf
from tests.conftest import Attrib
from tests.helpers import data
from tests.helpers import nsysgen_oracle as oracle
from tests.helpers import seed_step as seed
from tests.helpers.nsysgen import GB10, H200, Graph, Kernel, Node, Process, Trace

GEMV = Kernel("gemv_q4", grid=(5120, 1, 1))
NORM = Kernel("rms_norm")
STEP = [
    Node(NORM, 2000),
    Node(GEMV, 50_000, gap=300),
    Node(NORM, 2500, gap=200),
    Node(GEMV, 40_000, gap=-700),
]
SPAN = 2000 + 300 + 50_000 + 200 + 2500 - 700 + 40_000  # 94,300
IDLE = 300 + 200
STEP_MS = SPAN / 1e6


def started(version: str = "2025.3", **options: Any) -> tuple[Trace, Process, Graph]:
    trace = Trace(version, **options)
    process = trace.process()
    process.device(trace.gpu(GB10))
    return trace, process, process.graph(STEP)


def replay_many(process: Process, graph: Graph, count: int, at: int = 1_000_000, **options: Any) -> int:
    for _ in range(count):
        at = process.replay(graph, at, **options) + 20_000
    return at


def census(attrib: Attrib, trace: Trace, path: Path, *options: str) -> dict[str, Any]:
    return attrib("census", trace.write(path), "--json", *options).json()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.sqlite"


@pytest.mark.parametrize("version", ["2022.2", "2023.4", "2024.5", "2025.3", "2026.2"])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_clean_trace_of_every_version(attrib: Attrib, version: str, reverse: bool, file: Path) -> None:
    trace, process, graph = started(version)
    replay_many(process, graph, 6)
    document = attrib("census", trace.write(file, reverse=reverse), "--json").json()
    steps = document["steps"]
    assert (steps["count"], steps["launches"], steps["excluded"]) == (6, 4, {})
    assert steps["span_ms"] == pytest.approx(STEP_MS, abs=1e-9)
    assert steps["idle_ms"] == pytest.approx(IDLE / 1e6, abs=1e-9)
    assert steps["duration_sum_ms"] == pytest.approx(94_500 / 1e6, abs=1e-9)
    assert document["ledger"]["closure_ns"] == 0


def test_graph_level_capture_is_refused_with_the_flag(attrib: Attrib, file: Path) -> None:
    trace, process, graph = started(capture_mode="Graph")
    for i in range(5):
        process.replay_unseen(graph, 1_000_000 * (i + 1), SPAN)
    for command in ("census", "stragglers", "anatomy"):
        assert "--cuda-graph-trace=node" in attrib(command, trace.write(file)).refusal()


def test_graph_level_capture_with_eager_launches_is_refused_too(attrib: Attrib, file: Path) -> None:
    trace, process, graph = started(capture_mode="Graph")
    process.launch(NORM, 500_000, 2000)
    for i in range(5):
        process.replay_unseen(graph, 1_000_000 * (i + 1), SPAN)
    outcome = attrib("census", trace.write(file))
    assert "--cuda-graph-trace=node" in " ".join((outcome.out + outcome.err).split())


def test_an_incomplete_capture_is_reported(attrib: Attrib) -> None:
    outcome = attrib("info", data.trace("incomplete-capture"))
    assert outcome.code == 0
    assert "incomplete" in outcome.out.lower()
    assert "49" in outcome.out
    refused = attrib("census", data.trace("incomplete-capture"))
    assert "incomplete" in (refused.out + refused.err).lower()


def test_correlation_ids_that_repeat_across_processes_never_mix(attrib: Attrib, file: Path) -> None:
    trace = Trace("2026.2")
    quick, slow = trace.process(11), trace.process(12)
    for cuda_id, process in enumerate((quick, slow)):
        process.device(trace.gpu(H200, cuda_id), cuda_id)
    graphs = [process.graph(STEP) for process in (quick, slow)]
    for i in range(6):
        # the same correlation ids and the same executable id, at the same time on two devices
        quick.replay(graphs[0], 1_000_000 * (i + 1), device=0)
        slow.replay(graphs[1], 1_000_000 * (i + 1) + 13, scale=3, device=1)
    groups = oracle.replays(trace.write(file))
    assert [len(group) for group in groups] == [4] * 12
    steps = attrib("census", file, "--json").json()["steps"]
    assert steps["launches"] == 4
    slow_ms = (3 * 94_500 + 300 + 200 - 700) / 1e6
    assert min(abs(steps["span_ms"] - ms) for ms in (STEP_MS, slow_ms)) < 1e-9


@pytest.mark.parametrize("eager", [False, True])
def test_two_processes_with_the_same_ordinal_never_mix(attrib: Attrib, eager: bool, file: Path) -> None:
    """CUDA numbers devices per process: device 0 of one may be another GPU than device 0 of the other."""
    trace = Trace("2026.2")
    quick, slow = trace.process(11), trace.process(12)
    quick.device(trace.gpu(H200, 0), 0)
    slow.device(trace.gpu(H200, 1), 0)
    nodes = [Node(NORM, 2000), Node(GEMV, 50_000, gap=300), Node(Kernel("argmax"), 4000, gap=200)]
    for process, scale, shift in ((quick, 1, 0), (slow, 3, 13)):
        graph = process.graph(nodes)
        for i in range(6):
            at = 1_000_000 * (i + 1) + shift
            if eager:
                for node in nodes:
                    at = process.launch(node.kernel, at + node.gap, node.duration * scale)
            else:
                process.replay(graph, at, scale=scale)
    steps = census(attrib, trace, file)["steps"]
    assert (steps["count"], steps["launches"]) == (6, 3)
    assert steps["span_ms"] == pytest.approx((3 * 56_000 + 500) / 1e6, abs=1e-9)
    assert steps["idle_ms"] == pytest.approx(0.0005, abs=1e-9)


def test_a_single_replay_is_not_called_incomplete(attrib: Attrib, file: Path) -> None:
    trace, process, graph = started()
    replay_many(process, graph, 1)
    assert not any("incomplete" in text for text in census(attrib, trace, file)["warnings"])


def test_recorded_correlation_ids_that_repeat(attrib: Attrib) -> None:
    name = "train-2gpu-before-2026.2"
    rows = oracle.rows(data.trace(name))
    assert len({r.correlation for r in rows}) < len({(r.pid, r.correlation) for r in rows})
    document = attrib("census", data.trace(name), "--json").json()
    assert document["ledger"]["closure_ns"] == 0
    longest = max(oracle.span([(r.start, r.end) for r in rows if r.pid == pid]) for pid in {r.pid for r in rows})
    assert 0 < document["steps"]["span_ms"] <= longest / 1e6


@pytest.mark.parametrize("override", [{1: {"start": 0, "end": 0}}, {1: {"end": 5}}])
def test_rows_without_a_time_and_rows_that_end_first_are_counted(
    attrib: Attrib, override: dict[int, dict[str, int]], file: Path
) -> None:
    trace, process, graph = started()
    at = replay_many(process, graph, 3)
    at = process.replay(graph, at, override=override) + 20_000
    replay_many(process, graph, 3, at)
    document = census(attrib, trace, file)
    assert document["steps"]["count"] == 6
    assert sorted(document["steps"]["excluded"].values()) == [1, 1]  # the row, and the step that lacks it
    assert document["steps"]["span_ms"] == pytest.approx(STEP_MS, abs=1e-9)
    assert document["ledger"]["closure_ns"] == 0


def test_a_first_step_ten_times_slower_is_left_out(attrib: Attrib, file: Path) -> None:
    trace, process, graph = started()
    at = process.replay(graph, 1_000_000, scale=10) + 20_000
    replay_many(process, graph, 5, at)
    steps = census(attrib, trace, file)["steps"]
    assert steps["count"] == 5
    assert sum(steps["excluded"].values()) == 1
    assert any("warm" in reason or "slow" in reason for reason in steps["excluded"])
    assert steps["span_ms"] == pytest.approx(STEP_MS, abs=1e-9)


def test_a_last_step_cut_short_is_left_out(attrib: Attrib, file: Path) -> None:
    trace, process, graph = started()
    at = replay_many(process, graph, 5)
    process.replay(graph, at, keep=2)
    steps = census(attrib, trace, file)["steps"]
    assert (steps["count"], steps["launches"]) == (5, 4)
    assert sum(steps["excluded"].values()) == 1
    assert any("cut" in reason or "short" in reason for reason in steps["excluded"])


def test_a_step_with_another_kernel_is_left_out(attrib: Attrib, file: Path) -> None:
    trace, process, graph = started()
    other = trace.string("something_else")
    at = replay_many(process, graph, 3)
    at = process.replay(graph, at, override={2: {"shortName": other, "demangledName": other}}) + 20_000
    replay_many(process, graph, 2, at)
    steps = census(attrib, trace, file)["steps"]
    assert steps["count"] == 5
    assert sum(steps["excluded"].values()) == 1


def test_two_streams_that_overlap_share_one_ledger(attrib: Attrib, file: Path) -> None:
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(H200))
    # 0..50000 on 7; 10000..40000 on 8, inside it; 45000..75000 on 8
    nodes = [
        Node(GEMV, 50_000),
        Node(NORM, 30_000, gap=-40_000, stream=8),
        Node(GEMV, 30_000, gap=5000, stream=8),
    ]
    replay_many(process, process.graph(nodes), 4)
    document = census(attrib, trace, file)
    assert [oracle.exclusive(oracle.intervals(s)) for s in oracle.replays(file)] == [[50_000, 0, 25_000]] * 4
    steps = document["steps"]
    assert steps["span_ms"] == pytest.approx(0.075, abs=1e-9)
    assert steps["idle_ms"] == pytest.approx(0, abs=1e-12)
    assert steps["duration_sum_ms"] == pytest.approx(0.110, abs=1e-9)
    assert document["ledger"]["closure_ns"] == 0


def test_a_kernel_name_of_512_kib(attrib: Attrib, file: Path) -> None:
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(H200))
    long = Kernel("huge", "void ns::huge<" + "Tag<int>, " * 52_428 + "int>(float *)")
    assert long.demangled is not None
    assert len(long.demangled) > 512 * 1024
    replay_many(process, process.graph([Node(long, 4000), Node(NORM, 1000, gap=50)]), 5)
    for command in ("census", "anatomy", "stragglers"):
        outcome = attrib(command, trace.write(file))
        assert len(outcome.out + outcome.err) < 20_000
        assert "Traceback" not in outcome.err
    document = attrib("census", file, "--json").json()
    assert document["steps"]["span_ms"] == pytest.approx(0.00505, abs=1e-9)


def test_a_name_id_that_is_not_in_string_ids(attrib: Attrib, file: Path) -> None:
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(H200))
    nodes = [Node(NORM, 1000), Node(Kernel("lost", name_id=999_999), 3000, gap=10)]
    replay_many(process, process.graph(nodes), 5)
    document = census(attrib, trace, file)
    assert document["steps"]["count"] == 5
    assert document["steps"]["span_ms"] == pytest.approx(0.00401, abs=1e-9)
    assert any("name" in text for text in document["warnings"])
    assert any("999999" in row["site"] for row in document["sites"])


def test_a_trace_without_steps_is_described_whole(attrib: Attrib) -> None:
    outcome = attrib("census", data.trace("trimmed-2026.1"), "--json")
    document = outcome.json()
    with closing(sqlite3.connect(f"file:{data.trace('trimmed-2026.1')}?mode=ro", uri=True)) as db:
        ((begin, end),) = db.execute('SELECT MIN(start), MAX("end") FROM CUPTI_ACTIVITY_KIND_KERNEL').fetchall()
    assert document["ledger"]["closure_ns"] == 0
    assert document["steps"]["span_ms"] <= (end - begin) / 1e6
    assert any("name" in text for text in document["warnings"])


@pytest.mark.parametrize("by_id", [False, True])
def test_steps_from_nvtx_ranges(attrib: Attrib, by_id: bool, file: Path) -> None:
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(H200))
    at = 1_000_000
    for i in range(5):
        begin = at
        end = process.launch(NORM, at, 2000)
        end = process.launch(GEMV, end + 100, 7000)
        at = end + 50_000
        process.nvtx(f"token {i}", begin - 10_000, end + 5000, by_id=by_id)
    process.nvtx("token never closed", at, None)
    steps = census(attrib, trace, file, "--nvtx", "token.*")["steps"]
    assert (steps["count"], steps["launches"]) == (5, 2)
    assert steps["span_ms"] == pytest.approx(0.0091, abs=1e-9)
    assert steps["idle_ms"] == pytest.approx(0.0001, abs=1e-9)


def test_the_gpu_that_ran_is_not_the_first_in_the_table(attrib: Attrib) -> None:
    document = attrib("info", data.trace("cloverleaf-a100-2024.5")).out
    assert "A100" in document
    census_device = attrib("census", data.trace("cloverleaf-a100-2024.5"), "--json").json()["device"]
    assert "A100" in str(census_device)


def test_an_unknown_step_source_is_refused(attrib: Attrib) -> None:
    assert "zzz" in attrib("census", data.trace("cuda-python-graph-h200"), "--steps", "zzz").refusal()


NESTED = pytest.param("[" * 100_000, id="nested")
FIELDS: dict[str, object] = {
    "weight_bytes": "7",
    "kv_bytes": -5,
    "site": 5,
    "layer": "a",
    "grid": [1, 2],
    "i": 77,
    "kernel": None,
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A trace and the document of its manifest."""
    folder = tmp_path_factory.mktemp("manifest")
    mf.dump(seed.manifest(), folder / "manifest.json")
    document: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return seed.write_trace(folder / "trace.sqlite", steps=3), document


@pytest.mark.parametrize("field", FIELDS)
def test_a_manifest_with_a_wrong_field_is_refused(
    attrib: Attrib, manifest: tuple[Path, dict[str, Any]], field: str, tmp_path: Path
) -> None:
    trace, document = manifest
    changed = copy.deepcopy(document)
    changed["graphs"][0]["nodes"][3][field] = FIELDS[field]
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(changed))
    text = attrib("census", trace, "--manifest", broken).refusal()
    assert "broken.json" in text or "node 3" in text


@pytest.mark.parametrize("text", ["", "{}", "[]", NESTED, '{"schema": "attrib.manifest/2"}', "\x00"])
def test_a_file_that_is_no_manifest_is_refused(
    attrib: Attrib, manifest: tuple[Path, dict[str, Any]], text: str, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(text)
    assert "broken.json" in attrib("census", manifest[0], "--manifest", broken).refusal()


@pytest.mark.parametrize("wall", [5, {"step_ns": ["a"]}, {"step_ns": 5}])
def test_a_manifest_with_wrong_wall_times_is_refused(
    attrib: Attrib, manifest: tuple[Path, dict[str, Any]], wall: object, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps({**manifest[1], "wall": wall}))
    assert "broken.json" in attrib("census", manifest[0], "--manifest", broken).refusal()


OUTPUT = Kernel("gemv_q6", grid=(1024, 1, 1))
PEAK_BYTES_PER_NS = 273  # GB10


def one_matrix(folder: Path, nodes: list[Node], nbytes: int) -> tuple[Path, str, Path]:
    """Five replays of nodes on a GB10, of which the first kernel named `gemv_q6` streams `nbytes`."""
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(GB10))
    replay_many(process, process.graph(nodes), 5)
    launches = tuple(
        mf.Launch(
            i=i,
            site="output/q6_K" if node.kernel == OUTPUT else node.kernel.name,
            layer=None,
            kernel=node.kernel.name,
            grid=node.kernel.grid,
            block=node.kernel.block,
            weight_bytes=nbytes if node.kernel == OUTPUT else 0,
        )
        for i, node in enumerate(nodes)
    )
    mf.dump(replace(seed.manifest(), graphs=(mf.Graph("decode", launches),)), folder / "manifest.json")
    return trace.write(folder / "trace.sqlite"), "--manifest", folder / "manifest.json"


def test_bytes_faster_than_the_memory_are_called_impossible(attrib: Attrib, tmp_path: Path) -> None:
    nodes = [Node(NORM, 2000), Node(OUTPUT, 100_000, gap=100)]
    document = attrib("census", *one_matrix(tmp_path, nodes, 120_000 * PEAK_BYTES_PER_NS), "--json").json()
    (row,) = (r for r in document["sites"] if r["site"] == "output/q6_K")
    assert row["gbps"] == pytest.approx(1.2 * 273, rel=1e-9)
    assert row["impossible"] is True
    assert row["straggler"] is False
    assert any("impossible" in text.lower() and "output/q6_K" in text for text in document["warnings"])
    assert document["rates"]["step_impossible"] is True


def test_streaming_inside_the_predecessors_time_is_overlap_not_impossible(attrib: Attrib, tmp_path: Path) -> None:
    """50 us of the 100 us launch lie inside the norm: the exclusive rate is twice the honest one."""
    nodes = [Node(NORM, 60_000), Node(OUTPUT, 100_000, gap=-50_000)]
    document = attrib("census", *one_matrix(tmp_path, nodes, 80_000 * PEAK_BYTES_PER_NS), "--json").json()
    (row,) = (r for r in document["sites"] if r["site"] == "output/q6_K")
    assert row["gbps"] == pytest.approx(1.6 * 273, rel=1e-9)
    assert row["gbps_duration"] == pytest.approx(0.8 * 273, rel=1e-9)
    assert row["impossible"] is False
    assert row["overlapped"] is True
    assert document["rates"]["step_impossible"] is False
    assert not any("impossible" in text.lower() for text in document["warnings"])
