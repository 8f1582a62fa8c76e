"""Terminal tables that fit 100 columns. Renders results; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attrib.anatomy import Anatomy, Growth
from attrib.census import Census, SiteRow
from attrib.device import GIGA
from attrib.info import Info
from attrib.stages import Summary
from attrib.stragglers import Stragglers
from attrib.words import WIDTH, counted

SITE_WIDTH = 31
_HEADINGS = {"site": "site", "kernel": "kernel and grid", "layer": "site of a layer"}
"""Of the first column, by what a census is grouped by."""


def console(stderr: bool = False) -> Console:
    """A console at least 100 columns wide that writes no colour into a pipe."""
    found = _Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not found.is_terminal:
        found = _Console(stderr=stderr, highlight=False, width=WIDTH, no_color=True)
    return found


class _Console(Console):
    """A console that lets a closed pipe reach the command's guard; rich itself would exit with code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def number(value: float, digits: int = 1) -> str:
    """Fixed-point text, no 0 below 0; `–` where the value is unknown."""
    return f"{value:z,.{digits}f}" if math.isfinite(value) else "–"


def rate(value: float) -> str:
    """GB/s with four significant digits or none after the point above 1000; `–` where unknown."""
    gbps = value / GIGA
    return number(gbps, 0 if gbps >= 1000 else 1)


def print_census(out: Console, census: Census, title: str) -> None:
    """The census table with its totals and footnotes."""
    out.print(Text(_heading("Census", title, census.device, census.model, census.build, census.anchor)))
    out.print(Text(_steps_line(census)))
    table = _table(
        (_HEADINGS[census.by], "name"), ("n", "right"), ("MB", "right"), ("excl µs", "right"), ("dur µs", "right"),
        ("GB/s", "right"), ("by dur", "right"), ("%peak", "right"), ("class", "right"), ("ms/step", "right"),
        ("%span", "right"), ("", "left"),
    )  # fmt: skip
    for row in census.rows:
        reads_kv = not math.isfinite(row.bytes) and math.isfinite(row.kv_bytes)
        nbytes = row.kv_bytes if reads_kv else row.bytes
        table.add_row(
            _site(row.site),
            str(row.launches),
            number(nbytes / 1e6),
            number(row.exclusive * 1e6, 2 if row.exclusive < 1e-4 else 1),
            number(row.duration * 1e6, 2 if row.duration < 1e-4 else 1),
            rate(_over(nbytes, row.exclusive)),
            rate(_over(nbytes, row.duration)),
            number(100 * _over(nbytes, row.exclusive) / census.peak, 0),
            rate(row.class_rate),
            number(row.step_seconds * 1e3, 3),
            number(100 * row.step_seconds / census.span if census.span else math.nan),
            _marks(census, row) + "kv" * reads_kv,
        )
    out.print(table)
    for line in _census_notes(census):
        out.print(Text(line))
    print_footnotes(out, census.warnings)


def print_stragglers(out: Console, found: Stragglers, title: str) -> None:
    """The straggler ranking with the verdict in one sentence."""
    census = found.census
    out.print(Text(_heading("Stragglers", title, census.device, census.model, census.build, census.anchor)))
    table = _table(
        ("#", "right"), (_HEADINGS[census.by], "name"), ("n", "right"), ("MB", "right"), ("GB/s", "right"),
        ("class", "right"), ("%class", "right"), ("µs now", "right"), ("µs at class", "right"),
        ("recoverable ms", "right"),
    )  # fmt: skip
    for place, row in enumerate(found.rows, start=1):
        at_class = row.exclusive - row.recoverable / row.launches
        table.add_row(
            str(place),
            _site(row.site),
            str(row.launches),
            number(row.bytes / 1e6),
            rate(row.rate),
            rate(row.class_rate),
            number(100 * row.rate / row.class_rate),
            number(row.exclusive * 1e6, 2),
            number(at_class * 1e6, 2),
            number(row.recoverable * 1e3, 3),
        )
    if found.rows:
        out.print(table)
    out.print(Text(found.describe()))
    if census.rate_class is not None:
        out.print(Text(f"class: {census.rate_class.describe()}"))
    print_footnotes(out, census.warnings)


def print_anatomy(out: Console, anatomies: Iterable[tuple[str, Anatomy]]) -> None:
    """The anatomy of one step, or of several anchors below each other."""
    for title, found in anatomies:
        out.print(Text(_heading("Step anatomy", title, found.device, found.model, found.build, found.anchor)))
        staged = (("stages", "right"), ("waiting ms", "right")) if found.stages else ()
        table = _table(
            ("category", "left"), ("ms/step", "right"), ("% of span", "right"), ("% of kernel time", "right"),
            ("Σ durations ms", "right"), ("launches", "right"), ("< 2 µs", "right"), *staged,
        )  # fmt: skip
        for row in found.rows:
            table.add_row(
                row.category,
                number(row.seconds * 1e3, 3),
                number(100 * row.share_of_span, 2),
                number(100 * row.share_of_kernel_time, 2),
                number(row.duration * 1e3, 3),
                str(row.launches) if row.launches else "",
                str(row.short_launches) if row.launches else "",
                *((str(row.stages), number(row.waiting * 1e3, 3)) if row.stages else ("", "") * bool(staged)),
            )
        table.add_section()
        table.add_row(
            "span",
            number(found.span * 1e3, 3),
            "100.00",
            "",
            "",
            str(found.launches),
            str(found.short_launches),
            *((str(found.stages.stages), number(found.stages.waiting * 1e3, 3)) if found.stages else ()),
        )
        out.print(table)
        out.print(
            Text(
                f"{counted(found.step_count, 'step')} ({found.source}); medians; ledger closes to {found.closure_ns} ns"
                + (f"\n{_divided(found.launches, found.stages)}" if found.stages else "")
            )
        )
        print_footnotes(out, found.warnings)


def _site(name: str) -> Text:
    return Text(shortened(name, SITE_WIDTH), overflow="ellipsis", no_wrap=True)


def shortened(name: str, width: int) -> str:
    """A site that fits its column. The end (grid, arguments, number) stays too: it tells instances apart."""
    if len(name) <= width:
        return name
    grid = len(name) - name.rfind(" [") if name.endswith("]") else 0
    tail = max(grid, width // 2 - 1)
    return f"{name[: max(width - tail - 1, 8)]}…{name[-tail:]}"


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 0, 0, 1))
    for name, justify in columns:
        free = justify == "name"
        table.add_column(
            name,
            justify="right" if justify == "right" else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=SITE_WIDTH if free else None,
            min_width=None if free else len(name),
        )
    return table


def _heading(what: str, title: str, *parts: str) -> str:
    return f"{what} of {title}: " + " · ".join(part for part in parts if part)


def _divided(launches: int, stages: Summary) -> str:
    return f"1 of {counted(launches, 'launch')} is {stages.kernel} with {counted(stages.stages, 'stage')}"


def _steps_line(census: Census) -> str:
    between = f"{census.between * 1e3:.3f} ms between steps, " if math.isfinite(census.between) else ""
    return (
        f"{counted(census.step_count, 'step')} × {counted(census.launches, 'launch')} ({census.step_source}); "
        f"span {census.span * 1e3:.3f} ms, idle {census.idle * 1e3:.3f} ms\n"
        f"Σ durations {census.duration_sum * 1e3:.3f} ms, {between}"
        f"ledger closes to {census.closure_ns} ns"
        + (f"\n{counted(census.outside, 'launch')} outside the steps" if census.outside else "")
        + (f"\n{_divided(census.launches, census.stages)}" if census.stages else "")
    )


def _over(nbytes: float, seconds: float) -> float:
    return nbytes / seconds if seconds > 0 else math.nan


def _above(census: Census, row: SiteRow) -> bool:
    """Whether a site beats its class for a reason that is not flagged otherwise."""
    if census.rate_class is None or not math.isfinite(row.bytes) or row.impossible or row.overlapped:
        return False
    return row.rate > census.rate_class.band(row.bytes)[1]


def _marks(census: Census, row: SiteRow) -> str:
    marks = ""
    if _above(census, row):
        marks += "▲"
    if row.impossible:
        marks += "!"
    if row.overlapped:
        marks += "†"
    if row.straggler:
        marks += "◄"
    return marks


def _census_notes(census: Census) -> Iterable[str]:
    if math.isfinite(census.step_bytes):
        yield (
            f"matched {100 * census.matched_share:.1f} % of kernel time to "
            f"{census.step_bytes / GIGA:.3f} GB of weights ({census.traffic_source})"
        )
        line = f"overlap cannot raise these: step {rate(census.step_rate)} GB/s over its span"
        if census.layer_rates:
            ordered = sorted(census.layer_rates)
            middle = ordered[len(ordered) // 2]
            line += f", layers {rate(ordered[0])}–{rate(ordered[-1])} (median {rate(middle)})"
        yield line
    if census.rate_class is not None:
        yield f"class: {census.rate_class.describe()}"
    legend = []
    if any(math.isfinite(row.kv_bytes) and not math.isfinite(row.bytes) for row in census.rows):
        legend.append("kv: bytes of the KV cache, not weights")
    if any(row.straggler for row in census.rows):
        legend.append("◄ under the class")
    if any(_above(census, row) for row in census.rows):
        legend.append("▲ above it: overlap hides launch cost, or the matrix is in cache")
    if any(row.overlapped for row in census.rows):
        legend.append("† exclusive rate above the peak by overlap")
    if any(row.impossible for row in census.rows):
        legend.append("! impossible rate")
    if legend:
        yield "; ".join(legend)


def print_footnotes(out: Console, warnings: Iterable[str]) -> None:
    """Warnings below a table, and the empty line that ends it."""
    for note in warnings:
        out.print(Text(f"note: {note}", style="yellow"))
    out.print()


def print_growth(out: Console, found: Growth) -> None:
    """What grew from the first anchor to the second, by category."""
    first, second = found.span
    out.print(Text(f"Growth: span {first * 1e3:.3f} → {second * 1e3:.3f} ms ({_signed((second - first) * 1e3)} ms)"))
    table = _table(("category", "left"), ("first ms", "right"), ("second ms", "right"), ("Δ ms", "right"))
    for name, a, b in found.rows:
        table.add_row(
            name,
            number(a * 1e3, 3),
            number(b * 1e3, 3),
            _signed((b - a) * 1e3),
        )
    out.print(table)
    print_footnotes(out, found.warnings)
    out.print()


def _signed(value: float) -> str:
    """Three digits after the point with their sign; none where they are all 0, and `–` where the value is unknown."""
    text = number(value, 3)
    return f"+{text}" if round(value, 3) > 0 else text


def print_info(out: Console, found: Info) -> None:
    """Facts of an export, then what can and cannot be attributed."""
    out.print(Text(f"{found.path}: nsys {found.product}, export schema {found.schema_version}"))
    out.print(Text(f"CUDA graphs traced by: {found.graph_mode}"))
    for key, value in found.counts.items():
        out.print(Text(f"  {key.replace('_', ' '):<22}{value:>12,}"))
    for (device, launches), gpu in zip(found.devices.items(), found.gpus, strict=True):
        peak = gpu.peak_bytes_per_s / GIGA
        facts = f"{gpu.name}, {number(gpu.sms, 0)} SMs, {number(peak, 0)} GB/s, {counted(launches, 'launch')}"
        out.print(Text(f"  device {device}: {facts}"))
    for line in found.can:
        out.print(Text(f"can attribute: {line}"))
    for line in found.cannot:
        out.print(Text(f"cannot attribute: {line}"))
    print_footnotes(out, found.warnings)
