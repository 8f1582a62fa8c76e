"""Parquet directories and reports read like the SQLite export they stand for, and nothing appears beside them."""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attrib import inputs
from attrib.capture import CaptureError
from attrib.errors import SchemaError
from attrib.trace import open_trace
from tests.conftest import Attrib
from tests.helpers import data, fake_tools, parquet, small_step

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
EXPORTS = [name for name in data.NAMES if name != "not-an-export"]


def census(attrib: Attrib, path: Path) -> dict[str, Any]:
    return attrib("census", path, "--json").json()


def listing(folder: Path) -> dict[str, str]:
    """Digest of every file below a folder."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize("name", EXPORTS)
def test_a_parquet_directory_reads_like_the_export(attrib: Attrib, name: str, tmp_path: Path) -> None:
    folder = parquet.from_sqlite(data.trace(name), tmp_path / f"{name}_pqtdir")
    before = listing(tmp_path)
    found, plain = (attrib("census", path, "--json") for path in (folder, data.trace(name)))
    assert (found.code, found.out) == (plain.code, plain.out)
    assert found.err.split(":", 2)[-1] == plain.err.split(":", 2)[-1]
    described = attrib("info", folder, "--json").json()
    assert {**described, "file": ""} == {**attrib("info", data.trace(name), "--json").json(), "file": ""}
    assert listing(tmp_path) == before


@pytest.mark.parametrize("options", [{"unsigned": True}, {"coded": True}])
def test_types_make_no_difference(attrib: Attrib, options: dict[str, bool], tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    folder = parquet.from_sqlite(trace, tmp_path / "typed", **options)
    assert census(attrib, folder) == census(attrib, trace)


def test_times_and_bytes_of_parquet_become_numbers_and_text(tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    folder = parquet.from_sqlite(trace, tmp_path / "typed")
    kernels = pq.read_table(folder / f"{KERNEL}.parquet")
    for name in ("start", "end"):
        kernels = kernels.set_column(kernels.schema.get_field_index(name), name, kernels[name].cast(pa.timestamp("ns")))
    pq.write_table(kernels, folder / f"{KERNEL}.parquet")
    strings = pq.read_table(folder / "StringIds.parquet")
    pq.write_table(strings.set_column(1, "value", strings["value"].cast(pa.binary())), folder / "StringIds.parquet")
    found, plain = open_trace(folder), open_trace(trace)
    assert found.kernels.start.tolist() == plain.kernels.start.tolist()
    assert found.names == plain.names


def test_unknown_tables_and_columns_are_left_alone(attrib: Attrib, tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    folder = parquet.from_sqlite(trace, tmp_path / "more")
    (folder / "SCHED_EVENTS.parquet").write_bytes(b"never read")
    table = pq.read_table(folder / "StringIds.parquet")
    pq.write_table(
        table.append_column("parts", pa.array([[1]] * len(table), pa.list_(pa.int64()))), folder / "StringIds.parquet"
    )
    assert census(attrib, folder) == census(attrib, trace)


def refused_or_not(attrib: Attrib, trace: Path) -> tuple[int, str, str]:
    found = attrib("census", trace, "--json")
    said = json.loads(found.out)
    return found.code, found.out if "error" not in said else "", said.get("error", "").replace(str(trace), "TRACE")


COLUMNS_READ = [
    (table, column)
    for table, columns in {
        KERNEL: ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId", "demangledName",
                 "shortName", "gridX", "blockX"),
        "StringIds": ("id", "value"),
        "CUDA_GRAPH_NODE_EVENTS": ("start", "graphNodeId"),
        "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "correlationId", "globalTid"),
        "TARGET_INFO_GPU": ("id", "name", "memoryBandwidth"),
        "META_DATA_EXPORT": ("name", "value"),
    }.items()
    for column in columns
]  # fmt: skip


@pytest.mark.parametrize("coded", [False, True], ids=["null", "dictionary of nulls"])
@pytest.mark.parametrize(("table", "column"), COLUMNS_READ)
def test_a_column_without_values_is_one_of_nulls(
    attrib: Attrib, tmp_path: Path, table: str, column: str, coded: bool
) -> None:
    """As a SQLite export with NULL in it: where that gives an answer, so does this, and the same."""
    trace, _ = small_step.write(tmp_path)
    folder = parquet.from_sqlite(trace, tmp_path / "x_pqtdir")
    path = folder / f"{table}.parquet"
    content = pq.read_table(path)
    nulls = pa.nulls(len(content))
    changed = pa.array([None] * len(content), pa.dictionary(pa.int8(), pa.string())) if coded else nulls
    pq.write_table(content.set_column(content.schema.get_field_index(column), column, changed), path)
    with closing(sqlite3.connect(trace)) as db:
        # a table of rows has none of the constraints that nsys declares
        db.executescript(
            f'ALTER TABLE "{table}" RENAME TO old; CREATE TABLE "{table}" AS SELECT * FROM old; DROP TABLE old; '
            f'UPDATE "{table}" SET "{column}" = NULL'
        )
        db.commit()
    assert refused_or_not(attrib, folder) == refused_or_not(attrib, trace)


@pytest.mark.parametrize("table", ["META_DATA_EXPORT", "TARGET_INFO_GPU", "CUPTI_ACTIVITY_KIND_RUNTIME", "PROCESSES"])
@pytest.mark.parametrize("rows", [0, 3])
def test_a_table_without_any_value_stops_nothing(attrib: Attrib, tmp_path: Path, table: str, rows: int) -> None:
    trace, _ = small_step.write(tmp_path)
    folder = parquet.from_sqlite(trace, tmp_path / "x_pqtdir")
    path = folder / f"{table}.parquet"
    names = pq.read_table(path).column_names
    pq.write_table(pa.table({name: pa.nulls(rows) for name in names}), path)
    found = attrib("census", folder, "--json").json()
    assert found["steps"]["count"] == 3


def damaged(folder: Path, content: bytes) -> Path:
    (folder / f"{KERNEL}.parquet").write_bytes(content)
    return folder


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_damaged_table_is_named(attrib: Attrib, content: bytes, tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    folder = damaged(parquet.from_sqlite(trace, tmp_path / "bad"), content)
    text = attrib("census", folder).refusal()
    assert f"{KERNEL}.parquet is a damaged Parquet file" in text


def test_damage_inside_a_packed_export_names_what_was_given(attrib: Attrib, tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    with closing(sqlite3.connect(trace)) as db:
        db.executescript(f"UPDATE {KERNEL} SET start = 'soon' WHERE rowid = 2")
    packed = tmp_path / "packed.sqlite.xz"
    packed.write_bytes(lzma.compress(trace.read_bytes()))
    text = attrib("census", packed).refusal()
    assert text.startswith(f"attrib: {packed}: table {KERNEL}, column start, row 2 holds a text value")


def test_info_takes_a_run_directory(attrib: Attrib, tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    assert attrib("info", tmp_path, "--json").out == attrib("info", trace, "--json").out


def test_a_folder_without_tables_is_refused(attrib: Attrib, tmp_path: Path) -> None:
    (tmp_path / "notes.parquet").write_bytes(b"PAR1")
    assert "directory without Parquet tables" in attrib("census", tmp_path).refusal()


def test_one_table_of_an_export_names_the_folder(attrib: Attrib, tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    folder = parquet.from_sqlite(trace, tmp_path / "whole")
    assert f"give the folder it lies in, {folder}" in attrib("census", folder / f"{KERNEL}.parquet").refusal()


def test_compare_takes_a_parquet_directory(attrib: Attrib, tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    folder = parquet.from_sqlite(trace, tmp_path / "b_pqtdir")
    assert attrib("compare", trace, folder, "--json").json()["schema"].startswith("attrib.compar")
    assert attrib("compare", trace, folder, "--devices").code == 0


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report that the fake nsys exports as the small step; the cache lies in a folder of its own."""
    work = fake_tools.install(tmp_path / "tools", monkeypatch)
    trace, _ = small_step.write(tmp_path)
    monkeypatch.setenv("FAKE_TRACE", str(trace))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    report = work / "run.nsys-rep"
    report.write_bytes(b"report")
    return report


def cached() -> list[Path]:
    return sorted(inputs.cache_folder().glob("*"))


def test_a_report_is_exported_into_the_cache(attrib: Attrib, report: Path, tmp_path: Path) -> None:
    before = listing(report.parent)
    found = census(attrib, report)
    assert found == census(attrib, tmp_path / "trace.sqlite")
    assert listing(report.parent) == before
    (file,) = cached()
    assert file.parent == tmp_path / "cache" / "attrib" / "exports"
    assert file.name.startswith("run-")


def test_a_report_is_exported_once_until_it_changes(
    attrib: Attrib, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    census(attrib, report)
    monkeypatch.setenv("FAKE_NSYS", "bad-export")
    census(attrib, report)
    report.write_bytes(b"another report")
    text = attrib("census", report).refusal()
    assert "run.nsys-rep is an nsys report, which only nsys can read" in text
    assert "Failed to open the report file" in text
    assert len(cached()) == 1


def test_without_nsys_a_report_names_the_remedy(attrib: Attrib, report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTRIB_NSYS", str(report.parent / "no-nsys"))
    text = attrib("census", report).refusal()
    assert "run.nsys-rep" in text
    assert "nsys export --type sqlite" in text
    assert cached() == []


def test_an_export_that_is_none_leaves_nothing(attrib: Attrib, report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = report.parent / "text"
    text.write_text("no database")
    monkeypatch.setenv("FAKE_TRACE", str(text))
    assert "run.nsys-rep is not a SQLite database" in attrib("census", report).refusal()
    assert cached() == []


def test_the_cache_keeps_what_was_used_last(attrib: Attrib, report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    census(attrib, report)
    (first,) = cached()
    monkeypatch.setattr(inputs, "CACHE_BYTES", first.stat().st_size * 5 // 2)
    others = [shutil.copyfile(report, report.parent / f"other{place}.nsys-rep") for place in range(3)]
    for used in (others[0], others[1], others[0], others[2]):
        census(attrib, used)
    assert {file.name.rpartition("-")[0] for file in cached()} == {"other0", "other2"}


def test_a_renamed_export_is_read_as_what_it_is(attrib: Attrib, tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    named = shutil.copyfile(trace, tmp_path / "export.nsys-rep")
    assert census(attrib, named) == census(attrib, trace)


def test_errors_of_the_library_are_expected_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTRIB_NSYS", str(tmp_path / "none"))
    report = tmp_path / "x.nsys-rep"
    report.write_bytes(b"something")
    with pytest.raises(CaptureError):
        inputs.database_of(report)
    with pytest.raises(SchemaError, match=r"x\.qdrep is empty"):
        inputs.database_of(_empty(tmp_path / "x.qdrep"))


def _empty(path: Path) -> Path:
    path.touch()
    return path
