"""The list of recordings: `runs.db` beside the run directories, one row per run and per site, for SQL or Datasette."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from attrib.store import DATABASE, connect

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
    """Add one run (its `id` is the key) and its sites to `runs.db` in `out`, both or neither; returns the database.

    A run of the same id is replaced. A column that the database lacks is added. Raises RefusedError when the file is
    no database or cannot be written.
    """
    from sqlite_utils import Database  # noqa: PLC0415 - a fifth of a second that reading a trace should not pay

    with connect(out) as connection:
        # plain rows and the caller's transaction: what the library does here are savepoints in it
        db = Database(connection, execute_plugins=False)
        connection.execute("DELETE FROM sites WHERE run = ?", (run["id"],))
        if sites:
            rows = [{"run": run["id"], **_flat(site)} for site in sites]
            db["sites"].insert_all(rows, pk=("run", "site"), alter=True, replace=True)
        db["runs"].insert(_flat(run), pk="id", alter=True, replace=True)
    return out / DATABASE


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if isinstance(value, _SCALARS)}
