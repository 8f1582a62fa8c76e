"""Anatomy categories as data: `categories.toml`, matched on the function name and nothing else. A leaf."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files

COPIES = "copies"
OTHER = "other"
IDLE = "idle"


@cache
def patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """(category, pattern on the qualified function name), in the order they are tried."""
    rows = tomllib.loads(files("attrib").joinpath("categories.toml").read_text(encoding="utf-8"))["category"]
    return tuple((row["name"], re.compile(row["function"], re.IGNORECASE)) for row in rows)


@cache
def category_of(function: str) -> str:
    """Category of a kernel by its qualified function name; `other` when nothing matches."""
    return next((name for name, pattern in patterns() if pattern.search(function)), OTHER)


def order() -> list[str]:
    """Category names in display order; idle is last."""
    return [*(name for name, _ in patterns()), OTHER, IDLE]
