"""Terminal tables of `runs.db` that fit 100 columns. Renders; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attrib.runs_history import HASH_SHOWN, Row, Trend
from attrib.tables import number, print_footnotes

RUN_LINES = (
    ("recorded", "recorded_utc"), ("anchor", "anchor"), ("model", "model"), ("weights", "source"),
    ("build", "build"), ("build hash", "build_hash"), ("device", "device"), ("nsys", "nsys"),
)  # fmt: skip


def print_runs(out: Console, runs: Sequence[Row]) -> None:
    """One line a run."""
    table = _table(("run", "left"), ("device", "left"), ("tok/s", "right"), ("span ms", "right"), ("GB/s", "right"),
                   ("to recover", "right"))  # fmt: skip
    for run in runs:
        table.add_row(
            Text(str(run["id"])),
            Text(str(run["device"] or "–")),
            _number(run["tok_per_s"], 2),
            _number(run["traced_span_ms"], 3),
            _number(run["step_gbps"], 0),
            _number(run["recoverable_ms"], 3),
        )
    out.print(table)


def print_run(out: Console, run: Row, sites: Sequence[Row]) -> None:
    """Everything that is stored of a run."""
    out.print(Text(f"Run {run['id']}", style="bold"))
    for label, key in RUN_LINES:
        if run.get(key) is not None:
            out.print(Text(f"{label + ':':12} {run[key]}"), soft_wrap=True)
    out.print(
        Text(
            f"{'speed:':12} {_number(run['tok_per_s'], 2)} tok/s untraced; step {_number(run['untraced_step_ms'], 3)} "
            f"ms untraced, {_number(run['traced_span_ms'], 3)} ms traced span"
        )
    )
    table = _table(("site", "left"), ("n", "right"), ("MB", "right"), ("excl µs", "right"), ("GB/s", "right"),
                   ("class", "right"), ("ms/step", "right"), ("to recover", "right"), ("", "left"))  # fmt: skip
    for site in sites:
        table.add_row(
            Text(str(site["site"])),
            str(site["launches"]),
            _number(site["bytes"], 1, 1e-6),
            _number(site["exclusive_us"], 2),
            _number(site["gbps"], 0),
            _number(site["class_gbps"], 0),
            _number(site["ms_per_step"], 3),
            _number(site["recoverable_ms"], 3),
            "below class" if site["straggler"] else "",
        )
    out.print(table)


def print_trend(out: Console, found: Trend) -> None:
    """One line a build, the oldest first."""
    out.print(Text(f"{found.site} over builds · {found.anchor} · {found.device}", style="bold"))
    table = _table(("build", "left"), ("first recorded", "left"), ("runs", "right"), ("GB/s", "right"),
                   ("low", "right"), ("high", "right"), ("class", "right"), ("ms/step", "right"),
                   ("change", "right"))  # fmt: skip
    for build in found.builds:
        table.add_row(
            Text(f"{build.build} {build.build_hash[:HASH_SHOWN]}"),
            str(build.runs[0]["recorded_utc"]),
            str(len(build.runs)),
            *(_number(value, 0) for value in (build.gbps, build.low_gbps, build.high_gbps, build.class_gbps)),
            _number(build.ms_per_step, 3),
            "–" if build.change_pct is None else f"{build.change_pct:+.1f} %",
        )
    out.print(table)
    print_footnotes(out, found.warnings)


def _number(value: float | None, digits: int, scale: float = 1.0) -> str:
    return number(math.nan if value is None else value * scale, digits)


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 0, 0, 1))
    for name, justify in columns:
        table.add_column(name, justify="left" if justify == "left" else "right", overflow="fold")
    return table
