"""The kernel table as arrays: the same whichever reader runs, and nothing silently wrong."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attrib.columns import COLUMNS, KernelColumns, Variants, read_kernels
from attrib.columns_encode import TupleEncoder, _hash
from attrib.columns_open import readonly_uri
from attrib.errors import RefusedError, SchemaError
from attrib.schema import KERNEL
from tests.helpers import data

ALL = frozenset(COLUMNS)
ROW = {
    "start": 100, "end": 250, "deviceId": 0, "globalPid": 1 << 48, "streamId": 7, "correlationId": 12,
    "graphNodeId": (2 << 32) + 5, "demangledName": 300, "shortName": 40000, "gridX": 70000, "gridY": 1, "gridZ": 1,
    "blockX": 256, "blockY": 4, "blockZ": 1,
}  # fmt: skip
EXPORTS = [name for name in data.NAMES if name != "not-an-export"]
# Both ends of every width SQLite stores an integer in: 0, 1, 1, 2, 3, 4, 6 and 8 bytes.
WIDTHS = sorted({0, 1, *(sign * 2**b + off for b in (7, 15, 23, 31, 47) for sign in (1, -1) for off in (-1, 0)),
                 2**63 - 1, -(2**63)})  # fmt: skip


def declared(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}" INTEGER' for name in names)


def table(path: Path, rows: Iterable[dict[str, Any]], names: Sequence[str] = COLUMNS, before: str = "") -> Path:
    """A database with a kernel table of these columns; `before` is SQL run on the empty file."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(before)
        db.execute(f"CREATE TABLE {KERNEL} ({declared(names)})")
        marks = ", ".join("?" for _ in names)
        db.executemany(f"INSERT INTO {KERNEL} VALUES ({marks})", [[row.get(n) for n in names] for row in rows])
        db.commit()
    return path


def present(path: Path) -> frozenset[str]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        return frozenset(row[1] for row in db.execute(f"PRAGMA table_info({KERNEL})"))


def flat(columns: KernelColumns | Variants, prefix: str = "") -> dict[str, np.ndarray]:
    found = {}
    for field in fields(columns):
        value = getattr(columns, field.name)
        found |= flat(value, "variants.") if isinstance(value, Variants) else {prefix + field.name: value}
    return found


def same(path: Path) -> KernelColumns:
    """What the readers agree on; the fast one must really have run."""
    fast, slow = (read_kernels(path, present(path), reader) for reader in ("pages", "sqlite"))
    other = flat(slow)
    for name, values in flat(fast).items():
        assert values.dtype == other[name].dtype, name
        np.testing.assert_array_equal(values, other[name], name)
    return fast


def as_rows(columns: KernelColumns) -> list[dict[str, int]]:
    v = columns.variants
    names = ("demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    shapes = np.column_stack([v.demangled, v.short, v.grid, v.block])
    return [
        {
            "start": int(columns.start[i]), "end": int(columns.end[i]), "deviceId": int(columns.device[i]),
            "globalPid": int(columns.processes[columns.process[i]]), "streamId": int(columns.stream[i]),
            "correlationId": int(columns.correlation[i]), "graphNodeId": int(columns.node[i]),
            **dict(zip(names, map(int, shapes[columns.variant[i]]), strict=True)),
        }
        for i in range(len(columns.start))
    ]  # fmt: skip


@pytest.mark.parametrize("name", EXPORTS)
def test_readers_agree_on_recorded_traces(name: str) -> None:
    path = data.trace(name)
    columns = same(path)
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        expected = db.execute(f'SELECT start, "end", shortName FROM {KERNEL} ORDER BY start, "end", rowid').fetchall()
    got = zip(columns.start, columns.end, columns.variants.short[columns.variant], strict=True)
    assert [tuple(map(int, row)) for row in got] == expected


def test_rows_and_variants_are_sorted_and_unknown_is_minus_one(tmp_path: Path) -> None:
    other = ROW | {"start": 50, "end": 60, "gridX": 3, "globalPid": 5, "graphNodeId": 0}
    bare = {"start": 100, "end": 200, "shortName": 9}
    columns = same(table(tmp_path / "t.sqlite", [ROW, other, bare, ROW | {"correlationId": 11}]))
    assert columns.start.tolist() == [50, 100, 100, 100]
    assert columns.end.tolist() == [60, 200, 250, 250]
    assert columns.correlation.tolist() == [12, -1, 12, 11]  # equal times keep the order of the table
    assert columns.node.tolist() == [-1, -1, (2 << 32) + 5, (2 << 32) + 5]
    assert columns.device.tolist() == [0, -1, 0, 0]
    assert columns.processes.tolist() == [-1, 5, 1 << 48]
    assert columns.process.tolist() == [1, 0, 2, 2]
    assert columns.variants.demangled.tolist() == [-1, 300, 300]
    assert columns.variants.short.tolist() == [9, 40000, 40000]
    assert columns.variants.grid.tolist() == [[-1, -1, -1], [3, 1, 1], [70000, 1, 1]]
    assert columns.variants.block.tolist() == [[-1, -1, -1], [256, 4, 1], [256, 4, 1]]
    assert columns.variant.tolist() == [1, 0, 2, 2]


def test_absent_columns_read_as_unknown(tmp_path: Path) -> None:
    path = table(tmp_path / "t.sqlite", [ROW], ("start", "end", "shortName"))
    assert as_rows(same(path)) == [
        dict.fromkeys(COLUMNS, -1) | {name: ROW[name] for name in ("start", "end", "shortName")}
    ]


def test_an_empty_table_gives_empty_columns(tmp_path: Path) -> None:
    columns = same(table(tmp_path / "t.sqlite", []))
    assert len(columns.start) == len(columns.variant) == len(columns.variants.short) == 0
    assert columns.processes.tolist() == [-1]


@pytest.mark.parametrize("page", [512, 4096, 65536])
def test_every_integer_width_and_page_size(tmp_path: Path, page: int) -> None:
    wide = [w for w in WIDTHS if -(2**31) <= w < 2**31]
    rows = [
        {**dict.fromkeys(COLUMNS, w), "deviceId": wide[i % len(wide)], "streamId": wide[-1 - i % len(wide)]}
        | {"graphNodeId": w or 3, "start": i}
        for i, w in enumerate(WIDTHS * 40)
    ]
    assert as_rows(same(table(tmp_path / "t.sqlite", rows, before=f"PRAGMA page_size = {page}"))) == rows


def test_pages_out_of_order_and_row_ids_of_every_length(tmp_path: Path) -> None:
    path = table(tmp_path / "t.sqlite", [])
    ids = [sign * ((1 << bits) + i) for bits in range(0, 63, 7) for sign in (1, -1) for i in range(200)]
    ids = [ids[i * 7919 % len(ids)] for i in range(len(ids))]
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE other (filler BLOB)")
        for i in dict.fromkeys(ids):
            insert = f'INSERT INTO {KERNEL} (rowid, start, "end", shortName) VALUES (?, 5, ?, 1)'
            db.execute(insert, (i, 6 + i % 3))
            db.execute("INSERT INTO other VALUES (zeroblob(300))")
        db.execute(f"DELETE FROM {KERNEL} WHERE rowid % 11 = 0")
        db.commit()
        expected = db.execute(f'SELECT "end" FROM {KERNEL} ORDER BY start, "end", rowid').fetchall()
    assert same(path).end.tolist() == [end for (end,) in expected]


scalar = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, 1, 255, 70000]))
anything = st.one_of(scalar, st.integers(-(2**63), 2**63 - 1))
row = st.fixed_dictionaries(
    {name: scalar if name in ("deviceId", "streamId") else anything for name in COLUMNS}
    | {name: st.integers(-(2**63), 2**63 - 1) for name in ("start", "end", "shortName")}
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(row, max_size=40), order=st.permutations(COLUMNS), kept=st.integers(1, len(COLUMNS)))
def test_any_table_is_read_as_it_was_written(
    tmp_path: Path, rows: list[dict[str, Any]], order: list[str], kept: int
) -> None:
    names = [*dict.fromkeys([*order[:kept], "start", "end", "shortName"])]
    path = tmp_path / "t.sqlite"
    path.unlink(missing_ok=True)
    expected = [{name: -1 if r[name] is None or name not in names else r[name] for name in COLUMNS} for r in rows]
    for r in expected:
        r["graphNodeId"] = r["graphNodeId"] or -1
    expected.sort(key=lambda r: (r["start"], r["end"]))
    assert as_rows(same(table(path, rows, names))) == expected


@pytest.mark.parametrize(("column", "value", "kind"), [
    ("gridX", "many", "text"), ("correlationId", 1.5, "real"), ("graphNodeId", 2**63, "real"),
    ("globalPid", b"\x01", "blob"), ("end", None, "null"), ("shortName", None, "null"),
])  # fmt: skip
@pytest.mark.parametrize("reader", ["auto", "sqlite"])
def test_a_value_that_is_no_integer_is_named(
    tmp_path: Path, column: str, value: object, kind: str, reader: str
) -> None:
    if isinstance(value, int):
        value = float(value)  # how SQLite stores an integer of more than 64 bits
    path = table(tmp_path / "t.sqlite", [ROW, ROW, ROW | {column: value}, ROW])
    with pytest.raises(SchemaError, match=f"{KERNEL}, column {column}, row 3 holds a {kind} value"):
        read_kernels(path, ALL, reader)


@pytest.mark.parametrize("reader", ["pages", "sqlite"])
def test_an_id_that_does_not_fit_is_named(tmp_path: Path, reader: str) -> None:
    path = table(tmp_path / "t.sqlite", [ROW, ROW | {"streamId": 2**32 + 7}])
    with pytest.raises(SchemaError, match="column streamId holds 4294967303"):
        read_kernels(path, ALL, reader)


def test_a_missing_column_and_an_unknown_reader_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "t.sqlite", [ROW])
    with pytest.raises(SchemaError, match="no column end"):
        read_kernels(path, ALL - {"end"})
    with pytest.raises(RefusedError, match="no reader 'fast'"):
        read_kernels(path, ALL, "fast")


LAYOUTS = {
    "text before the columns": f'CREATE TABLE "{KERNEL}" (note TEXT, {{columns}})',
    "row id as a column": f'CREATE TABLE "{KERNEL}" (note TEXT, {{columns}}, PRIMARY KEY(correlationId))',
    "without row ids": f'CREATE TABLE "{KERNEL}" (note TEXT, {{columns}}, PRIMARY KEY (start)) WITHOUT ROWID',
    "generated": f'CREATE TABLE "{KERNEL}" (note TEXT, twice AS ("end" * 2), {{columns}})',
    "view": f'CREATE TABLE kept (note TEXT, {{columns}}); CREATE VIEW "{KERNEL}" AS SELECT * FROM kept',
}


@pytest.mark.parametrize("note", ["", "n" * 50, "n" * 100, "n" * 9000], ids=["empty", "short", "long", "overflow"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_unusual_layouts_are_read_by_sqlite(tmp_path: Path, layout: str, note: str) -> None:
    path = tmp_path / "t.sqlite"
    rows = [ROW | {"start": i, "correlationId": 100 + i} for i in range(30)]
    with closing(sqlite3.connect(path)) as db:
        db.executescript(LAYOUTS[layout].format(columns=declared(COLUMNS)))
        target = "kept" if layout == "view" else KERNEL
        listed = ", ".join(f'"{n}"' for n in ("note", *COLUMNS))
        marks = ", ".join("?" for _ in range(len(COLUMNS) + 1))
        values = [[note, *(r[n] for n in COLUMNS)] for r in rows]
        db.executemany(f"INSERT INTO {target} ({listed}) VALUES ({marks})", values)
        db.commit()
    assert as_rows(read_kernels(path, ALL)) == rows
    if layout != "text before the columns" or len(note) > 57:
        with pytest.raises(RefusedError, match="use the sqlite reader"):
            read_kernels(path, ALL, "pages")


def test_columns_added_later_are_read_by_sqlite(tmp_path: Path) -> None:
    names = [name for name in COLUMNS if name != "blockZ"]
    path = table(tmp_path / "t.sqlite", [ROW], names)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"ALTER TABLE {KERNEL} ADD COLUMN blockZ INTEGER DEFAULT 1")
        db.execute(f"INSERT INTO {KERNEL} SELECT * FROM {KERNEL}")
        db.commit()
    assert as_rows(read_kernels(path, ALL)) == [ROW, ROW]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [ROW | {"start": 10 * i, "end": 10 * i + 7, "correlationId": i, "gridX": 1 + i % 9} for i in range(2000)]
    return table(tmp_path_factory.mktemp("recorded") / "t.sqlite", rows, before="PRAGMA page_size = 1024")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_is_refused_or_read_as_sqlite_reads_it(recorded: Path, tmp_path: Path, drawn: st.DataObject) -> None:
    content = bytearray(recorded.read_bytes())
    for _ in range(drawn.draw(st.integers(1, 4))):
        at = drawn.draw(st.integers(100, len(content) - 1))
        content[at] = drawn.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(content[: drawn.draw(st.sampled_from([len(content), len(content) - 1500]))])
    try:
        fast = read_kernels(path, ALL, "pages")
    except (RefusedError, SchemaError):
        return
    slow = flat(read_kernels(path, ALL, "sqlite"))
    for name, values in flat(fast).items():
        np.testing.assert_array_equal(values, slow[name], name)


def test_reading_leaves_nothing_beside_a_wal_file(tmp_path: Path) -> None:
    path = table(tmp_path / "w #1?%20.sqlite", [ROW], before="PRAGMA journal_mode = WAL")
    digest = data.sha256(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    for reader in ("pages", "sqlite"):
        assert as_rows(read_kernels(path, ALL, reader)) == [ROW]
        assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert data.sha256(path) == digest
    assert readonly_uri(path).endswith("/w%20%231%3F%2520.sqlite?mode=ro&immutable=1")


def test_unfinished_writes_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path / "w.sqlite", [], before="PRAGMA journal_mode = WAL")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute(f'INSERT INTO {KERNEL} (start, "end", shortName) VALUES (1, 2, 3)')
        writer.commit()
        with pytest.raises(RefusedError, match=r"still in w\.sqlite-wal"):
            read_kernels(path, ALL)
    plain = table(tmp_path / "p.sqlite", [ROW])
    journal = plain.with_name("p.sqlite-journal")
    journal.write_bytes(bytes(512))  # left by journal_mode = PERSIST: nothing to roll back
    assert len(read_kernels(plain, ALL).start) == 1
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504))
    with pytest.raises(RefusedError, match=r"left p\.sqlite-journal"):
        read_kernels(plain, ALL)


def test_colliding_hashes_never_give_a_wrong_code() -> None:
    encoder = TupleEncoder(2)
    first = int(encoder._dictionary.multipliers[0])

    def step(value: int) -> int:
        product = value * first % 2**64
        return product ^ product >> 32

    # The second column undoes what the first made different: (7, x) and (0, 0) have one hash.
    rows = np.array([(0, 0), (7, step(7) ^ step(0)), (0, 0), (5, 6)], np.uint64)
    assert len(set(_hash(list(rows.view(np.int64).T), encoder._dictionary.multipliers).tolist())) == 2
    columns = list(rows.view(np.int64).T.copy())
    codes = encoder.encode(columns)
    assert len(encoder.tuples) == 3
    np.testing.assert_array_equal(encoder.tuples[codes], np.column_stack(columns))
    rank, ordered = encoder.ranked()
    assert ordered.tolist() == sorted(ordered.tolist())
    np.testing.assert_array_equal(ordered[rank[codes]], np.column_stack(columns))
