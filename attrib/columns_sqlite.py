"""Integer columns of the kernel table through the standard sqlite3 module."""

import sqlite3
from array import array
from collections.abc import Collection, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attrib.columns_open import readonly_uri
from attrib.errors import SchemaError
from attrib.schema import KERNEL

CHUNK_ROWS = 1 << 16


def read_chunks(
    path: Path, names: tuple[str, ...], required: Collection[str]
) -> Iterator[tuple[float, dict[str, NDArray[np.int64]]]]:
    """Columns `names` of the kernel table in rowid order, as chunks of (rows,) arrays; NULL reads as -1.

    With each chunk comes the part of the table, up to 1, that has been read with it.

    Raises SchemaError for a value that is no integer, for NULL in a `required` column and for a damaged file.
    """
    picked = ", ".join(f'"{name}"' if name in required else f'IFNULL("{name}", -1)' for name in names)
    with closing(sqlite3.connect(readonly_uri(path), uri=True, isolation_level=None)) as connection:
        connection.execute("PRAGMA query_only = 1")
        try:
            connection.execute("BEGIN")
            (total,) = connection.execute(f"SELECT COUNT(*) FROM {KERNEL}").fetchone()
            done = 0
            cursor = connection.execute(f"SELECT {picked} FROM {KERNEL}")
            while rows := cursor.fetchmany(CHUNK_ROWS):
                try:
                    # array('q') takes integers only, where numpy would parse text and truncate reals.
                    flat = array("q", chain.from_iterable(rows))
                except TypeError:
                    raise _bad_value(connection, path, names, required) from None
                done += len(rows)
                table = np.frombuffer(flat, np.int64).reshape(len(rows), len(names))
                yield done / total, {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(names)}
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the message may quote bytes of a damaged schema
            raise SchemaError(f"{path}: table {KERNEL} is damaged ({error}); copy or export it again") from error


def _bad_value(
    connection: sqlite3.Connection, path: Path, names: tuple[str, ...], required: Collection[str]
) -> SchemaError:
    for name in names:
        allowed = "'integer'" if name in required else "'integer', 'null'"
        found = connection.execute(
            f'SELECT rowid, typeof("{name}") FROM {KERNEL} WHERE typeof("{name}") NOT IN ({allowed}) LIMIT 1'
        ).fetchone()
        if found:
            return SchemaError(
                f"{path}: table {KERNEL}, column {name}, row {found[0]} holds a {found[1]} value "
                "where nsys writes an integer; the file is damaged, export the report again."
            )
    return SchemaError(f"{path}: table {KERNEL} changed while it was read; read a copy of the file.")
