"""What `runs.db` knows of the past: the list of runs, one run with its sites, a site over builds, exports."""

from __future__ import annotations

import csv
import sqlite3
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attrib.errors import NoDataError, RefusedError
from attrib.files import write_whole
from attrib.jsonout import document
from attrib.runs_schema import EXPORTED, KINDS
from attrib.store import DATABASE, reading
from attrib.words import counted

RUNS_SCHEMA, RUN_SCHEMA = "attrib.runs/1", "attrib.run/1"
TREND_SCHEMA, EXPORT_SCHEMA = "attrib.trend/1", "attrib.runs_export/1"
STEP = "step"
"""The name that stands for the whole step where a site is asked for."""
FEW_RUNS = 3
HASH_SHOWN = 8
FORMATS = (".csv", ".parquet")
Row = dict[str, Any]


def list_runs(
    out: Path, anchor: str | None = None, build: str | None = None, device: str | None = None, limit: int | None = None
) -> list[Row]:
    """Rows of `runs`, the newest first, of one anchor, build (its name or the start of its hash) or device."""
    conditions = {"anchor = ?": anchor, "device = ?": device}
    given = {text: value for text, value in conditions.items() if value is not None}
    values: list[str | int] = list(given.values())
    where = list(given)
    if build is not None:
        where.append("(build = ? OR substr(build_hash, 1, ?) = ?)")
        values += [build, len(build), build]
    text = f"WHERE {' AND '.join(where)} " if where else ""
    with reading(out) as db:
        cut = f" LIMIT {int(limit)}" if limit is not None else ""
        return _rows(db, f"SELECT * FROM runs {text}ORDER BY recorded_utc DESC, id DESC{cut}", values)


def find_run(out: Path, name: str) -> tuple[Row, list[Row]]:
    """A run and its sites, the longest first; `name` is its id, the start of one, or `latest`.

    Raises NoDataError for a name that no run or more than one has, naming some.
    """
    with reading(out) as db:
        if name == "latest":
            found = _rows(db, "SELECT * FROM runs ORDER BY recorded_utc DESC, id DESC LIMIT 1")
        else:
            found = _rows(db, "SELECT * FROM runs WHERE id = ?", [name]) or _rows(
                db, "SELECT * FROM runs WHERE substr(id, 1, ?) = ? ORDER BY id", [len(name), name]
            )
        if len(found) != 1:
            known = found or _rows(db, "SELECT id FROM runs ORDER BY recorded_utc DESC, id DESC LIMIT 3")
            listed = ", ".join(run["id"] for run in known[:3]) or "none yet"
            what = counted(len(found), "run starts with", "runs start with") if found else "no run is called"
            raise NoDataError(f"{what} {name!r}; there are {listed}")
        sites = _rows(db, "SELECT * FROM sites WHERE run = ? ORDER BY ms_per_step DESC, site", [found[0]["id"]])
    return found[0], [{key: value for key, value in site.items() if key != "run"} for site in sites]


@dataclass(frozen=True)
class BuildPoint:
    """A site in the runs of one build. Rates in GB/s, medians over runs; None where no run knows."""

    build: str
    build_hash: str
    runs: tuple[Row, ...]
    gbps: float | None
    low_gbps: float | None
    high_gbps: float | None
    ms_per_step: float | None
    class_gbps: float | None
    change_pct: float | None
    """of `gbps` against the build before"""

    @property
    def label(self) -> str:
        """`name hash`, as titles show builds."""
        return f"{self.build} {self.build_hash[:HASH_SHOWN]}".strip()


@dataclass(frozen=True)
class Trend:
    """A site over builds, in the order in which the builds were first recorded."""

    site: str
    anchor: str
    device: str
    builds: tuple[BuildPoint, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object."""
        builds = [
            {
                "build": b.build,
                "build_hash": b.build_hash,
                "runs": len(b.runs),
                "first_utc": b.runs[0]["recorded_utc"],
                "last_utc": b.runs[-1]["recorded_utc"],
                "gbps": b.gbps,
                "low_gbps": b.low_gbps,
                "high_gbps": b.high_gbps,
                "ms_per_step": b.ms_per_step,
                "class_gbps": b.class_gbps,
                "change_pct": b.change_pct,
                "run_ids": [run["run"] for run in b.runs],
            }
            for b in self.builds
        ]
        fields = {"schema": TREND_SCHEMA, "site": self.site, "anchor": self.anchor, "device": self.device}
        return document(fields | {"builds": builds, "warnings": list(self.warnings)})


def trend(out: Path, site: str, anchor: str | None = None, device: str | None = None) -> Trend:
    """The history of a site (or of the whole `step`) at one anchor on one device, build by build.

    Without an anchor or a device, those of the newest run that has the site are taken, and a warning names the
    others. Raises NoDataError when no run has the site there.
    """
    query = "SELECT * FROM site_history WHERE site = ? ORDER BY recorded_utc, run"
    values = [site]
    if site == STEP:
        query = (
            "SELECT 'step' AS site, anchor, device, recorded_utc, build, build_hash, step_gbps AS gbps, "
            "NULL AS class_gbps, traced_span_ms AS ms_per_step, id AS run FROM runs ORDER BY recorded_utc, id"
        )
        values = []
    with reading(out) as db:
        rows = _rows(db, query, values)
        if not rows:
            known = [row["site"] for row in _rows(db, "SELECT site FROM sites GROUP BY 1 ORDER BY COUNT(*) DESC, 1")]
            listed = f"there are {STEP}, {', '.join(known[:12])}" if known else "no run has sites yet"
            raise NoDataError(f"no run has a site {site!r}; {listed}")
    warnings: list[str] = []
    anchor, rows = _one(rows, "anchor", anchor, warnings)
    device, rows = _one(rows, "device", device, warnings)
    builds = _by_build(rows)
    few = [b.label for b in builds if len(b.runs) < FEW_RUNS]
    if few:
        warnings.append(
            f"fewer than {FEW_RUNS} runs of {', '.join(few)}: a change may be noise; `attrib ab` measures one"
        )
    return Trend(site, anchor, device, tuple(builds), tuple(warnings))


def _one(rows: Sequence[Row], key: str, wanted: str | None, warnings: list[str]) -> tuple[str, list[Row]]:
    """The rows of one anchor or device: the wanted one, else that of the newest row."""
    known = sorted({str(row[key]) for row in rows})
    chosen = wanted if wanted is not None else str(rows[-1][key])
    kept = [row for row in rows if str(row[key]) == chosen]
    if not kept:
        raise NoDataError(f"no run of {rows[0]['site']!r} has {key} {chosen!r}; there are {', '.join(known)}")
    if wanted is None and len(known) > 1:
        others = ", ".join(name for name in known if name != chosen)
        warnings.append(f"{key} {chosen}, that of the newest run; --{key} chooses among {others} too")
    return chosen, kept


def _by_build(rows: Iterable[Row]) -> list[BuildPoint]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["build"] or "", row["build_hash"] or ""), []).append(row)
    points: list[BuildPoint] = []
    for (build, build_hash), runs in groups.items():
        rates = [run["gbps"] for run in runs if run["gbps"] is not None]
        rate = statistics.median(rates) if rates else None
        before = points[-1].gbps if points else None
        points.append(
            BuildPoint(
                build=build,
                build_hash=build_hash,
                runs=tuple(runs),
                gbps=rate,
                low_gbps=min(rates, default=None),
                high_gbps=max(rates, default=None),
                ms_per_step=_median(runs, "ms_per_step"),
                class_gbps=_median(runs, "class_gbps"),
                change_pct=100 * (rate / before - 1) if rate is not None and before else None,
            )
        )
    return points


def _median(rows: Iterable[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return statistics.median(values) if values else None


def export(out: Path, path: Path, table: str) -> int:
    """Write a table or view of `runs.db` to a .parquet or .csv file; returns its rows. Unknown values are empty.

    Raises RefusedError for a table that is not of the schema, for another kind of file, and for values of several kinds
    in a column where the file cannot hold them.
    """
    if table not in EXPORTED:
        raise RefusedError(f"--table {table!r} is not one of {', '.join(EXPORTED)}")
    if path.suffix.lower() not in FORMATS:
        raise RefusedError(f"{path} is neither .parquet nor .csv; the suffix chooses the format")
    with reading(out) as db:
        cursor = db.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        rows = [tuple(row) for row in cursor]

    def write(temporary: Path) -> None:
        if path.suffix.lower() == ".csv":
            with temporary.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(names)
                writer.writerows(rows)
            return
        import pyarrow as pa  # noqa: PLC0415 - a tenth of a second that only this needs
        import pyarrow.parquet as pq  # noqa: PLC0415

        columns = zip(*rows, strict=True) if rows else ([] for _ in names)
        arrays = {}
        for name, column in zip(names, columns, strict=True):
            try:
                arrays[name] = pa.array(list(column))
            except pa.ArrowException as error:
                raise RefusedError(
                    f"{DATABASE}: column {name} of {table} holds text among numbers, which Parquet cannot; correct it "
                    "there, or write .csv"
                ) from error
        pq.write_table(pa.table(arrays), temporary)

    write_whole(path, write)
    return len(rows)


def _rows(db: sqlite3.Connection, sql: str, values: Sequence[str | int] = ()) -> list[Row]:
    """Rows whose numbers are numbers and whose text is text: SQLite keeps whatever was put into a column.

    Raises RefusedError naming the first value that is neither NULL nor what its column is for.
    """
    rows = [dict(row) for row in db.execute(sql, values)]
    for row in rows:
        for name, value in row.items():
            wanted, kinds = KINDS.get(name, ("", (object,)))
            if value is not None and not isinstance(value, kinds):
                run = row.get("id") or row.get("run")
                raise RefusedError(
                    f"{DATABASE}: {name} of run {run} is {repr(value)[:40]} and not {wanted}; correct it there, or "
                    "delete the run"
                )
    return rows
