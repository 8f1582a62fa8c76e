"""runs.db: migrations from every version, newer ones refused, two writers at once, a writer killed in the middle."""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attrib import api, runs, runs_schema, store
from attrib.errors import NoDataError, RefusedError
from tests.helpers import persistent_step as ps
from tests.helpers.runs_writer import run_row, site_row

ROOT = Path(__file__).resolve().parents[2]
# what was written before there were versions: fewer columns, tables made when first needed
OLDEST = """
CREATE TABLE "sites" ("run" TEXT, "site" TEXT, "launches" INTEGER, "gbps" REAL, "ms_per_step" REAL,
    "straggler" INTEGER, "recoverable_ms" REAL, PRIMARY KEY ("run", "site"));
CREATE TABLE "runs" ("id" TEXT PRIMARY KEY, "recorded_utc" TEXT, "anchor" TEXT, "build" TEXT, "device" TEXT,
    "tok_per_s" REAL);
INSERT INTO runs VALUES ('old', '20250101T000000Z', '14b:tg128', 'reference', 'NVIDIA H200', 140.5);
INSERT INTO sites VALUES ('old', 'ffn_up/q4_K', 48, 2031.0, 0.94, 1, 0.34);
"""


def database(folder: Path) -> Path:
    return folder / store.DATABASE


def shape(connection: sqlite3.Connection) -> dict[str, Any]:
    """Everything but the order of columns, which no statement of ours depends on."""
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
    columns = {
        n: sorted((r[1], r[2], r[5]) for r in connection.execute(f"PRAGMA table_info({n})").fetchall()) for n in names
    }
    indexes = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('index', 'trigger')").fetchall()
    return columns | {"indexes": sorted(tuple(i) for i in indexes)}


def write_version(folder: Path, version: int) -> Path:
    """A database as the program of that schema version left it, with one run."""
    folder.mkdir(exist_ok=True)
    path = database(folder)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(OLDEST)
        for step in runs_schema.MIGRATIONS[:version]:
            step(connection)
        connection.execute(f"PRAGMA user_version = {version}")
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("version", range(runs_schema.VERSION + 1))
def test_every_old_version_is_brought_forward(tmp_path: Path, version: int) -> None:
    write_version(tmp_path / "old", version)
    with store.connect(tmp_path / "fresh") as fresh:
        wanted = shape(fresh)
    with store.connect(tmp_path / "old") as db:
        assert shape(db) == wanted
        assert db.execute("PRAGMA user_version").fetchone()[0] == runs_schema.VERSION
        assert tuple(db.execute("SELECT id, tok_per_s, nsys FROM runs").fetchone()) == ("old", 140.5, None)
        assert tuple(db.execute("SELECT site, gbps, build FROM site_history").fetchone()) == (
            "ffn_up/q4_K", 2031.0, "reference",
        )  # fmt: skip
    runs.append(tmp_path / "old", run_row("new"), [site_row("ffn_up/q4_K")])
    with store.reading(tmp_path / "old") as db:
        assert db.execute("SELECT COUNT(*) FROM site_history").fetchone()[0] == 2
        assert [row["id"] for row in db.execute("SELECT id FROM latest_runs")] == ["new"]


@pytest.mark.parametrize("version", range(runs_schema.VERSION + 1))
@pytest.mark.parametrize("added", [False, True], ids=["never stored", "added by a recording"])
def test_waits_are_stored_in_a_database_of_every_version(tmp_path: Path, version: int, added: bool) -> None:
    path = write_version(tmp_path, version)
    if added and version < 3:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("ALTER TABLE sites ADD COLUMN wait_us FLOAT")
            connection.execute("UPDATE sites SET wait_us = 2.5")
            connection.commit()
    before = 2.5 if added and version < 3 else None
    with store.reading(tmp_path) as db:
        assert [row["wait_us"] for row in db.execute("SELECT wait_us FROM sites")] == [before]
    runs.append(tmp_path, run_row("new"), [site_row("attention", wait_us=1.5)])
    with store.reading(tmp_path) as db:
        assert [row["wait_us"] for row in db.execute("SELECT wait_us FROM sites ORDER BY run")] == [1.5, before]


def test_everything_a_census_says_of_a_site_has_its_column(tmp_path: Path) -> None:
    """Without one the first recording would add it, and older databases would lack it."""
    ps.write(tmp_path)
    for site in api.census(tmp_path).to_json()["sites"]:
        stored = {name for name, value in site.items() if isinstance(value, (str, int, float, bool, type(None)))}
        assert stored <= runs_schema.SITES.keys() | runs_schema.WAITS.keys()


@pytest.mark.parametrize("version", range(runs_schema.VERSION + 1))
def test_reading_an_old_version_leaves_the_file_alone(tmp_path: Path, version: int) -> None:
    path = write_version(tmp_path, version)
    before = digest(path)
    with store.reading(tmp_path) as db:
        assert [row["run"] for row in db.execute("SELECT run FROM latest_stragglers")] == ["old"]
        if version == runs_schema.VERSION:
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                db.execute("DELETE FROM runs")
    assert digest(path) == before
    assert [p.name for p in tmp_path.iterdir()] == [store.DATABASE]


def test_only_the_tables_that_were_needed_existed(tmp_path: Path) -> None:
    with closing(sqlite3.connect(database(tmp_path))) as connection:
        connection.execute(
            "CREATE TABLE noise (device TEXT, anchor TEXT, build TEXT, build_hash TEXT, sd REAL, pairs INTEGER, "
            "measured_utc TEXT, journal TEXT, PRIMARY KEY (device, anchor))"
        )
        connection.execute("INSERT INTO noise VALUES ('d', 'a', 'b', 'h', 0.001, 10, 'now', 'j')")
        connection.commit()
    found = store.find_noise(tmp_path, "d", "a")
    assert found is not None
    assert found.sd == 0.001
    runs.append(tmp_path, run_row("new"), [])
    assert store.find_noise(tmp_path, "d", "a") == found


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = write_version(tmp_path, runs_schema.VERSION)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {runs_schema.VERSION + 1}")
    before = digest(path)
    wanted = f"has schema {runs_schema.VERSION + 1}, and this attrib knows schemas up to {runs_schema.VERSION}"
    with pytest.raises(RefusedError, match=wanted):
        runs.append(tmp_path, run_row("new"), [])
    with pytest.raises(RefusedError, match=wanted), store.reading(tmp_path):
        pass
    assert digest(path) == before


def test_what_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(NoDataError, match=r"has no runs\.db; `attrib record"), store.reading(tmp_path):
        pass
    database(tmp_path).write_text("text, and enough of it to be read as a page of a database " * 20)
    for use in (store.connect, store.reading):
        with pytest.raises(RefusedError, match=r"cannot be used .* move it away"), use(tmp_path):
            pass
    write_version(tmp_path / "other", runs_schema.VERSION)
    wanted = r"no such table: planets\): its tables are not those that attrib keeps"
    with pytest.raises(RefusedError, match=wanted), store.reading(tmp_path / "other") as db:
        db.execute("SELECT * FROM planets")
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError, match="cannot be used"), store.connect(tmp_path / "file"):
        pass


def test_a_migration_that_fails_leaves_the_old_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_version(tmp_path, 0)

    def broken(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE half (a)")
        connection.execute("SELECT no_such_column")

    monkeypatch.setattr(store, "MIGRATIONS", (*runs_schema.MIGRATIONS, broken))
    monkeypatch.setattr(store, "VERSION", runs_schema.VERSION + 1)
    with pytest.raises(RefusedError, match="no_such_column"), store.connect(tmp_path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (0,)
        assert {r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")} == {
            "runs", "sites",
        }  # fmt: skip


def test_a_failed_block_leaves_nothing(tmp_path: Path) -> None:
    runs.append(tmp_path, run_row("first"), [site_row("a")])

    def fail() -> None:
        with store.connect(tmp_path) as db:
            db.execute("DELETE FROM runs")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(RefusedError, match="cannot be used"):
        runs.append(tmp_path, run_row("second") | {"tok per s": 1.0}, [{"site": None}, {"site": "b", "x\0y": 1}])
    with store.reading(tmp_path) as db:
        assert [row["id"] for row in db.execute("SELECT id FROM runs")] == ["first"]
        assert [row["run"] for row in db.execute("SELECT run FROM sites")] == ["first"]


def test_a_run_is_replaced_with_its_sites_and_new_columns_are_added(tmp_path: Path) -> None:
    runs.append(tmp_path, run_row("r"), [site_row("a"), site_row("b")])
    runs.append(tmp_path, run_row("r", tok_per_s=200.0, driver="590"), [site_row("b", gbps=7.0, l2_hit_pct=3.5)])
    with store.reading(tmp_path) as db:
        assert [tuple(r) for r in db.execute("SELECT id, tok_per_s, driver FROM runs")] == [("r", 200.0, "590")]
        assert [tuple(r) for r in db.execute("SELECT site, gbps, l2_hit_pct FROM sites")] == [("b", 7.0, 3.5)]


def test_a_busy_database_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.append(tmp_path, run_row("r"), [])
    monkeypatch.setattr(store, "BUSY_S", 0.05)
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RefusedError, match="busy for 0 s with another writer"):
            runs.append(tmp_path, run_row("s"), [])


def writer(folder: Path, prefix: str, count: int, sites: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.helpers.runs_writer", str(folder), prefix, str(count), str(sites)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    with closing(sqlite3.connect(database(tmp_path))) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_two_writers_at_once_lose_nothing(folder: Path) -> None:
    count, sites = 30, 60
    both = [writer(folder, prefix, count, sites) for prefix in ("a", "b")]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    with store.reading(folder) as db:
        assert db.execute("SELECT COUNT(*) FROM runs").fetchone()[0] == 2 * count
        assert db.execute("SELECT COUNT(*) FROM sites").fetchone()[0] == 2 * count * sites
        short = db.execute("SELECT run FROM sites GROUP BY run HAVING COUNT(*) <> ?", (sites,)).fetchall()
        assert short == []


@pytest.mark.parametrize("after", [0, 2])
def test_a_writer_killed_in_the_middle_leaves_whole_runs(folder: Path, after: int) -> None:
    """Runs of 12,000 sites take long enough that the signal falls into a write: the journal is there when it does."""
    sites = 12_000
    process = writer(folder, "k", 1000, sites)
    assert process.stdout is not None
    done = [process.stdout.readline().strip() for _ in range(after)]
    journal = folder / f"{store.DATABASE}-journal"
    while not journal.exists() or journal.stat().st_size < 512:
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    rest = process.communicate(timeout=60)[0].split()
    assert process.returncode == -signal.SIGKILL
    with store.reading(folder) as db:
        found = [row["id"] for row in db.execute("SELECT id FROM runs ORDER BY id")]
        assert {*done, *rest} <= set(found) <= {*done, *rest, f"k-{len(done) + len(rest):04d}"}
        counts = {row[0]: row[1] for row in db.execute("SELECT run, COUNT(*) FROM sites GROUP BY run")}
        assert counts == dict.fromkeys(found, sites)
    runs.append(folder, run_row("after"), [site_row("a")])
    with store.reading(folder) as db:
        assert db.execute("SELECT COUNT(*) FROM runs").fetchone()[0] == len(found) + 1
