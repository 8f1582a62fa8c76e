"""Judging of pairs against hand-worked numbers, and its calibration by simulation with recorded processes."""

from __future__ import annotations

import json
import math
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrib import stats
from attrib.ab import DEFAULT_PROCESSES
from attrib.errors import RefusedError
from attrib.windows import schedule

Rates = np.ndarray[Any, np.dtype[np.float64]]
WINDOWS = Path(__file__).parents[1] / "data" / "windows-h200.json"
EXPERIMENTS, PLANTED = 1000, 400
PAIRS = 10
BAR = 0.004


# ---------------------------------------------------------------- single tests


def test_strict_separation_needs_every_window() -> None:
    assert stats.separation([100, 101, 99], [101.1, 102, 105]) == 1
    assert stats.separation([100, 101, 99], [101, 102, 105]) == 0
    assert stats.separation([100, 101, 99], [98.9, 90, 95]) == -1


def test_separation_of_several_processes_needs_every_one() -> None:
    assert stats.separation([[100, 101], [99, 98]], [[102, 103], [101.5, 104]]) == 1
    assert stats.separation([[100, 101], [99, 98]], [[102, 100.5], [101.5, 104]]) == 0


def flipped(logs: list[float]) -> float:
    """p of paired log ratios."""
    return stats.permutation_p([1.0] * len(logs), np.exp(logs))


def test_one_process_a_side_flips_signs() -> None:
    # sums of ±1 ±2 ±4: 7 and -7 are the only ones as far out as 7; |5| or more are 7, 5, -5, -7
    assert flipped([1.0, 2.0, 4.0]) == 2 / 8
    assert flipped([-1.0, 2.0, 4.0]) == 4 / 8
    assert flipped([0.0] * 4) == 1.0


def test_two_processes_a_side_are_dealt_in_six_ways() -> None:
    # logs 0, 1 | 2, 3 of one pair: the sides' sums differ by 4, 2, 0, 0, -2, -4
    one = np.exp([[0.0, 1.0]]), np.exp([[2.0, 3.0]])
    assert stats.permutation_p(*one) == 2 / 6
    assert stats.permutation_p(np.exp([[0.0, 2.0]]), np.exp([[1.0, 3.0]])) == 4 / 6
    # two such pairs: the total is 8, and only one deal in 36 and its mirror reach it
    assert stats.permutation_p(*(np.repeat(side, 2, axis=0) for side in one)) == pytest.approx(2 / 36)
    assert stats.permutation_p([[5.0] * 3] * 3, [[5.0] * 3] * 3) == 1.0


def test_sampled_deals_are_close_to_all_of_them() -> None:
    values = np.random.default_rng(3).normal(0.4, 1, 17)
    patterns = (np.arange(2**17)[:, None] >> np.arange(17)) & 1
    sums = np.abs((patterns * 2 - 1) @ values)
    exact = (sums >= abs(values.sum()) - 1e-12).mean()
    assert stats.EXACT_DEALS < 2**17
    assert flipped(list(values)) == pytest.approx(exact, abs=0.005)


@pytest.mark.parametrize(
    ("base", "new", "p"),
    [
        ([1, 2, 3], [4, 5, 6], 2 / 20),  # one of C(6,3) choices in each tail
        ([1, 2, 4], [3, 5, 6], 4 / 20),  # rank sums 15 (one choice) and 14 (one), and their mirrors
        ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 2 / 252),
        ([1, 1], [1, 1], 1.0),
        ([1, 2], [2, 3], 4 / 6),  # ranks 1, 2.5, 2.5, 4: sums 6.5 (two choices) and 3.5 (two) of six
    ],
)
def test_rank_sums(base: list[float], new: list[float], p: float) -> None:
    assert stats.mann_whitney_p(base, new) == pytest.approx(p)


@given(st.lists(st.integers(0, 6), min_size=2, max_size=8), st.data())
def test_rank_sums_against_all_choices(values: list[int], data: Any) -> None:
    """The counted distribution equals going through every choice, ties included."""
    cut = data.draw(st.integers(1, len(values) - 1))
    ranks = [sum(v < x for v in values) + (sum(v == x for v in values) + 1) / 2 for x in values]
    take = len(values) - cut
    middle = sum(ranks) * take / len(values)
    sums = [abs(sum(chosen) - middle) for chosen in combinations(ranks, take)]
    p = sum(s >= abs(sum(ranks[cut:]) - middle) - 1e-9 for s in sums) / len(sums)
    assert stats.mann_whitney_p([float(v) for v in values[:cut]], [float(v) for v in values[cut:]]) == pytest.approx(p)


def test_many_rank_sums_are_close_to_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    base, new = np.round(rng.normal(0, 1, (2, 45)), 1)  # with ties
    exact = stats.mann_whitney_p(base, new + 0.4)
    assert 0.01 < exact < 0.2
    monkeypatch.setattr(stats, "EXACT_RANKS", 0)
    assert stats.mann_whitney_p(base, new + 0.4) == pytest.approx(exact, rel=0.05)
    assert stats.mann_whitney_p([1.0] * 60, [1.0] * 60) == 1.0


def test_interval_of_equal_values_is_a_point_and_is_repeatable() -> None:
    assert stats.median_interval(np.full(6, 0.25)) == (0.25, 0.25)
    values = np.random.default_rng(1).normal(0, 1, 12)
    low, high = stats.median_interval(values)
    assert (low, high) == stats.median_interval(values.copy())
    assert low < np.median(values) < high


def test_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        low, high = stats.median_interval(rng.normal(0, 1, PAIRS))
        held += low <= 0 <= high
    assert 0.90 <= held / 400 <= 0.99


# ---------------------------------------------------------------- verdicts


def test_fewer_than_five_pairs_give_no_verdict() -> None:
    found = stats.judge([100] * 4, [110] * 4, BAR)
    assert (found.verdict, found.real, found.sep, found.bar_met) == (None, 0, 1, False)
    assert "4 pairs give no verdict" in found.why


def test_five_separated_pairs_are_enough() -> None:
    base, new = [100.0, 100.1, 100.2, 100.1, 100.0], [101.0, 101.1, 101.2, 101.1, 101.0]
    found = stats.judge(base, new, BAR)
    assert (found.verdict, found.sep, found.bar_met) == ("faster", 1, True)
    assert found.change == pytest.approx(0.01, abs=1e-4)
    assert found.p_ranks == pytest.approx(2 / 252)
    assert found.p_pairs == 2 / 32
    assert (found.base_median, found.new_median) == (100.1, 101.1)
    mirrored = stats.judge(new, base, BAR)
    assert (mirrored.verdict, mirrored.sep, mirrored.bar_met) == ("slower", -1, False)


def test_a_real_gain_under_the_bar() -> None:
    base = [100.0, 100.02, 100.04, 100.01, 100.03, 100.02]
    found = stats.judge(base, [rate * 1.0026 for rate in base], BAR)
    assert (found.sep, found.real, found.verdict, found.bar_met) == (1, 1, "no difference", False)
    assert "+0.26 %" in found.why
    assert "real" in found.why


def test_no_difference_and_inconclusive() -> None:
    base = [100.0, 100.1, 99.9, 100.0, 100.1, 99.9]
    calm = [100.1, 100.0, 100.0, 99.9, 100.0, 100.0]
    assert stats.judge(base, calm, BAR).verdict == "no difference"
    wild = [103.0, 97.0, 99.0, 104.0, 96.0, 101.5]
    found = stats.judge(base, wild, BAR)
    assert (found.verdict, found.real) == ("inconclusive", 0)


def test_paired_differences_are_seen_through_drift_that_hides_them_from_the_ranks() -> None:
    ramp = np.linspace(100, 110, 12)
    found = stats.judge(ramp, ramp * np.exp(0.01 + 0.0005 * np.sin(np.arange(12))), BAR)
    assert (found.sep, found.verdict, found.bar_met) == (0, "faster", True)
    assert found.p_pairs == 2 / 2**12
    assert found.p_ranks > 0.05


@pytest.mark.parametrize(
    ("base", "new", "bar", "said"),
    [
        ([1.0, 2.0], [1.0], BAR, r"base windows \(2\) and new ones \(1\)"),
        ([], [], BAR, r"base windows \(0\) and new ones \(0\)"),
        ([1.0, 0.0], [1.0, 1.0], BAR, "not a positive number"),
        ([1.0, 1.0], [1.0, math.nan], BAR, "not a positive number"),
        ([1.0], [1.0], 0.0, "bar of 0"),
        ([1.0], [1.0], math.nan, "bar of nan"),
    ],
)
def test_what_cannot_be_judged(base: list[float], new: list[float], bar: float, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        stats.judge(base, new, bar)


@given(st.lists(st.floats(50, 200), min_size=5, max_size=9), st.floats(0.5, 2), st.data())
def test_a_verdict_depends_on_ratios_and_mirrors(base: list[float], scale: float, data: Any) -> None:
    new = data.draw(st.lists(st.floats(50, 200), min_size=len(base), max_size=len(base)))
    found, mirrored = stats.judge(base, new, BAR), stats.judge(new, base, BAR)
    assert stats.judge([r * 2 for r in base], [r * 2 for r in new], BAR).verdict == found.verdict
    assert (mirrored.sep, mirrored.real) == (-found.sep, -found.real)
    assert found.low <= found.change <= found.high
    if found.verdict == "faster":
        assert mirrored.verdict in ("slower", "no difference")


# ---------------------------------------------------------------- noise


def test_noise_of_pairs() -> None:
    base = [100.0, 100.0, 100.0, 100.0]
    new = [100 * math.exp(d) for d in (0.001, -0.001, 0.003, -0.001)]
    assert stats.noise_sd(base, new) == pytest.approx(math.sqrt(12 / 4) * 1e-3)


def test_noise_of_pairs_of_two() -> None:
    # deviations from the pair's mean are ±1 ±2 of 0.001: Σ = 10e-6, on 3 degrees of freedom a pair, two pairs
    base = np.exp([[0.001, -0.001], [0.0, 0.0]])
    new = np.exp([[0.002, -0.002], [0.0, 0.0]])
    assert stats.noise_sd(base, new) == pytest.approx(math.sqrt(2 * 10e-6 / 6))
    rng = np.random.default_rng(0)
    assert stats.noise_sd(*np.exp(rng.normal(0, 0.003, (2, 4000, 3)))) == pytest.approx(0.003 * math.sqrt(2), rel=0.02)


def test_noise_floor_and_the_pairs_it_needs() -> None:
    # zα = 2.807 at 0.5 % two-sided, zβ = 1.2816 at 90 %: (4.0886 × 0.2 / 0.4)² + 2.807² / 2 = 8.12, so 9 pairs
    assert stats.pairs_needed(0.002, 0.004) == 9
    assert stats.noise_floor(0.002, 9) == pytest.approx(4.0886 * 0.002 / math.sqrt(9 - 3.9397), rel=1e-4)
    assert stats.pairs_needed(1e-6, 0.004) == stats.MIN_PAIRS
    assert stats.noise_floor(0.002, 4) == math.inf
    # two processes a side: half the variance, and a third of the correction, 2.807² / 6 = 1.3132
    assert stats.noise_floor(0.003, 10, 2) == pytest.approx(4.0886 * 0.003 / math.sqrt(2 * (10 - 1.3132)), rel=1e-4)
    assert stats.pairs_needed(0.004, 0.004, 2) == math.ceil(16.717 / 2 + 1.3132)
    assert stats.processes_needed(0.003, 0.004, 10) == 2
    assert stats.processes_needed(0.002, 0.004, 10) == 1
    assert stats.processes_needed(0.1, 0.004, 10) is None


@given(st.floats(1e-5, 0.02), st.floats(1e-3, 0.05), st.integers(1, stats.MAX_PROCESSES))
def test_pairs_needed_bring_the_floor_to_the_bar(sd: float, bar: float, processes: int) -> None:
    pairs = stats.pairs_needed(sd, bar, processes)
    assert stats.noise_floor(sd, pairs, processes) <= bar * (1 + 1e-9)
    assert pairs == stats.MIN_PAIRS or stats.noise_floor(sd, pairs - 1, processes) > bar


# ---------------------------------------------------------------- calibration


def recorded(build: str = "reference") -> Rates:
    """Rates of processes of one build, in the order they were measured."""
    return np.array(json.loads(WINDOWS.read_text(encoding="utf-8"))["tok_per_s"][build])


def dealt(drawn: Rates) -> tuple[Rates, Rates]:
    """(base, new) [pairs][k] of rates [pairs][2k] in the order they are measured."""
    order = [side for _, _, side in schedule(len(drawn), drawn.shape[1] // 2)]
    mine = np.array([side == "base" for side in order]).reshape(drawn.shape)
    return drawn[mine].reshape(len(drawn), -1), drawn[~mine].reshape(len(drawn), -1)


@cache
def experiments(
    plant: float,
    drift: float = 0.0,
    processes: int = DEFAULT_PROCESSES,
    base: str = "reference",
    new: str = "",
    run: bool = False,
    count: int = EXPERIMENTS,
) -> tuple[stats.Judgement, ...]:
    """Experiments of PAIRS pairs whose every process is a recorded one; `new` has the noise of another build.

    run: a pair's processes are neighbours in the recording, not drawn one by one. `drift` is the loss of rate from
    the first window to the last.
    """
    rng = np.random.default_rng(20260907)
    each = 2 * processes
    speed = np.exp(np.log1p(-drift) * np.linspace(0, 1, PAIRS * each)).reshape(PAIRS, each)
    rates = recorded(base)
    other = recorded(new or base)
    other = other * geometric(rates) / geometric(other)
    found = []
    for _ in range(count):
        if run:
            place = rng.integers(0, len(rates) - each + 1, (PAIRS, 1)) + np.arange(each)
            a, b = dealt(rates[place] * speed)
        else:
            a, b = dealt(rng.choice(rates, (PAIRS, each)) * speed)
            if new:
                b = dealt(rng.choice(other, (PAIRS, each)) * speed)[1]
        found.append(stats.judge(a, b * (1 + plant), BAR))
    return tuple(found)


def geometric(rates: Rates) -> float:
    """Geometric mean: what a side's windows estimate."""
    return float(np.exp(np.log(rates).mean()))


def share(found: tuple[stats.Judgement, ...], *verdicts: str) -> float:
    """Share of experiments with one of these verdicts."""
    return sum(j.verdict in verdicts for j in found) / len(found)


HOW: list[dict[str, Any]] = [{}, {"run": True}, {"base": "loop"}, {"new": "loop"}]
"""Processes drawn one by one, neighbours, the noisier build, two builds of unlike noise."""


@pytest.mark.parametrize("how", [*HOW, {"processes": 1}, {"processes": 2}])
def test_a_build_against_itself_is_called_faster_or_slower_in_at_most_one_of_a_hundred(how: dict[str, Any]) -> None:
    found = experiments(0, **how)
    assert share(found, "faster", "slower") <= 0.01
    assert sum(j.real != 0 for j in found) <= 0.01 * EXPERIMENTS


@pytest.mark.parametrize("how", [*HOW, {"processes": 2}])
def test_half_a_percent_is_found_in_nine_of_ten_by_ten_pairs(how: dict[str, Any]) -> None:
    """Noise is a process's, and some are 0.7 % slower from start to end: a pair needs more than one a side."""
    for plant, verdict, never in ((0.005, "faster", "slower"), (-0.005, "slower", "faster")):
        found = experiments(plant, count=PLANTED, **how)
        assert share(found, verdict) >= 0.9
        assert share(found, never) == 0


@pytest.mark.parametrize("how", [{"processes": 1}, {"processes": 1, "base": "loop"}])
def test_one_process_a_side_is_too_few(how: dict[str, Any]) -> None:
    assert share(experiments(0.005, count=PLANTED, **how), "faster") < 0.7


@pytest.mark.parametrize("build", ["reference", "loop"])
def test_the_default_finds_its_bar_at_the_recorded_noise(build: str) -> None:
    """By the arithmetic that refuses a bar, and by experiments whose gain is the bar itself."""
    rates = recorded(build)
    noise = stats.noise_sd(*dealt(rates.reshape(-1, 4)))
    assert noise == pytest.approx({"reference": 0.00409, "loop": 0.00508}[build], abs=1e-5)
    assert stats.processes_needed(noise, BAR, PAIRS) == DEFAULT_PROCESSES == 3
    assert stats.noise_floor(noise, PAIRS, 1) > 1.5 * BAR
    assert stats.pairs_needed(noise, BAR, DEFAULT_PROCESSES) <= PAIRS
    assert sum(j.real > 0 for j in experiments(BAR, base=build, count=PLANTED)) >= 0.9 * PLANTED


@pytest.mark.parametrize("drift", [0.01, 0.05])
@pytest.mark.parametrize("processes", [1, 3])
def test_a_session_that_becomes_slower_gives_no_false_verdict(drift: float, processes: int) -> None:
    assert share(experiments(0, drift, processes), "faster", "slower") <= 0.01


@pytest.mark.parametrize(("pairs", "processes"), [(5, 1), (9, 1), (10, 1), (5, 2), (10, 2)])
def test_false_verdicts_stay_rare_when_noise_is_wild(pairs: int, processes: int) -> None:
    """Heavy tails and no help from the bar: the tests themselves keep the promise for every number of pairs."""
    rng = np.random.default_rng(pairs)
    false = sum(
        stats.judge(*np.exp(rng.standard_t(2, (2, pairs, processes)) * 0.05), bar=1e-6).real != 0
        for _ in range(EXPERIMENTS)
    )
    # 0.8 % at 5 pairs by the counting of the docstring; 18 of 1000 is four standard deviations above it
    assert false <= 18
