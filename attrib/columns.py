"""The kernel table of an nsys SQLite export as narrow numpy columns.

An export can hold millions of launches, so this is the one table that gets readers of its own. Two fill the
same arrays: `columns_pages` decodes the pages of the file with numpy, and `columns_sqlite` asks the sqlite3 module,
which reads whatever the first does not take.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attrib import columns_pages, columns_sqlite
from attrib.columns_encode import TupleEncoder
from attrib.errors import RefusedError, SchemaError
from attrib.schema import KERNEL

REQUIRED = ("start", "end", "shortName")
VARIANT = ("demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
COLUMNS = ("start", "end", "deviceId", "globalPid", "streamId", "correlationId", "graphNodeId", *VARIANT)
READERS = ("auto", "pages", "sqlite")
KINDS: dict[str, Any] = {
    "start": np.int64,
    "end": np.int64,
    "device": np.int32,
    "process": np.int32,
    "stream": np.int32,
    "correlation": np.int64,
    "node": np.int64,
    "variant": np.int32,
}
BLOCK_ROWS = 1 << 16
Chunk = TypeVar("Chunk")
Progress = Callable[[float], None]
SLACK = 1.05  # rows a later part of the table may have beyond the share of an earlier one


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
    """Launches sorted by (start, end, rowid); every per-launch array has shape (launches,).

    Not to be written to: an array may be a view, or one value that is repeated.
    """

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


def read_kernels(
    path: Path, present: frozenset[str], reader: str = "auto", progress: Progress | None = None
) -> KernelColumns:
    """Read the kernel table of the export at `path`.

    `present` names the columns the table has; a column the export lacks reads as -1. `reader` is "auto" (pages where
    it can), "pages" or "sqlite"; the arrays are the same whichever reads. `progress` is told the part read so far.
    Raises SchemaError for a missing column without which nothing can be attributed and for a value that is no
    integer, naming table, column and row, and RefusedError when "pages" is asked for a table that only SQLite can read.
    """
    if reader not in READERS:
        raise RefusedError(f"there is no reader {reader!r}; choose one of {', '.join(READERS)}.")
    for name in REQUIRED:
        if name not in present:
            raise SchemaError(f"{path}: table {KERNEL} has no column {name}; export the report again.")
    names = tuple(name for name in COLUMNS if name in present)
    if reader != "sqlite":
        table = _Table(path)
        wanted = columns_pages.Wanted(names, REQUIRED, VARIANT, table.variant, table.narrow)
        try:
            return table.assembled(told(columns_pages.read_chunks(path, wanted), progress))
        except columns_pages.UnsupportedLayoutError as reason:
            if reader == "pages":
                raise RefusedError(f"{path}: the pages reader met {reason}; use the sqlite reader.") from reason
    table = _Table(path)
    chunks = told(columns_sqlite.read_chunks(path, names, REQUIRED), progress)
    return table.assembled((part, table.narrow(chunk, table.variant(chunk))) for part, chunk in chunks)


def told(chunks: Iterable[tuple[float, Chunk]], progress: Progress | None) -> Iterator[tuple[float, Chunk]]:
    """The chunks as they come, each told to `progress` once it has been used."""
    for part, chunk in chunks:
        yield part, chunk
        if progress is not None:
            progress(part)


class KernelStream:
    """The kernel table in rowid order, a chunk at a time, for those who need not have all of it at once."""

    def __init__(self, path: Path, present: frozenset[str], progress: Progress | None = None) -> None:
        self._path, self._table, self._progress = path, _Table(path), progress
        self._names = tuple(name for name in COLUMNS if name in present)

    def chunks(self) -> Iterator[tuple[float, dict[str, NDArray[Any]]]]:
        """The arrays of KernelColumns for some rows, codes of processes and variants not ranked, and the part read.

        Raises columns_pages.UnsupportedLayoutError for a table that only SQLite can read.
        """
        wanted = columns_pages.Wanted(self._names, REQUIRED, VARIANT, self._table.variant, self._table.narrow)
        return told(columns_pages.read_chunks(self._path, wanted), self._progress)

    def ranked_variants(self) -> tuple[NDArray[np.int32], Variants]:
        """Once all has been read: (codes,) index of each code's variant, and the variants."""
        return self._table.ranked_variants()

    def processes(self) -> NDArray[np.int64]:
        """Once all has been read: distinct globalPid, ascending."""
        return self._table.ranked_processes()[1]


class _Table:
    """The kernel table while it is read: rows lose everything that repeats as soon as they arrive."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._variants = TupleEncoder(len(VARIANT))
        self._processes = TupleEncoder(1)

    def variant(self, chunk: Mapping[str, NDArray[np.int64]]) -> NDArray[np.int32]:
        """Code, not yet ranked, of the variant of each row. Any thread may call it, and `narrow`."""
        absent = np.full(len(chunk["shortName"]), -1, np.int64)
        return self._variants.encode([chunk.get(name, absent) for name in VARIANT])

    def narrow(self, chunk: Mapping[str, NDArray[np.int64]], variant: NDArray[np.int32]) -> dict[str, NDArray[Any]]:
        """The arrays of KernelColumns for one chunk of rows, codes not yet ranked."""
        absent = np.full(len(chunk["start"]), -1, np.int64)
        node = chunk.get("graphNodeId", absent)
        return {
            "start": chunk["start"],
            "end": chunk["end"],
            "device": self._int32("deviceId", chunk.get("deviceId", absent)),
            "process": self._processes.encode([chunk.get("globalPid", absent)]),
            "stream": self._int32("streamId", chunk.get("streamId", absent)),
            "correlation": chunk.get("correlationId", absent),
            "node": np.where(node == 0, -1, node),
            "variant": variant,
        }

    def assembled(self, chunks: Iterable[tuple[float, dict[str, NDArray[Any]]]]) -> KernelColumns:
        growing = {name: _Growing(kind) for name, kind in KINDS.items()}
        for part, chunk in chunks:
            for name, values in chunk.items():
                growing[name].extend(values, part)
        process_rank, processes = self.ranked_processes()
        variant_rank, variants = self.ranked_variants()
        ranks = {"process": process_rank, "variant": variant_rank}
        columns = {name: column.finished(ranks.get(name)) for name, column in growing.items()}
        order = _order(columns["start"], columns["end"])
        if order is not None:
            for name, column in columns.items():
                columns[name] = column[order]
        return KernelColumns(**columns, processes=processes, variants=variants)

    def ranked_variants(self) -> tuple[NDArray[np.int32], Variants]:
        rank, found = self._variants.ranked()
        return rank, Variants(demangled=found[:, 0], short=found[:, 1], grid=found[:, 2:5], block=found[:, 5:8])

    def ranked_processes(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        rank, found = self._processes.ranked()
        return rank, found[:, 0] if len(found) else np.array([-1], np.int64)

    def _int32(self, name: str, column: NDArray[np.int64]) -> NDArray[np.int32]:
        narrow = column.astype(np.int32)
        wrong = narrow != column
        if wrong.any():
            raise SchemaError(
                f"{self._path}: table {KERNEL}, column {name} holds {column[wrong][0]}, which is no "
                "32-bit id; the file is damaged, export the report again."
            )
        return narrow


def _order(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The stable permutation that sorts by (start, end); None for sorted rows, which is how nsys writes."""
    before, after = start[:-1], start[1:]
    if bool(((after > before) | ((after == before) & (end[1:] >= end[:-1]))).all()):
        return None
    return np.lexsort((end, start))


class _Growing:
    """A column while it is read: one value for as long as every row has it, then an array.

    The first touch of a page of memory costs more than decoding what goes there. So rows are written where they
    stay, instead of being joined at the end, and a column that never changes (most traces are of one process,
    device and stream) takes no memory.
    """

    def __init__(self, kind: type[np.signedinteger[Any]]) -> None:
        self._rows = 0
        self._value = self._array = np.empty(0, kind)

    def extend(self, values: NDArray[Any], part: float) -> None:
        """Append `values`, with which `part` of the table, up to 1, has been read."""
        begin, self._rows = self._rows, self._rows + len(values)
        if not begin:
            self._value = values[:1].copy()
        if not len(self._array) and bool((values == self._value).all()):
            return
        if self._rows > len(self._array):
            grown = np.empty(int(self._rows / part * SLACK) + 1, self._array.dtype)
            grown[:begin] = self._array[:begin] if len(self._array) else self._value
            self._array = grown
        self._array[begin : self._rows] = values

    def finished(self, rank: NDArray[np.int32] | None = None) -> NDArray[Any]:
        """The column, codes replaced by their `rank`; read-only where it is one value."""
        if not len(self._array):
            value = self._value if rank is None else rank[self._value]
            return np.broadcast_to(value, self._rows) if self._rows else self._array
        column = self._array[: self._rows]
        if rank is not None:
            for begin in range(0, len(column), BLOCK_ROWS):
                block = column[begin : begin + BLOCK_ROWS]
                block[:] = rank[block]
        return column
