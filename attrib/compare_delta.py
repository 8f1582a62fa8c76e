"""Differences between two runs: exact between means, with their spread over single steps. A leaf."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

MAX_QUANTILES = 512
"""Steps of a side that enter pairwise differences; longer runs are represented by as many of their quantiles."""


@dataclass(frozen=True)
class Delta:
    """A difference B − A per step: exact ns, and the middle half of the differences between single steps."""

    ns: Fraction
    spread_ns: float
    """75th − 25th percentile of B's step j less A's step i over all pairs; NaN with fewer than two steps a side"""

    @property
    def clear(self) -> bool:
        """Whether the difference is larger than its spread."""
        return bool(abs(self.ns) > self.spread_ns)


@dataclass
class Effect:
    """A sum of scaled site times of both sides: its exact mean, and its value in every step for the spread."""

    steps_a: int
    steps_b: int
    exact: Fraction = Fraction(0)
    in_a: NDArray[np.float64] = field(init=False)
    in_b: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.in_a, self.in_b = np.zeros(self.steps_a), np.zeros(self.steps_b)

    def add(self, scale_a: Fraction | int, a: NDArray[np.int64], scale_b: int, b: NDArray[np.int64]) -> None:
        """Add `scale_a` × a + `scale_b` × b, arrays of shape (steps,) in ns."""
        self.exact += scale_a * mean(a) + scale_b * mean(b)
        self.in_a += float(scale_a) * a
        self.in_b += scale_b * b

    def delta(self) -> Delta:
        """The sum as a difference."""
        return Delta(self.exact, spread_of_difference(-self.in_a, self.in_b))


def mean(values: NDArray[np.int64]) -> Fraction:
    """Exact mean of integers; means add up over sites, which medians do not."""
    return Fraction(int(values.sum()), len(values))


def spread(values: NDArray[np.int64]) -> float:
    """75th − 25th percentile over steps; NaN for fewer than two."""
    if len(values) < 2:
        return np.nan
    low, high = np.percentile(values, (25, 75))
    return float(high - low)


def spread_of_difference(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """75th − 25th percentile of `b[j] − a[i]` over all pairs of steps; NaN where a side has fewer than two."""
    if min(len(a), len(b)) < 2:
        return np.nan
    low, high = np.percentile(np.subtract.outer(_thinned(b), _thinned(a)), (25, 75))
    return float(high - low)


def _thinned(values: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(values) <= MAX_QUANTILES:
        return values
    return np.quantile(values, (np.arange(MAX_QUANTILES) + 0.5) / MAX_QUANTILES)
