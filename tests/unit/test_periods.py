"""Repetitions in launch sequences."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attrib.periods import Repetition, longest_repetition


def found(text: str) -> Repetition | None:
    return longest_repetition(np.array([ord(c) - ord("a") for c in text], np.int32))


def test_a_plain_repetition() -> None:
    assert found("abcabcabc") == Repetition(0, 3, 9)


def test_every_symbol_may_occur_twice_in_a_period() -> None:
    assert found("aabb" * 4) == Repetition(0, 4, 16)


def test_the_step_is_found_and_not_its_layers() -> None:
    assert found(("x" + "ab" * 5 + "y") * 4) == Repetition(0, 12, 48)


def test_noise_around_is_left_out() -> None:
    assert found("zq" + "abc" * 4 + "qz") == Repetition(2, 3, 12)


def test_two_repeats_are_none() -> None:
    assert found("abcdabcd") is None
    assert found("") is None
    assert found("abcdefgh") is None


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=12),
    st.integers(3, 6),
    st.lists(st.integers(6, 9), max_size=3),
)
def test_what_is_found_repeats(body: list[int], repeats: int, noise: list[int]) -> None:
    sequence = np.array([*noise, 0, *body] * 1 + [0, *body] * (repeats - 1), np.int32)
    repetition = longest_repetition(sequence)
    assert repetition is not None
    part = sequence[repetition.begin : repetition.begin + repetition.length]
    assert np.array_equal(part[: -repetition.period], part[repetition.period :])
    assert repetition.length >= repeats * (len(body) + 1) * 0.9
