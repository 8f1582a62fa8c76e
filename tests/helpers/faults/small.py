"""The trace that cases damage: six replays of four launches on a GB10, every number of which is known."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.helpers.faults.case import Make, Right
from tests.helpers.nsysgen import GB10, Graph, Kernel, Node, Process, Trace

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
NORM, GEMV = Kernel("rms_norm"), Kernel("gemv_q4", grid=(5120, 1, 1))
STEP = (Node(NORM, 2000), Node(GEMV, 50_000, gap=300), Node(NORM, 2500, gap=200), Node(GEMV, 40_000, gap=-700))
SPAN = 2000 + 300 + 50_000 + 200 + 2500 - 700 + 40_000  # 94,300 ns
WHOLE = Right(
    {
        "steps.count": 6,
        "steps.launches": 4,
        "steps.excluded": {},
        "steps.span_ms": SPAN / 1e6,
        "steps.idle_ms": 0.0005,
        "steps.duration_sum_ms": 0.0945,
        "ledger.closure_ns": 0,
    }
)


def without(*reasons: str, count: int = 5, warning: str | None = None) -> Right:
    """The same step, from `count` replays, with each of the reasons once."""
    facts: dict[str, Any] = {**WHOLE.facts, "steps.count": count, "steps.excluded": dict.fromkeys(reasons, 1)}
    return Right(facts if warning is None else {**facts, "warnings~": warning})


def with_warning(words: str) -> Right:
    """The whole answer, and a warning with these words."""
    return Right({**WHOLE.facts, "warnings~": words})


def started(version: str = "2025.3", nodes: Sequence[Node] = STEP, **options: Any) -> tuple[Trace, Process, Graph]:
    """A trace of one process on a GB10 with the graph of a step, nothing replayed yet."""
    trace = Trace(version, **options)
    process = trace.process()
    process.device(trace.gpu(GB10))
    return trace, process, process.graph(nodes)


def replayed(process: Process, graph: Graph, count: int = 6, at: int = 1_000_000) -> int:
    """`count` replays 20 us apart; returns when the next could begin."""
    for _ in range(count):
        at = process.replay(graph, at) + 20_000
    return at


def write(path: Path, version: str = "2025.3", nodes: Sequence[Node] = STEP, *, reverse: bool = False) -> Path:
    """The small trace as a file."""
    trace, process, graph = started(version, nodes)
    replayed(process, graph)
    return trace.write(path, reverse=reverse)


def census(path: Path, *options: object) -> list[object]:
    """Arguments of a census that prints JSON."""
    return ["census", path, "--json", *options]


def of_bytes(change: Callable[[bytes], bytes], name: str = "trace.sqlite") -> Make:
    """A case whose file is the small trace with its bytes changed."""

    def make(folder: Path) -> list[object]:
        path = write(folder / "source.sqlite")
        raw = change(path.read_bytes())
        path.unlink()
        target = folder / name
        target.write_bytes(raw)
        return census(target)

    return make


def of_sql(*statements: str, nodes: Sequence[Node] = STEP, options: Sequence[object] = ()) -> Make:
    """A case whose file is the small trace after SQL statements; K stands for the kernel table."""

    def make(folder: Path) -> list[object]:
        path = write(folder / "trace.sqlite", nodes=nodes)
        with closing(sqlite3.connect(path)) as db:
            for statement in statements:
                db.executescript(statement.replace("K!", KERNEL))
            db.commit()
        return census(path, *options)

    return make


def of_nodes(*nodes: Node) -> Make:
    """A case whose step has these launches."""
    return lambda folder: census(write(folder / "trace.sqlite", nodes=nodes))
