"""The kernel table of an nsys SQLite export as narrow numpy columns.

An export can hold millions of launches, so this is the one table that gets a reader of its own. Two fill the
same arrays: DuckDB over its SQLite scanner (fast, optional) and the standard sqlite3 module.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attrib.columns_encode import TupleEncoder
from attrib.columns_sqlite import read_chunks as sqlite_chunks
from attrib.errors import SchemaError

TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
REQUIRED = ("start", "end", "shortName")
VARIANT = ("demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
COLUMNS = ("start", "end", "deviceId", "globalPid", "streamId", "correlationId", "graphNodeId", *VARIANT)
READERS = ("auto", "duckdb", "sqlite")

Chunk = Mapping[str, NDArray[np.int64]]
ChunkReader = Callable[[Path, tuple[str, ...]], Iterator[Chunk]]


@dataclass(frozen=True)
class Variants:
    """Distinct (demangledName, shortName, grid, block) combinations, in ascending order of that tuple."""

    short: NDArray[np.int64]
    """(n,) StringIds id"""
    demangled: NDArray[np.int64]
    """(n,) StringIds id, -1 where NULL or absent"""
    grid: NDArray[np.int64]
    """(n, 3) blocks, -1 where NULL or absent"""
    block: NDArray[np.int64]
    """(n, 3) threads, -1 where NULL or absent"""


@dataclass(frozen=True)
class KernelColumns:
    """Launches sorted by (start, end, rowid); every per-launch array has shape (launches,)."""

    start: NDArray[np.int64]
    """ns"""
    end: NDArray[np.int64]
    """ns"""
    device: NDArray[np.int32]
    """-1 where NULL or absent"""
    process: NDArray[np.int32]
    """index into `processes`"""
    stream: NDArray[np.int32]
    """-1 where NULL or absent"""
    correlation: NDArray[np.int64]
    """-1 where NULL or absent"""
    node: NDArray[np.int64]
    """graphNodeId, -1 where NULL, 0 or absent"""
    variant: NDArray[np.int32]
    """index into `variants`"""
    processes: NDArray[np.int64]
    """distinct globalPid, ascending; -1 stands for NULL and for an absent column"""
    variants: Variants


def read_kernels(path: Path, present: frozenset[str], reader: str = "auto") -> KernelColumns:
    """Read the kernel table of the export at `path`.

    `present` names the columns the table has; columns an export lacks read as -1. `reader` is "auto", "duckdb"
    or "sqlite"; the arrays are the same whichever reads. Raises SchemaError for a missing column without which
    nothing can be attributed and for a value that is no 64-bit integer, naming its table, column and row.
    """
    missing = [name for name in REQUIRED if name not in present]
    if missing:
        raise SchemaError(
            f"{path}: table {TABLE} has no column {missing[0]}; export the report again with `nsys export`."
        )
    if reader not in READERS:
        raise ValueError(f"unknown reader {reader!r}; one of {', '.join(READERS)}")
    names = tuple(name for name in COLUMNS if name in present)
    return _assemble(path, sqlite_chunks(path, names))


def _assemble(path: Path, chunks: Iterator[Chunk]) -> KernelColumns:
    variants = TupleEncoder(len(VARIANT))
    processes = TupleEncoder(1)
    parts: dict[str, list[NDArray[Any]]] = {
        name: [] for name in ("start", "end", "device", "process", "stream", "correlation", "node", "variant")
    }
    for chunk in chunks:
        absent = np.full(len(chunk["start"]), -1, np.int64)
        node = chunk.get("graphNodeId", absent)
        parts["start"].append(chunk["start"])
        parts["end"].append(chunk["end"])
        parts["device"].append(_narrow(path, "deviceId", chunk.get("deviceId", absent)))
        parts["process"].append(processes.encode([chunk.get("globalPid", absent)]))
        parts["stream"].append(_narrow(path, "streamId", chunk.get("streamId", absent)))
        parts["correlation"].append(chunk.get("correlationId", absent))
        parts["node"].append(np.where(node == 0, -1, node))
        parts["variant"].append(variants.encode([chunk.get(name, absent) for name in VARIANT]))
    order = _order(_joined(parts["start"], np.int64), _joined(parts["end"], np.int64))
    columns = {}
    for name in list(parts):
        narrow = name in ("device", "process", "stream", "variant")
        column = _joined(parts.pop(name), np.int32 if narrow else np.int64)
        columns[name] = column if order is None else column[order]
    variant_rank, variant_table = variants.ranked()
    process_rank, process_table = processes.ranked()
    return KernelColumns(
        start=columns["start"],
        end=columns["end"],
        device=columns["device"],
        process=process_rank[columns["process"]],
        stream=columns["stream"],
        correlation=columns["correlation"],
        node=columns["node"],
        variant=variant_rank[columns["variant"]],
        processes=process_table[:, 0] if len(process_table) else np.array([-1], np.int64),
        variants=Variants(
            demangled=variant_table[:, 0],
            short=variant_table[:, 1],
            grid=variant_table[:, 2:5],
            block=variant_table[:, 5:8],
        ),
    )


def _joined(parts: list[NDArray[Any]], dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _order(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The stable permutation that sorts by (start, end), or None where the rows are sorted already."""
    later = start[1:] > start[:-1]
    tied = (start[1:] == start[:-1]) & (end[1:] >= end[:-1])
    if bool(np.all(later | tied)):
        return None
    return np.lexsort((end, start))


def _narrow(path: Path, name: str, column: NDArray[np.int64]) -> NDArray[np.int32]:
    narrow = column.astype(np.int32)
    if not np.array_equal(narrow, column):
        bad = int(column[np.flatnonzero(narrow != column)[0]])
        raise SchemaError(f"{path}: table {TABLE}, column {name} holds {bad}, which is no 32-bit id.")
    return narrow
