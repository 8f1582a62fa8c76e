"""The figures below a verdict: value, unit and what it is measured against."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from attrib.anatomy import Anatomy
from attrib.categories import IDLE
from attrib.census import Census
from attrib.compare import Comparison
from attrib.compare_delta import mean, spread
from attrib.compare_sides import Side
from attrib.report.subject import Subject
from attrib.stragglers import Stragglers
from attrib.tables import number, rate
from attrib.words import counted


@dataclass(frozen=True)
class Fact:
    """One figure; `–` where it is unknown, and `note` says why or what it means."""

    name: str
    value: str
    unit: str
    note: str


def run_facts(subject: Subject, census: Census, parts: Anatomy, ranked: Stragglers | None) -> Iterable[Fact]:
    """Figures of one run."""
    attribution = subject.attribution
    width = spread(attribution.ledger.span) / 1e6
    yield Fact("traced step", number(census.span * 1e3, 3), "ms", f"median span, spread {number(width, 3)} ms")
    yield _untraced(subject, census)
    share = 100 * census.step_rate / census.peak
    of_peak = f", {number(share, 0)} % of the DRAM peak" if math.isfinite(share) else ""
    known = math.isfinite(census.step_rate)
    yield Fact("step rate", rate(census.step_rate), "GB/s", f"bytes / span{of_peak}" if known else "no bytes known")
    if ranked is not None:
        share = 100 * ranked.recoverable / census.span if census.span else math.nan
        note = f"{number(share)} % of the span, {len(ranked.rows)} below the class"
        yield Fact("recoverable", number(ranked.recoverable * 1e3, 3), "ms/step", note)
    idle = next((row for row in parts.rows if row.category == IDLE), None)
    if idle is not None:
        yield Fact(
            "idle", number(idle.seconds * 1e3, 3), "ms/step", f"{number(100 * idle.share_of_span)} % of the span"
        )
    yield Fact("launches", f"{census.launches:,}", "per step", f"{parts.short_launches:,} under 2 µs")
    ledger = attribution.ledger
    overlap = float(np.median((ledger.duration - ledger.exclusive).sum(axis=1)))
    note = f"Σ durations {number(census.duration_sum * 1e3, 3)} ms"
    yield Fact("overlap", number(overlap / 1e6, 3), "ms/step", note)
    matched = f"of kernel time, {number(census.step_bytes / 1e9, 3)} GB of weights" if known else "no bytes known"
    yield Fact("matched", number(100 * census.matched_share), "%", matched)


def _untraced(subject: Subject, census: Census) -> Fact:
    """The untraced step time beside the traced one: tracing inflates, so the traced span is never quoted as speed."""
    walls = subject.manifest.wall_step_ns if subject.manifest is not None else ()
    if not walls:
        return Fact("untraced step", "–", "ms", "not measured: the traced span is no speed")
    wall = statistics.median(walls) / 1e9
    note = f"host clock, median of {len(walls)}; the span is {number(100 * census.span / wall)} % of it"
    return Fact("untraced step", number(wall * 1e3, 3), "ms", note)


def pair_facts(found: Comparison) -> Iterable[Fact]:
    """Figures of a comparison."""
    for name, side in (("A", found.a), ("B", found.b)):
        yield _side(name, side)
    span = mean(found.a.span)
    relative = 100 * float(found.gap.ns / span) if span else math.nan
    note = f"spread {number(found.gap.spread_ns / 1e6, 3)} ms"
    yield Fact("gap B − A", signed(float(found.gap.ns) / 1e6, 3), "ms", note)
    yield Fact("relative", signed(relative, 2), "%", "of a step of A")
    medians = float(np.median(found.b.span) - np.median(found.a.span)) / 1e6
    yield Fact("gap of medians", signed(medians, 3), "ms", "means add up over parts, medians do not")
    yield Fact(
        "launches",
        signed(found.b.launches - found.a.launches, 0),
        "per step",
        f"{found.a.launches:,} and {found.b.launches:,}",
    )
    yield Fact("parts", str(len(found.parts)), "", f"add up to the gap to {float(found.closure_ns):.3g} ns")


def signed(value: float, digits: int) -> str:
    """Fixed-point text with its sign, a minus as wide as the plus; `–` where the value is unknown."""
    return f"{value:+,.{digits}f}".replace("-", "−") if math.isfinite(value) else "–"


def _side(name: str, side: Side) -> Fact:
    note = f"mean of {counted(side.steps, 'step')}, spread {number(spread(side.span) / 1e6, 3)} ms"
    return Fact(f"step {name}", number(float(mean(side.span)) / 1e6, 3), "ms", note)
