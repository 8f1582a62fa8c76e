"""The lever ledger: written first, immutable once measured, decided by gates and windows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attrib import lever as levers
from attrib.errors import RefusedError
from tests.conftest import Attrib
from tests.helpers import fake_ab as fake

NEW = (
    "lever", "new", "1b", "--question", "Do two loads before either sum hide latency?", "--mechanism",
    "432 units on 256 threads: 176 threads wait for a second load", "--anchor", "14b:tg128", "--base", "reference",
    "--new", "better",
)  # fmt: skip


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = fake.engine_here(tmp_path / "work", monkeypatch)
    fake.quiet_gpu(monkeypatch)
    return folder


def written(**changes: Any) -> levers.Lever:
    lever = levers.Lever("1b", "why?", "because", 0.004, ("14b:tg128",), "reference", "better")
    return replace(lever, **changes)


# ---------------------------------------------------------------- the whole life


def test_a_lever_lands(attrib: Attrib, work: Path) -> None:
    made = attrib(*NEW, "--guard", "14b:pp512", "--json").json()
    assert (made["verdict"], made["started_utc"], made["bar_pct"]) == (None, None, pytest.approx(0.4))
    assert made["written_utc"]
    lever = attrib("lever", "run", "1b", "--pairs", 5, "--processes", 1, "--json").json()
    assert (lever["verdict"], lever["digest"]) == ("LANDED", made["digest"])
    assert lever["started_utc"] >= lever["written_utc"]
    [measured] = lever["measurements"]
    assert measured["gates"] == [{"gate": gate, "passed": True, "notes": []} for gate in ("dump", "greedy")]
    verified = [line for line in fake.calls(work) if line.startswith("verify")]
    assert verified == [f"verify qwen2.5-14b:q4_k_m 1 {build} dump,greedy 0" for build in ("reference", "better")]
    assert [leg["anchor"] for leg in measured["comparisons"][0]["anchors"]] == ["14b:tg128", "14b:pp512"]
    page = attrib("lever", "show", "1b").out
    for text in (
        "1b · LANDED",
        "432 units on 256 threads",
        "bar        +0.4 % at 14b:tg128",
        f"digest {made['digest']}",
        "gate dump: passed",
        "SEP, 5 pairs: faster",
        "guard 14b:pp512",
        "verdict    LANDED: 14b:tg128: the gain is real",
    ):
        assert text in page, text
    assert attrib("lever", "show").out == "LANDED    1b: Do two loads before either sum hide latency?\n"
    assert "is LANDED since" in attrib("lever", "run", "1b").refusal()


def test_a_failed_gate_reverts_without_windows(attrib: Attrib, work: Path) -> None:
    fake.configure(work, computes={"better": [1.0, 2.25]})
    attrib(*NEW, "--gate", "dump", "--gate", "tolerance")
    lever = attrib("lever", "run", "1b", "--pairs", 5, "--processes", 1, "--json").json()
    assert (lever["verdict"], lever["why"]) == ("REVERTED", "gate dump failed")
    assert not any(line.startswith("bench") for line in fake.calls(work))
    page = attrib("lever", "show", "1b").out
    assert "gate dump: FAILED" in page
    assert "dump differs" in page
    assert "gate tolerance: passed" in page


def test_an_engine_that_cannot_run_the_gates_says_so_and_leaves_the_lever_open(attrib: Attrib, work: Path) -> None:
    fake.configure(work, verify_fails=True)
    attrib(*NEW)
    outcome = attrib("lever", "run", "1b")
    assert outcome.code == 2
    assert "the engine cannot run: no NVIDIA GPU" in outcome.err
    assert attrib("lever", "show", "1b", "--json").json()["verdict"] is None


def test_gates_between_a_revision_and_the_tree(attrib: Attrib, work: Path) -> None:
    """Each side's numbers come from its own engine, and the revision's engine is the one that was committed."""
    fake.configure(work, builds={"reference": [90.0, "d" * 16]}, computes={"reference": [1.0, 2.125]})
    fake.commit(work, "before")
    fake.configure(work)
    options = (*NEW[:-3], "git:before", "--new", "reference")
    attrib(*options)
    lever = attrib("lever", "run", "1b", "--pairs", 5, "--processes", 1, "--json").json()
    assert [gate["passed"] for gate in lever["measurements"][0]["gates"]] == [False, True]
    assert lever["why"] == "gate dump failed"
    second = ("lever", "new", "1c", *options[3:], "--gate", "tolerance", "--gate", "greedy")
    attrib(*second)
    lever = attrib("lever", "run", "1c", "--pairs", 5, "--processes", 1, "--json").json()
    assert [gate["gate"] for gate in lever["measurements"][0]["gates"]] == ["tolerance", "greedy"]
    assert (lever["verdict"], lever["measurements"][0]["comparisons"][0]["base"]["hash"]) == ("LANDED", "d" * 16)
    # the revision's calls went to its own folder, which is gone
    verified = [line for line in fake.calls(work) if line.startswith("verify")]
    assert [line.split()[3] for line in verified] == ["reference"] * 2


def test_a_broken_guard_reverts(attrib: Attrib, work: Path) -> None:
    fake.configure(work, prompt_factor={"better": 0.9})
    attrib(*NEW, "--guard", "14b:pp512", "--gate", "none")
    lever = attrib("lever", "run", "1b", "--pairs", 5, "--processes", 1, "--json").json()
    assert (lever["verdict"], lever["why"]) == ("REVERTED", "slower at 14b:pp512")
    assert lever["gates"] == lever["measurements"][0]["gates"] == []


def test_windows_that_cannot_tell_leave_it_open_and_are_kept(attrib: Attrib, work: Path) -> None:
    attrib(*NEW, "--gate", "none")
    for count in (1, 2):
        lever = attrib("lever", "run", "1b", "--pairs", 2, "--processes", 1, "--json").json()
        assert (lever["verdict"], len(lever["measurements"])) == (None, count)
    assert "2 pairs give no verdict" in lever["why"]
    assert "1b · open" in attrib("lever", "show", "1b").out
    assert attrib("lever", "run", "1b", "--pairs", 5, "--processes", 1, "--json").json()["verdict"] == "LANDED"


def test_processes_a_side_are_on_the_page(attrib: Attrib, work: Path) -> None:
    attrib(*NEW, "--gate", "none")
    assert "SEP, 5 pairs of 2 a side: faster" in attrib("lever", "run", "1b", "--pairs", 5, "--processes", 2).out


def test_a_veto_needs_no_engine(attrib: Attrib, work: Path) -> None:
    lever = attrib(*NEW, "--veto", "9 × 160 = 1440 live of 1536 is no more than 6 × 256 hold", "--json").json()
    assert (lever["verdict"], lever["measurements"]) == ("VETOED", [])
    assert lever["decided_utc"] == lever["written_utc"]
    assert "measured   never" in attrib("lever", "show", "1b").out
    assert "is VETOED since" in attrib("lever", "run", "1b").refusal()
    assert fake.calls(work) == []


def test_a_run_that_fails_can_be_repeated(attrib: Attrib, work: Path) -> None:
    attrib(*NEW, "--gate", "none")
    fake.configure(work, fails_at=4)
    assert attrib("lever", "run", "1b", "--pairs", 5, "--processes", 1).code == 2
    fake.configure(work)
    lever = attrib("lever", "run", "1b", "--pairs", 5, "--processes", 1, "--json").json()
    assert lever["verdict"] == "LANDED"
    assert len(fake.calls(work)) == 11


# ---------------------------------------------------------------- what was written


def test_it_can_be_rewritten_until_it_is_measured(attrib: Attrib, work: Path) -> None:
    first = attrib(*NEW, "--json").json()
    second = attrib(*NEW, "--bar", "0.2%", "--json").json()
    assert second["bar_pct"] == pytest.approx(0.2)
    assert second["digest"] != first["digest"]
    fake.configure(work, verify_fails=True)
    assert attrib("lever", "run", "1b").code == 2
    assert "cannot be rewritten" in attrib(*NEW).refusal()
    assert attrib("lever", "show", "1b", "--json").json()["bar_pct"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE levers SET bar = 0.001",
        "UPDATE levers SET started_utc = NULL",
        "UPDATE levers SET mechanism = 'another'",
        "DELETE FROM levers",
        "INSERT OR REPLACE INTO levers (name, bar) VALUES ('1b', 0.001)",
    ],
)
def test_the_database_itself_refuses_changes(tmp_path: Path, statement: str) -> None:
    levers.write(tmp_path, written(gates=()))
    with closing(sqlite3.connect(tmp_path / "runs.db")) as db:
        db.execute("UPDATE levers SET bar = 0.002")
        db.execute("UPDATE levers SET started_utc = '2026-01-01'")
        db.commit()
        with pytest.raises(sqlite3.IntegrityError, match=r"lever|written"):
            db.execute(statement)
    assert levers.load(tmp_path, "1b").bar == 0.002


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"question": " "}, "question is empty"),
        ({"mechanism": ""}, "mechanism is empty"),
        ({"name": ""}, "name is empty"),
        ({"anchors": ()}, "names no anchor"),
        ({"anchors": ("14b",)}, "MODEL:ANCHOR"),
        ({"guards": ("14b:xx",)}, "MODEL:ANCHOR"),
        ({"gates": ("speed",)}, "gate 'speed' does not exist"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(RefusedError, match=text):
        levers.write(tmp_path, written(**changes))
    assert not (tmp_path / "runs.db").exists()


def test_an_unknown_lever_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="none is written yet"):
        levers.load(tmp_path, "x")
    levers.write(tmp_path, written())
    with pytest.raises(RefusedError, match="there are 1b"):
        levers.load(tmp_path, "x")
    assert [lever.name for lever in levers.load_all(tmp_path)] == ["1b"]


# ---------------------------------------------------------------- the decision


def leg(verdict: str | None, met: bool = False, anchor: str = "14b:tg128") -> dict[str, Any]:
    return {"anchor": anchor, "verdict": verdict, "bar_met": met, "why": "so"}


@pytest.mark.parametrize(
    ("legs", "verdict", "text"),
    [
        ([leg("faster", True)], "LANDED", "14b:tg128: so"),
        ([leg("faster")], "REVERTED", "14b:tg128: so"),
        ([leg("no difference")], "REVERTED", "so"),
        ([leg("slower")], "REVERTED", "slower at 14b:tg128"),
        ([leg("inconclusive")], None, "so"),
        ([leg(None)], None, "so"),
        ([leg("faster", True), leg("slower", anchor="14b:@3254")], "REVERTED", "slower at 14b:@3254"),
        ([leg("faster", True), leg("inconclusive", anchor="7b:@1641")], "LANDED", "7b:@1641 could not be judged"),
        ([leg("inconclusive"), leg("faster", True, "14b:@3254")], None, "so"),
    ],
)
def test_the_first_anchor_decides_and_the_others_must_not_lose(
    legs: list[dict[str, Any]], verdict: str | None, text: str
) -> None:
    found, why = levers.decide([{"gate": "dump", "passed": True}], [{"anchors": [each]} for each in legs])
    assert found == verdict
    assert text in why
