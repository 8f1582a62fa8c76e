"""Gates between builds of two trees: what each side leaves in a file, and verdicts where the sides do not match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attrib.builds import Side
from attrib.capture import CaptureError
from attrib.record import parse_target
from attrib.verify import verify
from engine.verify import Run, judge
from tests.helpers import fake_ab as fake

TARGET = parse_target("14b:tg128")
NONE = np.zeros((0, 0), np.float32)


def install(folder: Path, *numbers: float) -> Side:
    """A tree whose engine computes these numbers, as a side."""
    return Side(folder.name, "reference", "", fake.install(folder, computes={"reference": list(numbers)}))


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fake.engine_here(tmp_path / "installed", monkeypatch)


def test_each_side_runs_its_own_engine(tmp_path: Path, installed: Path) -> None:
    one, other = install(tmp_path / "one", 1.0, 2.0), install(tmp_path / "other", 1.0, 2.25)
    said: list[str] = []
    assert [gate["passed"] for gate in verify(TARGET, one, one, ("dump", "greedy"))] == [True, True]
    found = verify(TARGET, one, other, ("dump", "tolerance"), gpu=1, progress=said.append)
    assert found == [
        {"gate": "dump", "passed": False, "notes": ["dump differs"]},
        {"gate": "tolerance", "passed": True, "notes": []},
    ]
    assert said == ["gates dump,tolerance: base, one", "gates dump,tolerance: new, other"]
    assert fake.calls(tmp_path / "other") == ["verify qwen2.5-14b:q4_k_m 1 reference dump,tolerance 1"]
    assert len(fake.calls(tmp_path / "one")) == 3
    assert fake.calls(installed) == []


def test_a_side_that_cannot_run_is_named_by_its_sentence(tmp_path: Path) -> None:
    one = install(tmp_path / "one", 1.0)
    with pytest.raises(CaptureError, match="build 'better' does not exist"):
        verify(TARGET, one, Side("x", "better", "", fake.install(tmp_path / "x", builds={})), ("dump",))


def run(dump: dict[str, Any] | None = None, tokens: tuple[int, ...] = (), logits: Any = NONE) -> Run:
    return Run({name: np.asarray(data) for name, data in (dump or {}).items()}, list(tokens), logits)


def test_nodes_of_one_build_alone_are_told_and_logits_must_be_in_both() -> None:
    value = np.array([1.0, 2.0], np.float32)
    fused = {"logits_decode": value, "decode/blk.0.fused.0": value}
    apart = {"logits_decode": value, "decode/blk.0.norm.0": value}
    [verdict] = judge(run(fused), run(apart), ("dump",))
    assert (verdict.passed, verdict.numbers["files"], verdict.numbers["unmatched"]) == (True, 1, 2)
    assert "2 files exist in one build only or differ in type" in verdict.notes[0]
    [verdict] = judge(run(fused), run({**apart, "kv_decode/k.0": value}), ("dump",))
    assert not verdict.passed
    assert verdict.notes[-1] == "kv_decode/k.0 cannot be compared, so the builds are not proven equal"


def test_numbers_of_another_type_are_not_equal() -> None:
    half, single = np.array([1.0], np.float16), np.array([1.0], np.float32)
    [verdict] = judge(run({"logits_decode": half}), run({"logits_decode": single}), ("dump",))
    assert (verdict.passed, verdict.numbers["files"]) == (False, 0)


def test_sides_of_unequal_size_fail() -> None:
    [greedy] = judge(run(tokens=(1, 2)), run(tokens=(1, 2, 3)), ("greedy",))
    assert (greedy.passed, greedy.notes) == (False, ("one build produced 2 tokens and the other 3",))
    [tolerance] = judge(run(logits=np.ones((2, 4))), run(logits=np.ones((2, 5))), ("tolerance",))
    assert (tolerance.passed, tolerance.notes) == (False, ("logits are [2, 4] in one build and [2, 5] in the other",))
