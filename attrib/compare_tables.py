"""Comparison and gate as terminal tables of at most 100 columns. Renders results; computes nothing."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attrib.compare import COUNT, CategoryRow, Cell, Comparison, Row
from attrib.compare_delta import Delta, mean
from attrib.compare_devices import DeviceComparison, DeviceTime
from attrib.compare_join import NAME
from attrib.compare_sides import Side
from attrib.tables import number, print_footnotes, rate, shortened
from attrib.words import counted

if TYPE_CHECKING:
    from attrib.gate import Gate

SITE_WIDTH = 25
NAME_WIDTH = 60
JUDGED_WIDTH = 40


def print_comparison(out: Console, found: Comparison) -> None:
    """The gap by cause, both anatomies and every site; one page."""
    for name, side in (("A", found.a), ("B", found.b)):
        out.print(Text(_side_line(name, side)))
    for difference in found.differences:
        out.print(Text(f"FORCED: not the same {difference}", style="red"))
    out.print(Text(_gap_line(found)))
    if found.unlike:
        out.print(Text(f"not like for like, perhaps of two models: {found.unlike}", style="yellow"))
    out.print()
    _print_parts(out, found)
    _print_anatomies(out, found)
    _print_sites(out, found)
    print_footnotes(out, found.warnings)


def print_devices(out: Console, found: DeviceComparison) -> None:
    """Span, busy and idle time of every device of two whole traces."""
    out.print(Text(f"Whole traces by device: A = {found.labels[0]}, B = {found.labels[1]}"))
    table = _table(
        "device", "process", "launches", "span A ms", "span B ms", "Δ", "busy A ms", "busy B ms", "Δ", "Δ idle"
    )
    for pair in found.pairs:
        table.add_row(
            str(pair.device),
            _both(pair.a, pair.b, "process"),
            _both(pair.a, pair.b, "launches"),
            _time(pair.a, "span"),
            _time(pair.b, "span"),
            _signed(pair.delta("span")),
            _time(pair.a, "busy"),
            _time(pair.b, "busy"),
            _signed(pair.delta("busy")),
            _signed(pair.delta("idle")),
        )
    table.add_section()
    sums = (_signed(found.total(field)) for field in ("span", "busy", "idle"))
    span, busy, idle = sums
    table.add_row("sum", "", "", "", "", span, "", "", busy, idle)
    out.print(table)
    print_footnotes(out, found.warnings)


def print_gate(out: Console, found: Gate) -> None:
    """What was judged, against what, and the verdict in one sentence."""
    out.print(Text(f"Gate: B = {found.run} against A = {found.base}, bar {100 * found.bar:g} %"))
    table = _table("judged", "base ms", "run ms", "Δ ms", "Δ %", "spread", "verdict", left=("judged", "verdict"))
    for case in found.cases:
        table.add_row(
            shortened(case.name, JUDGED_WIDTH),
            number(case.base_ms, 3),
            number(case.run_ms, 3),
            _signed((case.run_ms - case.base_ms) * 1e6),
            number(case.change_pct, 2),
            number(case.spread_ms, 3),
            case.verdict,
        )
    out.print(table)
    for why in dict.fromkeys(case.why for case in found.cases if case.why):
        names = [case.name for case in found.cases if case.why == why]
        out.print(Text(f"{names[0] if len(names) == 1 else len(names)} cannot be judged: {why}"))
    out.print(Text(found.describe()))
    print_footnotes(out, found.warnings)


def _side_line(name: str, side: Side) -> str:
    steps = f"{counted(side.steps, 'step')} × {counted(side.launches, 'launch')} ({side.source})"
    label = side.label if len(side.label) <= NAME_WIDTH else f"{side.label[: NAME_WIDTH - 1]}…"
    facts = " · ".join(part for part in (side.device, side.model, side.build, side.anchor) if part)
    return f"{name}: {label}\n   {facts}; {steps}"


def _gap_line(found: Comparison) -> str:
    span_a, span_b = mean(found.a.span), mean(found.b.span)
    relative = f" ({100 * float(found.gap.ns / span_a):+.2f} %)" if span_a else ""
    return (
        f"step A {number(float(span_a) / 1e6, 3)} → B {number(float(span_b) / 1e6, 3)} ms: gap B − A "
        f"{_signed(found.gap.ns)} ms{relative}, spread {_spread(found.gap)} ms\n"
        "means over steps, because means of parts add up and medians do not; spread: 75th − 25th percentile\n"
        "of the differences between single steps (of each side: in --json); ~ not beyond its spread"
    )


def _print_parts(out: Console, found: Comparison) -> None:
    table = _table("where the gap is", "Δ ms", "spread", "", "% of gap", left=("where the gap is", ""))
    for part in found.parts:
        table.add_row(_part_name(part.name), *_delta(found, part.delta))
    table.add_section()
    table.add_row("sum of the parts", *_delta(found, found.gap))
    out.print(table)
    out.print(Text(f"the parts add up to the gap to {float(found.closure_ns):.3g} ns"))
    out.print()


def _part_name(name: str) -> str:
    return f"{name} (of launches without weights)" if name == COUNT else name


def _print_anatomies(out: Console, found: Comparison) -> None:
    table = _table(
        "anatomy", "A ms", "B ms", "Δ ms", "spread", "", "% of gap", "launches", "< 2 µs", left=("anatomy", "")
    )
    for row in found.categories:
        table.add_row(row.category, _ms(row.a_ns), _ms(row.b_ns), *_delta(found, row.delta), *_counts(row))
    table.add_section()
    launches = _change(found.a.launches, found.b.launches)
    span = (_ms(mean(side.span)) for side in (found.a, found.b))
    table.add_row("span", *span, *_delta(found, found.gap), launches, "")
    out.print(table)
    out.print()


def _counts(row: CategoryRow) -> tuple[str, str]:
    if not any(row.launches):
        return "", ""
    return _change(*row.launches), _change(*row.short_launches)


def _print_sites(out: Console, found: Comparison) -> None:
    table = _table(
        "site", "n", "GB/s A", "B", "µs A", "B", "ms A", "B", "Δ ms", "spread", "", "% gap", left=("site", "")
    )
    for row in found.rows:
        a, b = row.a, row.b
        table.add_row(
            _site(row),
            _change(a.launches if a else 0, b.launches if b else 0),
            *(rate(cell.rate) if cell else "–" for cell in (a, b)),
            *(_each(cell) for cell in (a, b)),
            *(_ms(cell.ns) if cell else "–" for cell in (a, b)),
            *_delta(found, row.delta),
        )
    out.print(table)
    for row in found.rows:
        if row.a and row.b and row.how != NAME:
            names = f"A {' + '.join(row.a.sites)}; B {' + '.join(row.b.sites)}"
            out.print(Text(f"* {row.site} joined by {row.how}: {names}"))
    out.print()


def _site(row: Row) -> Text:
    """The site's name, marked where only one side has it (A, B) or it was joined by role (*)."""
    mark = "" if row.how == NAME else " A" if row.b is None else " B" if row.a is None else " *"
    width = SITE_WIDTH - len(mark)
    return Text((row.site if len(row.site) <= width else f"{row.site[: width - 1]}…") + mark)


def _each(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    return number(cell.each_ns / 1e3, 2 if cell.each_ns < 1e5 else 1)


def _delta(found: Comparison, delta: Delta) -> tuple[str, str, str, str]:
    share = found.share(delta)
    unclear = "~" if delta.ns and not delta.clear else ""
    return _signed(delta.ns), _spread(delta), unclear, number(100 * share)


def _spread(delta: Delta) -> str:
    return number(delta.spread_ns / 1e6, 3)


def _ms(ns: Fraction) -> str:
    return number(float(ns) / 1e6, 3)


def _signed(ns: Fraction | float) -> str:
    """ms with its sign; 0 without one, so that an exact zero is seen as such."""
    if ns == 0:
        return "0"
    return f"{float(ns) / 1e6:+,.3f}" if math.isfinite(ns) else "–"


def _change(a: int, b: int) -> str:
    return str(a) if a == b else f"{a}→{b}"


def _both(a: DeviceTime | None, b: DeviceTime | None, field: str) -> str:
    first, second = (str(getattr(time, field)) if time else "–" for time in (a, b))
    return first if first == second else f"{first}→{second}"


def _time(time: DeviceTime | None, field: str) -> str:
    return number(getattr(time, field) / 1e6, 3) if time else "–"


def _table(*columns: str, left: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 0, 0, 1))
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table
