"""Which tables and columns an export has. Versions differ, so nothing is inferred from the version number."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from attrib.errors import AttribError, NoDataError, RefusedError, SchemaError
from attrib.words import counted

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
NODE_EVENTS = "CUDA_GRAPH_NODE_EVENTS"
GRAPH_EVENTS = "CUDA_GRAPH_EVENTS"
GPU = "TARGET_INFO_GPU"
CUDA_DEVICE = "TARGET_INFO_CUDA_DEVICE"
NVTX = "NVTX_EVENTS"

TABLES = (
    *(KERNEL, MEMCPY, MEMSET, RUNTIME, GRAPH_TRACE, NODE_EVENTS, GRAPH_EVENTS, GPU, CUDA_DEVICE, NVTX),
    *("StringIds", "PROCESSES", "ThreadNames", "TARGET_INFO_CUDA_CONTEXT_INFO", "ANALYSIS_DETAILS"),
    *("META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE", "DIAGNOSTIC_EVENT"),
)
"""Tables that anything here reads; the others (samples, scheduling, OS calls) can be far larger."""

# Any of these makes a SQLite file an nsys export, however much was trimmed from it.
_MARKS = (KERNEL, MEMCPY, RUNTIME, GRAPH_TRACE, NVTX, "META_DATA_EXPORT", "EXPORT_META_DATA", GPU)


@dataclass(frozen=True)
class Schema:
    """Tables of one export with their column names, and what the export says of itself."""

    tables: Mapping[str, frozenset[str]]
    product: str
    version: str

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table exists with all of these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    @property
    def node_table(self) -> str | None:
        """The table with one row per created graph node: its name moved when graph rows took the old one."""
        for table in (NODE_EVENTS, GRAPH_EVENTS):
            if self.has(table, "graphNodeId"):
                return table
        return None


def probe(connection: sqlite3.Connection, path: Path) -> Schema:
    """List tables and columns; raises SchemaError when the file is a database but no nsys export.

    A view where nsys writes a table is refused: what it computes need not end.
    """
    listed = connection.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table','view')").fetchall()
    tables: dict[str, frozenset[str]] = {}
    for name, kind in listed:
        if kind == "view" and name in TABLES:
            raise SchemaError(f"{path}: {name} is a view, and nsys writes tables; export the report again")
        try:
            rows = connection.execute('PRAGMA table_info("{}")'.format(name.replace('"', '""')))
            tables[name] = frozenset(row[1] for row in rows)
        except sqlite3.OperationalError:
            if name in TABLES:  # another one may be a virtual table of a module that is not here
                raise
    if not any(mark in tables for mark in _MARKS):
        found = ", ".join(sorted(tables)[:3]) or "no tables"
        raise SchemaError(
            f"{path} is a SQLite file but not an nsys export (it holds {found}); "
            "make one with `nsys export --type sqlite REPORT.nsys-rep`"
        )
    meta: dict[str, str] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if {"name", "value"} <= tables.get(table, frozenset()):
            meta.update(
                (str(name), str(value)) for name, value in connection.execute(f"SELECT name, value FROM {table}")
            )
    return Schema(tables, meta.get("EXPORT_PRODUCT_VERSION", "unknown"), meta.get("EXPORT_SCHEMA_VERSION", "unknown"))


def without_kernels(schema: Schema, graph_traces: int, path: Path) -> AttribError:
    """Why an export that holds no kernel cannot have a census: what was captured, and how to capture launches."""
    if graph_traces:
        return RefusedError(
            f"{path} was captured with graph-level tracing ({counted(graph_traces, 'graph row')}, no kernel inside), "
            "so no launch can be attributed; capture again with `nsys profile --cuda-graph-trace=node`"
        )
    if KERNEL not in schema.tables:
        return NoDataError(
            f"{path} has no {KERNEL} table: no GPU kernel was recorded; capture with `nsys profile -t cuda,nvtx` "
            "while the GPU works"
        )
    return NoDataError(f"{path} has an empty {KERNEL} table: no GPU kernel was recorded while the capture ran")
