"""The one line a report opens with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from attrib.census import Census
from attrib.compare import Comparison
from attrib.compare_delta import mean
from attrib.report.facts import signed
from attrib.stragglers import Stragglers

Level = Literal["alarm", "below", "clear", "open"]
"""alarm: numbers that cannot be true; below: time to recover, or B slower; clear: none; open: not to be judged."""


@dataclass(frozen=True)
class Verdict:
    """A level, which gives the line its sign and colour, and the sentences."""

    level: Level
    headline: str
    detail: str


def run_verdict(census: Census, ranked: Stragglers | None, lacking: str) -> Verdict:
    """What a run shows: an impossible rate before everything, else its stragglers."""
    impossible = [row.site for row in census.rows if row.impossible]
    if impossible or census.impossible_step:
        what = ", ".join(impossible) if impossible else "the step as a whole"
        return Verdict(
            "alarm",
            "Rates above what the memory can deliver",
            f"{what} moves its bytes faster than the DRAM peak: work was dropped, or the matrix stayed in cache.",
        )
    if ranked is None:
        return Verdict("open", "Rates cannot be judged", lacking)
    if not ranked.rows:
        return Verdict("clear", "Every matrix streams at class rate", ranked.describe())
    share = 100 * ranked.recoverable / census.span
    headline = f"{ranked.recoverable * 1e3:.3f} ms of every step ({share:.1f} %) can be recovered"
    return Verdict("below", headline, ranked.describe())


def pair_verdict(found: Comparison) -> Verdict:
    """Whether a step of B takes longer than one of A, and the part of the gap that weighs most."""
    gap = found.gap
    size = abs(float(gap.ns)) / 1e6
    span = mean(found.a.span)
    share = 100 * float(gap.ns / span) if span else math.nan
    spread = f"its spread over single steps, {gap.spread_ns / 1e6:.3f} ms"
    if not gap.ns:
        return Verdict("clear", "A step of B takes as long as a step of A", "")
    if not gap.clear:
        headline = f"No clear difference: {signed(float(gap.ns) / 1e6, 3)} ms ({signed(share, 2)} %)"
        return Verdict("open", headline, f"The gap is not beyond {spread}. {_largest(found)}")
    longer = gap.ns > 0
    headline = f"A step of B takes {size:.3f} ms {'longer' if longer else 'less'} ({abs(share):.2f} %)"
    return Verdict("below" if longer else "clear", headline, f"The gap is beyond {spread}. {_largest(found)}")


def _largest(found: Comparison) -> str:
    part = max(found.parts, key=lambda part: abs(part.delta.ns))
    return (
        f"Largest part: {part.name}, {signed(float(part.delta.ns) / 1e6, 3)} ms "
        f"({signed(100 * found.share(part.delta), 0)} % of the gap)."
    )
