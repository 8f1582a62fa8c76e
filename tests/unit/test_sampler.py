"""Sampling against numbers worked by hand. The logits are logarithms, so their softmax is known: 4/10, 3/10, …"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from engine.errors import EngineError
from engine.sampler import (
    GREEDY,
    Sampler,
    Sampling,
    candidates,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    log_softmax,
    softmax,
)

RANKED = np.log([4.0, 3.0, 2.0, 1.0])
SHUFFLED = RANKED[[2, 0, 3, 1]]  # token 1 is the likeliest, then 3, 0, 2
LOGITS = arrays(np.float32, st.integers(1, 40), elements=st.floats(-30, 30, width=32))


def drawn(logits: np.ndarray, **options: float) -> tuple[list[int], list[float]]:
    ids, probabilities = candidates(logits, Sampling(**{"temperature": 1.0} | options))  # type: ignore[arg-type]
    return ids.tolist(), probabilities.tolist()


def test_softmax() -> None:
    np.testing.assert_allclose(softmax(RANKED), [0.4, 0.3, 0.2, 0.1], rtol=1e-15)
    np.testing.assert_allclose(log_softmax(np.array([[0.0, 0.0], [1000.0, 1000.0]])), -math.log(2), rtol=1e-15)
    np.testing.assert_allclose(softmax(np.array([1e4, 0.0])), [1.0, 0.0])


@pytest.mark.parametrize(("k", "kept"), [(0, 4), (1, 1), (3, 3), (4, 4), (9, 4)])
def test_top_k(k: int, kept: int) -> None:
    assert keep_top_k(RANKED, k) == kept
    assert len(drawn(SHUFFLED, top_k=k)[0]) == kept


@pytest.mark.parametrize(
    ("p", "kept"), [(0.01, 1), (0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.89, 3), (0.91, 4), (1.0, 4)]
)
def test_top_p(p: float, kept: int) -> None:
    """Sums are 0.4, 0.7, 0.9, 1: the fewest that reach p."""
    assert keep_top_p(RANKED, p) == kept


def test_top_p_that_a_sum_reaches_exactly_needs_no_more() -> None:
    assert keep_top_p(np.log([1.0, 1.0, 1.0, 1.0]), 0.5) == 2


def test_top_p_of_1_keeps_tokens_that_rounding_would_lose() -> None:
    assert keep_top_p(np.array([0.0, -100.0]), 1.0) == 2
    assert keep_top_p(np.array([0.0, -100.0]), 0.999) == 1


@pytest.mark.parametrize(("p", "kept"), [(0.0, 4), (0.24, 4), (0.26, 3), (0.49, 3), (0.51, 2), (0.76, 1), (1.0, 1)])
def test_min_p(p: float, kept: int) -> None:
    """Against the first, the others have 3/4, 2/4 and 1/4."""
    assert keep_min_p(RANKED, p) == kept


def test_temperature() -> None:
    """1/2 squares the weights: 16, 9, 4, 1 of 30; 2 takes their roots."""
    ids, cold = drawn(SHUFFLED, temperature=0.5)
    assert ids == [1, 3, 0, 2]
    np.testing.assert_allclose(cold, np.array([16, 9, 4, 1]) / 30, rtol=1e-14)
    roots = np.sqrt([4, 3, 2, 1])
    np.testing.assert_allclose(drawn(SHUFFLED, temperature=2.0)[1], roots / roots.sum(), rtol=1e-14)


def test_truncation_comes_before_the_temperature() -> None:
    """top-p 0.65 keeps 4/10 and 3/10 at any temperature; at 1/2 they weigh 16 and 9."""
    ids, probabilities = drawn(SHUFFLED, temperature=0.5, top_p=0.65)
    assert ids == [1, 3]
    np.testing.assert_allclose(probabilities, [16 / 25, 9 / 25], rtol=1e-14)
    assert drawn(SHUFFLED, temperature=100.0, top_p=0.65)[0] == [1, 3]


def test_top_p_counts_what_top_k_left() -> None:
    """Of three, 4/9 and 3/9 make 7/9: top-p 0.75 keeps two, where of four 0.7 would need a third."""
    assert drawn(SHUFFLED, top_k=3, top_p=0.75)[0] == [1, 3]
    assert drawn(SHUFFLED, top_p=0.75)[0] == [1, 3, 0]


def test_equal_logits_rank_by_id_and_top_k_takes_no_more_than_k() -> None:
    assert drawn(np.zeros(6), top_k=3)[0] == [0, 1, 2]
    assert drawn(np.array([0.0, 1.0, 0.0, 1.0]), top_k=3)[0] == [1, 3, 0]


@given(logits=LOGITS, k=st.integers(0, 45))
def test_top_k_is_the_start_of_the_whole_ranking(logits: np.ndarray, k: int) -> None:
    whole, some = drawn(logits)[0], drawn(logits, top_k=k)[0]
    assert some == (whole[:k] if k else whole)
    assert sorted(whole) == list(range(len(logits)))


@given(
    logits=LOGITS,
    k=st.integers(0, 45),
    p=st.floats(0.01, 1),
    least=st.floats(0, 1),
    temperature=st.floats(0.05, 5),
    seed=st.integers(0, 1000),
)
def test_a_draw_is_one_of_the_candidates(
    logits: np.ndarray, k: int, p: float, least: float, temperature: float, seed: int
) -> None:
    sampling = Sampling(temperature, k, p, least, seed)
    ids, probabilities = candidates(logits, sampling)
    assert ids[0] == np.argmax(logits)
    assert math.isclose(probabilities.sum(), 1, rel_tol=1e-12)
    chosen = Sampler(sampling).choose(logits)
    assert chosen in ids
    assert Sampler(sampling).choose(logits) == chosen


def test_draws_follow_the_probabilities() -> None:
    """20,000 draws: each count within five standard deviations of its mean."""
    sampler, count = Sampler(Sampling(1.0, seed=7)), 20_000
    found = np.bincount([sampler.choose(RANKED) for _ in range(count)], minlength=4)
    expected = np.array([0.4, 0.3, 0.2, 0.1])
    assert (np.abs(found - count * expected) < 5 * np.sqrt(count * expected * (1 - expected))).all()


class Fixed:
    """A generator that always gives the same number."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.parametrize(
    ("u", "token"), [(0.0, 1), (0.399, 1), (0.401, 3), (0.699, 3), (0.701, 0), (0.901, 2), (1 - 2**-53, 2)]
)
def test_a_draw_takes_the_first_token_whose_sum_passes_the_number(u: float, token: int) -> None:
    sampler = Sampler(Sampling(1.0))
    sampler._random = Fixed(u)  # type: ignore[assignment]
    assert sampler.choose(SHUFFLED) == token


def test_seeds() -> None:
    def tokens(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(1.0, seed=seed))
        return [sampler.choose(np.zeros(1000)) for _ in range(8)]

    assert tokens(3) == tokens(3)
    assert tokens(3) != tokens(4)
    assert tokens(None) != tokens(None)


def test_greedy_is_the_first_of_the_largest() -> None:
    assert GREEDY.greedy
    assert not Sampling(0.1).greedy
    assert Sampler(GREEDY).choose(np.array([0.0, 2.0, 2.0, 1.0])) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0)])
def test_logits_that_are_not_finite_are_refused(value: float, sampling: Sampling) -> None:
    with pytest.raises(EngineError, match="2 of 4 logits are not finite"):
        Sampler(sampling).choose(np.array([0.0, value, 1.0, value]))


TEMPERATURES = st.floats(0, 1e308) | st.sampled_from([5e-324, 1e-320, 2.2e-308, 1e-300, 1.0, 1e308])
ANY_LOGITS = arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
WIDE_LOGITS = arrays(np.float64, st.integers(1, 40), elements=st.floats(allow_nan=False, allow_infinity=False))


@given(logits=ANY_LOGITS | WIDE_LOGITS, temperature=TEMPERATURES, k=st.integers(0, 45), p=st.floats(0.01, 1))
def test_any_temperature_draws_without_a_warning(logits: np.ndarray, temperature: float, k: int, p: float) -> None:
    """Warnings are errors here; probabilities fall, add up to 1, and belong to candidates alone."""
    sampling = Sampling(temperature, k, p, 0.0, seed=1)
    chosen = Sampler(sampling).choose(logits)
    if sampling.greedy:
        assert chosen == np.argmax(logits)
        return
    ids, probabilities = candidates(logits, sampling)
    assert chosen in ids
    assert np.isfinite(probabilities).all()
    assert (np.diff(probabilities) <= 0).all()
    assert math.isclose(probabilities.sum(), 1, rel_tol=1e-12)


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-300, 1e-30])
def test_the_lowest_temperatures_take_the_likeliest(temperature: float) -> None:
    assert drawn(SHUFFLED, temperature=temperature) == ([1, 3, 0, 2], [1.0, 0.0, 0.0, 0.0])
    assert drawn(np.array([2.0, 1.0, 2.0]), temperature=temperature) == ([0, 2, 1], [0.5, 0.5, 0.0])


def test_the_highest_temperature_takes_all_alike() -> None:
    np.testing.assert_allclose(drawn(SHUFFLED, temperature=1e308)[1], 0.25)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0), Sampling(1.0, top_k=3)], ids=["greedy", "all", "top-k"])
def test_no_logits_are_refused(sampling: Sampling) -> None:
    with pytest.raises(EngineError, match="no logits to choose a token from"):
        Sampler(sampling).choose(np.zeros(0, np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "--temp -0.1 is not zero or more"),
        ({"temperature": math.nan}, "--temp nan is not"),
        ({"top_k": -1}, "--top-k -1 is not"),
        ({"top_p": 0.0}, "--top-p 0.0 is not above 0"),
        ({"top_p": 1.1}, "--top-p 1.1 is not"),
        ({"min_p": 1.5}, "--min-p 1.5 is not"),
        ({"min_p": math.nan}, "--min-p nan is not"),
        ({"seed": -1}, "--seed -1 is not"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        Sampling(**options)  # type: ignore[arg-type]
