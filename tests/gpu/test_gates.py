"""The gates between builds: identical arithmetic passes, different arithmetic is found and placed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from attrib.builds import Side
from attrib.record import parse_target
from attrib.verify import verify
from engine import dispatch
from engine.verify import GATES, judge, run
from tests.gpu.support import only, small

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


def test_a_build_equals_itself() -> None:
    build, config = dispatch.load("reference"), small()
    first, second = run(config, build, GATES), run(config, build, GATES)
    for verdict in judge(first, second, GATES):
        assert verdict.passed, verdict
    assert len(first.tokens) == 256
    names = set(first.dump)
    assert {"logits_prefill", "logits_decode", "kv_prefill/k.1", "kv_decode/v.0"} <= names
    assert "decode/blk.1.ffn_down.0" in names


def test_prefetch_equals_the_loop_in_every_file() -> None:
    config = small(ffn=8448)
    gates = ("dump", "greedy")
    first, second = run(config, only("mmvq_v2"), gates), run(config, only("mmvq_v2_pf"), gates)
    for verdict in judge(first, second, gates):
        assert verdict.passed, verdict


def test_another_accumulation_is_found_and_is_within_tolerance() -> None:
    config = small()
    first, second = (run(config, only(name), GATES) for name in ("matvec_padded_f32", "mmvq_v2"))
    dump, _, tolerance = judge(first, second, GATES)
    assert not dump.passed
    assert "ulp apart" in dump.notes[0]
    assert dump.numbers["different"] > 0
    assert 0 < tolerance.numbers["nmse"] < 5e-3


def test_gates_between_two_trees(tmp_path: Path) -> None:
    """Each side as a process from a tree of its own: equal trees pass, one with other norms fails its dump gate."""
    target = parse_target("qwen2.5-7b:tg128")
    trees = []
    for name in ("one", "other"):
        trees.append(tmp_path / name)
        for package in ("attrib", "engine", "cuda_src"):
            shutil.copytree(ROOT / package, trees[-1] / package, ignore=shutil.ignore_patterns("__pycache__"))
    one, other = (Side(tree.name, "reference", "", tree) for tree in trees)
    assert all(gate["passed"] for gate in verify(target, one, other, GATES))
    norm = trees[1] / "cuda_src" / "rms_norm.cu"
    text = norm.read_text(encoding="utf-8")
    norm.write_text(text.replace("cols), eps)", "cols), 2.0f * eps)"), encoding="utf-8")
    assert norm.read_text(encoding="utf-8") != text
    dump, tolerance = verify(target, one, other, ("dump", "tolerance"))
    assert (dump["passed"], tolerance["passed"]) == (False, True)


def test_roofline_on_this_device() -> None:
    from engine.roofline import SIZES, measure

    found = measure()
    rates = [point["gbps"] for point in found["points"]]
    assert [point["nbytes"] for point in found["points"]] == list(SIZES)
    assert max(rates) <= found["peak_gbps"]
    assert rates[-1] > 0.5 * found["peak_gbps"]
    assert 0 < found["t0_ns"] < 50_000
