"""A against B: the gap of a step as a sum of parts, the anatomy side by side, and every site of both.

All values are means over the steps of a side, in exact rationals of ns: means of parts add up to the mean of the
span, medians do not. Differences are B − A; positive means that B takes longer.

Parts. A matrix both sides stream: `rate` = B − A × (bytes of B / bytes of A), `bytes` = the rest, which is what the
other number of bytes would cost at A's rate. Launches that stream no weights: `launch count` = (n of B − n of A) × A's
mean exclusive time per launch, and the rest, time `per launch`, goes to their category. Sites of one side only are set
against those of the other side within their category. A fused or a split matrix moves the same bytes in another number
of launches, so what its launches cost by themselves is part of `rate`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from attrib.categories import COPIES, IDLE, order
from attrib.compare_delta import Delta, Effect, mean, spread
from attrib.compare_join import Pair, join, launches, weight
from attrib.compare_sides import Side, SiteTimes, total, unlike
from attrib.errors import RefusedError
from attrib.jsonout import document, whole
from attrib.traffic import STREAMING
from attrib.words import counted

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "attrib.compare/1"
RATE, BYTES, UNKNOWN = "streaming: rate", "streaming: bytes", "streaming: bytes unknown"
COUNT, PER_LAUNCH = "launch count", ": per launch"
COPIED = "copies without launches"
WHOLE = "whole trace"
ONE_CAPTURE = (
    "one capture each: replays inside one capture are not independent, so this shows where the time differs, not that "
    "a build is faster"
)


@dataclass(frozen=True)
class Cell:
    """A site, or several joined as one, on one side; ns per step."""

    sites: tuple[str, ...]
    launches: int
    bytes: float
    """weight bytes per step, NaN where unknown"""
    ns: Fraction
    spread_ns: float

    @property
    def rate(self) -> float:
        """Effective bytes/s from exclusive time; NaN where unknown."""
        return self.bytes / float(self.ns) * 1e9 if self.ns else np.nan

    @property
    def each_ns(self) -> float:
        """Mean exclusive ns of a launch."""
        return float(self.ns / self.launches)


@dataclass(frozen=True)
class Row:
    """One site of both sides, or of one: the other is None then."""

    site: str
    how: str
    category: str
    a: Cell | None
    b: Cell | None
    delta: Delta


@dataclass(frozen=True)
class Part:
    """One summand of the gap."""

    name: str
    delta: Delta


@dataclass(frozen=True)
class CategoryRow:
    """One category of both anatomies, means in ns per step; idle is one."""

    category: str
    a_ns: Fraction
    b_ns: Fraction
    delta: Delta
    launches: tuple[int, int]
    short_launches: tuple[int, int]


@dataclass(frozen=True)
class Comparison:
    """Everything about a pair; `differences` are the mismatches that were forced past a refusal."""

    a: Side
    b: Side
    differences: tuple[str, ...]
    gap: Delta
    parts: tuple[Part, ...]
    categories: tuple[CategoryRow, ...]
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]

    @property
    def closure_ns(self) -> Fraction:
        """Gap less the sum of its parts; anything but 0 is a fault."""
        return self.gap.ns - sum((part.delta.ns for part in self.parts), Fraction(0))

    @property
    def unlike(self) -> str:
        """What sets the steps apart where it is not known that one model made both; empty where nothing does."""
        return unlike(self.a, self.b)

    def share(self, delta: Delta) -> float:
        """Fraction of the gap, signed; NaN where there is no gap."""
        return float(delta.ns / self.gap.ns) if self.gap.ns else np.nan

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object; unknown values are null."""
        span_a, span_b = mean(self.a.span), mean(self.b.span)
        return document(
            {
                "schema": SCHEMA,
                "statistic": "mean over steps",
                "a": _side_json(self.a),
                "b": _side_json(self.b),
                "forced": list(self.differences),
                "unlike": self.unlike or None,
                "gap": {
                    **self._delta_json(self.gap),
                    "gap_pct": 100 * float(self.gap.ns / span_a) if span_a else np.nan,
                    "median_ms": float(np.median(self.b.span) - np.median(self.a.span)) / 1e6,
                    "closure_ns": whole(float(self.closure_ns)),
                },
                "span_a_ms": _ms(span_a),
                "span_b_ms": _ms(span_b),
                "parts": [{"part": part.name, **self._delta_json(part.delta)} for part in self.parts],
                "categories": [
                    {
                        "category": row.category,
                        "a_ms": _ms(row.a_ns),
                        "b_ms": _ms(row.b_ns),
                        **self._delta_json(row.delta),
                        "launches_a": row.launches[0],
                        "launches_b": row.launches[1],
                        "launches_under_2us_a": row.short_launches[0],
                        "launches_under_2us_b": row.short_launches[1],
                    }
                    for row in self.categories
                ],
                "sites": [self._row_json(row) for row in self.rows],
                "warnings": list(self.warnings),
            }
        )

    def _delta_json(self, delta: Delta) -> dict[str, Any]:
        return {
            "delta_ms": _ms(delta.ns),
            "spread_ms": delta.spread_ns / 1e6,
            "beyond_spread": delta.clear,
            "pct_of_gap": 100 * self.share(delta),
        }

    def _row_json(self, row: Row) -> dict[str, Any]:
        cells = {**_cell_json("a", row.a), **_cell_json("b", row.b)}
        return {
            "site": row.site,
            "joined_by": row.how,
            "category": row.category,
            **cells,
            **self._delta_json(row.delta),
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per site with the JSON's column names; joined names are separated by ` + `."""
        import pandas as pd  # noqa: PLC0415 - half a second that the command line should not pay

        rows = document({"rows": [self._row_json(row) for row in self.rows]})["rows"]
        for row in rows:
            row.update({key: " + ".join(row[key]) for key in ("sites_a", "sites_b")})
        return pd.DataFrame(rows)

    def plot(self, path: str) -> None:
        """Both anatomies as bars and the gap as a waterfall of its parts, written to a PNG, SVG or PDF file."""
        from attrib.compare_plots import plot_comparison  # noqa: PLC0415 - matplotlib is imported only to draw

        plot_comparison(self, path)


def compare(a: Side, b: Side, force: bool = False) -> Comparison:
    """Compare two sides.

    Raises RefusedError when device, model or anchor differ, or only one side is cut into steps, unless `force`; the
    result then says so wherever it is shown.
    """
    differences = mismatches(a, b)
    if differences and not force:
        raise RefusedError(
            f"{a.label} and {b.label} differ in {'; '.join(differences)}, so their gap has no single cause; choose "
            "comparable runs, or pass --force to compare them labelled as different"
        )
    pairs = join(a.sites, b.sites)
    rows = [_row(pair, a, b) for pair in pairs]
    rows.sort(key=lambda row: -abs(row.delta.ns))
    gap = Effect(a.steps, b.steps)
    gap.add(-1, a.span, 1, b.span)
    return Comparison(
        a=a,
        b=b,
        differences=tuple(differences),
        gap=gap.delta(),
        parts=tuple(_parts(pairs, a, b)),
        categories=tuple(_categories(a, b)),
        rows=tuple(rows),
        warnings=tuple(_notes(a, b, gap.delta())),
    )


def mismatches(a: Side, b: Side) -> list[str]:
    """What makes two sides incomparable; a value one side does not know is no mismatch."""
    found = []
    if a.device != b.device:
        found.append(f"device: {a.device} and {b.device}")
    if _differ(a.model.lower().split(":"), b.model.lower().split(":")):
        found.append(f"model: {a.model} and {b.model}")
    if a.anchor and b.anchor and a.anchor.rpartition(":")[2] != b.anchor.rpartition(":")[2]:
        found.append(f"anchor: {a.anchor} and {b.anchor}")
    if (a.source == WHOLE) != (b.source == WHOLE):
        found.append(f"what a step is: {a.source} and {b.source}")
    return found


def _differ(a: list[str], b: list[str]) -> bool:
    """Names and, where both say it, recipes; an engine's manifest may name the model alone."""
    return any(one and other and one != other for one, other in zip(a, b, strict=False))


def _row(pair: Pair, a: Side, b: Side) -> Row:
    effect = Effect(a.steps, b.steps)
    effect.add(-1, total(pair.a, a.steps), 1, total(pair.b, b.steps))
    cells = (_cell(pair.a, a.steps), _cell(pair.b, b.steps))
    return Row(pair.label, pair.how, pair.category, *cells, effect.delta())


def _cell(sites: Sequence[SiteTimes], steps: int) -> Cell | None:
    if not sites:
        return None
    times = total(sites, steps)
    names = tuple(site.site.key for site in sites)
    return Cell(names, launches(sites), weight(sites), mean(times), spread(times))


def _parts(pairs: Iterable[Pair], a: Side, b: Side) -> list[Part]:
    """The gap by cause, in display order; causes that no launch has are left out."""
    effects: dict[str, Effect] = defaultdict(lambda: Effect(a.steps, b.steps))
    alone: dict[tuple[str, bool], tuple[list[SiteTimes], list[SiteTimes]]] = defaultdict(lambda: ([], []))
    for pair in pairs:
        if pair.a and pair.b:
            _split(effects, pair.category, pair.a, pair.b, a, b)
        else:
            left = alone[pair.category, bool(np.isfinite(weight(pair.a or pair.b)))]
            left[0].extend(pair.a)
            left[1].extend(pair.b)
    for (category, _), (own, other) in alone.items():
        _split(effects, category, own, other, a, b)
    if a.copied.any() or b.copied.any():
        effects[COPIED].add(-1, a.copied, 1, b.copied)
    effects[IDLE].add(-1, a.idle, 1, b.idle)
    names = [RATE, BYTES, UNKNOWN, *(category + PER_LAUNCH for category in order()), COUNT, COPIED, IDLE]
    return [Part(name, effects[name].delta()) for name in names if name in effects]


def _split(
    effects: dict[str, Effect],
    category: str,
    own: Sequence[SiteTimes],
    other: Sequence[SiteTimes],
    a: Side,
    b: Side,
) -> None:
    """Add the difference between two groups of sites to its causes; see the module's docstring."""
    times_a, times_b = total(own, a.steps), total(other, b.steps)
    if category == STREAMING:
        amounts, changed, rest = (_bytes(own), _bytes(other)), BYTES, RATE
    else:
        amounts, changed, rest = (Fraction(launches(own)), Fraction(launches(other))), COUNT, category + PER_LAUNCH
    amount_a, amount_b = amounts
    if amount_a is None or amount_b is None:
        effects[UNKNOWN].add(-1, times_a, 1, times_b)
    elif not amount_a:
        effects[changed].add(0, times_a, 1, times_b)
    elif not amount_b:
        effects[changed].add(-1, times_a, 0, times_b)
    else:
        ratio = amount_b / amount_a
        effects[changed].add(ratio - 1, times_a, 0, times_b)
        effects[rest].add(-ratio, times_a, 1, times_b)


def _bytes(sites: Sequence[SiteTimes]) -> Fraction | None:
    """Weight bytes per step, 0 for no site at all, None where unknown."""
    found = weight(sites) if sites else 0.0
    return Fraction(found) if np.isfinite(found) else None


def _categories(a: Side, b: Side) -> list[CategoryRow]:
    rows = []
    for name in order():
        own, other = ([site for site in side.sites if site.site.category == name] for side in (a, b))
        times = [total(own, a.steps), total(other, b.steps)]
        if name == IDLE:
            times = [a.idle, b.idle]
        elif name == COPIES:
            times = [times[0] + a.copied, times[1] + b.copied]
        if name != IDLE and not (own or other or times[0].any() or times[1].any()):
            continue
        effect = Effect(a.steps, b.steps)
        effect.add(-1, times[0], 1, times[1])
        short = (sum(site.short_launches for site in own), sum(site.short_launches for site in other))
        counts = (launches(own), launches(other))
        rows.append(CategoryRow(name, mean(times[0]), mean(times[1]), effect.delta(), counts, short))
    return rows


def _notes(a: Side, b: Side, gap: Delta) -> Iterable[str]:
    yield ONE_CAPTURE
    for name, side in (("A", a), ("B", b)):
        for what, known in (("model", side.model), ("anchor", side.anchor)):
            if not known:
                yield f"the {what} of {name} is not known and was not checked against the other side's"
    between = float(np.median(b.span) - np.median(a.span))
    if abs(float(gap.ns) - between) > gap.spread_ns:
        yield (
            f"the gap is {float(gap.ns) / 1e6:+.3f} ms between means and {between / 1e6:+.3f} ms between medians: "
            "single slow steps weigh on it"
        )
    if min(a.steps, b.steps) < 3:
        yield f"A has {counted(a.steps, 'step')} and B {b.steps}: the spread over steps is not known"
    for note in dict.fromkeys((*a.warnings, *b.warnings)):
        sides = " and ".join(name for name, side in (("A", a), ("B", b)) if note in side.warnings)
        yield f"{sides}: {note}"


def _ms(ns: Fraction) -> float:
    return float(ns) / 1e6


def _side_json(side: Side) -> dict[str, Any]:
    return {
        "label": side.label,
        "device": side.device,
        "model": side.model or None,
        "build": side.build or None,
        "anchor": side.anchor or None,
        "steps": {
            "source": side.source,
            "count": side.steps,
            "launches": side.launches,
            "span_ms": _ms(mean(side.span)),
            "span_spread_ms": spread(side.span) / 1e6,
            "span_median_ms": float(np.median(side.span)) / 1e6,
        },
    }


def _cell_json(side: str, cell: Cell | None) -> dict[str, Any]:
    """Columns of one side; an absent site costs 0 ms in 0 launches, and its rate is unknown."""
    return {
        f"sites_{side}": list(cell.sites) if cell else [],
        f"launches_{side}": cell.launches if cell else 0,
        f"bytes_{side}": whole(cell.bytes) if cell else np.nan,
        f"gbps_{side}": cell.rate / 1e9 if cell else np.nan,
        f"exclusive_us_{side}": cell.each_ns * 1e-3 if cell else np.nan,
        f"ms_{side}": _ms(cell.ns) if cell else 0.0,
        f"spread_ms_{side}": cell.spread_ns / 1e6 if cell else 0.0,
    }
