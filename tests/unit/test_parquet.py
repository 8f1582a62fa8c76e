"""Parquet exports against SQLite exports of the same rows: every value arrives as SQLite stores it, or is refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib.columns import COLUMNS
from attrib.parquet import to_sqlite
from attrib.schema import KERNEL, TABLES
from tests.conftest import Attrib
from tests.helpers import data, parquet, small_step

EXPORTS = [name for name in data.NAMES if name != "not-an-export"]
Row = tuple[Any, ...]


def tables_of(database: Path) -> dict[str, tuple[list[str], list[Row]]]:
    """Columns and rows of the tables that are read; of the kernel table the columns that are."""
    found = {}
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        for table in TABLES:
            columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
            kept = [name for name in columns if table != KERNEL or name in COLUMNS]
            if kept:
                named = ", ".join(f'"{name}"' for name in kept)
                found[table] = kept, db.execute(f'SELECT {named} FROM "{table}"').fetchall()
    return found


def copied(table: pa.Table, name: str = "PROCESSES") -> list[Row]:
    """Rows of one table after the way through Parquet into SQLite."""
    with TemporaryDirectory() as place:
        folder, database = Path(place) / "x_pqtdir", Path(place) / "copy.sqlite"
        folder.mkdir()
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=3)
        to_sqlite(folder, database)
        with closing(sqlite3.connect(database)) as db:
            return db.execute(f'SELECT * FROM "{name}"').fetchall()


def signed(value: int | None) -> int | None:
    """The signed number of the same 64 bits."""
    return None if value is None else int.from_bytes(value.to_bytes(8, "little"), "little", signed=True)


EDGES = st.sampled_from([0, 1, 2**63 - 1, 2**63, 0xFE << 56, 2**64 - 1])
UNSIGNED = st.none() | EDGES | st.integers(0, 2**64 - 1)


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(UNSIGNED, UNSIGNED), max_size=20),
    table=st.sampled_from(TABLES),
    coded=st.booleans(),
)
def test_unsigned_64_bits_are_the_signed_ones_of_sqlite(
    rows: list[tuple[int | None, int | None]], table: str, coded: bool
) -> None:
    """In every table, in any column, nulls among them, plain or coded."""
    columns = {}
    for place, name in enumerate(("start", "globalPid")):
        column = pa.array([row[place] for row in rows], pa.uint64())
        columns[name] = column.dictionary_encode() if coded else column
    assert copied(pa.table(columns), table) == [(signed(first), signed(second)) for first, second in rows]


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_with_unsigned_columns_is_the_sqlite_export(attrib: Attrib, name: str, tmp_path: Path) -> None:
    plain = data.trace(name)
    folder = parquet.from_sqlite(plain, tmp_path / f"{name}_pqtdir", unsigned=True)
    to_sqlite(folder, tmp_path / "copy.sqlite")
    assert tables_of(tmp_path / "copy.sqlite") == tables_of(plain)
    for command in ("census", "anatomy"):
        found, wanted = (attrib(command, path, "--json") for path in (folder, plain))
        assert (found.code, found.out) == (wanted.code, wanted.out)


def test_recorded_exports_have_ids_that_set_the_highest_bit() -> None:
    """Without them the comparison above would not show that these become negative."""
    columns, rows = tables_of(data.trace("cuda-python-graph-h200"))["DIAGNOSTIC_EVENT"]
    assert min(row[columns.index("globalPid")] for row in rows) < 0


WHOLE = pa.decimal128(38, 0)


def test_decimals_are_numbers() -> None:
    whole = pa.array([Decimal(2**63 - 1), None, Decimal(-(2**63))], WHOLE)
    parts = pa.array([Decimal("0.5"), Decimal("-2.25"), None], pa.decimal128(10, 2))
    assert copied(pa.table({"pid": whole, "share": parts})) == [(2**63 - 1, 0.5), (None, -2.25), (-(2**63), None)]


@pytest.mark.parametrize("beyond", [2**63, -(2**63) - 1, 2**64 - 1, 10**37])
@pytest.mark.parametrize("table", [KERNEL, "DIAGNOSTIC_EVENT"])
def test_a_number_beyond_64_bits_is_refused(attrib: Attrib, beyond: int, table: str, tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    folder = parquet.from_sqlite(trace, tmp_path / "big")
    wide = pa.array([Decimal(1), None, Decimal(beyond)], WHOLE)
    pq.write_table(pa.table({"start": wide, "end": [5, 6, 7], "shortName": [1, 1, 1]}), folder / f"{table}.parquet")
    assert f"{table}.parquet holds a number beyond 64 bits" in attrib("census", folder).refusal()
