"""The census of many traces at once: ranks, machines, nights. Which differ from the others, and which are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attrib import fleet_files
from attrib.attribution import Options
from attrib.errors import NoDataError, RefusedError
from attrib.fleet_cluster import Result, measure_all
from attrib.fleet_spread import FEWEST, OUTLIER, RULE, Cohort, Member, SiteSpread, cohorts, missing_ranks, spans
from attrib.jsonout import document
from attrib.words import counted

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "attrib.fleet/1"


@dataclass(frozen=True)
class Fleet:
    """Every trace that was found, whether it could be read or not, and how those that could compare."""

    members: tuple[Member, ...]
    cohorts: tuple[Cohort, ...]
    missing: dict[str, list[int]]
    workers: int
    lost_workers: int
    start_s: float
    read_s: float
    peak_bytes: int | None
    """the most memory a worker held; it does not grow with the number of traces"""

    @property
    def bad(self) -> list[Member]:
        """Traces without a census."""
        return [member for member in self.members if member.reason is not None]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Outliers, missing ranks, what could not be read, and what makes the comparison doubtful."""
        notes = []
        for cohort in self.cohorts:
            prefix = f"{cohort.label}: " if len(self.cohorts) > 1 else ""
            notes += [prefix + note for note in cohort.notes]
            for member in cohort.outliers():
                notes.append(f"{prefix}OUTLIER {member.label}: span {_against(member.span_ms, cohort.spread.median)}")
            if len(cohort.members) < FEWEST:
                notes.append(f"{prefix}fewer than {FEWEST} traces: too few to tell an outlier")
        for group, ranks in self.missing.items():
            prefix = f"{group}: " if group else ""
            notes.append(f"{prefix}MISSING rank {spans(ranks)}: no trace stands for it")
        if self.bad:
            notes.append(f"{len(self.bad)} of {counted(len(self.members), 'trace')} gave no census; the rows say why")
        if self.lost_workers:
            notes.append(f"workers lost: {self.lost_workers}; their traces were read again")
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object; unknown values are null."""
        fields = {
            "schema": SCHEMA,
            "traces": len(self.members),
            "read": len(self.members) - len(self.bad),
            "workers": self.workers,
            "lost_workers": self.lost_workers,
            "start_s": self.start_s,
            "read_s": self.read_s,
            "worker_peak_bytes": self.peak_bytes,
            "outlier_rule": RULE,
            "cohorts": [self._cohort_json(cohort) for cohort in self.cohorts],
            "missing_ranks": self.missing,
            "members": self._rows(),
            "warnings": list(self.warnings),
        }
        return document(fields)

    def to_pandas(self) -> pd.DataFrame:
        """One row per trace with the JSON's column names, and a column `SITE ms` per site."""
        import pandas as pd  # noqa: PLC0415 - half a second that the command line should not pay

        rows = self._rows()
        for row, member in zip(rows, self.members, strict=True):
            row.update({f"{name} ms": site["ms_per_step"] for name, site in member.sites.items()})
        return pd.DataFrame(rows)

    def _rows(self) -> list[dict[str, Any]]:
        scored = {
            id(member): (member, score, cohort)
            for cohort in self.cohorts
            for member, score in zip(cohort.members, cohort.spread.scores, strict=True)
        }
        rows = []
        for member in self.members:
            _, score, cohort = scored.get(id(member), (member, None, None))
            against = (
                100 * (member.span_ms / cohort.spread.median - 1)
                if cohort is not None and member.span_ms is not None and cohort.spread.median
                else None
            )
            rows.append(
                {
                    "group": member.group,
                    "rank": member.rank,
                    "host": member.host or None,
                    "trace": member.path,
                    "device": member.device or None,
                    "anchor": member.anchor or None,
                    "build": member.build or None,
                    "steps": member.steps,
                    "launches": member.launches,
                    "span_ms": member.span_ms,
                    "of_median_pct": against,
                    "score": score,
                    "outlier": score is not None and abs(score) > OUTLIER,
                    "idle_ms": member.idle_ms,
                    "step_gbps": member.step_gbps,
                    "matched_time_pct": member.matched_time_pct,
                    "reason": member.reason,
                }
            )
        return rows

    @staticmethod
    def _cohort_json(cohort: Cohort) -> dict[str, Any]:
        return {
            "group": cohort.group,
            "device": cohort.device,
            "anchor": cohort.anchor or None,
            "traces": len(cohort.members),
            "span_median_ms": cohort.spread.median,
            "span_mad_ms": cohort.spread.mad,
            "span_low_ms": cohort.spread.low,
            "span_high_ms": cohort.spread.high,
            "span_spread_pct": cohort.spread.pct,
            "outliers": [member.label for member in cohort.outliers()],
            "sites": [_site_json(site) for site in cohort.sites],
            "notes": list(cohort.notes),
        }


def fleet(
    patterns: Sequence[str],
    options: Options | None = None,
    rate_class: str | None = None,
    rank_pattern: str = fleet_files.RANK_PATTERN,
    ranks: int | None = None,
    workers: int = 2,
    scheduler: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Fleet:
    """Take the census of every trace that `patterns` (folders, globs, files) name.

    `rank_pattern` finds the rank in a path; where it does not, the launcher's environment in the trace says it.
    `ranks` is how many there should be in each folder. Raises NoDataError when there is no trace or none could be
    read, RefusedError when there is no Dask or no scheduler.
    """
    if workers < 1:
        raise RefusedError(f"--workers {workers} leaves nobody to read; give at least 1")
    found = fleet_files.find(patterns, rank_pattern)
    result: Result = measure_all(
        [str(member.path) for member in found], options or Options(), rate_class, workers, scheduler, progress
    )
    members = tuple(_member(one, row) for one, row in zip(found, result.rows, strict=True))
    if all(member.reason is not None for member in members):
        raise NoDataError(f"of {counted(len(members), 'trace')} none could be read; the first: {members[0].reason}")
    return Fleet(
        members=members,
        cohorts=tuple(cohorts(members)),
        missing=missing_ranks(members, ranks),
        workers=result.workers,
        lost_workers=result.lost_workers,
        start_s=result.start_s,
        read_s=result.read_s,
        peak_bytes=max((row["peak_bytes"] for row in result.rows if row.get("peak_bytes")), default=None),
    )


def _member(found: fleet_files.Found, row: dict[str, Any]) -> Member:
    rank = found.rank if found.rank is not None else row.get("rank")
    path = fleet_files.printable(str(found.path))
    if row["reason"] is not None:
        return Member(path, found.group, rank, row["reason"])
    return Member(
        path=path,
        group=found.group,
        rank=rank,
        reason=None,
        host=row["host"],
        device=row["device"],
        anchor=row["anchor"],
        build=row["build"],
        steps=row["steps"],
        launches=row["launches"],
        span_ms=row["span_ms"],
        idle_ms=row["idle_ms"],
        step_gbps=row["step_gbps"],
        matched_time_pct=row["matched_time_pct"],
        warnings=tuple(row["warnings"]),
        sites={site["site"]: site for site in row["sites"]},
    )


def _against(value: float | None, median: float) -> str:
    return f"{value:.3f} ms, {100 * (value / median - 1):+.1f} % of the median" if value and median else "unknown"


def _site_json(site: SiteSpread) -> dict[str, Any]:
    return {
        "site": site.site,
        "traces": site.members,
        "median_ms": site.spread.median,
        "mad_ms": site.spread.mad,
        "low_ms": site.spread.low,
        "high_ms": site.spread.high,
        "behind_ms": site.behind_ms,
        "slowest": site.slowest or None,
        "outliers": list(site.outliers),
    }
