"""From logits to a token: greedy, or a draw from what truncation leaves. NumPy only.

The order is top-k, top-p, min-p, then temperature: truncation sees the model's own probabilities, whatever
the temperature, as in llama.cpp. Tokens of equal logit rank by id.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError

F64 = NDArray[np.float64]
Ids = NDArray[np.intp]


@dataclass(frozen=True)
class Sampling:
    """How to choose. temperature 0: always the likeliest token, and nothing else counts.

    top_k 0, top_p 1 and min_p 0 leave every token in. seed None: another draw each time.
    Raises EngineError for a number out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise EngineError(f"--temp {self.temperature} is not zero or more")
        if self.top_k < 0:
            raise EngineError(f"--top-k {self.top_k} is not zero or more")
        if not 0 < self.top_p <= 1:
            raise EngineError(f"--top-p {self.top_p} is not above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise EngineError(f"--min-p {self.min_p} is not between 0 and 1")
        if self.seed is not None and self.seed < 0:
            raise EngineError(f"--seed {self.seed} is not zero or more")

    @property
    def greedy(self) -> bool:
        """Whether the arg max decides."""
        return self.temperature == 0


GREEDY = Sampling()


def log_softmax(logits: F64) -> F64:
    """x − log Σ e^x, along the last axis; the largest logit is taken out first, so nothing overflows."""
    shifted = _below_the_largest(logits)
    result: F64 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _below_the_largest(logits: F64, temperature: float = 1.0) -> F64:
    """(x − max x) / temperature, along the last axis: never above 0, −∞ where that passes the smallest number."""
    with np.errstate(over="ignore"):
        return np.asarray((logits - logits.max(axis=-1, keepdims=True)) / temperature)


def softmax(logits: F64) -> F64:
    """e^x / Σ e^x, along the last axis."""
    return np.exp(log_softmax(logits))


def keep_top_k(ranked: F64, k: int) -> int:
    """How many of logits in falling order are among the k likeliest; 0 for k means all."""
    return len(ranked) if k == 0 else min(k, len(ranked))


def keep_top_p(ranked: F64, p: float) -> int:
    """The fewest of logits in falling order whose probabilities reach p together; 1 for p means all."""
    if p == 1:  # a rounded sum may reach 1 before the last
        return len(ranked)
    return int(np.searchsorted(np.cumsum(softmax(ranked))[:-1], p, side="left")) + 1


def keep_min_p(ranked: F64, p: float) -> int:
    """How many of logits in falling order have at least p times the probability of the first."""
    return len(ranked) if p == 0 else int(np.count_nonzero(ranked >= ranked[0] + math.log(p)))


def candidates(logits: NDArray[np.floating], sampling: Sampling) -> tuple[Ids, F64]:
    """(ids, their probabilities), likeliest first, of the tokens a draw chooses from.

    Raises EngineError for logits that are not finite, or none; the temperature must be above zero. One so low that
    no other logit counts leaves the likeliest alone, or those equal to it.
    """
    values = np.asarray(logits, np.float64)
    require_finite(values)
    order = _ranking(values, sampling.top_k)
    ranked = values[order]
    ranked = ranked[: keep_top_k(ranked, sampling.top_k)]
    ranked = ranked[: keep_top_p(ranked, sampling.top_p)]
    ranked = ranked[: keep_min_p(ranked, sampling.min_p)]
    return order[: len(ranked)], softmax(_below_the_largest(ranked, sampling.temperature))


def _ranking(values: F64, top_k: int) -> Ids:
    """Ids by falling logit, only the first top_k where that is a number: a whole sort of a vocabulary is slow."""
    if 0 < top_k < len(values):
        least = np.partition(values, len(values) - top_k)[len(values) - top_k]
        some = np.flatnonzero(values >= least)
    else:
        some = np.arange(len(values))
    return some[np.argsort(-values[some], kind="stable")]


def require_finite(logits: NDArray[np.floating]) -> None:
    """Raise EngineError when a logit is NaN or infinite, or there is none."""
    if not logits.size:
        raise EngineError("there are no logits to choose a token from; the model has no vocabulary")
    if wrong := int(np.count_nonzero(~np.isfinite(logits))):
        raise EngineError(f"{wrong} of {logits.size} logits are not finite; the model's weights hold NaN or overflow")


class Sampler:
    """Chooses tokens one after another; equal seeds and logits give equal tokens."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: NDArray[np.floating]) -> int:
        """The next token for logits [vocab]: one uniform number u a draw, the first token whose summed
        probability passes u."""
        if self.sampling.greedy:
            require_finite(logits)
            return int(np.argmax(logits))
        ids, probabilities = candidates(logits, self.sampling)
        place = int(np.searchsorted(np.cumsum(probabilities)[:-1], self._random.random(), side="right"))
        return int(ids[place])
