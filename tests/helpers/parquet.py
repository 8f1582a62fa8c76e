"""SQLite exports as Parquet directories, with plain or dictionary-coded text.

Integers are signed, or the unsigned ones of the same 64 bits, as nsys writes globalPid and globalTid.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def from_sqlite(export: Path, folder: Path, *, unsigned: bool = False, coded: bool = False) -> Path:
    """One `TABLE.parquet` for every table of a SQLite export; returns the folder, which is made."""
    folder.mkdir()
    with closing(sqlite3.connect(f"file:{export}?mode=ro", uri=True)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            described = [row[1:3] for row in db.execute(f'PRAGMA table_info("{table}")')]
            rows = db.execute(f'SELECT * FROM "{table}"').fetchall()
            values = list(zip(*rows, strict=True)) or [()] * len(described)
            names, kinds = zip(*described, strict=True)
            arrays = [_array(column, kind, unsigned, coded) for column, kind in zip(values, kinds, strict=True)]
            made = pa.Table.from_arrays(arrays, names=list(names))
            pq.write_table(made, folder / f"{table}.parquet", row_group_size=1000)
    return folder


def _array(values: tuple[object, ...], declared: str, unsigned: bool, coded: bool) -> pa.Array:
    if declared == "INTEGER" or not any(isinstance(value, (str, float)) for value in values):
        found = pa.array(values, pa.int64())
        return found.view(pa.uint64()) if unsigned else found
    if any(isinstance(value, float) for value in values):
        return pa.array(values, pa.float64())
    found = pa.array(values, pa.string())
    return found.dictionary_encode() if coded else found
