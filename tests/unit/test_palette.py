"""Categories keep apart for every common colour vision: distances under simulated deficiencies."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from attrib import palette
from attrib.categories import IDLE, order

# Machado, Oliveira and Fernandes 2009, severity 1.0, in linear RGB
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
APART = 10.0
"""CIE76 distance; about 2.3 is the least that can be seen."""


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    ratio = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_lab_of_known_colours() -> None:
    assert lab(linear("#FFFFFF")) == pytest.approx([100, 0, 0], abs=0.01)
    assert lab(linear("#FF0000")) == pytest.approx([53.24, 80.09, 67.20], abs=0.02)


@pytest.mark.parametrize("ground", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_every_two_categories_are_apart(vision: str, ground: str) -> None:
    fills = {name: getattr(ink, ground) for name, ink in palette.categories().items() if name != IDLE}
    seen = {name: lab(VISIONS[vision] @ linear(fill)) for name, fill in fills.items()}
    near = [(a, b) for a, b in combinations(seen, 2) if np.linalg.norm(seen[a] - seen[b]) < APART]
    assert near == []


def test_every_category_has_an_ink_of_its_own() -> None:
    inks = palette.categories()
    assert list(inks) == order()
    assert len({ink.light for ink in inks.values()}) == len(inks)
    assert len({ink.hatch for name, ink in inks.items() if name != IDLE}) == len(inks) - 1


@pytest.mark.parametrize("ground", ["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_verdicts_are_apart(vision: str, ground: str) -> None:
    marks = [lab(VISIONS[vision] @ linear(getattr(ink, ground))) for ink in (palette.BAR, palette.BELOW, palette.BAND)]
    assert min(np.linalg.norm(a - b) for a, b in combinations(marks, 2)) > APART
