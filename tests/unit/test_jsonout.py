"""JSON without NaN tokens and without numpy's own types, and JSON of failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib.cli_guard import guarded
from attrib.jsonout import clean, document
from tests.conftest import Attrib

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


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("census", "nowhere.sqlite"), "nowhere.sqlite"),
        (("compare", "nowhere", "nowhere"), "nowhere"),
        (("gate", "nowhere", "--against", "nowhere", "--bar", "x"), "--bar"),
        (("ab", "--anchor", "14b:tg128", "--base", "reference"), "give either --new BUILD, or --aa"),
        (("mechanism", "occupancy", "--block", "2048", "--device", "GB10"), "2048 threads are outside 1 to 1024"),
        # found by the parser, before any command runs
        (("ab", "--base", "reference"), "'--anchor'"),
        (("census", "--bogus"), "No such option: --bogus"),
        (("no-such-command",), "No such command 'no-such-command'"),
    ],
)
def test_a_failure_is_one_object_where_json_was_asked_for(
    attrib: Attrib, command: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, outcome = attrib(*command), attrib(*command, "--json")
    assert (text.code, text.out) == (2, "")
    document = json.loads(outcome.out)
    assert (document["schema"], document["exit"], outcome.code) == ("attrib.error/1", 2, 2)
    assert said in document["error"]
    assert said in text.err
    assert outcome.err == text.err


def test_a_verdict_is_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 is an answer, whose object is the command's own."""

    def fails() -> None:
        raise typer.Exit(1)

    monkeypatch.setattr("sys.argv", ["attrib", "gate", "--json"])
    with pytest.raises(typer.Exit):
        guarded(fails)()
    assert capsys.readouterr().out == ""


def test_help_and_no_arguments_are_as_before(attrib: Attrib) -> None:
    assert (attrib("--help").code, attrib("ab", "--help").code) == (0, 0)
    assert "Usage: attrib" in attrib("--help").out
    outcome = attrib()
    assert outcome.code == 2
    assert "Usage: attrib" in outcome.out + outcome.err
