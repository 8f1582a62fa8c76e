"""Every recipe that needs no GPU runs and says what its numbers say."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from attrib.lever import load_all

RECIPES = Path(__file__).parents[2] / "analyses" / "recipes"
PARTS = ("question", "arithmetic", "command", "result", "verdict", "on H200", "on GB10")


def run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a recipe prints, its lines joined."""
    monkeypatch.syspath_prepend(str(RECIPES))
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(RECIPES / f"{name}.py"), run_name="__main__")
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "head_block_160",
            ("1536 of 1536 slots, 960 live", "1440 of 1536 slots, 1440 live", "GB10 VETOED; H200 not vetoed"),
        ),
        ("warps_per_block", ("20 super-blocks × 224 B = 4.59 MB", "10.5 → 21.0 MB", "verdict VETOED")),
        ("single_split", ("KV 1 in chunks of 64: 0 % of outputs", "equal bits only at KV 1 on", "over the bar")),
        ("unbounded_gate", ("80 of 592 never computed (512..591)", "(13.5 %) are never", "verdict REFUSED")),
        ("kv_growth", ("span 6.510 → 6.937 ms", "attention 0.226 → 0.704 ms (+0.478)", "verdict attention grows")),
        ("peer_gap", ("ours 6.235 ms: +0.274 ms", "0 ns off", "launches 918 against 822")),
    ],
)
def test_a_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, said: tuple[str, ...]
) -> None:
    text = run(name, monkeypatch, capsys)
    for part in (*PARTS, *said):
        assert f"{part}" in text, part


def test_the_levers_are_written_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = run("levers", monkeypatch, capsys, "--out", str(tmp_path))
    assert "13824 inputs are 432 units on 256 threads: threads 0..175 have a second unit" in text
    assert "attrib lever run 1b" in text
    written = load_all(tmp_path)
    run("levers", monkeypatch, capsys, "--out", str(tmp_path))
    assert load_all(tmp_path) == written
    assert [(lever.name, lever.gates, lever.verdict) for lever in written] == [
        ("1a-a", ("tolerance",), None),
        ("1b", ("dump", "greedy"), None),
    ]


def test_the_index_names_every_recipe() -> None:
    index = (RECIPES / "README.md").read_text(encoding="utf-8")
    for path in RECIPES.glob("*.py"):
        assert path.name in index or path.name == "page.py"
