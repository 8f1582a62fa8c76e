"""Integer columns of the kernel table straight from the pages of the SQLite file.

What a scan of a large export costs is stepping through rows in SQLite's virtual machine and making an object of
each value. For 15 columns of 5 M kernels the sqlite3 module takes about 20 s of processor time, and DuckDB's SQLite
scanner 3 s to scan and 2 s more to hand the columns over. Decoding the leaf pages with numpy, some 10,000 rows at
a time, takes 1.8 s, shared by the cores, and needs no further package.

The format is https://www.sqlite.org/fileformat.html, sections 1.6 (b-tree pages) and 2.1 (records). Only what
exports hold is decoded: rowid tables without overflow pages, integers and NULL in the wanted columns. For anything
else, damage included, UnsupportedLayoutError hands the whole table to SQLite itself; nothing is guessed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attrib.columns_encode import TupleEncoder
from attrib.columns_open import readonly_uri
from attrib.schema import KERNEL

CHUNK_BYTES = 2 << 20  # what a worker holds at once: large enough for numpy, small enough for the cache
# glibc gives a freed block this large back to the system, and from then on keeps smaller ones for the next
# allocation instead: mapping fresh memory for every temporary array would cost a quarter of the time.
RECYCLED_BYTES = 30 << 20
MAX_WORKERS = 4
MAX_DEPTH = 20
MAX_LAYOUTS = 4096
MAX_COMBINATIONS = 1 << 16
TABLE_INTERIOR, TABLE_LEAF = 0x05, 0x0D
INTERIOR_CELLS, LEAF_CELLS = 12, 8  # size of a page header, where the cell pointers begin
# Bytes of content of each one-byte serial type; 10 and 11 are reserved, from 12 on it is a blob or a text.
CONTENT = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((kind - 12) // 2 for kind in range(12, 128)))
INTEGERS = (0, 1, 2, 3, 4, 5, 6, 8, 9)  # 7 is a real
CONSTANT = {0: -1, 8: 0, 9: 1}  # NULL is read as -1
WHOLE = {1: "i1", 2: ">i2", 4: ">i4", 8: ">i8"}
SPARE = 256  # bytes after the last page, so that reading a damaged record cannot leave the buffer
LEAD = 8  # bytes taken along from before each record, so that a 64-bit word can end anywhere in it

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]
Chunk = Mapping[str, NDArray[np.int64]]
Narrow = dict[str, NDArray[Any]]


class UnsupportedLayoutError(Exception):
    """The table is not laid out as plainly as exports are; SQLite must read it."""


@dataclass(frozen=True)
class _Pages:
    descriptor: int
    size: int
    usable: int
    count: int

    def load(self, numbers: Positions) -> Bytes:
        """The pages `numbers` one after the other, and SPARE zero bytes."""
        if len(numbers) and not 1 < numbers.min() <= numbers.max() <= self.count:
            raise UnsupportedLayoutError("a page number outside the file")
        buffer = np.empty(len(numbers) * self.size + SPARE, np.uint8)
        buffer[-SPARE:] = 0
        view = buffer.data
        at = 0
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            end = at + len(run) * self.size
            if os.preadv(self.descriptor, [view[at:end]], (int(run[0]) - 1) * self.size) != end - at:
                raise UnsupportedLayoutError("the file ends inside a page")
            at = end
        return buffer

    def cells(self, buffer: Bytes, header: int) -> tuple[Positions, NDArray[np.int64]]:
        """Where the cells of the pages in `buffer` begin, in key order, and the number in each page."""
        pages = buffer[:-SPARE].reshape(-1, self.size)
        number = pages[:, 3].astype(np.int64) << 8 | pages[:, 4]
        most = int(number.max())
        if header + 2 * most > self.usable:
            raise UnsupportedLayoutError("a page with more cells than it has room for")
        pointers = np.ascontiguousarray(pages[:, header : header + 2 * most]).view(">u2").astype(np.int64)
        real = np.arange(most) < number[:, None]
        first = header + 2 * number[:, None]
        if bool((real & ((pointers < first) | (pointers >= self.usable - 3))).any()):
            raise UnsupportedLayoutError("a cell outside its page")
        pointers += (np.arange(len(pages)) * self.size)[:, None]
        return pointers[real], number

    def leaves(self, root: int) -> Positions:
        """Numbers of a table's leaf pages, in key order."""
        level = np.array([root], np.int64)
        for _ in range(MAX_DEPTH):
            kind = self.load(level[:1])[0]
            if kind == TABLE_LEAF:
                return level
            buffer = self.load(level)
            pages = buffer[:-SPARE].reshape(-1, self.size)
            if not bool((pages[:, 0] == TABLE_INTERIOR).all()):
                raise UnsupportedLayoutError("not a table with row ids")
            cells, number = self.cells(buffer, INTERIOR_CELLS)
            children = np.insert(_big_endian(buffer, cells), np.cumsum(number), _big_endian(pages, 8, axis=1))
            if len(children) > self.count:
                raise UnsupportedLayoutError("more pages than the file has")
            level = children
        raise UnsupportedLayoutError("a tree deeper than any table")


@dataclass(frozen=True)
class Wanted:
    """What becomes of the columns. Both functions get (rows,) arrays, -1 for NULL, from several threads."""

    names: tuple[str, ...]
    required: Collection[str]
    """columns that must not be NULL"""
    repeated: Collection[str]
    """columns with few combinations of values, which are decoded once for each combination"""
    encode: Callable[[Chunk], NDArray[np.int32]]
    """(combinations,) codes of the `repeated` columns"""
    convert: Callable[[Chunk, NDArray[np.int32]], Narrow]
    """what is kept of the other columns and the (rows,) codes, rows in any order"""


def read_chunks(path: Path, wanted: Wanted) -> Iterator[tuple[float, Narrow]]:
    """The kernel table in rowid order, chunk by chunk as `wanted.convert` makes them.

    With each chunk comes the part of the table, up to 1, that has been read with it. Raises UnsupportedLayoutError
    for a table that only SQLite can read.
    """
    if not hasattr(os, "preadv"):
        raise UnsupportedLayoutError("no positioned reads on this system")
    try:
        with closing(sqlite3.connect(readonly_uri(path), uri=True, isolation_level=None)) as connection:
            # The transaction holds SQLite's shared lock for as long as the pages are read behind its back.
            connection.execute("BEGIN")
            root, columns = _table(connection, wanted.names)
            descriptor = os.open(path, os.O_RDONLY)
            try:
                yield from _Decoder(_file(descriptor), columns, wanted).run(root)
            finally:
                os.close(descriptor)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the message may quote bytes of a damaged schema
        raise UnsupportedLayoutError(str(error)) from error


def _table(connection: sqlite3.Connection, names: tuple[str, ...]) -> tuple[int, dict[str, int]]:
    """Root page of the kernel table, and where in a record each of `names` is."""
    found = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", (KERNEL,)
    ).fetchone()
    described = connection.execute(f"PRAGMA table_xinfo({KERNEL})").fetchall()
    places = {row[1]: row[0] for row in described if row[1] in names}
    if not found or len(places) < len(names):
        raise UnsupportedLayoutError("the kernel table is no table of this file")
    if any(row[6] or (row[5] and row[1] in names) for row in described):
        raise UnsupportedLayoutError("a generated column, or one that stands for the row id")
    return int(found[0]), places


def _file(descriptor: int) -> _Pages:
    header = os.pread(descriptor, 24, 0)
    size = int.from_bytes(header[16:18], "big")
    size = 65536 if size == 1 else size
    return _Pages(descriptor, size, size - header[20], os.fstat(descriptor).st_size // size)


@dataclass(frozen=True)
class _Layout:
    """Where the columns of a record are, as far as they are needed."""

    kinds: list[int]
    """serial type of each column"""
    offsets: list[int]
    """where the content of each begins in a row, and where that of the last one ends"""


class _Decoder:
    """Turns leaf pages into columns. Safe to call from several threads."""

    def __init__(self, pages: _Pages, columns: Mapping[str, int], wanted: Wanted) -> None:
        self._pages = pages
        self._columns = columns
        self._wanted = wanted
        repeated = [place for name, place in columns.items() if name in wanted.repeated]
        self._repeated = min(repeated), max(repeated)
        self._combinations: dict[int, TupleEncoder] = {}
        self._encoded: dict[int, NDArray[np.int32]] = {}
        # A record header as far as it is needed: its own size, then a serial type for each column.
        self._header = max(columns.values()) + 2
        self._words = -(-self._header // 8)
        self._layouts = TupleEncoder(self._words)

    def run(self, root: int) -> Iterator[tuple[float, Narrow]]:
        leaves = self._pages.leaves(root)
        step = max(1, CHUNK_BYTES // self._pages.size)
        np.empty(RECYCLED_BYTES, np.uint8)
        with ThreadPoolExecutor(min(MAX_WORKERS, os.cpu_count() or 1)) as workers:
            try:
                parts = [leaves[i : i + step] for i in range(0, len(leaves), step)]
                for number, chunk in enumerate(workers.map(self._chunk, parts), 1):
                    yield number / len(parts), chunk
            finally:
                workers.shutdown(cancel_futures=True)

    def _chunk(self, leaves: Positions) -> Narrow:
        buffer = self._pages.load(leaves)
        if bool((buffer[:-SPARE].reshape(-1, self._pages.size)[:, 0] != TABLE_LEAF).any()):
            raise UnsupportedLayoutError("not a table with row ids")
        records, sizes = self._records(buffer)
        codes = self._layouts.encode(self._headers(buffer, records))
        if len(self._layouts.tuples) > MAX_LAYOUTS:
            raise UnsupportedLayoutError("rows of too many layouts")
        # Rows of one layout have every column at the same place, so they are decoded together.
        order = np.argsort(codes.astype(np.uint16), kind="stable")
        records, sizes = records[order], sizes[order]
        single = [name for name in self._columns if name not in self._wanted.repeated]
        values = {name: np.empty(len(records), np.int64) for name in single}
        repeated = np.empty(len(records), np.int32)
        begin = 0
        counts = np.bincount(codes)
        for code in np.flatnonzero(counts):
            end = begin + int(counts[code])
            layout = self._layout(int(code), sizes[begin:end])
            rows = _windows(buffer, records[begin:end] - LEAD, layout.offsets[-1])
            for name in single:
                _integers(rows, layout, self._columns[name], values[name][begin:end])
            repeated[begin:end] = self._codes(rows, int(code), layout)
            begin = end
        narrow = self._wanted.convert(values, repeated)
        for name, grouped in narrow.items():
            narrow[name] = np.empty_like(grouped)
            narrow[name][order] = grouped
        return narrow

    def _records(self, buffer: Bytes) -> tuple[Positions, NDArray[np.int64]]:
        """Where each record begins in `buffer`, and its bytes."""
        at, _ = self._pages.cells(buffer, LEAF_CELLS)
        room = self._pages.usable - (at & (self._pages.size - 1))
        begin = at.copy()
        size = buffer[at].astype(np.int64)
        long = size >= 0x80
        at += 1
        size[long] = (size[long] & 0x7F) << 7 | buffer[at[long]]
        if bool((buffer[at[long]] >= 0x80).any()):
            raise UnsupportedLayoutError("a row longer than a page")
        at += long
        more = buffer[at] >= 0x80
        for _ in range(8):
            if not more.any():
                break
            at += more
            more &= buffer[at] >= 0x80
        at += 1
        # Section 1.6: a longer payload of a table leaf continues on an overflow page.
        if bool(((size > self._pages.usable - 35) | (at - begin + size > room)).any()):
            raise UnsupportedLayoutError("a row that continues on another page")
        return at, size

    def _headers(self, buffer: Bytes, records: Positions) -> list[NDArray[np.int64]]:
        """The needed part of each record header as 64-bit words, zero-padded."""
        if bool((buffer[records] < self._header).any()):
            raise UnsupportedLayoutError("rows with fewer columns than the table")
        headers = _windows(buffer, records, self._words * 8)
        headers[:, self._header :] = 0
        return list(headers.view(np.int64).T)

    def _layout(self, code: int, sizes: NDArray[np.int64]) -> _Layout:
        """The layout with this code, checked against the sizes of the records that have it."""
        header = self._layouts.tuples[code].view(np.uint8)[: self._header]
        if bool((header >= 0x80).any()):
            raise UnsupportedLayoutError("a record header with long entries")
        kinds = header[1:].tolist()
        for name, place in self._columns.items():
            if kinds[place] not in INTEGERS or (kinds[place] == 0 and name in self._wanted.required):
                raise UnsupportedLayoutError(f"a value of column {name} that is no integer")
        offsets = [LEAD + int(header[0])]
        for kind in kinds:
            offsets.append(offsets[-1] + CONTENT[kind])
        needed = offsets[-1] - LEAD
        whole = int(header[0]) == self._header
        if bool(((sizes < needed) | (whole & (sizes > needed))).any()):
            raise UnsupportedLayoutError("a record that is not as long as its header says")
        return _Layout(kinds, offsets)

    def _codes(self, rows: Bytes, code: int, layout: _Layout) -> NDArray[np.int32]:
        """(rows,) codes of the repeated columns.

        In rows of one layout the bytes from the first to the last of these columns stand for their values. So the
        bytes are told apart as they are, as 64-bit words, and decoded once for each combination.
        """
        first, last = self._repeated
        begin, end = layout.offsets[first], layout.offsets[last + 1]
        ends = range(end, begin, -8) or range(end, end - 1, -1)
        words = [_part(rows, "i8", at - 8).copy() for at in reversed(ends)]
        excess = 8 * len(words) - (end - begin)
        words[0] &= np.frombuffer(bytes(excess) + b"\xff" * (8 - excess), np.int64)[0]
        if code not in self._combinations:
            self._combinations.setdefault(code, TupleEncoder(len(words)))
        found = self._combinations[code].encode(words)
        distinct = self._combinations[code].tuples
        if len(distinct) > MAX_COMBINATIONS:
            raise UnsupportedLayoutError("columns in an order that makes every row another combination")
        encoded = self._encoded.get(code)
        if encoded is None or len(encoded) < len(distinct):
            encoded = self._encoded[code] = self._wanted.encode(self._decoded(distinct, layout))
        return encoded[found]

    def _decoded(self, distinct: NDArray[np.int64], layout: _Layout) -> Chunk:
        """Repeated columns of the byte images that `_codes` tells apart: they end where the last column does."""
        image = np.ascontiguousarray(distinct).view(np.uint8).reshape(len(distinct), -1)
        shift = image.shape[1] - layout.offsets[self._repeated[1] + 1]
        moved = _Layout(layout.kinds, [offset + shift for offset in layout.offsets])
        values = {}
        for name, place in self._columns.items():
            if name in self._wanted.repeated:
                values[name] = np.empty(len(distinct), np.int64)
                _integers(image, moved, place, values[name])
        return values


def _integers(rows: Bytes, layout: _Layout, place: int, out: NDArray[np.int64]) -> None:
    """Decode the column at `place` of every row, a big-endian integer in two's complement, into `out`."""
    kind, at = layout.kinds[place], layout.offsets[place]
    size = CONTENT[kind]
    if size == 0:
        out[:] = CONSTANT[kind]
    elif size in WHOLE:
        out[:] = _part(rows, WHOLE[size], at)
    else:
        high, low, bits = ("i1", ">u2", 16) if size == 3 else (">i2", ">u4", 32)
        out[:] = _part(rows, high, at)
        out <<= bits
        out |= _part(rows, low, at + np.dtype(high).itemsize)


def _part(rows: Bytes, dtype: str, at: int) -> NDArray[Any]:
    """(rows,) view of byte `at` and the following of every row as `dtype`."""
    return np.ndarray((len(rows),), dtype, rows.data, at, (rows.shape[1],))


def _windows(buffer: Bytes, begin: Positions, size: int) -> Bytes:
    """(len(begin), size) copies of the `size` bytes from each position."""
    every = np.ndarray((len(buffer) - size + 1,), f"V{size}", buffer.data, 0, (1,))
    return every[begin].view(np.uint8).reshape(len(begin), size)


def _big_endian(source: Bytes, at: Any, axis: int = 0) -> NDArray[np.int64]:
    """Unsigned 32-bit big-endian numbers at byte `at` of `source`, along `axis`."""
    total = np.zeros(source.take(at, axis).shape, np.int64)
    for i in range(4):
        total = total << 8 | source.take(at + i, axis)
    return total
