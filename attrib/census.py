"""The census: effective GB/s of every site of a step, against the class and the peak of the device.

Per launch values are medians over steps of the mean over a step's launches of the site; effective GB/s is bytes
over time, from exclusive time (the headline) and from duration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attrib.attribution import Attribution
from attrib.census_groups import BY, NOUNS, Sums, grouping
from attrib.device import GIGA, Roofline
from attrib.errors import RefusedError
from attrib.jsonout import document, whole
from attrib.layers import layer_rates
from attrib.ledger import NS
from attrib.roofline import RateClass, choose
from attrib.stages import Summary
from attrib.traffic import STREAMING
from attrib.words import counted

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "attrib.census/1"
ROUNDING = 1e-9
"""A rate at the very edge of the class is in it, whatever the last bit of a division says."""


@dataclass(frozen=True)
class SiteRow:
    """One row of the census. Seconds and bytes per launch, rates in bytes/s; NaN where unknown."""

    site: str
    quant: str
    category: str
    launches: int
    bytes: float
    kv_bytes: float
    duration: float
    exclusive: float
    step_seconds: float
    spread: float
    """(75th − 25th percentile) / median of the step's total over steps"""
    rate: float
    rate_duration: float
    class_rate: float
    class_lo: float
    recoverable: float
    straggler: bool
    impossible: bool
    overlapped: bool
    """the rate alone passes the peak: the launch, or stage of one, streamed inside its predecessor's time"""
    wait: float
    """seconds a stage's blocks waited at the dependency in front of it, on average; NaN for launches"""


@dataclass(frozen=True, repr=False)
class Census:
    """All sites of a step with totals; times in seconds, medians over steps."""

    device: str
    model: str
    build: str
    anchor: str
    peak: float
    rate_class: RateClass | None
    rows: tuple[SiteRow, ...]
    step_source: str
    step_count: int
    excluded: dict[str, int]
    launches: int
    outside: int
    span: float
    idle: float
    duration_sum: float
    between: float
    closure_ns: int
    matched_share: float
    """share of exclusive time in launches with known weight bytes"""
    step_bytes: float
    step_rate: float
    layer_rates: tuple[float, ...]
    """weight bytes of a layer over the time from its first weight launch to the next layer's"""
    impossible_step: bool
    traffic_source: str
    stages: Summary | None
    """of the rows that are stages of one persistent kernel; None where all are launches"""
    by: str
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        rows, steps = counted(len(self.rows), *NOUNS[self.by]), counted(self.step_count, "step")
        return f"<Census of {self.device}: {rows}, {steps} of {self.span * 1e3:.3f} ms>"

    def _repr_html_(self) -> str:
        return str(self.to_pandas().to_html(index=False, na_rep="–"))

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object; unknown values are null."""
        rate = None
        if self.rate_class is not None:
            found = self.rate_class.rate
            limits = (
                {"t0_us": found.t0 * 1e6, "bw_gbps": found.bandwidth / GIGA}
                if isinstance(found, Roofline)
                else {"lo_gbps": found.lo / GIGA, "hi_gbps": found.hi / GIGA}
            )
            rate = {"source": self.rate_class.source, **limits}
        layers = np.array(self.layer_rates or (np.nan,)) / GIGA
        fields = {
            "schema": SCHEMA,
            "device": {"name": self.device, "peak_gbps": self.peak / GIGA},
            "model": self.model or None,
            "build": self.build or None,
            "anchor": self.anchor or None,
            "class": rate,
            "steps": {
                "source": self.step_source,
                "count": self.step_count,
                "excluded": self.excluded,
                "launches": self.launches,
                "launches_outside": self.outside,
                "span_ms": self.span * 1e3,
                "idle_ms": self.idle * 1e3,
                "duration_sum_ms": self.duration_sum * 1e3,
                "between_steps_ms": self.between * 1e3,
            },
            "ledger": {"closure_ns": self.closure_ns},
            "matched": {
                "time_pct": self.matched_share * 100,
                "bytes": self.step_bytes,
                "source": self.traffic_source,
            },
            "rates": {
                "step_gbps": self.step_rate / GIGA,
                "step_impossible": self.impossible_step,
                "layer_median_gbps": float(np.median(layers)),
                "layer_min_gbps": float(layers.min()),
                "layer_max_gbps": float(layers.max()),
            },
            "stages": self.stages.to_json() if self.stages else None,
            "by": self.by,
            "sites": [self._row_json(row) for row in self.rows],
            "warnings": list(self.warnings),
        }
        return document(fields)

    def _row_json(self, row: SiteRow) -> dict[str, Any]:
        return {
            "site": row.site,
            "quant": row.quant or None,
            "category": row.category,
            "launches": row.launches,
            "bytes": whole(row.bytes),
            "kv_bytes": whole(row.kv_bytes),
            "duration_us": row.duration * 1e6,
            "exclusive_us": row.exclusive * 1e6,
            "ms_per_step": row.step_seconds * 1e3,
            "pct_of_span": 100 * row.step_seconds / self.span if self.span else np.nan,
            "spread_pct": row.spread * 100,
            "gbps": row.rate / GIGA,
            "gbps_duration": row.rate_duration / GIGA,
            "kv_gbps": row.kv_bytes / row.exclusive / GIGA if row.exclusive else np.nan,
            "pct_of_peak": 100 * row.rate / self.peak,
            "class_gbps": row.class_rate / GIGA,
            "recoverable_ms": row.recoverable * 1e3,
            "straggler": row.straggler,
            "impossible": row.impossible,
            "overlapped": row.overlapped,
            "wait_us": row.wait * 1e6,
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row per site with the JSON's column names."""
        import pandas as pd  # noqa: PLC0415 - half a second that the command line should not pay

        frame = pd.DataFrame([self._row_json(row) for row in self.rows])
        sizes = {"bytes", "kv_bytes"}
        return frame.astype({c: "Int64" for c in sizes if (frame[c].dropna() % 1 == 0).all()})

    def plot(self, path: str) -> None:
        """Bars of effective GB/s per site against the class, written to a PNG or SVG file."""
        from attrib.plots import plot_census  # noqa: PLC0415 - matplotlib is imported only to draw

        plot_census(self, path)


def census(attribution: Attribution, rate_class: str | None = None, by: str = "site") -> Census:
    """Take the census of the steps.

    `rate_class` is `LO:HI` in GB/s, `table`, `measured`, `fit`, or None for the first source that has one.
    `by` groups launches by site, by kernel variant, or by layer and site.
    """
    if by not in BY:
        raise RefusedError(f"--by {by!r} is not one of {', '.join(BY)}")
    if by == "kernel":
        attribution = attribution.by_launch or attribution
    keys, group = grouping(attribution, by)
    sums = Sums.of(attribution, group, len(keys))
    points = sums.points()
    chosen = choose(rate_class, attribution.known, attribution.device_name, points)
    rows = [_row(attribution, sums, i, keys[i], chosen) for i in range(len(keys))]
    rows.sort(key=lambda row: -row.step_seconds)
    found = attribution.ledger
    span = float(np.median(found.span)) * NS
    weight = attribution.traffic.weight_bytes
    streamed = float(np.nansum(weight)) if np.isfinite(weight).any() else np.nan
    moved = streamed + float(np.nansum(attribution.traffic.kv_bytes))
    exclusive = found.exclusive.sum(axis=0)
    matched = float(exclusive[np.isfinite(weight)].sum() / max(exclusive.sum(), 1))
    between = found.between_steps()
    step_rate = moved / span if span else np.nan
    impossible_step = bool(step_rate > attribution.peak)
    rates = layer_rates(attribution)
    return Census(
        device=attribution.device_name,
        model=attribution.model,
        build=attribution.build,
        anchor=attribution.anchor,
        peak=attribution.peak,
        rate_class=chosen,
        rows=tuple(rows),
        step_source=attribution.steps.source,
        step_count=attribution.steps.count,
        excluded=attribution.steps.excluded,
        launches=attribution.launches,
        outside=attribution.steps.outside,
        span=span,
        idle=float(np.median(found.idle)) * NS,
        duration_sum=float(np.median(found.duration.sum(axis=1))) * NS,
        between=float(np.median(between)) * NS if len(between) else np.nan,
        closure_ns=found.closure_ns,
        matched_share=matched,
        step_bytes=streamed,
        step_rate=step_rate,
        layer_rates=rates,
        impossible_step=impossible_step,
        traffic_source=attribution.traffic.source,
        stages=attribution.stages,
        by=by,
        warnings=_warnings(attribution, chosen, rows, step_rate, impossible_step, rates),
    )


def _row(attribution: Attribution, sums: Sums, i: int, key: tuple[str, str, str], chosen: RateClass | None) -> SiteRow:
    mine = sums.group == i
    number = int(sums.launches[i])
    weight = sums.weight[mine]
    nbytes = float(weight.mean())
    totals = sums.exclusive[:, i]
    step_seconds = float(np.median(totals))
    exclusive = step_seconds / number
    duration = float(np.median(sums.duration[:, i])) / number
    rate, rate_duration = _divide(nbytes, exclusive), _divide(nbytes, duration)
    quarter, three_quarters = np.percentile(totals, (25, 75))
    class_rate = class_lo = recoverable = np.nan
    straggler = False
    if chosen is not None and np.isfinite(nbytes):
        class_rate, class_lo = chosen.expected(nbytes), chosen.band(nbytes)[0]
        straggler = rate < class_lo * (1 - ROUNDING)
        lost = step_seconds - float(chosen.seconds(weight).sum())
        recoverable = max(lost, 0.0) if straggler else 0.0
    impossible = _impossible(attribution, mine)
    label, quant, category = key
    return SiteRow(
        site=label,
        quant=quant,
        category=category,
        launches=number,
        bytes=nbytes,
        kv_bytes=float(attribution.traffic.kv_bytes[mine].mean()),
        duration=duration,
        exclusive=exclusive,
        step_seconds=step_seconds,
        spread=_divide(float(three_quarters - quarter), step_seconds),
        rate=rate,
        rate_duration=rate_duration,
        class_rate=class_rate,
        class_lo=class_lo,
        recoverable=recoverable,
        straggler=straggler,
        impossible=impossible,
        overlapped=bool(rate > attribution.peak and not impossible),
        wait=float(np.median(sums.wait[:, i])) / number,
    )


def _impossible(attribution: Attribution, mine: NDArray[np.bool_]) -> bool:
    """Whether a launch's median duration is too short for its weight bytes at the DRAM peak.

    A stage may honestly be: its kernel loads its weights during the stages before it.
    """
    mine = mine & ~attribution.staged
    floor = attribution.traffic.weight_bytes[mine] / attribution.peak / NS
    if not np.isfinite(floor).any():
        return False
    duration = attribution.ledger.duration[:, mine]
    fast = duration.min(axis=0) < floor  # a median is needed of few launches, if of any
    return bool(np.any(np.median(duration[:, fast], axis=0) < floor[fast])) if fast.any() else False


def _divide(a: float, b: float) -> float:
    return a / b if b > 0 else np.nan


def _warnings(
    attribution: Attribution,
    chosen: RateClass | None,
    rows: list[SiteRow],
    step_rate: float,
    impossible_step: bool,
    rates: tuple[float, ...],
) -> tuple[str, ...]:
    notes = list(attribution.warnings)
    if attribution.traffic.source == "none":
        notes.append("no bytes given: rates are unknown; pass --model, --bytes or --manifest")
    peak = attribution.peak / GIGA
    for row in rows:
        if row.impossible:
            notes.append(
                f"IMPOSSIBLE RATE: {row.site} moves its bytes above the DRAM peak of {peak:.0f} GB/s by duration: "
                "work was dropped, or the matrix stayed in cache"
            )
        if row.category == STREAMING and not np.isfinite(row.bytes) and attribution.traffic.source != "none":
            notes.append(f"{row.site} streams weights but its bytes are unknown; it has no rate")
    if impossible_step:
        notes.append(
            f"IMPOSSIBLE RATE: the step moves {step_rate / GIGA:.0f} GB/s over its span, above the DRAM peak "
            f"of {peak:.0f} GB/s: work was dropped"
        )
    if attribution.stages is not None and rates and np.median(rates) > attribution.peak:
        notes.append(
            f"IMPOSSIBLE RATE: the median layer moves its weights at {float(np.median(rates)) / GIGA:.0f} GB/s, above "
            f"the DRAM peak of {peak:.0f} GB/s: work was dropped, or the weights stayed in cache"
        )
    if chosen is not None and chosen.source.startswith("fit"):
        notes.append("the class is a fit to this trace: it ranks its sites but cannot show that all of them are slow")
    if attribution.steps.count < 3:
        notes.append(f"only {counted(attribution.steps.count, 'step')}: medians need at least 3")
    closure = attribution.ledger.closure_ns
    if closure:
        notes.append(f"LEDGER DOES NOT CLOSE: {closure} ns")
    return tuple(notes)
