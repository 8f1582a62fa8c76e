"""Chart of a site over builds: every run a point, the median of each build a line. Draws; computes nothing."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.figure import Figure

from attrib import palette
from attrib.errors import NoDataError
from attrib.plots import STYLE, caption, save_figure
from attrib.runs_history import Trend

_MEDIAN, _RUN, _CLASS = palette.BELOW.light, palette.BAR.light, palette.BAND.light


def plot_trend(found: Trend, path: str) -> None:
    """Write the chart to a PNG, SVG or PDF file; GB/s where they are known, else ms per step.

    Raises NoDataError where no run knows either, RefusedError for another ending.
    """
    by_rate = any(build.gbps is not None for build in found.builds)
    key = "gbps" if by_rate else "ms_per_step"
    medians = [build.gbps if by_rate else build.ms_per_step for build in found.builds]
    points = [(place, run[key]) for place, b in enumerate(found.builds) for run in b.runs if run[key] is not None]
    if not points:
        raise NoDataError(f"no run knows a rate or a time of {found.site}, so there is nothing to draw")
    classes = [(place, b.class_gbps) for place, b in enumerate(found.builds) if b.class_gbps is not None and by_rate]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(max(6.5, 2 + 1.1 * len(found.builds)), 4.2), layout="constrained")
        axes = figure.subplots()
        known = [(place, value) for place, value in enumerate(medians) if value is not None]
        axes.plot(*zip(*known, strict=True), color=_MEDIAN, lw=1.6, marker="s", ms=6, label="median of a build")
        axes.plot(
            *zip(*points, strict=True), color=_RUN, ls="", marker="o", ms=5, mec="black", mew=0.5, label="one run"
        )
        for place, value in classes:
            label = "class of this size" if place == classes[0][0] else None
            axes.plot((place - 0.4, place + 0.4), (value, value), color=_CLASS, lw=1.6, ls="--", label=label)
        for place, value in known:
            text = f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"
            axes.annotate(text, (place, value), (0, 9), textcoords="offset points", ha="center", fontsize=8)
        axes.set_xticks(range(len(found.builds)), [_label(b.build, b.build_hash) for b in found.builds])
        axes.set_xlim(-0.5, len(found.builds) - 0.5)
        axes.margins(y=0.18)
        axes.set_ylabel("effective GB/s (bytes / exclusive time)" if by_rate else "ms per step")
        axes.set_xlabel("builds, in the order in which they were first recorded")
        axes.grid(axis="y", color="#DDDDDD", lw=0.6)
        axes.set_axisbelow(True)
        axes.set_title(f"{found.site} over builds", loc="left", fontweight="bold")
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        caption(figure, found.device, found.anchor, f"runs: {sum(len(b.runs) for b in found.builds)}")
        save_figure(figure, path)


def _label(build: str, build_hash: str) -> str:
    return "\n".join(filter(None, (build, build_hash[:8]))) or "unnamed"
