"""JSON without NaN tokens and without numpy's own types."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib.jsonout import clean, document

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(), st.text(max_size=5),
    st.floats(width=32).map(np.float32), st.integers(0, 100).map(np.int64), st.booleans().map(np.bool_),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner) | st.tuples(inner)
)


def test_by_hand() -> None:
    found = document({
        "nan": float("nan"), "inf": [np.float32("inf"), -np.inf], "int": np.int64(7), "flag": np.bool_(True),
        "deep": {3: ({"x": np.float64(0.5)},)}, "none": None, "text": "NaN",
    })  # fmt: skip
    assert found == {
        "nan": None, "inf": [None, None], "int": 7, "flag": True, "deep": {"3": [{"x": 0.5}]}, "none": None,
        "text": "NaN",
    }  # fmt: skip
    assert type(found["int"]) is int
    assert type(found["flag"]) is bool


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_anything_can_be_written_strictly_and_read_back(value: Any) -> None:
    cleaned = clean(value)
    assert json.loads(json.dumps(cleaned, allow_nan=False)) == cleaned


@pytest.mark.parametrize("number", [0.1, 1e300, -0.0, 5e-324])
def test_finite_numbers_stay(number: float) -> None:
    assert clean(number) == number
    assert clean(np.float64(number)) == number
