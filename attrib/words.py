"""Words of messages: a noun after its number, lines as wide as a terminal. A leaf."""

from __future__ import annotations

import textwrap

WIDTH = 100
"""Columns of every table and note."""


def counted(number: int, one: str, several: str = "") -> str:
    """`1 step`, `2 steps`, `1,000 launches`; `several` where the words after a number do not just take an ending."""
    if number == 1:
        return f"1 {one}"
    ending = "es" if one.endswith(("ch", "s", "x")) else "s"
    return f"{number:,} {several or one + ending}"


def wrapped(text: str, width: int = WIDTH) -> str:
    """Each line of the text in lines of at most `width` columns, as far in as it begins; no name or path is cut."""
    lines = []
    for line in text.split("\n"):
        inside = line[: len(line) - len(line.lstrip(" "))]
        parts = textwrap.wrap(line, width, subsequent_indent=inside, break_long_words=False, break_on_hyphens=False)
        lines += parts or [""]
    return "\n".join(lines)
