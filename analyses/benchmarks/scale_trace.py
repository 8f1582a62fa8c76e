"""Scale an nsys export to any number of kernels by repeating its graph replays.

    python analyses/benchmarks/scale_trace.py TRACE.sqlite[.xz] OUT.sqlite --kernels 5000000

The replays of the graph launched most often are one block; copies of the block follow it, later in time and with
correlation ids of their own, together with the API, copy and fill rows of the same ids. Everything else is copied
as it is. The same input and N give the same rows. At least N kernels are written, in whole replays.

`--nvtx M` adds M ranges of one text, as an application that marks every small operation leaves them; the trace must
have NVTX ranges already, such as those of its steps.
"""

import argparse
import lzma
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
GAP_NS = 100_000
REPEATED = (KERNEL, *(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("RUNTIME", "MEMCPY", "MEMSET")))


RANGE_TEXT, RANGE_TYPE, RANGE_NS = "operation", 59, 10


def scale(source: Path, target: Path, kernels: int, ranges: int = 0) -> int:
    """Write the scaled export to `target`, report progress on a terminal and return its number of kernels."""
    partial = target.with_name(target.name + ".partial")
    with (
        lzma.open(source) if source.suffix == ".xz" else source.open("rb") as file,
        partial.open("wb") as out,
    ):
        shutil.copyfileobj(file, out)
    with closing(sqlite3.connect(partial, isolation_level=None)) as connection:
        # The file is thrown away when this stops half-way, so neither a journal nor a sync is worth its time.
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN;")
        total = _repeat(connection, kernels)
        if ranges:
            _add_ranges(connection, ranges)
        connection.execute("COMMIT")
    partial.replace(target)
    return total


def _repeat(connection: sqlite3.Connection, kernels: int) -> int:
    chosen = connection.execute(
        f"SELECT graphNodeId >> 32, globalPid FROM {KERNEL} WHERE graphNodeId GROUP BY 1, 2 "
        "ORDER BY COUNT(DISTINCT correlationId) DESC, 1, 2 LIMIT 1"
    ).fetchone()
    if chosen is None:
        raise SystemExit("the trace has no graph replay to repeat: capture it with --cuda-graph-trace=node")
    connection.execute(
        'CREATE TEMP TABLE replay AS SELECT correlationId, MIN(start) AS start, MAX("end") AS "end", '
        "SUM(COUNT(*)) OVER (ORDER BY MIN(start)) - COUNT(*) AS kernels_before "
        f"FROM {KERNEL} WHERE graphNodeId >> 32 = ? AND globalPid = ? GROUP BY 1",
        chosen,
    )
    first, last, low = connection.execute('SELECT MIN(start), MAX("end"), MIN(correlationId) FROM replay').fetchone()
    columns = {name: found for name in REPEATED if (found := _columns(connection, name))}
    highest = (connection.execute(f"SELECT IFNULL(MAX(correlationId), 0) FROM {name}") for name in columns)
    period, stride = last - first + GAP_NS, max(row[0] for found in highest for row in found) - low + 1
    for name, found in columns.items():
        # Set aside, because the tables grow while they are read otherwise.
        connection.execute(
            f"CREATE TEMP TABLE block_{name} AS SELECT kernels_before, source.* "
            f"FROM main.{name} AS source JOIN replay USING (correlationId) "
            f"WHERE {'globalPid' if 'globalPid' in found else 'globalTid & ~0xFFFFFF'} = ? "
            "ORDER BY source.start, source.rowid",
            (chosen[1],),
        )
    (total,) = connection.execute(f"SELECT COUNT(*) FROM {KERNEL}").fetchone()
    copy = 0
    while (wanted := kernels - total) > 0:
        copy += 1
        for name, found in columns.items():
            values = ", ".join(_shifted(column, copy * period, copy * stride) for column in found)
            written = connection.execute(
                f"INSERT INTO main.{name} SELECT {values} FROM block_{name} WHERE kernels_before < ?", (wanted,)
            )
            total += written.rowcount if name == KERNEL else 0
        if sys.stderr.isatty():
            print(f"\r{total:,} of {kernels:,} kernels", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return total


def _add_ranges(connection: sqlite3.Connection, number: int) -> None:
    """Ranges of half RANGE_NS, one after the other from the first range on, on its thread."""
    if not {"textId", "globalTid", "eventType"} <= set(_columns(connection, "NVTX_EVENTS")):
        raise SystemExit("the trace has no NVTX ranges with interned texts to add to: record its steps as ranges")
    (text,) = connection.execute("SELECT MAX(id) + 1 FROM StringIds").fetchone()
    connection.execute("INSERT INTO StringIds (id, value) VALUES (?, ?)", (text, RANGE_TEXT))
    start, thread = connection.execute("SELECT start, globalTid FROM NVTX_EVENTS ORDER BY start LIMIT 1").fetchone()
    connection.execute(
        "WITH RECURSIVE counted (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM counted WHERE i + 1 < ?) "
        'INSERT INTO NVTX_EVENTS (start, "end", eventType, textId, globalTid) '
        "SELECT ? + i * ?, ? + i * ? + ?, ?, ?, ? FROM counted",
        (number, start, RANGE_NS, start, RANGE_NS, RANGE_NS // 2, RANGE_TYPE, text, thread),
    )


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _shifted(column: str, time: int, ids: int) -> str:
    shift = {"start": time, "end": time, "correlationId": ids}.get(column, 0)
    return f'"{column}" + {shift}' if shift else f'"{column}"'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kernels", type=int, required=True)
    parser.add_argument("--nvtx", type=int, default=0, help="NVTX ranges to add")
    options = parser.parse_args()
    print(f"{scale(options.trace, options.out, options.kernels, options.nvtx):,} kernels in {options.out}")


if __name__ == "__main__":
    main()
