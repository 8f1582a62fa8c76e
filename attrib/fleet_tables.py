"""Terminal tables of a fleet that fit 100 columns. Renders; computes nothing."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attrib.fleet import Fleet
from attrib.fleet_spread import RULE, Cohort, Spread
from attrib.tables import number, print_footnotes
from attrib.words import counted

MOST_SITES = 12
MOST_OUTLIERS = 3
NAME_WIDTH = 30


def print_fleet(out: Console, found: Fleet) -> None:
    """One row a trace, then where the members of each cohort differ."""
    scores = {row["trace"]: row for row in found.to_json()["members"]}
    out.print(Text(f"Fleet of {counted(len(found.members), 'trace')}", style="bold"))
    table = _table(("rank", "right"), ("trace", "left"), ("host", "left"), ("steps", "right"), ("span ms", "right"),
                   ("of median", "right"), ("score", "right"), ("idle ms", "right"), ("GB/s", "right"),
                   ("", "left"))  # fmt: skip
    for member in found.members:
        name = f"{member.group}/{_name(member.path)}" if member.group else _name(member.path)
        rank = "–" if member.rank is None else str(member.rank)
        if member.reason is not None:
            table.add_row(rank, Text(_cut(name)), *[""] * 7, "no census")
            continue
        row = scores[member.path]
        table.add_row(
            rank,
            Text(_cut(name)),
            Text(_cut(member.host, 12) or "–"),
            str(member.steps),
            _number(member.span_ms, 3),
            "–" if row["of_median_pct"] is None else f"{row['of_median_pct']:+.2f} %",
            "–" if row["score"] is None else f"{row['score']:+.1f}",
            _number(member.idle_ms, 3),
            _number(member.step_gbps, 0),
            "OUTLIER" if row["outlier"] else "",
        )
    out.print(table)
    for member in found.bad:
        out.print(Text(f"no census of {_name(member.path)}: {member.reason}"))
    for cohort in found.cohorts:
        _print_cohort(out, cohort)
    out.print(Text(RULE))
    print_footnotes(out, found.warnings)


def _print_cohort(out: Console, cohort: Cohort) -> None:
    out.print()
    members = counted(len(cohort.members), "trace")
    out.print(Text(f"{cohort.label} · {members} · span {_range(cohort.spread)}", style="bold"))
    if len(cohort.members) < 2:
        return
    table = _table(("site", "left"), ("median ms", "right"), ("low", "right"), ("high", "right"),
                   ("spread", "right"), ("behind ms", "right"), ("slowest", "left"), ("outliers", "left"))  # fmt: skip
    for site in cohort.sites[:MOST_SITES]:
        more = len(site.outliers) - MOST_OUTLIERS
        named = ", ".join(site.outliers[:MOST_OUTLIERS]) + (f" and {more} more" if more > 0 else "")
        table.add_row(
            Text(site.site), _number(site.spread.median, 3), _number(site.spread.low, 3), _number(site.spread.high, 3),
            f"{number(site.spread.pct, 1)} %", _number(site.behind_ms, 3), Text(_cut(site.slowest, 14) or "–"),
            Text(named),
        )  # fmt: skip
    out.print(table)
    if (more := len(cohort.sites) - MOST_SITES) > 0:
        out.print(Text(f"and {counted(more, 'site that differs', 'sites that differ')} less; --json has them all"))


def _range(spread: Spread) -> str:
    return f"{spread.median:.3f} ms ({spread.low:.3f} to {spread.high:.3f}, spread {number(spread.pct, 2)} %)"


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _cut(text: str, width: int = NAME_WIDTH) -> str:
    """The end of a long name, which is where names of a fleet differ."""
    return text if len(text) <= width else "…" + text[-(width - 1) :]


def _number(value: float | None, digits: int) -> str:
    return number(math.nan if value is None else value, digits)


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 0, 0, 1))
    for name, justify in columns:
        table.add_column(name, justify="left" if justify == "left" else "right", overflow="fold")
    return table
