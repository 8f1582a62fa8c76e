"""Colours and hatches of every chart and page: one table for anatomy categories, one for verdicts. A leaf.

The hues start from Okabe and Ito's palette, which every common colour vision tells apart; a test measures the distances
under simulated deficiencies (Machado, Oliveira and Fernandes 2009). Hatches repeat the difference for grey print.
"""

from __future__ import annotations

from dataclasses import dataclass

from attrib.categories import IDLE, order


@dataclass(frozen=True)
class Ink:
    """Fill on a light and on a dark ground as `#RRGGBB`, and the hatch in matplotlib's notation."""

    light: str
    dark: str
    hatch: str


_INKS = (
    Ink("#0072B2", "#2F8FD6", ""),
    Ink("#D55E00", "#E8763A", "//"),
    Ink("#009E73", "#12A67C", "\\\\"),
    Ink("#CC79A7", "#E39CC6", ".."),
    Ink("#E69F00", "#F0AC2B", "xx"),
    Ink("#56B4E9", "#8ED2F7", "--"),
    Ink("#F0E442", "#F5EC6B", "++"),
    Ink("#767676", "#7C858F", "oo"),
    Ink("#7A4A1E", "#9C6638", "||"),
    Ink("#2E2E3A", "#E8EBEF", "**"),
)
_IDLE = Ink("#FFFFFF", "#151A21", "")
GROUND = Ink("#FFFFFF", "#151A21", "")
"""What charts are drawn on."""

BAR = Ink("#56B4E9", "#2F8FD6", "")
"""A rate with nothing to say about it, and a part that got faster."""
BELOW = Ink("#D55E00", "#E8763A", "//")
"""Under the class, and a part that got slower."""
BAND = Ink("#009E73", "#12A67C", "")
"""The class."""


def category(name: str) -> Ink:
    """Ink of an anatomy category; idle is the ground. A category of its own place in the order never shares one."""
    return _IDLE if name == IDLE else _INKS[order().index(name) % len(_INKS)]


def categories() -> dict[str, Ink]:
    """Every category in display order."""
    return {name: category(name) for name in order()}
