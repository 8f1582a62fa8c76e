"""Step anatomy: the ledger grouped into categories, with counts of launches, of short launches and of stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attrib.attribution import Attribution
from attrib.categories import COPIES, IDLE, order
from attrib.jsonout import document
from attrib.ledger import BLOCK_LAUNCHES, NS, idle_under_copies
from attrib.stages import Summary
from attrib.words import counted

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "attrib.anatomy/1"
GROWTH_SCHEMA = "attrib.growth/1"
SHORT_NS = 2000
"""A launch shorter than this is mostly launch cost."""


@dataclass(frozen=True)
class AnatomyRow:
    """One category; seconds per step are medians over steps. A kernel divided into stages is a launch of none."""

    category: str
    seconds: float
    duration: float
    launches: int
    short_launches: int
    stages: int
    waiting: float
    """seconds that blocks waited at dependencies in front of its stages, on average; NaN without stages"""
    share_of_span: float
    share_of_kernel_time: float


@dataclass(frozen=True, repr=False)
class Anatomy:
    """The whole step by category; idle is a row of its own."""

    device: str
    model: str
    build: str
    anchor: str
    source: str
    rows: tuple[AnatomyRow, ...]
    span: float
    step_count: int
    launches: int
    short_launches: int
    stages: Summary | None
    """of the one launch that is divided into stages; None where none is"""
    closure_ns: int
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        parts = counted(len(self.rows), "category", "categories")
        return f"<Anatomy of {self.device}: {parts}, step {self.span * 1e3:.3f} ms>"

    def _repr_html_(self) -> str:
        return str(self.to_pandas().to_html(index=False, na_rep="–"))

    def to_json(self) -> dict[str, Any]:
        """Categories with shares in percent; unknown values are null."""
        return document(
            {
                "schema": SCHEMA,
                "device": {"name": self.device},
                "model": self.model or None,
                "build": self.build or None,
                "anchor": self.anchor or None,
                "steps": {
                    "source": self.source,
                    "count": self.step_count,
                    "span_ms": self.span * 1e3,
                    "launches": self.launches,
                    "launches_under_2us": self.short_launches,
                },
                "stages": self.stages.to_json() if self.stages else None,
                "ledger": {"closure_ns": self.closure_ns},
                "categories": [
                    {
                        "category": row.category,
                        "ms": row.seconds * 1e3,
                        "duration_ms": row.duration * 1e3,
                        "launches": row.launches,
                        "launches_under_2us": row.short_launches,
                        "stages": row.stages,
                        "waiting_ms": row.waiting * 1e3,
                        "pct_of_span": row.share_of_span * 100,
                        "pct_of_kernel_time": row.share_of_kernel_time * 100,
                    }
                    for row in self.rows
                ],
                "warnings": list(self.warnings),
            }
        )

    def to_pandas(self) -> pd.DataFrame:
        """One row per category with the JSON's column names."""
        import pandas as pd  # noqa: PLC0415 - half a second that the command line should not pay

        return pd.DataFrame(self.to_json()["categories"])

    def plot(self, path: str) -> None:
        """Stacked bar of the step and launch counts, written to a PNG or SVG file."""
        from attrib.plots import plot_anatomy  # noqa: PLC0415 - matplotlib is imported only to draw

        plot_anatomy([self], path)


@dataclass(frozen=True)
class Growth:
    """What changed from one anatomy to another, such as from a short context to a long one; seconds per step.

    `rows` has (category, first, second), NaN where a side has no such category. Each is a median over steps, so the
    rows need not add up to the change of the span.
    """

    span: tuple[float, float]
    rows: tuple[tuple[str, float, float], ...]
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Both sides and their difference in ms; unknown values are null."""

        def sides(first: float, second: float) -> dict[str, float]:
            return {"first_ms": first * 1e3, "second_ms": second * 1e3, "delta_ms": (second - first) * 1e3}

        categories = [{"category": name, **sides(first, second)} for name, first, second in self.rows]
        body = {"schema": GROWTH_SCHEMA, "span": sides(*self.span), "categories": categories}
        return document({**body, "warnings": list(self.warnings)})


def growth(first: Anatomy, second: Anatomy) -> Growth:
    """Categories in the order of the first, then those the second has alone."""
    before, after = ({row.category: row.seconds for row in side.rows} for side in (first, second))
    names = dict.fromkeys([*before, *after])
    rows = tuple((name, before.get(name, np.nan), after.get(name, np.nan)) for name in names)
    return Growth((first.span, second.span), rows, _unlike(first, second))


def _unlike(first: Anatomy, second: Anatomy) -> tuple[str, ...]:
    """What says that two anatomies are not one build at two KV lengths."""
    sides = [
        (what, getattr(first, name), getattr(second, name))
        for what, name in (
            ("device", "device"),
            ("model", "model"),
            ("build", "build"),
            ("launches a step", "launches"),
        )
    ]
    found = [f"{what} {a} and {b}" for what, a, b in sides if a and b and a != b]
    if not found:
        return ()
    return (f"not one build at two KV lengths: {', '.join(found)}; `attrib compare` shows what two builds differ in",)


def copied_ns(attribution: Attribution) -> NDArray[np.int64]:
    """(steps,) ns in which only a memory copy or set of this process kept the device busy."""
    steps, copies, found = attribution.steps, attribution.trace.copies, attribution.ledger
    mine = (copies.device == steps.device) & ((copies.process == steps.process) | (copies.process < 0))
    covered = np.zeros(steps.count, np.int64)
    each = max(BLOCK_LAUNCHES // steps.launches, 1)
    for first in range(0, steps.count, each):
        block = slice(first, first + each)
        start = attribution.starts(slice(None), block)
        end = start + found.duration[block]
        covered[block] = idle_under_copies(start, end, copies.start[mine], copies.end[mine])
    return covered


def _copy_note(copied: NDArray[np.int64]) -> tuple[str, ...]:
    share = float(np.median(copied)) * NS * 1e3
    return (f"copies include {share:.3f} ms of a step in which only a memory copy or set ran",) if copied.any() else ()


def anatomy(attribution: Attribution) -> Anatomy:
    """Group exclusive time by category; shares are of the median span and of the median time in kernels.

    Idle time under a memory copy or set counts as copies, so that idle is what nothing on the device covers.
    """
    found, traffic = attribution.ledger, attribution.traffic
    category = np.array([site.category for site in traffic.sites])[traffic.site]
    staged, waiting = attribution.staged, attribution.waiting
    short = (found.duration < SHORT_NS) & ~staged
    busy = found.exclusive.sum(axis=1)
    copied = copied_ns(attribution)
    rows = []
    for name in order():
        mine = np.flatnonzero(category == name)
        if name == IDLE:
            seconds, duration, share = found.idle - copied, found.idle, np.nan
        elif len(mine) or (name == COPIES and copied.any()):
            seconds = found.exclusive[:, mine].sum(axis=1)
            duration = found.duration[:, mine].sum(axis=1)
            share = float(np.median(seconds) / max(np.median(busy), 1))
            if name == COPIES:
                seconds = seconds + copied
        else:
            continue
        rows.append(
            AnatomyRow(
                category=name,
                seconds=float(np.median(seconds)) * NS,
                duration=float(np.median(duration)) * NS if name != IDLE else np.nan,
                launches=int(np.count_nonzero(~staged[mine])),
                short_launches=int(np.median(short[:, mine].sum(axis=1))) if len(mine) else 0,
                stages=int(np.count_nonzero(staged[mine])),
                waiting=float(np.median(waiting[:, mine].sum(axis=1))) * NS if staged[mine].any() else np.nan,
                share_of_span=float(np.median(seconds) / max(np.median(found.span), 1)),
                share_of_kernel_time=share,
            )
        )
    return Anatomy(
        device=attribution.device_name,
        model=attribution.model,
        build=attribution.build,
        anchor=attribution.anchor,
        source=attribution.steps.source,
        rows=tuple(rows),
        span=float(np.median(found.span)) * NS,
        step_count=attribution.steps.count,
        launches=attribution.launches,
        short_launches=int(np.median(short.sum(axis=1))),
        stages=attribution.stages,
        closure_ns=found.closure_ns,
        warnings=(*attribution.warnings, *_copy_note(copied)),
    )
