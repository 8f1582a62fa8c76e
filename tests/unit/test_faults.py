"""The fault matrix, and what it cannot show in a row: numbers of overlap and of rates, and what a terminal gets.

Every case gives the right answer or one sentence, and leaves its input as it was; docs/faults.md lists them.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
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
from tests.helpers.faults import files, rows
from tests.helpers.faults.case import Fault, Refused, judge, row, run, state
from tests.helpers.faults.matrix import CASES, SECTIONS
from tests.helpers.faults.small import GEMV, NORM, replayed, started, write
from tests.helpers.nsysgen import GB10, H200, Kernel, Node, Trace
from tests.helpers.nsysgen_schema import VERSIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
COMMANDS = (("info",), ("stragglers",), ("anatomy",), ("rules", "check"))


def ids(case: Fault) -> str:
    return case.key


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder whose path every user may enter, so that rights are those of the file itself."""
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_every_case_and_its_row_in_the_docs(case: Fault, folder: Path) -> None:
    found = row(case, judge(case, folder))
    assert found in PAGE.splitlines(), f"{found}\nis not in docs/faults.md; run `python docs/generate_faults.py`"


def test_the_page_lists_every_case_and_no_other() -> None:
    listed = [line for line in PAGE.splitlines() if line.startswith("| ") and line != "| input | outcome |"]
    assert len(listed) == len(CASES)
    assert [line.removeprefix("## ") for line in PAGE.splitlines() if line.startswith("## ")] == list(SECTIONS)
    assert f"Each of the {len(CASES)} inputs" in PAGE
    assert len({case.key for case in CASES}) == len({case.what for case in CASES}) == len(CASES)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_says_which_it_is(attrib: Attrib, version: str, folder: Path) -> None:
    found = attrib("info", write(folder / "t.sqlite", version), "--json").json()
    schema = VERSIONS[version]
    assert (found["nsys_version"], found["export_schema"]) == (schema.product, schema.version)
    assert found["counts"]["kernels"] == 24
    assert found["counts"]["graph_nodes_created"] == (8 if schema.has_node_rows else 0)


UNREADABLE = [case for case in files.CASES if isinstance(case.expected, Refused)]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("case", UNREADABLE, ids=ids)
def test_a_file_no_command_can_read(case: Fault, command: tuple[str, ...], folder: Path) -> None:
    arguments = [*command, *case.make(folder)[1:]]
    before = state(folder)
    with case.during(folder):
        said = run(arguments)
    assert said.code == 2, said.out
    assert isinstance(case.expected, Refused)
    assert case.expected.words in said.err or case.key == "pages"
    assert "Traceback" not in said.err
    assert state(folder) == before


@pytest.mark.parametrize("command", [("census",), ("anatomy",), ("info",), ("rules", "check")], ids=" ".join)
@pytest.mark.parametrize("case", rows.NAMES, ids=ids)
def test_no_name_steers_a_terminal_or_floods_it(
    attrib: Attrib, case: Fault, command: tuple[str, ...], folder: Path
) -> None:
    outcome = attrib(*command, case.make(folder)[1])
    assert outcome.code == 0
    assert len(outcome.out) < 20_000
    assert outcome.out.replace("\n", "").isprintable()


def census(attrib: Attrib, trace: Trace, path: Path, *options: str) -> dict[str, Any]:
    return attrib("census", trace.write(path), "--json", *options).json()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.sqlite"


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
    replayed(process, graph, 1)
    assert not any("incomplete" in text for text in census(attrib, trace, file)["warnings"])


def test_recorded_correlation_ids_that_repeat(attrib: Attrib) -> None:
    name = "train-2gpu-before-2026.2"
    rows = oracle.rows(data.trace(name))
    assert len({r.correlation for r in rows}) < len({(r.pid, r.correlation) for r in rows})
    document = attrib("census", data.trace(name), "--json").json()
    assert document["ledger"]["closure_ns"] == 0
    longest = max(oracle.span([(r.start, r.end) for r in rows if r.pid == pid]) for pid in {r.pid for r in rows})
    assert 0 < document["steps"]["span_ms"] <= longest / 1e6


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
    replayed(process, process.graph(nodes), 4)
    document = census(attrib, trace, file)
    assert [oracle.exclusive(oracle.intervals(s)) for s in oracle.replays(file)] == [[50_000, 0, 25_000]] * 4
    steps = document["steps"]
    assert steps["span_ms"] == pytest.approx(0.075, abs=1e-9)
    assert steps["idle_ms"] == pytest.approx(0, abs=1e-12)
    assert steps["duration_sum_ms"] == pytest.approx(0.110, abs=1e-9)
    assert document["ledger"]["closure_ns"] == 0


def test_a_trace_without_steps_is_described_whole(attrib: Attrib) -> None:
    outcome = attrib("census", data.trace("trimmed-2026.1"), "--json")
    document = outcome.json()
    with closing(sqlite3.connect(f"file:{data.trace('trimmed-2026.1')}?mode=ro", uri=True)) as db:
        ((begin, end),) = db.execute('SELECT MIN(start), MAX("end") FROM CUPTI_ACTIVITY_KIND_KERNEL').fetchall()
    assert document["ledger"]["closure_ns"] == 0
    assert document["steps"]["span_ms"] <= (end - begin) / 1e6
    assert any("name" in text for text in document["warnings"])


def test_the_gpu_that_ran_is_not_the_first_in_the_table(attrib: Attrib) -> None:
    document = attrib("info", data.trace("cloverleaf-a100-2024.5")).out
    assert "A100" in document
    census_device = attrib("census", data.trace("cloverleaf-a100-2024.5"), "--json").json()["device"]
    assert "A100" in str(census_device)


OUTPUT = Kernel("gemv_q6", grid=(1024, 1, 1))
PEAK_BYTES_PER_NS = 273  # GB10


def one_matrix(folder: Path, nodes: list[Node], nbytes: int) -> tuple[Path, str, Path]:
    """Five replays of nodes on a GB10, of which the first kernel named `gemv_q6` streams `nbytes`."""
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(GB10))
    replayed(process, process.graph(nodes), 5)
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
