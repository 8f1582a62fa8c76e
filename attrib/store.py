"""`runs.db` beside the run directories: opened, migrated, written by one at a time, and what was judged.

Writers take SQLite's write lock before they read (`BEGIN IMMEDIATE`) and wait for one another; a block of writes is
all there or not at all, also after a kill, since the rollback journal undoes what was under way when next opened.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attrib.errors import NoDataError, RefusedError
from attrib.files import require_regular
from attrib.runs_schema import MIGRATIONS, VERSION

DATABASE = "runs.db"
BUSY_S = 30.0


@dataclass(frozen=True)
class Noise:
    """The noise of a device at an anchor, from a build against itself; `sd` of the paired log ratios."""

    device: str
    anchor: str
    build: str
    build_hash: str
    sd: float
    pairs: int
    measured_utc: str
    journal: str


@contextmanager
def connect(out: Path) -> Iterator[sqlite3.Connection]:
    """`runs.db` in `out` for writing, made when missing, of the current schema; committed when the block ends well.

    Raises RefusedError when the file is no database, of a newer schema, busy for BUSY_S, or cannot be written.
    """
    path = out / DATABASE
    try:
        out.mkdir(parents=True, exist_ok=True)
        if path.exists():
            require_regular(path)
        with closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
            _named(connection)
            connection.execute("BEGIN IMMEDIATE")
            try:
                migrate(connection, path)
                yield connection
            except BaseException:
                if connection.in_transaction:  # a full disk may have ended it already
                    connection.execute("ROLLBACK")
                raise
            if connection.in_transaction:
                connection.execute("COMMIT")
    except (sqlite3.DatabaseError, OSError) as error:
        raise _unusable(path, error) from error


@contextmanager
def reading(out: Path) -> Iterator[sqlite3.Connection]:
    """`runs.db` in `out` for reading, with the current schema whatever its version; the file stays as it is.

    An older database is migrated in memory. What a killed writer left half-done is undone first, as by any reader.
    Raises NoDataError where there is none and RefusedError as `connect` does.
    """
    path = out / DATABASE
    if not path.exists():
        raise NoDataError(f"{out} has no {DATABASE}; `attrib record --out {out}` starts one")
    try:
        require_regular(path)
        # rw, for a journal to be rolled back; SQLite itself falls back to read-only where the file cannot be written
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only = 1")
            if schema_version(connection, path) == VERSION:
                _named(connection)
                yield connection
                return
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
                connection.backup(copy)
                migrate(copy, path)
                _named(copy)
                yield copy
    except (sqlite3.DatabaseError, OSError) as error:
        raise _unusable(path, error) from error


def _named(connection: sqlite3.Connection) -> None:
    """Rows by the names of their columns; text that is no UTF-8 is still a row."""
    connection.row_factory = sqlite3.Row
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")


def schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """The migrations a database has had. Raises RefusedError for a newer one than this program knows."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise RefusedError(
            f"{path} has schema {version}, and this attrib knows schemas up to {VERSION}; use a newer attrib"
        )
    return version


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring a database to the current schema, inside the caller's transaction."""
    version = schema_version(connection, path)
    for step in MIGRATIONS[version:]:
        step(connection)
    if version < VERSION:
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _unusable(path: Path, error: sqlite3.DatabaseError | OSError) -> RefusedError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bits say more of the same
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return RefusedError(f"{path} was busy for {BUSY_S:.0f} s with another writer; wait until it is done")
    said = getattr(error, "strerror", None) or error
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return RefusedError(f"{path} cannot be used ({said}); move it away, and a new one is started")
    if code == sqlite3.SQLITE_ERROR:
        return RefusedError(f"{path} cannot be used ({said}): its tables are not those that attrib keeps")
    return RefusedError(f"{path} cannot be used ({said}); see to the rights and the room of its folder")


def keep_noise(out: Path, noise: Noise) -> None:
    """Store a noise measurement; the latest of a device and anchor counts."""
    with connect(out) as db:
        names = asdict(noise)
        marks = ", ".join("?" * len(names))
        db.execute(f"INSERT OR REPLACE INTO noise ({', '.join(names)}) VALUES ({marks})", tuple(names.values()))


def find_noise(out: Path, device: str, anchor: str) -> Noise | None:
    """The stored noise of a device at an anchor, None when `--aa` never ran there."""
    if not (out / DATABASE).exists():
        return None
    with reading(out) as db:
        row = db.execute("SELECT * FROM noise WHERE device = ? AND anchor = ?", (device, anchor)).fetchone()
    return Noise(**dict(row)) if row else None


def keep_experiment(out: Path, name: str, when: str, result: Mapping[str, Any]) -> None:
    """Store a finished comparison: its first anchor in columns, the whole JSON object in `result`."""
    target = result["anchors"][0]
    values = {
        "id": name,
        "finished_utc": when,
        "device": result["device"],
        "anchor": target["anchor"],
        "base": result["base"]["build"],
        "new": result["new"]["build"],
        "verdict": target["verdict"],
        "bar": target["bar_pct"],
        "change_pct": target["change_pct"],
        "low_pct": target["low_pct"],
        "high_pct": target["high_pct"],
        "sep": target["sep"],
        "pairs": target["pairs"],
        "result": json.dumps(result, allow_nan=False),
    }
    marks = ", ".join("?" * len(values))
    with connect(out) as db:
        db.execute(f"INSERT OR REPLACE INTO experiments ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
