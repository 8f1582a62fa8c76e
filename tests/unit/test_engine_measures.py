"""Arithmetic of timing, dumps, gates and the roofline, against numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench import anchor
from engine.dump import compare, difference, ulps
from engine.errors import EngineError
from engine.roofline import Point, fit, read_kernel
from engine.verify import Run, judge, kl, nmse, top1

F32 = np.float32


def test_anchors() -> None:
    tg, deep, pp = anchor("tg128"), anchor("@3254"), anchor("pp512")
    assert (tg.phase, tg.start, tg.steps, tg.kv_len, tg.capacity) == ("decode", 0, 128, 64, 256)
    assert (deep.phase, deep.start, deep.steps, deep.kv_len) == ("decode", 3254, 32, 3270)
    assert deep.capacity >= 3254 + 64
    assert (pp.phase, pp.start) == ("prefill", 512)
    assert pp.capacity > 512
    assert anchor("tg128", 16).steps == 16
    for wrong in ("tg", "128", "@", "@-1", "pp0", "tg0", ""):
        with pytest.raises(EngineError):
            anchor(wrong)


def test_ulps_by_hand() -> None:
    one = np.array([1], F32)
    assert ulps(one, np.nextafter(one, F32(2))) == 1
    assert ulps(one, np.array([2], F32)) == 1 << 23
    smallest = np.array([1e-45], F32)
    assert ulps(smallest, -smallest) == 2
    assert ulps(np.array([0], F32), np.array([-0.0], F32)) == 0
    assert ulps(np.array([1], np.float16), np.array([2], np.float16)) == 1 << 10
    assert ulps(np.array([3], np.uint8), np.array([5], np.uint8)) == 2


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(0, 50))
def test_ulps_counts_steps(start: float, steps: int) -> None:
    a = np.array([start], F32)
    b = a
    for _ in range(steps):
        b = np.nextafter(b, F32(np.inf))
    assert ulps(a, b) == steps


def test_the_first_difference_is_found_and_placed() -> None:
    a = np.arange(6, dtype=F32).reshape(2, 3)
    b = a.copy()
    assert difference("x", a, b) is None
    b[1, 0], b[1, 2] = np.nextafter(F32(3), F32(4)), 9
    found = difference("decode/x", a, b)
    assert found is not None
    assert (found.element, found.ulps, found.count, found.aliasing) == (3, 1, 2, False)
    assert "decode/x differs: 2 elements, first at 3" in found.sentence()
    recycled = difference("slot/q", a, b)
    assert recycled is not None
    assert recycled.aliasing
    assert "aliasing" in recycled.sentence()


def test_minus_zero_and_size_count_as_differences() -> None:
    zero = difference("x", np.zeros(2, F32), -np.zeros(2, F32))
    assert zero is not None
    assert (zero.element, zero.ulps, zero.count) == (0, 0, 2)
    short = difference("x", np.zeros(2, F32), np.zeros(5, F32))
    assert short is not None
    assert (short.element, short.count) == (2, 3)


def test_files_of_one_side_are_listed() -> None:
    same = np.ones(2, F32)
    differences, unmatched = compare({"a": same, "b": same}, {"a": same, "c": same})
    assert differences == []
    assert unmatched == ["b", "c"]


def run(rows: list[list[float]], tokens: list[int], dump: dict[str, np.ndarray] | None = None) -> Run:
    return Run(dump or {}, tokens, np.array(rows, F32))


def test_gates_judge() -> None:
    gates = ("dump", "greedy", "tolerance")
    good = run([[1.0, 2.0, 0.0]], [4, 5, 6], {"logits": np.ones(3, F32)})
    assert all(verdict.passed for verdict in judge(good, good, gates))
    bad = run([[2.0, 1.0, 0.0]], [4, 9, 6], {"logits": np.array([1, 1, 2], F32)})
    dump, greedy, tolerance = judge(good, bad, gates)
    assert not dump.passed
    assert "first at 2: 1.0 and 2.0, 8388608 ulp apart" in dump.notes[0]
    assert not greedy.passed
    assert greedy.notes == ("token 1 is 5 and 9",)
    assert not tolerance.passed
    assert tolerance.numbers["top1"] == 0
    assert tolerance.numbers["nmse"] == pytest.approx(2 / 5)


def test_an_empty_dump_or_nan_passes_nothing() -> None:
    empty = run([[1.0, float("nan")]], [])
    dump, tolerance = judge(empty, empty, ("dump", "tolerance"))
    assert not dump.passed
    assert not tolerance.passed


def test_aliasing_alone_passes_with_a_note() -> None:
    first, second = ({"logits": np.ones(1, F32), "slot/q": np.full(1, v, F32)} for v in (1, 2))
    (verdict,) = judge(run([[1]], [], first), run([[1]], [], second), ("dump",))
    assert verdict.passed
    assert "aliasing" in verdict.notes[0]


def test_metrics_by_hand() -> None:
    a, b = np.array([[0.0, np.log(3.0)]]), np.array([[0.0, 0.0]])
    # p = (1/4, 3/4), q = (1/2, 1/2): KL = 1/4 ln 1/2 + 3/4 ln 3/2
    assert kl(a, b) == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5))
    assert kl(a, a) == 0
    assert nmse(np.array([[3.0, 4.0]]), np.array([[3.0, 3.0]])) == pytest.approx(1 / 25)
    assert top1(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[0.0, 1.0], [0.0, 1.0]])) == 0.5


@given(t0=st.floats(500, 20_000), rate=st.floats(1e11, 1e13))
def test_the_roofline_fit_recovers_its_line(t0: float, rate: float) -> None:
    points = [Point(1 << power, t0 + (1 << power) / rate * 1e9) for power in range(20, 31)]
    found_t0, found_rate = fit(points)
    assert found_t0 == pytest.approx(t0, rel=1e-6)
    assert found_rate == pytest.approx(rate, rel=1e-6)


def test_rates_are_decimal_gigabytes() -> None:
    assert Point(4_000_000, 1000.0).gbps == 4000
    assert read_kernel().source == "read_bw.cu"
