"""Tables and views of `runs.db`, and the migrations that bring an older database to them, one version a step.

`PRAGMA user_version` counts the migrations a database has had. Version 0 is what was written before there were any:
some of the tables, with the columns of their time. A change to the schema is a further function in MIGRATIONS; those
before it never change, since databases out there have had them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping

RUNS: Mapping[str, str] = {
    "id": "TEXT PRIMARY KEY", "recorded_utc": "TEXT", "anchor": "TEXT", "model": "TEXT", "source": "TEXT",
    "build": "TEXT", "build_hash": "TEXT", "device": "TEXT", "nsys": "TEXT", "tok_per_s": "REAL",
    "untraced_step_ms": "REAL", "untraced_device_ms": "REAL", "traced_step_ms": "REAL", "traced_span_ms": "REAL",
    "step_inflation_pct": "REAL", "device_inflation_pct": "REAL", "span_of_untraced_step_pct": "REAL",
    "steps": "INTEGER", "launches": "INTEGER", "idle_ms": "REAL", "closure_ns": "INTEGER",
    "matched_time_pct": "REAL", "step_bytes": "REAL", "step_gbps": "REAL", "recoverable_ms": "REAL",
}  # fmt: skip
SITES: Mapping[str, str] = {
    "run": "TEXT", "site": "TEXT", "quant": "TEXT", "category": "TEXT", "launches": "INTEGER", "bytes": "INTEGER",
    "kv_bytes": "INTEGER", "duration_us": "REAL", "exclusive_us": "REAL", "ms_per_step": "REAL",
    "pct_of_span": "REAL", "spread_pct": "REAL", "gbps": "REAL", "gbps_duration": "REAL", "kv_gbps": "REAL",
    "pct_of_peak": "REAL", "class_gbps": "REAL", "recoverable_ms": "REAL", "straggler": "INTEGER",
    "impossible": "INTEGER", "overlapped": "INTEGER",
}  # fmt: skip
NOISE: Mapping[str, str] = {
    "device": "TEXT", "anchor": "TEXT", "build": "TEXT", "build_hash": "TEXT", "sd": "REAL", "pairs": "INTEGER",
    "measured_utc": "TEXT", "journal": "TEXT",
}  # fmt: skip
EXPERIMENTS: Mapping[str, str] = {
    "id": "TEXT PRIMARY KEY", "finished_utc": "TEXT", "device": "TEXT", "anchor": "TEXT", "base": "TEXT",
    "new": "TEXT", "verdict": "TEXT", "bar": "REAL", "change_pct": "REAL", "low_pct": "REAL", "high_pct": "REAL",
    "sep": "INTEGER", "pairs": "INTEGER", "result": "TEXT",
}  # fmt: skip
LEVERS: Mapping[str, str] = {
    "name": "TEXT PRIMARY KEY", "question": "TEXT", "mechanism": "TEXT", "bar": "REAL", "anchors": "TEXT",
    "guards": "TEXT", "site": "TEXT", "base": "TEXT", "new": "TEXT", "gates": "TEXT", "written_utc": "TEXT",
    "digest": "TEXT", "started_utc": "TEXT", "measurements": "TEXT", "verdict": "TEXT", "why": "TEXT",
    "decided_utc": "TEXT",
}  # fmt: skip
LEVER_WRITTEN = (
    "name", "question", "mechanism", "bar", "anchors", "guards", "site", "base", "new", "gates", "written_utc",
)  # fmt: skip
"""What of a lever is written before the first window, and may not change after it."""
WAITS: Mapping[str, str] = {"wait_us": "REAL"}
"""Columns of `sites` since version 3: what the stages of a persistent kernel waited."""
_LEVER_DECIDED = "OLD.started_utc IS NOT NULL OR OLD.verdict IS NOT NULL"
_TRIGGERS: Mapping[str, str] = {
    "levers_written": (
        f"BEFORE UPDATE OF {', '.join(LEVER_WRITTEN)}, digest, started_utc ON levers WHEN {_LEVER_DECIDED} "
        "BEGIN SELECT RAISE(ABORT, 'what was written before the first window cannot change after it'); END"
    ),
    "levers_kept": (
        f"BEFORE DELETE ON levers WHEN {_LEVER_DECIDED} "
        "BEGIN SELECT RAISE(ABORT, 'a lever that was measured or vetoed stays in the ledger'); END"
    ),
    "levers_replaced": (
        "BEFORE INSERT ON levers WHEN EXISTS "
        "(SELECT 1 FROM levers WHERE name = NEW.name AND (started_utc IS NOT NULL OR verdict IS NOT NULL)) "
        "BEGIN SELECT RAISE(ABORT, 'a lever that was measured or vetoed cannot be replaced'); END"
    ),
}
_TABLES: Mapping[str, tuple[Mapping[str, str], str]] = {
    "runs": (RUNS, ""),
    "sites": (SITES, ", PRIMARY KEY (run, site)"),
    "noise": (NOISE, ", PRIMARY KEY (device, anchor)"),
    "experiments": (EXPERIMENTS, ""),
    "levers": (LEVERS, ""),
}
VIEWS: Mapping[str, str] = {
    # the newest recording of each anchor on each device
    "latest_runs": (
        "SELECT r.* FROM runs AS r WHERE r.id = (SELECT id FROM runs WHERE anchor IS r.anchor AND device IS r.device "
        "ORDER BY recorded_utc DESC, id DESC LIMIT 1) ORDER BY r.device, r.anchor"
    ),
    # every site of every run, with what is needed to draw its history
    "site_history": (
        "SELECT s.site, r.anchor, r.device, r.recorded_utc, r.build, r.build_hash, s.gbps, s.gbps_duration, "
        "s.class_gbps, s.ms_per_step, s.recoverable_ms, s.straggler, s.launches, s.bytes, s.quant, s.category, s.run "
        "FROM sites AS s JOIN runs AS r ON r.id = s.run ORDER BY s.site, r.anchor, r.device, r.recorded_utc, r.id"
    ),
    # a line per site and build
    "site_by_build": (
        "SELECT s.site, r.anchor, r.device, r.build, r.build_hash, COUNT(*) AS runs, MIN(r.recorded_utc) AS first_utc, "
        "MAX(r.recorded_utc) AS last_utc, AVG(s.gbps) AS mean_gbps, MIN(s.gbps) AS min_gbps, MAX(s.gbps) AS max_gbps, "
        "AVG(s.ms_per_step) AS mean_ms_per_step FROM sites AS s JOIN runs AS r ON r.id = s.run "
        "GROUP BY s.site, r.anchor, r.device, r.build, r.build_hash ORDER BY s.site, r.anchor, r.device, first_utc"
    ),
    # what is slow now: stragglers of the newest recordings, the costliest first
    "latest_stragglers": (
        "SELECT r.anchor, r.device, s.site, s.recoverable_ms, s.gbps, s.class_gbps, s.ms_per_step, r.build, s.run "
        "FROM sites AS s JOIN latest_runs AS r ON r.id = s.run WHERE s.straggler ORDER BY s.recoverable_ms DESC"
    ),
    # comparisons without their long result
    "verdicts": (
        "SELECT finished_utc, device, anchor, base, new, verdict, change_pct, low_pct, high_pct, bar, sep, pairs, id "
        "FROM experiments ORDER BY finished_utc DESC"
    ),
}


def _tables(connection: sqlite3.Connection) -> None:
    """Every table with every column, whatever the database had before, and what guards the ledger of levers."""
    for table, (columns, key) in _TABLES.items():
        listed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({listed}{key})")
        have = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        for name in columns.keys() - have:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {columns[name].split()[0]}")
    for name, rule in _TRIGGERS.items():
        connection.execute(f"CREATE TRIGGER IF NOT EXISTS {name} {rule}")


def _views(connection: sqlite3.Connection) -> None:
    """Views for SQL and Datasette, and the indexes that make them quick."""
    connection.execute("CREATE INDEX IF NOT EXISTS runs_by_anchor ON runs (anchor, device, recorded_utc)")
    connection.execute("CREATE INDEX IF NOT EXISTS sites_by_site ON sites (site, run)")
    for name, query in VIEWS.items():
        connection.execute(f"DROP VIEW IF EXISTS {name}")
        connection.execute(f"CREATE VIEW {name} AS {query}")


def _waits(connection: sqlite3.Connection) -> None:
    """Columns of `sites` that a recording had added where it needed them, now in every database."""
    have = {row[1] for row in connection.execute("PRAGMA table_info(sites)")}
    for name in WAITS.keys() - have:
        connection.execute(f"ALTER TABLE sites ADD COLUMN {name} {WAITS[name]}")


MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_tables, _views, _waits)
VERSION = len(MIGRATIONS)
EXPORTED = (*_TABLES, *VIEWS)
"""What can be exported by name."""
KINDS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    name: ("text", (str,)) if kind.startswith("TEXT") else ("a number", (int, float))
    for columns in (RUNS, SITES, WAITS)
    for name, kind in columns.items()
}
"""What the columns of runs and sites hold, where they hold anything: in words, and as Python types."""
