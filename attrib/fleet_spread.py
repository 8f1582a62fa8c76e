"""How a fleet's members differ: the outlier rule, the spread of a cohort and of each of its sites, missing ranks.

A cohort is the members that should be alike: same folder, device and anchor.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OUTLIER = 3.5
"""Modified z-score of an outlier: Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993)."""
CONSISTENT = 1.4826
"""1 / 0.6745: what makes the MAD of a normal distribution its standard deviation."""
FLOOR = 0.001
"""Least scale as a share of the median, so that members alike to the last digit make no outlier of a nanosecond."""
FEWEST = 4
"""With fewer members a median and a MAD say nothing about which of them is odd."""
RULE = (
    f"outlier: |x - median| / max({CONSISTENT} x MAD, {FLOOR:.1%} of median) > {OUTLIER}, "
    f"MAD = median |x - median|, at least {FEWEST} traces"
)


@dataclass(frozen=True)
class Member:
    """One trace of the fleet with what its census says; numbers are None where `reason` says why there is none."""

    path: str
    group: str
    rank: int | None
    reason: str | None
    host: str = ""
    device: str = ""
    anchor: str = ""
    build: str = ""
    steps: int | None = None
    launches: int | None = None
    span_ms: float | None = None
    idle_ms: float | None = None
    step_gbps: float | None = None
    matched_time_pct: float | None = None
    warnings: tuple[str, ...] = ()
    sites: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def cohort(self) -> tuple[str, str, str]:
        """What the members it is compared with share."""
        return self.group, self.device, self.anchor

    @property
    def label(self) -> str:
        """`rank 3`, or the file's name where no rank is known."""
        return f"rank {self.rank}" if self.rank is not None else self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Spread:
    """Median, MAD and extremes of some members' values, and each member's score."""

    median: float
    mad: float
    low: float
    high: float
    scores: tuple[float, ...]
    """(x − median) / scale, NaN for fewer than FEWEST members"""

    @property
    def pct(self) -> float:
        """(highest − lowest) / median, in %."""
        return 100 * (self.high - self.low) / self.median if self.median else math.nan

    def outliers(self) -> list[int]:
        """Places of the outliers among the values."""
        return [place for place, score in enumerate(self.scores) if abs(score) > OUTLIER]


def spread(values: Sequence[float]) -> Spread:
    """The spread of at least one value, by RULE."""
    middle = statistics.median(values)
    mad = statistics.median(abs(value - middle) for value in values)
    scale = max(CONSISTENT * mad, FLOOR * abs(middle))
    judged = len(values) >= FEWEST
    scores = [(value - middle) / scale if scale else 0.0 for value in values] if judged else [math.nan] * len(values)
    return Spread(middle, mad, min(values), max(values), tuple(scores))


@dataclass(frozen=True)
class SiteSpread:
    """A site over the members of a cohort, in ms per step."""

    site: str
    members: int
    spread: Spread
    slowest: str
    """empty where no one member takes longest"""
    outliers: tuple[str, ...]

    @property
    def behind_ms(self) -> float:
        """What the slowest member takes longer than the median: what the others wait for where they synchronise."""
        return self.spread.high - self.spread.median


@dataclass(frozen=True)
class Cohort:
    """Members that should be alike, with the spread of their spans and of each site."""

    group: str
    device: str
    anchor: str
    members: tuple[Member, ...]
    spread: Spread
    sites: tuple[SiteSpread, ...]
    notes: tuple[str, ...]

    @property
    def label(self) -> str:
        """For titles and messages."""
        return " · ".join(filter(None, (self.group, self.anchor, self.device)))

    def outliers(self) -> list[Member]:
        """Members whose span is an outlier."""
        return [self.members[place] for place in self.spread.outliers()]


def cohorts(members: Iterable[Member]) -> list[Cohort]:
    """The members with a census, by cohort, sites by what the slowest member is behind."""
    groups: dict[tuple[str, str, str], list[Member]] = {}
    for member in members:
        if member.reason is None and member.span_ms is not None:
            groups.setdefault(member.cohort, []).append(member)
    return [_cohort(key, found) for key, found in groups.items()]


def _cohort(key: tuple[str, str, str], members: list[Member]) -> Cohort:
    notes = []
    launches = sorted({m.launches for m in members if m.launches is not None})
    if len(launches) > 1:
        notes.append(f"steps of {', '.join(map(str, launches))} launches: not all members run the same program")
    builds = sorted({m.build for m in members if m.build})
    if len(builds) > 1:
        notes.append(f"builds differ: {', '.join(builds)}")
    seen: dict[int, int] = {}
    for member in members:
        if member.rank is not None:
            seen[member.rank] = seen.get(member.rank, 0) + 1
    twice = [str(rank) for rank, number in sorted(seen.items()) if number > 1]
    if twice:
        notes.append(f"rank {', '.join(twice)} more than once")
    spans = spread([float(m.span_ms) for m in members if m.span_ms is not None])
    sites = [_site(name, members) for name in dict.fromkeys(site for m in members for site in m.sites)]
    sites.sort(key=lambda site: -site.behind_ms)
    return Cohort(*key, tuple(members), spans, tuple(sites), tuple(notes))


def _site(name: str, members: Sequence[Member]) -> SiteSpread:
    having = [m for m in members if name in m.sites]
    values = [float(m.sites[name]["ms_per_step"]) for m in having]
    found = spread(values)
    slowest = having[values.index(found.high)].label if values.count(found.high) == 1 else ""
    return SiteSpread(name, len(having), found, slowest, tuple(having[place].label for place in found.outliers()))


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, three or more neighbours as `3–9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [[f"{run[0]}–{run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    return ", ".join(part for several in parts for part in several)


def missing_ranks(members: Iterable[Member], ranks: int | None = None) -> dict[str, list[int]]:
    """Per group the ranks that no file stands for; empty where none is missing or no rank is known.

    There should be `ranks` in each group; without it, as many as the highest rank of any group says. A file that
    cannot be read is not missing: its row says why.
    """
    seen: dict[str, set[int]] = {}
    for member in members:
        if member.rank is not None:
            seen.setdefault(member.group, set()).add(member.rank)
    if not seen:
        return {}
    wanted = range(ranks if ranks is not None else 1 + max(max(found) for found in seen.values()))
    gone = {group: [rank for rank in wanted if rank not in found] for group, found in seen.items()}
    return {group: found for group, found in gone.items() if found}
