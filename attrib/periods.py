"""The longest repetition in a sequence: how launches without graphs are cut into steps. A leaf, pure numpy."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_REPEATS = 3
"""A pattern must repeat this often to count."""
MAX_SYMBOLS = 64
"""Symbols tried, rarest first: some launch of a step occurs only a few times in it."""
MAX_OCCURRENCES = 8
"""A symbol may occur up to this often in one period."""
MOST_COMMON = 4


@dataclass(frozen=True)
class Repetition:
    """`sequence[begin : begin + length]` repeats with this period; the last repeat may be cut short."""

    begin: int
    period: int
    length: int


def longest_repetition(sequence: NDArray[np.int32]) -> Repetition | None:
    """The repetition that covers the most of a sequence of small integers, None where nothing repeats.

    Candidate periods are the distances between occurrences of rare symbols. A longer period must cover 5 % more
    than a shorter one, so that two steps are never taken for one.
    """
    best: Repetition | None = None
    for period in sorted(_candidates(sequence)):
        begin, matches = _longest_run(sequence[:-period] == sequence[period:])
        length = matches + period
        if length // period >= MIN_REPEATS and (best is None or length > best.length * 1.05):
            best = Repetition(begin, period, length)
    return best


def _candidates(sequence: NDArray[np.int32]) -> set[int]:
    counts = np.bincount(sequence)
    repeated = np.flatnonzero(counts >= MIN_REPEATS)
    found: Counter[int] = Counter()
    for symbol in repeated[np.argsort(counts[repeated], kind="stable")][:MAX_SYMBOLS]:
        places = np.flatnonzero(sequence == symbol)
        for lag in range(1, min(MAX_OCCURRENCES, len(places) - 1) + 1):
            gaps, number = np.unique(places[lag:] - places[:-lag], return_counts=True)
            for g in np.argsort(-number, kind="stable")[:MOST_COMMON]:
                found[int(gaps[g])] += int(number[g])
    likely = [gap for gap, _ in found.most_common() if 2 <= gap <= len(sequence) // MIN_REPEATS]
    return set(likely[:MAX_SYMBOLS])


def _longest_run(flags: NDArray[np.bool_]) -> tuple[int, int]:
    """(begin, length) of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    lengths = edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(edges[2 * longest]), int(lengths[longest])
