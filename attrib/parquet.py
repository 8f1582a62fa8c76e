"""Parquet directory exports of nsys: one file `TABLE.parquet` per table of the SQLite export, with the same columns.

`nsys export --type parquetdir` writes them since 2024.6, into a folder that ends in `_pqtdir` unless named otherwise.
The tables that are read here are copied into a SQLite database, some thousand rows at a time. Ids whose highest bit
may be set (globalPid, globalTid) are unsigned in Parquet and signed in SQLite: the same 64 bits.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from attrib import schema as sch
from attrib.columns import COLUMNS
from attrib.errors import SchemaError
from attrib.files import TABLE, require_regular

BATCH_ROWS = 1 << 16


def is_export(folder: Path) -> bool:
    """Whether a folder holds a table of a Parquet export."""
    return any((folder / f"{table}{TABLE}").exists() for table in sch.TABLES)


def to_sqlite(folder: Path, target: Path) -> None:
    """Copy the tables of the export in `folder` into a new SQLite database.

    Raises SchemaError naming the file that is damaged or holds what a SQLite export cannot.
    """
    with closing(sqlite3.connect(target, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        for table in sch.TABLES:
            path = folder / f"{table}{TABLE}"
            if path.exists():
                database.execute("BEGIN")
                _copy(path, table, database)
                database.execute("COMMIT")


def _copy(path: Path, table: str, database: sqlite3.Connection) -> None:
    import pyarrow as pa  # noqa: PLC0415 - only Parquet exports pay for it
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        require_regular(path)
        with pq.ParquetFile(path) as file:
            wanted = [f for f in file.schema_arrow if table != sch.KERNEL or f.name in COLUMNS]
            kinds = [(field.name, _affinity(field.type, pa)) for field in wanted]
            kept = [(name, kind) for name, kind in kinds if kind is not None]
            if not kept:
                raise SchemaError(f"{path} has no column that is read; export the report again")
            columns = ", ".join(f'"{name}" {kind}' for name, kind in kept)
            database.execute(f'CREATE TABLE "{table}" ({columns})')
            insert = f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(kept))})'
            for batch in file.iter_batches(BATCH_ROWS, columns=[name for name, _ in kept]):
                database.executemany(insert, _rows(batch, [name for name, _ in kept], pa))
    except OverflowError as error:
        raise SchemaError(f"{path} holds a number beyond 64 bits; export the report again") from error
    except (pa.ArrowException, OSError, ValueError, sqlite3.Error) as error:
        said = " ".join(str(error).split())[:200]
        raise SchemaError(f"{path} is a damaged Parquet file ({said}); export the report again") from error


def _affinity(kind: Any, pa: Any) -> str | None:
    """The SQLite type of an Arrow type; None for one that no table of a SQLite export has."""
    types = pa.types
    if types.is_dictionary(kind):
        return _affinity(kind.value_type, pa)
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_temporal(kind) or types.is_null(kind):
        return "INTEGER"  # a column without any value says nothing of its type
    if types.is_decimal(kind):
        return "REAL" if kind.scale > 0 else "INTEGER"
    if types.is_floating(kind):
        return "REAL"
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    return "TEXT" if text else None


def _rows(batch: Any, names: list[str], pa: Any) -> Iterator[tuple[Any, ...]]:
    """Rows of a record batch as the values SQLite stores."""
    return zip(*(_values(batch.column(name), pa) for name in names), strict=True)


def _values(column: Any, pa: Any) -> list[Any]:
    """A column as Python values: times as their integers, unsigned 64 bits as signed ones, bytes as text."""
    types = pa.types
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_temporal(column.type):
        column = column.cast(pa.int64())
    if types.is_uint64(column.type):
        column = column.view(pa.int64())
    values: list[Any] = column.to_pylist()
    if types.is_decimal(column.type):
        number = float if column.type.scale > 0 else int
        return [value if value is None else number(value) for value in values]
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return [value if value is None else value.decode("utf-8", "replace") for value in values]
    return values
