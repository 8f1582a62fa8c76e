"""What has been judged, in `runs.db` beside the recordings: noise floors and experiments, one row each."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attrib.errors import RefusedError
from attrib.runs import BUSY_S, DATABASE

_TABLES = """
CREATE TABLE IF NOT EXISTS noise (
    device TEXT, anchor TEXT, build TEXT, build_hash TEXT, sd REAL, pairs INTEGER, measured_utc TEXT, journal TEXT,
    PRIMARY KEY (device, anchor)
);
CREATE TABLE IF NOT EXISTS experiments (
    id TEXT PRIMARY KEY, finished_utc TEXT, device TEXT, anchor TEXT, base TEXT, new TEXT, verdict TEXT, bar REAL,
    change_pct REAL, low_pct REAL, high_pct REAL, sep INTEGER, pairs INTEGER, result TEXT
);
"""


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
    """`runs.db` in `out`, made when missing; committed when the block ends well.

    Raises RefusedError when the file is no database or cannot be written.
    """
    path = out / DATABASE
    try:
        out.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=BUSY_S)) as connection, connection:
            connection.row_factory = sqlite3.Row
            connection.executescript(_TABLES)
            yield connection
    except (sqlite3.DatabaseError, OSError) as error:
        raise RefusedError(f"{path} cannot be used ({error}); move it away, and a new one is started") from error


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
    with connect(out) as db:
        row = db.execute("SELECT * FROM noise WHERE device = ? AND anchor = ?", (device, anchor)).fetchone()
    return Noise(**dict(row)) if row else None


def keep_experiment(out: Path, name: str, when: str, result: Mapping[str, Any]) -> None:
    """Store a finished comparison: its first anchor in columns, the whole JSON object in `result`."""
    target = result["anchors"][0]
    values = (
        name, when, result["device"], target["anchor"], result["base"]["build"], result["new"]["build"],
        target["verdict"], target["bar_pct"], target["change_pct"], target["low_pct"], target["high_pct"],
        target["sep"], target["pairs"], json.dumps(result, allow_nan=False),
    )  # fmt: skip
    with connect(out) as db:
        db.execute(f"INSERT OR REPLACE INTO experiments VALUES ({', '.join('?' * len(values))})", values)
