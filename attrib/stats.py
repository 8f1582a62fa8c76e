"""Judging interleaved pairs of rates: is the new build really faster than the base, and by how much.

Pair i holds one rate of each side, measured next to each other, so slow drift cancels within a pair. A difference is
called real when the sides are strictly separated (SEP: every new rate above every base rate) or when an exact
sign-flip test of the paired log ratios gives p <= ALPHA. Under no difference, SEP of n pairs happens with probability
2 / C(2n, n), 0.8 % at the least number of pairs, and the test cannot reach ALPHA below 9 pairs, so a false verdict has
a probability of at most 0.8 % whatever the distribution of the noise. A leaf: numbers in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from attrib.errors import RefusedError

Rates = Sequence[float] | NDArray[np.float64]

MIN_PAIRS = 5
ALPHA = 0.005
POWER = 0.9
LEVEL = 0.95
RESAMPLES = 2000
SEED = 20260907
EXACT_PAIRS = 16
RANDOM_FLIPS = 100_000
FASTER, SLOWER, NO_DIFFERENCE, INCONCLUSIVE = "faster", "slower", "no difference", "inconclusive"


@dataclass(frozen=True)
class Judgement:
    """What n pairs say about a bar. Changes are fractions of the base, positive when the new side is faster.

    `verdict` is None below MIN_PAIRS. `real` is the sign of a difference that is not chance, 0 otherwise; `sep` the
    sign of a strict separation. `change` is the median of the paired ratios - 1 with its bootstrap interval
    `low`..`high`; `p_pairs` is the sign-flip test's, `p_ranks` Mann-Whitney's, both two-sided. `bar_met` tells
    whether a real gain's median reaches the bar. `why` explains the verdict in one sentence.
    """

    pairs: int
    base_median: float
    new_median: float
    change: float
    low: float
    high: float
    sep: int
    p_pairs: float
    p_ranks: float
    real: int
    bar: float
    bar_met: bool
    verdict: str | None
    why: str


def judge(base: Rates, new: Rates, bar: float) -> Judgement:
    """Judge pairs (base[i], new[i]) of rates against a bar, the fraction a gain must reach.

    `faster`: a real gain whose interval reaches the bar; `slower`: a real loss whose interval reaches -bar; `no
    difference`: the interval lies inside ±bar, even where the change is real; else `inconclusive`. Raises
    RefusedError for unequal numbers, rates that are not positive, or a bar outside 0..1.
    """
    a, b = _checked(base, new)
    if not 0 < bar < 1:
        raise RefusedError(f"a bar of {bar:g} is not a fraction between 0 and 1; give a gain such as 0.4%")
    logs = np.log(b / a)
    change = float(np.expm1(np.median(logs)))
    low, high = (float(np.expm1(v)) for v in median_interval(logs))
    sep, p_pairs, p_ranks = separation(a, b), sign_flip_p(logs), mann_whitney_p(a, b)
    real = _sign(change) if len(logs) >= MIN_PAIRS and (sep or p_pairs <= ALPHA) else 0
    if _sign(float(logs.sum())) != real:
        real = 0
    verdict, why = _verdict(len(logs), real, (low, change, high), bar)
    return Judgement(
        pairs=len(logs),
        base_median=float(np.median(a)),
        new_median=float(np.median(b)),
        change=change,
        low=low,
        high=high,
        sep=sep,
        p_pairs=p_pairs,
        p_ranks=p_ranks,
        real=real,
        bar=bar,
        bar_met=real > 0 and change >= bar,
        verdict=verdict,
        why=why,
    )


def _verdict(pairs: int, real: int, found: tuple[float, float, float], bar: float) -> tuple[str | None, str]:
    low, change, high = found
    text, limit = f"{100 * change:+.2f} %", f"{100 * bar:g} %"
    if pairs < MIN_PAIRS:
        return None, f"{pairs} pairs give no verdict; at least {MIN_PAIRS} are needed"
    if real > 0 and high >= bar:
        met = "reaches" if change >= bar else "is under"
        return FASTER, f"the gain is real and its median {text} {met} the bar of {limit}"
    if real < 0 and low <= -bar:
        return SLOWER, f"the loss of {text} is real and its interval reaches the bar of {limit}"
    if -bar < low and high < bar:
        what = f"the change of {text} is real, but" if real else "the change is not real, and"
        return NO_DIFFERENCE, f"{what} its interval stays inside the bar of ±{limit}"
    if real:
        return INCONCLUSIVE, f"the change of {text} is real, but its interval contradicts its sign"
    return INCONCLUSIVE, f"the interval reaches the bar of ±{limit}, and the change of {text} can be chance"


def separation(base: Rates, new: Rates) -> int:
    """SEP: 1 when min(new) > max(base), -1 when max(new) < min(base), else 0."""
    if min(new) > max(base):
        return 1
    return -1 if max(new) < min(base) else 0


def median_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Percentile bootstrap interval of the median at LEVEL; the resamples are the same in every call."""
    medians = np.median(values[_resamples(len(values))], axis=1)
    low, high = np.quantile(medians, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@cache
def _resamples(size: int) -> NDArray[np.int64]:
    return np.random.default_rng(SEED).integers(0, size, (RESAMPLES, size))


def sign_flip_p(values: NDArray[np.float64]) -> float:
    """Two-sided p of the sum of `values` when each sign is as likely as the other.

    Exact up to EXACT_PAIRS values (all 2^n sign patterns), from RANDOM_FLIPS fixed random patterns above.
    """
    total = abs(float(values.sum()))
    sums = np.abs(_signs(len(values)) @ values)
    hits = int((sums >= total * (1 - 1e-12)).sum())
    exact = len(values) <= EXACT_PAIRS
    return hits / len(sums) if exact else (hits + 1) / (len(sums) + 1)


@cache
def _signs(size: int) -> NDArray[np.float64]:
    """Sign patterns, [patterns][size] of -1 and 1."""
    if size <= EXACT_PAIRS:
        patterns = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    else:
        patterns = np.random.default_rng(SEED).integers(0, 2, (RANDOM_FLIPS, size))
    return np.asarray(patterns * 2 - 1, dtype=np.float64)


def mann_whitney_p(base: Rates, new: Rates) -> float:
    """Exact two-sided p of the rank sum, ties with mean ranks: every choice of ranks for `new` is equally likely.

    The distribution is counted by adding one rank at a time (doubled, so that mean ranks are whole); two-sided means
    as far from the middle as the observed sum, or farther.
    """
    both = np.concatenate([np.asarray(base, float), np.asarray(new, float)])
    _, place, counts = np.unique(both, return_inverse=True, return_counts=True)
    doubled = (2 * np.cumsum(counts) - counts + 1)[place]
    take, total = len(new), int(doubled.sum())
    ways = np.zeros((take + 1, total + 1))
    ways[0, 0] = 1
    for rank in doubled:
        ways[1:, rank:] += ways[:-1, : total + 1 - rank].copy()
    chances = ways[take] / ways[take].sum()
    middle = total * take / len(both)
    far = abs(int(doubled[len(base) :].sum()) - middle)
    return min(1.0, float(chances[np.abs(np.arange(total + 1) - middle) >= far - 1e-9].sum()))


def noise_sd(base: Rates, new: Rates) -> float:
    """Standard deviation of the paired log ratios of a build against itself, whose mean is known to be 0.

    What drift adds within a pair is part of it. Raises RefusedError as `judge` does.
    """
    a, b = _checked(base, new)
    return float(np.sqrt(np.mean(np.log(b / a) ** 2)))


def noise_floor(sd: float, pairs: int) -> float:
    """The least gain that `pairs` pairs of this noise find with probability POWER; infinite for too few pairs.

    Sample size of a paired t test at ALPHA, two-sided, with Guenther's correction: n = ((zα + zβ) sd / gain)² + zα²/2.
    """
    z, correction = _normal()
    return z * sd / math.sqrt(pairs - correction) if pairs >= MIN_PAIRS else math.inf


def pairs_needed(sd: float, bar: float) -> int:
    """Pairs for which the noise floor is not above the bar; the inverse of `noise_floor`."""
    z, correction = _normal()
    return max(MIN_PAIRS, math.ceil((z * sd / bar) ** 2 + correction))


def _normal() -> tuple[float, float]:
    normal = NormalDist()
    alpha = normal.inv_cdf(1 - ALPHA / 2)
    return alpha + normal.inv_cdf(POWER), alpha**2 / 2


def _checked(base: Rates, new: Rates) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(base, float), np.asarray(new, float)
    if a.shape != b.shape or a.ndim != 1 or not a.size:
        raise RefusedError(f"{a.size} base and {b.size} new windows do not make pairs; measure one of each in turn")
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (a > 0).all() and (b > 0).all()):
        raise RefusedError("a window has a rate that is not a positive number; remove it and measure again")
    return a, b


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
