"""Charts that read in print and for colour-blind people. Draws results; computes nothing but positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from attrib import palette
from attrib.anatomy import Anatomy
from attrib.categories import IDLE, order
from attrib.census import Census, SiteRow
from attrib.device import GIGA
from attrib.errors import NoDataError, RefusedError
from attrib.files import write_whole
from attrib.stragglers import Stragglers
from attrib.words import counted

_BAR, _BELOW, _BAND = palette.BAR.light, palette.BELOW.light, palette.BAND.light
MOST_BARS = 40
"""More bars than this are no chart; the table has them all."""
_SUFFIXES = (".png", ".svg", ".pdf")
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "attrib",
    "hatch.linewidth": 0.6,
}


def plot_census(census: Census, path: str) -> None:
    """Bars of effective GB/s of every site with known bytes, against the class of each."""
    rows = [row for row in census.rows if math.isfinite(row.rate)]
    if not rows:
        raise NoDataError("no site has known bytes, so there is no rate to draw; pass --model, --bytes or --manifest")
    _rate_chart(census, rows, "Effective GB/s of every weight matrix", path)


def plot_stragglers(found: Stragglers, path: str) -> None:
    """Bars of the sites under the class, most recoverable first, against the class, with recoverable ms."""
    if not found.rows:
        raise NoDataError("no site streams below the class, so there is no straggler to draw")
    title = f"Stragglers: {found.recoverable * 1e3:.2f} ms/step recoverable at class rate"
    _rate_chart(found.census, list(found.rows), title, path)


def _rate_chart(census: Census, rows: Sequence[SiteRow], title: str, path: str) -> None:
    if len(rows) > MOST_BARS:
        title += f" (the {MOST_BARS} largest of {len(rows)})"
        rows = rows[:MOST_BARS]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 1.9 + 0.5 * len(rows)), layout="constrained")
        axes = figure.subplots()
        places = range(len(rows))
        colours = [_BELOW if row.straggler else _BAR for row in rows]
        hatches = ["//" if row.straggler else "" for row in rows]
        bars = axes.barh(
            places, [row.rate / GIGA for row in rows], height=0.62, color=colours, edgecolor="black", lw=0.5
        )
        for bar, hatch in zip(bars, hatches, strict=True):
            bar.set_hatch(hatch)
        reach = max(row.rate for row in rows)
        for place, row in zip(places, rows, strict=True):
            reach = max(reach, _class_mark(axes, census, row, place))
            text = f" {row.rate / GIGA:,.4g}" if row.rate < 1000 * GIGA else f" {row.rate / GIGA:,.0f}"
            inside = row.rate / reach > 0.2
            axes.text(
                row.rate / GIGA, place, text + " " * inside, va="center", ha="right" if inside else "left", fontsize=9,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.9},
            )  # fmt: skip
        axes.set_yticks(list(places), [_row_label(row) for row in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, reach / GIGA * 1.06)
        axes.set_xlabel("effective GB/s (weight bytes / exclusive time, median over steps)")
        axes.grid(axis="x", color="#DDDDDD", lw=0.6)
        axes.set_axisbelow(True)
        axes.set_title(title, loc="left", fontweight="bold")
        handles = [Patch(facecolor=_BAR, edgecolor="black", label="in class")]
        if any(row.straggler for row in rows):
            handles.append(Patch(facecolor=_BELOW, edgecolor="black", hatch="//", label="below the class"))
        if all(row.straggler for row in rows):
            handles.pop(0)
        if census.rate_class is not None:
            handles.append(Patch(facecolor=_BAND, alpha=0.45, label=f"class: {census.rate_class.describe()}"))
        figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        caption(figure, census.device, census.model, census.build, census.anchor, f"steps: {census.step_count}")
        save_figure(figure, path)


def _row_label(row: SiteRow) -> str:
    name = f"{row.site} ×{row.launches}"
    return f"{name}\n{row.recoverable * 1e3:.3f} ms/step to recover" if row.straggler else name


def _class_mark(axes: Any, census: Census, row: SiteRow, place: int) -> float:
    """Draw the class of one matrix beside its bar; returns how far right it reaches."""
    if census.rate_class is None or not math.isfinite(row.bytes):
        return 0.0
    lo, hi = census.rate_class.band(row.bytes)
    axes.barh(place, (hi - lo) / GIGA, left=lo / GIGA, height=0.86, color=_BAND, alpha=0.45, zorder=0.8)
    axes.plot([(lo + hi) / 2 / GIGA] * 2, [place - 0.43, place + 0.43], color=_BAND, lw=1.5)
    return hi


def plot_anatomy(found: Sequence[Anatomy], path: str, titles: Sequence[str] | None = None) -> None:
    """Stacked bar of the step by category and launch counts; two anatomies make a growth pair.

    Raises NoDataError where no step took any time.
    """
    if not any(a.span for a in found):
        raise NoDataError("every launch begins and ends at one time, so there is no step to draw")
    names = list(titles) if titles is not None else [a.anchor or a.model or "step" for a in found]
    shown = [name for name in order() if any(row.category == name and row.seconds > 0 for a in found for row in a.rows)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.1 + 0.62 * len(found) + 0.2 * len(shown)), layout="constrained")
        top, bottom = figure.subplots(2, 1, height_ratios=(1 + 0.62 * len(found), 0.6 + 0.32 * len(shown)))
        _stacked(top, found, names, shown)
        _launch_counts(bottom, found, names, shown)
        handles, labels = top.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
        facts = [(a.device, a.model, a.build, a.anchor, f"steps: {a.step_count}") for a in found]
        caption(figure, *(" / ".join(dict.fromkeys(filter(None, column))) for column in zip(*facts, strict=True)))
        save_figure(figure, path)


def _stacked(axes: Any, found: Sequence[Anatomy], names: Sequence[str], shown: Sequence[str]) -> None:
    ends = [0.0] * len(found)
    longest = max(a.span for a in found) * 1e3
    for category in shown:
        values = [next((r.seconds * 1e3 for r in a.rows if r.category == category), 0.0) for a in found]
        bars = axes.barh(
            range(len(found)), values, left=ends, height=0.6, label=category, color=palette.category(category).light,
            hatch=palette.category(category).hatch, edgecolor="black", lw=0.5,
        )  # fmt: skip
        for bar, value, a in zip(bars, values, found, strict=True):
            if value / longest > 0.045:
                share = 100 * value / (a.span * 1e3)
                axes.text(
                    bar.get_x() + value / 2, bar.get_y() + 0.3, f"{value:.2f}\n{share:.1f} %", ha="center", va="center",
                    fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85},
                )  # fmt: skip
        ends = [end + value for end, value in zip(ends, values, strict=True)]
    for place, a in enumerate(found):
        axes.text(a.span * 1e3 + longest * 0.008, place, f"{a.span * 1e3:.3f} ms", va="center", fontsize=9)
    axes.set_yticks(range(len(found)), [shortened(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.1)
    axes.set_xlabel("exclusive time per step, ms (median over steps)")
    title = "Step anatomy"
    if len(found) == 2:
        title = f"Step anatomy: {(found[1].span - found[0].span) * 1e3:+.3f} ms/step from the first to the second"
    axes.set_title(title, loc="left", fontweight="bold")


def _launch_counts(axes: Any, found: Sequence[Anatomy], names: Sequence[str], shown: Sequence[str]) -> None:
    categories = [name for name in shown if name != IDLE]
    width = 0.8 / len(found)
    most = 1
    what = "launches and stages per step" if any(a.stages for a in found) else "launches per step"
    for n, a in enumerate(found):
        rows = {row.category: row for row in a.rows}
        launches = [rows[c].launches + rows[c].stages if c in rows else 0 for c in categories]
        stages = [rows[c].stages if c in rows else 0 for c in categories]
        short = [rows[c].short_launches if c in rows else 0 for c in categories]
        places = [i + (n - (len(found) - 1) / 2) * width for i in range(len(categories))]
        shade = ("#BBBBBB", "#777777")[n % 2]
        label = what + (f", {shortened(names[n])}" if len(found) > 1 else "")
        axes.barh(places, launches, height=width * 0.9, color=shade, edgecolor="black", lw=0.5, label=label)
        axes.barh(places, short, height=width * 0.45, color="black", label="of these under 2 µs" if n == 0 else None)
        most = max([most, *launches])
        for place, total, part, under in zip(places, launches, stages, short, strict=True):
            of = [counted(part, "stage")] * bool(part) + [f"{under} < 2 µs"] * (total > part or not part)
            axes.text(total + most * 0.008, place, f"{total} ({', '.join(of)})", va="center", fontsize=8)
    axes.set_yticks(range(len(categories)), categories)
    axes.invert_yaxis()
    axes.set_xlim(0, most * 1.2)
    axes.set_xlabel(what)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=8, borderaxespad=0.2)


def shortened(name: str) -> str:
    """A trace's name without its suffixes, cut to what a chart's axis has room for."""
    stem = name.removesuffix(".xz").removesuffix(".sqlite")
    return stem if len(stem) <= 28 else stem[:27] + "…"


def caption(figure: Figure, *parts: str) -> None:
    """Write device, model, build, anchor, steps and the day above the chart."""
    text = " · ".join(part for part in (*parts, f"drawn {date.today().isoformat()}") if part)
    figure.suptitle(text, fontsize=8, color="#555555", x=0.01, ha="left")


def save_figure(figure: Figure, path: str) -> None:
    """Write the chart whole; raises RefusedError for a suffix that is no chart format."""
    target = Path(path)
    if target.suffix.lower() not in _SUFFIXES:
        raise RefusedError(
            f"{path}: a chart is written as {', '.join(_SUFFIXES)}; give a name with one of these endings"
        )
    metadata = {"Date": None} if target.suffix.lower() == ".svg" else None
    write_whole(target, lambda temporary: figure.savefig(temporary, dpi=160, metadata=metadata))
