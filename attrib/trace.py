"""A recorded trace: an nsys SQLite export opened read-only, its launches as arrays, its names on demand."""

from __future__ import annotations

import sqlite3
import weakref
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attrib import schema as sch
from attrib.columns import REQUIRED, KernelColumns, KernelStream, Progress, Variants, read_kernels
from attrib.columns_open import readonly_uri
from attrib.errors import AttribError, SchemaError
from attrib.inputs import database_of
from attrib.names import function_name, label

PID_SHIFT = 24
PID_MASK = 0xFFFFFF
THREAD_MASK = ~PID_MASK
LOCK_TIMEOUT_S = 2.0
STREAMED_BYTES = 64 << 20
"""Size of a file from which its kernel table is worth reading in batches; launches take some 80 bytes each."""
_STEERING = dict.fromkeys([*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")
"""Control characters and those that turn the direction of writing."""
_MAX_NAME = 4096  # characters read of a kernel name: longer ones are real, and no rule looks further


@dataclass(frozen=True)
class Gpu:
    """One GPU as the export describes it; NaN where it does not say."""

    row: int
    name: str
    bus: str
    sms: float
    peak_bytes_per_s: float
    threads_per_sm: float


@dataclass(frozen=True)
class Copies:
    """Memory copies and sets in start order; arrays of shape (rows,), times in ns."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    device: NDArray[np.int64]
    process: NDArray[np.int64]
    correlation: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    kind: NDArray[np.int64]


@dataclass(frozen=True)
class Ranges:
    """NVTX push/pop and start/end ranges; `end` is -1 where the range was never closed."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    process: NDArray[np.int64]
    thread: NDArray[np.int64]
    text: tuple[str, ...]


@dataclass(frozen=True)
class Api:
    """Runtime and driver API calls that carry a correlation id; `process` is the caller's globalPid."""

    start: NDArray[np.int64]
    process: NDArray[np.int64]
    thread: NDArray[np.int64]
    correlation: NDArray[np.int64]


class Trace:
    """One export. Opening reads the table list only; each part is read when first asked for."""

    def __init__(self, path: Path, database: Path, reader: str = "auto") -> None:
        self.path = path
        self.notes: tuple[str, ...] = ()
        """what was left out of it on request"""
        self.progress: Progress | None = None
        """told the part of the kernel table that has been read"""
        self._database = database
        self._reader = reader
        self._whole: Trace | None = None
        self._streamed_variants: Variants | None = None
        with self.connect() as connection:
            self.schema = sch.probe(connection, path)

    def connect(self) -> closing[sqlite3.Connection]:
        """A read-only connection, closed on leaving the `with` block."""
        connection = sqlite3.connect(readonly_uri(self._database), uri=True, timeout=LOCK_TIMEOUT_S)
        connection.text_factory = _text
        connection.execute("PRAGMA query_only = 1")
        connection.execute("PRAGMA trusted_schema = 0")
        return closing(connection)

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a SELECT; a damaged or locked file becomes a SchemaError naming the export."""
        try:
            with self.connect() as connection:
                return connection.execute(sql, parameters).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise _unreadable(self.path, error) from error

    def count(self, table: str) -> int:
        """Rows of a table, 0 where the export has none."""
        return int(self.query(f'SELECT COUNT(*) FROM "{table}"')[0][0]) if table in self.schema.tables else 0

    @cached_property
    def kernels(self) -> KernelColumns:
        """Every kernel row in start order; raises when the export holds none, saying how to capture them."""
        present = self.schema.tables.get(sch.KERNEL, frozenset())
        try:
            columns = read_kernels(self._database, present, self._reader, self.progress) if present else None
        except AttribError as error:  # a report or a packed export is read from elsewhere
            raise type(error)(str(error).replace(str(self._database), str(self.path))) from error
        if columns is None or not len(columns.start):
            raise sch.without_kernels(self.schema, self.count(sch.GRAPH_TRACE), self.path)
        return columns

    def kernel_stream(self) -> KernelStream | None:
        """The kernel table a chunk at a time; None where it is small, in memory, or to be read by SQLite."""
        present = self.schema.tables.get(sch.KERNEL, frozenset())
        needed = {*REQUIRED, "graphNodeId", "correlationId"} <= present
        if not needed or self._reader == "sqlite" or "kernels" in self.__dict__:
            return None
        large = self._database.stat().st_size >= STREAMED_BYTES
        return KernelStream(self._database, present, self.progress) if large else None

    def know_variants(self, variants: Variants) -> None:
        """Keep what a stream of all kernel rows has found, so that names need no second reading."""
        self._streamed_variants = variants

    @property
    def variants(self) -> Variants:
        """Distinct kernels with their grid and block; the same whether the table was streamed or read whole."""
        return self.kernels.variants if self._streamed_variants is None else self._streamed_variants

    def restricted(self, kernels: KernelColumns, note: str) -> Trace:
        """This trace with `kernels`, some of its own or parts of them, and a note of what was kept or divided."""
        part = copy(self)
        part.__dict__["kernels"] = kernels
        part._streamed_variants = None
        part.notes = (*self.notes, note)
        part._whole = self
        return part

    @cached_property
    def first_api_ns(self) -> int | None:
        """Start of the first API row, None where none was recorded."""
        if not self.schema.has(sch.RUNTIME, "start"):
            return None
        value = self.query(f"SELECT MIN(start) FROM {sch.RUNTIME}")[0][0]
        if value is not None and not isinstance(value, int):
            raise SchemaError(f"{self.path}: table {sch.RUNTIME}, column start holds {value!r}, which is no integer")
        return value

    def api(self) -> Api:
        """API rows with a correlation id, by start. Driver calls are in the same table as runtime calls."""
        if not self.schema.has(sch.RUNTIME, "start", "globalTid", "correlationId"):
            return Api(*(np.empty(0, np.int64) for _ in range(4)))
        rows = self.query(
            f"SELECT start, globalTid, correlationId FROM {sch.RUNTIME} WHERE correlationId > 0 AND globalTid NOT NULL "
            "ORDER BY start"
        )
        start, thread, correlation = _columns(rows, 3, f"{self.path}: table {sch.RUNTIME}")
        return Api(start, thread & THREAD_MASK, thread, correlation)

    @cached_property
    def copies(self) -> Copies:
        """Memory copies and sets; a memset has kind -1."""
        rows: list[tuple[Any, ...]] = []
        for table, kind in ((sch.MEMCPY, "copyKind"), (sch.MEMSET, "-1")):
            have = self.schema.tables.get(table, frozenset())
            if {"start", "end"} <= have:
                picked = [c if c in have else "NULL" for c in ("deviceId", "globalPid", "correlationId", "bytes")]
                picked.append(kind if kind in have or kind == "-1" else "0")
                fields = ", ".join(f"IFNULL({c}, -1)" for c in picked)
                rows += self.query(f'SELECT start, "end", {fields} FROM {table} WHERE "end" >= start AND "end" > 0')
        found = _columns(rows, 7, f"{self.path}: table {sch.MEMCPY} or {sch.MEMSET}")
        order = np.lexsort(found[::-1])
        return Copies(*(column[order] for column in found))

    def ranges(self) -> Ranges:
        """NVTX ranges by start, the longer first; the text is the interned one where the export has no inline text."""
        have = self.schema.tables.get(sch.NVTX, frozenset())
        if not {"start", "end"} <= have:
            empty = np.empty(0, np.int64)
            return Ranges(empty, empty, empty, empty, ())
        inline = "n.text" if "text" in have else "NULL"
        interned = "s.value" if "textId" in have else "NULL"
        join = "LEFT JOIN StringIds s ON s.id = n.textId" if "textId" in have else ""
        thread = "IFNULL(n.globalTid, -1)" if "globalTid" in have else "-1"
        kinds = "WHERE n.eventType IN (59, 60, 70, 71)" if "eventType" in have else ""
        rows = self.query(
            f"SELECT n.start, IFNULL(n.\"end\", -1), {thread}, COALESCE({interned}, {inline}, '') "
            f'FROM {sch.NVTX} n {join} {kinds} ORDER BY n.start, n."end" DESC'
        )
        start, end, tid = _columns([row[:3] for row in rows], 3, f"{self.path}: table {sch.NVTX}")
        return Ranges(start, end, np.where(tid < 0, tid, tid & THREAD_MASK), tid, tuple(str(row[3]) for row in rows))

    def created_nodes(self) -> int:
        """Graph nodes whose creation was recorded: far more of them than kernels means a capture cut short.

        0 for a part of a trace, which tells nothing about the capture.
        """
        return self.count(self.schema.node_table) if self.schema.node_table and self._whole is None else 0

    def graph_mode(self) -> str:
        """`node`, `graph` or `unknown`: how the capture says it traced CUDA graphs."""
        if self.schema.has("META_DATA_CAPTURE", "name", "value"):
            rows = self.query("SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%CUDA_GRAPH_TRACE_OPTIONS:MODE'")
            if rows:
                return str(rows[0][0]).lower()
        return "graph" if self.count(sch.GRAPH_TRACE) else "unknown"

    @cached_property
    def _strings(self) -> dict[int, str]:
        variants = self.variants
        wanted = sorted({*variants.short.tolist(), *variants.demangled.tolist()} - {-1})
        if not self.schema.has("StringIds", "id", "value"):
            return {}
        found: dict[int, str] = {}
        for begin in range(0, len(wanted), 500):
            part = wanted[begin : begin + 500]
            marks = ",".join("?" * len(part))
            rows = self.query(f"SELECT id, substr(value, 1, {_MAX_NAME}) FROM StringIds WHERE id IN ({marks})", part)
            found.update((int(key), str(value)) for key, value in rows)
        return found

    @cached_property
    def names(self) -> VariantNames:
        """Names of every kernel variant, index for index with `variants`."""
        return VariantNames.of(self.variants, self._strings)

    def gpu(self, device: int, process: int) -> Gpu:
        """The GPU that CUDA device `device` of the process with this globalPid is.

        CUDA numbers devices per process, so the row is found through the process's own mapping, then through the
        CUDA ordinal in the GPU row, and by row id only where the export has neither.
        """
        have = self.schema.tables.get(sch.GPU, frozenset())
        unknown = Gpu(-1, f"device {device}", "", np.nan, np.nan, np.nan)
        if not {"id", "name"} <= have:
            return unknown
        row = None
        if self.schema.has(sch.CUDA_DEVICE, "gpuId", "cudaId", "pid") and process >= 0:
            pid = (process >> PID_SHIFT) & PID_MASK
            row = self._gpu_row(
                f"id = (SELECT gpuId FROM {sch.CUDA_DEVICE} WHERE cudaId = ? AND pid = ? LIMIT 1)",
                (device, pid),
            )
        if row is None and "cuDevice" in have:
            row = self._gpu_row("cuDevice = ?", (device,))
        if row is None:
            row = self._gpu_row("id = ?", (device,))
        return row or unknown

    def _gpu_row(self, condition: str, parameters: tuple[int, ...]) -> Gpu | None:
        have = self.schema.tables[sch.GPU]
        optional = ("busLocation", "smCount", "memoryBandwidth", "maxWarpsPerSm", "threadsPerWarp")
        picked = ", ".join(c if c in have else "NULL" for c in optional)
        rows = self.query(f"SELECT id, name, {picked} FROM {sch.GPU} WHERE {condition} LIMIT 1", parameters)
        if not rows:
            return None
        number, name, bus, sms, bandwidth, warps, per_warp = rows[0]
        try:
            bandwidth = bandwidth if bandwidth is None or bandwidth > 0 else None
            threads = float(warps * per_warp) if warps and per_warp else np.nan
            return Gpu(
                int(number), str(name), str(bus or ""), float(sms or np.nan), float(bandwidth or np.nan), threads
            )
        except (TypeError, ValueError) as error:
            raise SchemaError(
                f"{self.path}: table {sch.GPU} holds text where nsys writes a number ({error})"
            ) from error


@dataclass(frozen=True)
class VariantNames:
    """Per kernel variant: short name, full demangled name, function name for rules, label for tables."""

    short: tuple[str, ...]
    full: tuple[str, ...]
    function: tuple[str, ...]
    label: tuple[str, ...]
    missing: int

    @classmethod
    def of(cls, variants: Variants, strings: dict[int, str]) -> VariantNames:
        """Resolve name ids; an id that StringIds lacks is shown as `kernel#ID` and counted in `missing`."""
        parsed: dict[tuple[int, int], tuple[str, str, str, str]] = {}
        keys = list(zip(variants.short.tolist(), variants.demangled.tolist(), strict=True))
        missing = 0
        for short_id, full_id in dict.fromkeys(keys):
            full = strings.get(full_id, "")
            short = strings.get(short_id, "")
            missing += (short_id not in strings) or (full_id != -1 and full_id not in strings)
            short = short or function_name(full).rsplit("::", 1)[-1] or f"kernel#{short_id}"
            function = function_name(full) if full else short
            parsed[short_id, full_id] = (short, full or short, function or short, label(full, short))
        seen: Counter[str] = Counter()
        for key, (short, full, function, text) in parsed.items():
            seen[text] += 1
            if seen[text] > 1:  # two templates whose labels are cut to the same text stay two sites
                parsed[key] = (short, full, function, f"{text} #{seen[text]}")
        columns = [parsed[key] for key in keys]
        short_names, full_names, functions, labels = (tuple(column) for column in zip(*columns, strict=True))
        return cls(short_names, full_names, functions, labels, missing)


def open_trace(path: str | Path, reader: str = "auto") -> Trace:
    """Open an nsys export (`.sqlite`, `.sqlite.xz`, a Parquet directory) or report (`.nsys-rep`, through nsys).

    The input is never written. Raises SchemaError with one sentence for anything that cannot be read as an export.
    """
    path = Path(path)
    database, cleanup = database_of(path)
    try:
        trace = Trace(path, database, reader)
    except BaseException as error:
        if cleanup is not None:
            cleanup()
        if isinstance(error, (sqlite3.Error, UnicodeDecodeError)):
            raise _unreadable(path, error) from error
        raise
    if cleanup is not None:
        weakref.finalize(trace, cleanup)
    return trace


def _text(raw: bytes) -> str:
    """Text of the export. What is no UTF-8, and what would steer a terminal, becomes `�`."""
    text = raw.decode("utf-8", "replace")
    return text if text.isprintable() else text.translate(_STEERING)


def _unreadable(path: Path, error: Exception) -> AttribError:
    text = str(error)
    if "locked" in text or "busy" in text:
        return SchemaError(
            f"{path} is locked by another program that writes it; wait until it is done or copy the file"
        )
    if "unable to open" in text:
        return SchemaError(f"{path} cannot be opened ({text}); check its permissions")
    return SchemaError(f"{path} is damaged ({text}); copy or export it again")


def _columns(rows: Iterable[tuple[Any, ...]], width: int, where: str) -> list[NDArray[np.int64]]:
    try:
        # array('q') takes integers only, where numpy would parse text and truncate fractions
        table = np.asarray(array("q", chain.from_iterable(rows)), np.int64).reshape(-1, width)
    except TypeError as error:
        raise SchemaError(f"{where} holds text, a fraction or nothing where nsys writes an integer") from error
    return [np.ascontiguousarray(table[:, i]) for i in range(width)]
