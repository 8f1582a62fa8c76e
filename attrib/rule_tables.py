"""Rule files and what they know of a trace, as terminal tables of at most 100 columns. Renders; computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attrib.categories import IDLE, order
from attrib.rulecheck import Check, Share
from attrib.rules import Rules
from attrib.tables import number
from attrib.words import WIDTH

UNKNOWN_HEAD = "largest that no rule knows"
ABOUT = "what it knows"
GAP = 2
"""Columns between two of a table."""


def print_rules(out: Console, books: Sequence[Rules]) -> None:
    """Every rule file in the order they are tried, and the categories a rule can name."""
    table = _table("rules", "kernels", "streams", "orders", ABOUT, text=("rules", ABOUT))
    for book in books:
        table.add_row(
            Text(book.name), str(len(book.kernels)), str(len(book.streams)), str(len(book.layers)), Text(book.about)
        )
    out.print(table)
    out.print(Text("Tried from the top; words in a kernel's name tell its category where no rule knows it."))
    out.print(Text(f"Categories: {', '.join(name for name in order() if name != IDLE)}."))


def print_check(out: Console, found: Check) -> None:
    """What matched by file and by category, the largest kernels no rule knows, and rules for them."""
    out.print(Text(f"Rules on {found.trace}: {number(100 * found.matched)} % of kernel time is known to a rule file"))
    for title, shares in (("matched by", found.files), ("category", found.categories)):
        table = _table(title, "launches", "%", "functions", "ms", "% time", text=(title,))
        for name, part in shares.items():
            table.add_row(Text(name), *_cells(found, part))
        out.print(table)
    if found.excluded:
        listed = ", ".join(f"{number} × {reason}" for reason, number in found.excluded.items())
        out.print(Text(f"note: left out: {listed}", style="yellow"))
    if found.streams:
        listed = ", ".join(f"{name} {launches:,}" for name, launches in found.streams.items())
        out.print(Text(f"Launches that --model could give weight bytes by the orders of a rule file: {listed}."))
    if not found.unmatched:
        out.print(Text("Every kernel is known to a rule file."))
        return
    rows = [
        (one.category, f"{one.share.launches:,}", number(one.share.seconds * 1e3, 3), _percent(found, one.share))
        for one in found.unmatched
    ]
    heads = ("words say", "launches", "ms", "% time")
    room = WIDTH - sum(GAP + max(map(len, column)) for column in zip(heads, *rows, strict=True))
    table = _table(UNKNOWN_HEAD, *heads, text=(UNKNOWN_HEAD, "words say"))
    for one, cells in zip(found.unmatched, rows, strict=True):
        table.add_row(Text(_cut(one.function, room)), *cells)
    out.print(table)
    out.print(Text("Rules to paste into a file for --rules:\n"))
    out.print(Text("\n".join(one.proposal for one in found.unmatched)), soft_wrap=True)


def _percent(found: Check, part: Share) -> str:
    return number(100 * found.of_time(part.seconds))


def _cells(found: Check, part: Share) -> list[str]:
    return [
        f"{part.launches:,}",
        number(100 * part.launches / found.total.launches),
        f"{part.kernels:,}",
        number(part.seconds * 1e3, 3),
        _percent(found, part),
    ]


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{chop_cells(text, width - 1)[0]}…"


def _table(*columns: str, text: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in text else "right", no_wrap=name != ABOUT)
    return table
