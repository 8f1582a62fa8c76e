"""Every recipe that needs no GPU runs and says what its numbers say."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from attrib.lever import load_all
from engine import dispatch, module
from engine.bench import TRACED_STEPS, anchor
from engine.config import resolve
from engine.kernels import KernelSpec
from engine.kernels_matvec import matvec_padded_f32, mmvq
from engine.plan import decode, geometry

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
            (
                "GB10: 1536 of 1536 slots, 960 live",
                "H200: 1536 of 2048 slots, 960 live, limited by registers",
                "H200: 1440 of 2048 slots, 1440 live",
                "6.80 times that",
                "GB10 VETOED; H200 not vetoed",
                "is 0.97 times what that takes",
            ),
        ),
        (
            "warps_per_block",
            (
                "20 super-blocks × 224 B = 4.59 MB",
                "10.5 → 21.0 MB",
                "the site it names: GB10 not vetoed, measure it, H200 VETOED",
            ),
        ),
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


@pytest.mark.parametrize(
    ("recipe", "specs"),
    [
        ("head_block_160", {"sm_90": [mmvq("q6_K")], "sm_121": [mmvq("q6_K")]}),
        (
            "warps_per_block",
            {arch: [matvec_padded_f32("q6_K", 2, warps) for warps in (2, 1)] for arch in ("sm_90", "sm_121")},
        ),
    ],
)
def test_the_registers_are_the_compilers(
    recipe: str, specs: dict[str, list[KernelSpec]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(RECIPES))
    stated = runpy.run_path(str(RECIPES / f"{recipe}.py"))["REGISTERS"]
    for arch, device in (("sm_90", "H200"), ("sm_121", "GB10")):
        used = []
        for spec in specs[arch]:
            log = module.build(spec.source, arch, module.flags_of(spec, ()), folder=tmp_path).log
            found = re.search(rf"function '{spec.name}'.*?Used (\d+) registers", log, re.DOTALL)
            assert found is not None
            used.append(int(found[1]))
        assert used == (list(stated[device]) if isinstance(stated, dict) else [stated])


def test_units_of_a_bench_and_of_a_census_differ_by_attention() -> None:
    """The live page's two totals: a bench counts at the middle of 128 steps, a traced run at the middle of 16."""
    config, build = resolve("7b", 1), dispatch.unproven(RECIPES / "unbounded.toml")
    totals = []
    for steps in (None, TRACED_STEPS):
        at = anchor("tg128", steps)
        launches = decode(config, build, geometry(config, at.capacity, 132), at.kv_len)
        totals.append(sum(launch.units for launch in launches))
        assert totals[-1] - sum(launch.units_covered for launch in launches) == 28 * 3584 * 80
    assert totals[0] - totals[1] == 28 * 28 * (64 - 8) == 43904  # layers × heads × positions


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
