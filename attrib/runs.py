"""The list of recordings: `runs.db` beside the run directories, one row per run and per site, for SQL or Datasette."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from attrib.errors import RefusedError

DATABASE = "runs.db"
BUSY_S = 30.0
_SCALARS = (str, int, float, bool, type(None))


def run_name(when: datetime, anchor: str, build: str) -> str:
    """`<utc>-<anchor>-<build>` in letters that every file system takes; `when` is in UTC."""
    parts = (when.strftime("%Y%m%dT%H%M%SZ"), anchor.replace(":", "-"), build)
    return "-".join(re.sub(r"[^\w.@+-]+", "_", part).strip("_") for part in parts)


def free_folder(out: Path, name: str) -> Path:
    """The run directory of this name, with a number where one exists already."""
    folder, number = out / name, 2
    while folder.exists():
        folder = out / f"{name}-{number}"
        number += 1
    return folder


def append(out: Path, run: Mapping[str, Any], sites: Sequence[Mapping[str, Any]]) -> Path:
    """Add one run (its `id` is the key) and its sites to `runs.db` in `out`; returns the database.

    A run of the same id is replaced. Columns that an older database lacks are added. Raises RefusedError when the
    file is no database or cannot be written.
    """
    from sqlite_utils import Database  # noqa: PLC0415 - a fifth of a second that reading a trace should not pay

    path = out / DATABASE
    rows = [{"run": run["id"], **_flat(site)} for site in sites]
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
            db = Database(connection)
            # the run's row comes last: sites without a run are invisible, a run without sites would mislead
            if rows:
                db["sites"].insert_all(rows, pk=("run", "site"), alter=True, replace=True)
            db["runs"].insert(_flat(run), pk="id", alter=True, replace=True)
            connection.commit()
    except sqlite3.Error as error:
        raise RefusedError(
            f"{path} cannot take the run ({error}); move it away, and a new one is started by the next recording"
        ) from error
    return path


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if isinstance(value, _SCALARS)}
