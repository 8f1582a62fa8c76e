"""Chart of a comparison: both anatomies as bars, and the gap as a waterfall of its parts. Draws; computes nothing."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from attrib import palette
from attrib.categories import order
from attrib.compare import Comparison
from attrib.compare_delta import mean
from attrib.plots import STYLE, caption, save_figure, shortened

_SLOWER, _FASTER, _SPAN = palette.BELOW.light, palette.BAR.light, "#BBBBBB"
_SLOWER_HATCH = palette.BELOW.hatch


def plot_comparison(found: Comparison, path: str) -> None:
    """Write the chart to a PNG, SVG or PDF file; raises RefusedError for another ending."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.6 + 0.3 * len(found.parts)), layout="constrained")
        top, bottom = figure.subplots(2, 1, height_ratios=(2.2, 1.2 + 0.3 * len(found.parts)))
        _anatomies(top, found)
        _waterfall(bottom, found)
        handles, labels = top.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
        a = found.a
        forced = f"FORCED: not the same {'; '.join(found.differences)}" if found.differences else ""
        steps = f"steps: {found.a.steps} and {found.b.steps}, one capture each"
        caption(figure, a.device, a.model, a.anchor, steps, forced)
        save_figure(figure, path)


def _anatomies(axes: Any, found: Comparison) -> None:
    sides = ("A", found.a), ("B", found.b)
    spans = [_ms(mean(side.span)) for _, side in sides]
    longest = max(*spans, 1e-9)
    ends = [0.0, 0.0]
    rows = {row.category: row for row in found.categories}
    for category in order():
        if category not in rows or not (rows[category].a_ns or rows[category].b_ns):
            continue
        values = [_ms(rows[category].a_ns), _ms(rows[category].b_ns)]
        axes.barh(
            (0, 1), values, left=ends, height=0.62, label=category, color=palette.category(category).light,
            hatch=palette.category(category).hatch, edgecolor="black", lw=0.5,
        )  # fmt: skip
        for place, (value, end) in enumerate(zip(values, ends, strict=True)):
            if value / longest > 0.045:
                axes.text(
                    end + value / 2, place, f"{value:.2f}", ha="center", va="center", fontsize=8,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85},
                )  # fmt: skip
        ends = [end + value for end, value in zip(ends, values, strict=True)]
    for place, span in enumerate(spans):
        axes.text(span + longest * 0.008, place, f"{span:.3f} ms", va="center", fontsize=9)
    axes.set_yticks((0, 1), [_title(name, side.label, side.build) for name, side in sides])
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.1)
    axes.set_xlabel("exclusive time per step, ms (mean over steps)")
    axes.set_title(f"Step of B − step of A: {_ms(found.gap.ns):+.3f} ms", loc="left", fontweight="bold")


def _title(name: str, label: str, build: str) -> str:
    """A run directory's name carries its build already."""
    more = f"\n{build}" if build and build.split(maxsplit=1)[0] not in label else ""
    return f"{name}: {shortened(label)}{more}"


def _waterfall(axes: Any, found: Comparison) -> None:
    """A at the top, every part from where the last one ended, B at the bottom; whiskers are the spread of a part."""
    start, end = _ms(mean(found.a.span)), _ms(mean(found.b.span))
    at, levels = mean(found.a.span), [start, end]
    for place, part in enumerate(found.parts, start=1):
        before, at = at, at + part.delta.ns
        slower = part.delta.ns > 0
        axes.barh(
            place, _ms(part.delta.ns), left=_ms(before), height=0.62, color=_SLOWER if slower else _FASTER,
            hatch=_SLOWER_HATCH if slower else "", edgecolor="black", lw=0.5,
        )  # fmt: skip
        axes.plot([_ms(at)] * 2, [place - 0.31, place + 1.31], color="black", lw=0.6, ls=":")
        half = part.delta.spread_ns / 2e6
        if half > 0:
            axes.errorbar(_ms(at), place, xerr=half, color="black", lw=1, capsize=2.5)
        levels.append(_ms(at))
    last = len(found.parts) + 1
    lo, hi = min(levels), max(levels)
    reach = max(hi - lo, 0.02 * max(hi, 1e-9))
    lo, hi = max(lo - 0.12 * reach, 0.0), hi + 0.22 * reach
    for place, value in ((0, start), (last, end)):
        axes.barh(place, value - lo, left=lo, height=0.62, color=_SPAN, edgecolor="black", lw=0.5)
    labels = [f"{start:.3f} ms", *(_change(found, part.delta.ns) for part in found.parts), f"{end:.3f} ms"]
    edges = [start, *(max(a, b) for a, b in zip([start, *levels[2:-1]], levels[2:], strict=True)), end]
    whiskers = [0.0, *(max(part.delta.spread_ns / 2e6, 0.0) for part in found.parts), 0.0]
    for place, (text, edge, whisker) in enumerate(zip(labels, edges, whiskers, strict=True)):
        axes.text(edge + whisker + 0.012 * (hi - lo), place, text, va="center", fontsize=8.5)
    axes.set_yticks(range(last + 1), ["A", *(part.name for part in found.parts), "B"])
    axes.invert_yaxis()
    axes.set_xlim(lo, hi)
    axes.set_xlabel("step, ms (the axis does not start at 0)" if lo > 0 else "step, ms")
    axes.grid(axis="x", color="#DDDDDD", lw=0.6)
    axes.set_axisbelow(True)
    axes.set_title("Where the gap is", loc="left", fontweight="bold")
    axes.legend(
        handles=[
            Patch(facecolor=_SLOWER, edgecolor="black", hatch=_SLOWER_HATCH, label="B takes longer"),
            Patch(facecolor=_FASTER, edgecolor="black", label="B takes less"),
        ],
        loc="best", frameon=True, framealpha=0.9, edgecolor="none", fontsize=8,
    )  # fmt: skip


def _change(found: Comparison, ns: Fraction) -> str:
    if not ns:
        return "0"
    share = f" ({100 * float(ns / found.gap.ns):.0f} %)" if found.gap.ns else ""
    return f"{_ms(ns):+.3f}{share}"


def _ms(ns: Fraction) -> float:
    return float(ns) / 1e6
