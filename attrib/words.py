"""Words of messages: a noun after its number. A leaf."""

from __future__ import annotations


def counted(number: int, one: str, several: str = "") -> str:
    """`1 step`, `2 steps`, `1,000 launches`; `several` where the words after a number do not just take an ending."""
    if number == 1:
        return f"1 {one}"
    ending = "es" if one.endswith(("ch", "s", "x")) else "s"
    return f"{number:,} {several or one + ending}"
