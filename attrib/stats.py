"""Judging interleaved pairs of rates: is the new build really faster than the base, and by how much.

Pair i holds k rates of each side, one a process, measured in turn next to each other, so slow drift cancels within a
pair; a side's rate in the pair is the geometric mean of its k. A difference is called real when the sides are strictly
separated (SEP: every new rate above every base rate) or when a permutation test gives p <= ALPHA: without a difference
each of the C(2k, k) ways to deal a pair's rates to two sides is as likely as the one measured (for k = 1 that is
flipping the sign of a paired log ratio). Without a difference SEP of n pairs happens with probability
2 / C(2nk, nk): 0.8 % for 5 pairs of k = 1, less for more, and at most 0.005 % where the test can reach ALPHA (9 pairs
of k = 1, or any of k = 2). So a false verdict has a probability of at most 0.8 % whatever the distribution of the
noise. A leaf: numbers in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from attrib.errors import RefusedError
from attrib.words import counted

Rates = Sequence[float] | Sequence[Sequence[float]] | NDArray[np.float64]
"""[pairs], or [pairs][k] rates of k processes a side."""

MIN_PAIRS = 5
ALPHA = 0.005
POWER = 0.9
LEVEL = 0.95
RESAMPLES = 2000
SEED = 20260907
EXACT_DEALS = 2**16
RANDOM_DEALS = 10_000
EXACT_RANKS = 100
MAX_PROCESSES = 6
"""Processes a side of a pair; more deals than C(12, 6) = 924 a pair tell nothing that more pairs do not."""
FASTER, SLOWER, NO_DIFFERENCE, INCONCLUSIVE = "faster", "slower", "no difference", "inconclusive"


@dataclass(frozen=True)
class Judgement:
    """What n pairs say about a bar. Changes are fractions of the base, positive when the new side is faster.

    `processes` is how many rates a side has in each pair. `verdict` is None below MIN_PAIRS. `real` is the sign of a
    difference that is not chance, 0 otherwise; `sep` the sign of a strict separation. `change` is the median of the
    paired ratios - 1 with its bootstrap interval `low`..`high`; `p_pairs` is the permutation test's, `p_ranks`
    Mann-Whitney's, both two-sided. `bar_met` tells whether a real gain's median reaches the bar. `why` explains the
    verdict in one sentence.
    """

    pairs: int
    processes: int
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
    """Judge pairs (base[i], new[i]), of one rate or of k a side, against a bar, the fraction a gain must reach.

    `faster`: a real gain whose interval reaches the bar; `slower`: a real loss whose interval reaches -bar; `no
    difference`: the interval lies inside ±bar, even where the change is real; else `inconclusive`. Raises
    RefusedError for unequal numbers, rates that are not positive, or a bar outside 0..1.
    """
    a, b = _checked(base, new)
    if not 0 < bar < 1:
        raise RefusedError(f"a bar of {bar:g} is not a fraction between 0 and 1; give a gain such as 0.4%")
    logs = np.log(b).mean(axis=1) - np.log(a).mean(axis=1)
    change = float(np.expm1(np.median(logs)))
    low, high = (float(np.expm1(v)) for v in median_interval(logs))
    sep, p_pairs, p_ranks = separation(a, b), permutation_p(a, b), mann_whitney_p(a, b)
    real = _sign(change) if len(logs) >= MIN_PAIRS and (sep or p_pairs <= ALPHA) else 0
    if _sign(float(logs.sum())) != real:
        real = 0
    verdict, why = _verdict(len(logs), real, (low, change, high), bar)
    return Judgement(
        pairs=len(logs),
        processes=a.shape[1],
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
        return None, f"{counted(pairs, 'pair gives', 'pairs give')} no verdict; at least {MIN_PAIRS} are needed"
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
    """SEP: 1 when min(new) > max(base) over all processes, -1 when max(new) < min(base), else 0."""
    a, b = np.asarray(base, float), np.asarray(new, float)
    if b.min() > a.max():
        return 1
    return -1 if b.max() < a.min() else 0


def median_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Percentile bootstrap interval of the median at LEVEL; the resamples are the same in every call."""
    medians = np.median(values[_resamples(len(values))], axis=1)
    low, high = np.quantile(medians, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@cache
def _resamples(size: int) -> NDArray[np.int64]:
    return np.random.default_rng(SEED).integers(0, size, (RESAMPLES, size))


def permutation_p(base: Rates, new: Rates) -> float:
    """Two-sided p of Σ over pairs of (mean log new − mean log base) when each deal of a pair's rates is as likely.

    Exact while all pairs together have at most EXACT_DEALS deals, from RANDOM_DEALS fixed random ones above. Raises
    RefusedError as `judge` does.
    """
    a, b = _checked(base, new)
    pairs, processes = a.shape
    rates = np.log(np.concatenate([b, a], axis=1))
    contributions = (rates - rates.mean(axis=1, keepdims=True)) @ _dealt(processes).T / processes
    places, exact = _deals(pairs, contributions.shape[1])
    # the first deal of each pair is the one measured
    sums = np.abs(contributions.ravel()[places].sum(axis=0))
    hits = int((sums >= abs(float(contributions[:, 0].sum())) * (1 - 1e-12)).sum())
    return hits / len(sums) if exact else (hits + 1) / (len(sums) + 1)


@cache
def _dealt(processes: int) -> NDArray[np.float64]:
    """Every way to deal 2k rates to two sides, [C(2k, k)][2k]: 1 for the new side, -1 for the base."""
    chosen = list(combinations(range(2 * processes), processes))
    signs = np.full((len(chosen), 2 * processes), -1.0)
    for row, new in zip(signs, chosen, strict=True):
        row[list(new)] = 1.0
    return signs


@cache
def _deals(pairs: int, each: int) -> tuple[NDArray[np.int64], bool]:
    """(places of the deals in [pairs][each], one a pair, as [pairs][deals]; whether these are all there are)."""
    exact = each**pairs <= EXACT_DEALS
    if exact:
        chosen = np.indices((each,) * pairs).reshape(pairs, -1)
    else:
        chosen = np.random.default_rng(SEED).integers(0, each, (pairs, RANDOM_DEALS))
    return chosen + each * np.arange(pairs)[:, None], exact


def mann_whitney_p(base: Rates, new: Rates) -> float:
    """Two-sided p of the rank sum, ties with mean ranks: every choice of ranks for `new` is equally likely.

    Up to EXACT_RANKS rates the distribution is counted by adding one rank at a time (in the largest unit that makes
    all of them whole); two-sided means as far from the middle as the observed sum, or farther. Above, the normal
    approximation with corrections for ties and continuity.
    """
    first, second = np.asarray(base, float).ravel(), np.asarray(new, float).ravel()
    both = np.concatenate([first, second])
    _, place, counts = np.unique(both, return_inverse=True, return_counts=True)
    doubled = (2 * np.cumsum(counts) - counts + 1)[place]
    take, number = len(second), len(both)
    if number > EXACT_RANKS:
        far = abs(doubled[len(first) :].sum() / 2 - take * (number + 1) / 2)
        ties = float((counts.astype(float) ** 3 - counts).sum()) / (number * (number - 1))
        sd = math.sqrt(len(first) * take / 12 * (number + 1 - ties))
        return math.erfc(max(0.0, far - 0.5) / sd / math.sqrt(2)) if sd else 1.0
    ranks = doubled // np.gcd.reduce(doubled)
    total, reached = int(ranks.sum()), 0
    ways = np.zeros((take + 1, total + 1))
    ways[0, 0] = 1
    for count, rank in enumerate(np.sort(ranks)):
        taken = min(count, take - 1) + 1  # rows that hold a sum of the ranks added so far
        ways[1 : taken + 1, rank : reached + rank + 1] += ways[:taken, : reached + 1].copy()
        reached += int(rank)
    chances = ways[take] / ways[take].sum()
    middle = total * take / number
    far = abs(int(ranks[len(first) :].sum()) - middle)
    return min(1.0, float(chances[np.abs(np.arange(total + 1) - middle) >= far - 1e-9].sum()))


def noise_sd(base: Rates, new: Rates) -> float:
    """Standard deviation of the log ratio of two processes of a pair, from a build against itself.

    √2 × the deviation of a process from its pair's mean, pooled over pairs; for one process a side the root mean
    square of the paired log ratios. What drift adds within a pair is part of it. Raises RefusedError as `judge` does.
    """
    logs = np.log(np.concatenate(_checked(base, new), axis=1))
    within = logs - logs.mean(axis=1, keepdims=True)
    return float(np.sqrt(2 * (within**2).sum() / (logs.shape[0] * (logs.shape[1] - 1))))


def noise_floor(sd: float, pairs: int, processes: int = 1) -> float:
    """The least gain that `pairs` pairs of this noise find with probability POWER; infinite for too few pairs.

    `sd` is `noise_sd`'s; a pair of k processes a side has sd/√k. Sample size of a t test at ALPHA, two-sided, with
    Guenther's correction: n = ((zα + zβ) sd / (√k gain))² + zα² / (2 (2k − 1)), each pair giving 2k − 1 degrees of
    freedom.
    """
    z, correction = _normal(processes)
    return z * sd / math.sqrt(processes * (pairs - correction)) if pairs >= MIN_PAIRS else math.inf


def pairs_needed(sd: float, bar: float, processes: int = 1) -> int:
    """Pairs for which the noise floor is not above the bar; the inverse of `noise_floor`."""
    z, correction = _normal(processes)
    return max(MIN_PAIRS, math.ceil((z * sd / bar) ** 2 / processes + correction))


def processes_needed(sd: float, bar: float, pairs: int) -> int | None:
    """Processes a side for which `pairs` pairs have a noise floor not above the bar; None beyond MAX_PROCESSES."""
    counts = range(1, MAX_PROCESSES + 1)
    return next((count for count in counts if noise_floor(sd, pairs, count) <= bar), None)


def _normal(processes: int) -> tuple[float, float]:
    normal = NormalDist()
    alpha = normal.inv_cdf(1 - ALPHA / 2)
    return alpha + normal.inv_cdf(POWER), alpha**2 / (2 * (2 * processes - 1))


def _checked(base: Rates, new: Rates) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both sides as [pairs][k]."""
    a, b = np.asarray(base, float), np.asarray(new, float)
    if a.shape != b.shape or a.ndim not in (1, 2) or not a.size:
        raise RefusedError(f"base windows ({a.size}) and new ones ({b.size}) are no pairs; measure one of each in turn")
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (a > 0).all() and (b > 0).all()):
        raise RefusedError("a window has a rate that is not a positive number; remove it and measure again")
    return a.reshape(len(a), -1), b.reshape(len(b), -1)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
