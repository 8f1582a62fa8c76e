"""The ledger against a hand-worked step and, for random launches, against the measure of a union of intervals."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib import ledger

Launch = tuple[int, int]
T0 = 1_700_000_000_000_000_000  # traces count from the start of the capture, but nothing says they must


@st.composite
def launches(draw: st.DrawFn, size: int | None = None) -> list[Launch]:
    """Launches on a short axis, so that ties, nesting, zero length and exact repeats are common."""
    length = size if size is not None else draw(st.integers(1, 12))
    pairs = st.tuples(st.integers(0, 20), st.integers(0, 12))
    return [(start, start + span) for start, span in draw(st.lists(pairs, min_size=length, max_size=length))]


def close(step: list[Launch], offset: int = 0) -> ledger.Ledger:
    table = np.array(step, np.int64)[None] + offset
    return ledger.close(table[..., 0], table[..., 1])


def union(step: list[Launch]) -> int:
    """ns that at least one launch covers, cell by cell."""
    return len({t for start, end in step for t in range(start, end)})


def test_a_step_with_overlap_by_hand() -> None:
    # 0–10; 4–6 inside it; 8–15 half under it; nothing 15–20; 20–20 of no length; 20–23
    found = close([(0, 10), (4, 6), (8, 15), (20, 20), (20, 23)], T0)
    assert found.exclusive.tolist() == [[10, 0, 5, 0, 3]]
    assert found.duration.tolist() == [[10, 2, 7, 0, 3]]
    assert found.idle.tolist() == [5]
    assert found.span.tolist() == [23]
    assert found.begin.tolist() == [T0]
    assert found.closure_ns == 0


@settings(max_examples=300, deadline=None)
@given(launches())
def test_exclusive_time_is_the_measure_of_the_union(step: list[Launch]) -> None:
    found = close(step, T0)
    exclusive, duration = found.exclusive[0], found.duration[0]
    assert found.closure_ns == 0
    assert (exclusive >= 0).all()
    assert (exclusive <= duration).all()
    assert duration.tolist() == [end - start for start, end in step]
    assert exclusive.sum() == union(step)
    assert found.span[0] == max(e for _, e in step) - min(s for s, _ in step)
    assert found.idle[0] == found.span[0] - union(step)


@settings(max_examples=300, deadline=None)
@given(launches(), st.data())
def test_the_order_of_the_input_changes_no_number(step: list[Launch], drawn: st.DataObject) -> None:
    """Launches with the same start and end are one thing here: which of them gets their time is not defined."""
    per_launch = []
    for order in (step, drawn.draw(st.permutations(step))):
        own: dict[Launch, int] = defaultdict(int)
        for launch, ns in zip(order, close(order).exclusive[0].tolist(), strict=True):
            own[launch] += ns
        per_launch.append(dict(own))
    assert per_launch[0] == per_launch[1]


@settings(max_examples=60, deadline=None)
@given(st.lists(launches(size=5), min_size=1, max_size=7), st.data())
def test_steps_are_closed_apart_whatever_the_block(steps: list[list[Launch]], drawn: st.DataObject) -> None:
    """Rows of a table in any order, a few steps at a time, give what each step gives alone."""
    flat = [launch for step in steps for launch in step]
    places = drawn.draw(st.permutations(range(len(flat))))
    table = np.zeros((len(flat), 2), np.int64)
    table[places] = flat
    rows = np.array(places).reshape(len(steps), 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "BLOCK_LAUNCHES", 10)
        found = ledger.close_rows(table[:, 0], table[:, 1], rows)
    for i, step in enumerate(steps):
        alone = close(step)
        for name in ("duration", "exclusive", "span", "idle", "begin"):
            assert getattr(found, name)[i].tolist() == getattr(alone, name)[0].tolist(), name
    assert found.closure_ns == 0


def test_closure_names_a_step_that_does_not_add_up() -> None:
    found = close([(0, 10), (20, 30)])
    found.exclusive[0, 0] += 3
    assert found.closure_ns == 3


def test_time_between_steps() -> None:
    table = np.array([[(0, 10), (5, 30)], [(50, 60), (55, 58)], [(57, 70), (70, 80)]], np.int64)
    found = ledger.close(table[..., 0], table[..., 1])
    assert found.between_steps().tolist() == [20, -3]


@settings(max_examples=200, deadline=None)
@given(launches(), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=5))
def test_idle_under_copies_is_what_only_copies_cover(step: list[Launch], copies: list[tuple[int, int]]) -> None:
    copied = sorted((start, start + length) for start, length in copies)
    first, last = min(s for s, _ in step), max(e for _, e in step)
    launched = {t for s, e in step for t in range(s, e)}
    expected = {t for s, e in copied for t in range(s, e) if first <= t < last} - launched
    table, other = np.array(step, np.int64)[None], np.array(copied, np.int64).reshape(-1, 2)
    found = ledger.idle_under_copies(table[..., 0], table[..., 1], other[:, 0], other[:, 1])
    assert found.tolist() == [len(expected)]
