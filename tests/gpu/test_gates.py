"""The gates between builds: identical arithmetic passes, different arithmetic is found and placed."""

from __future__ import annotations

import pytest

from engine import dispatch
from engine.verify import GATES, judge, run
from tests.gpu.support import only, small

pytestmark = pytest.mark.gpu


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


def test_roofline_on_this_device() -> None:
    from engine.roofline import SIZES, measure

    found = measure()
    rates = [point["gbps"] for point in found["points"]]
    assert [point["nbytes"] for point in found["points"]] == list(SIZES)
    assert max(rates) <= found["peak_gbps"]
    assert rates[-1] > 0.5 * found["peak_gbps"]
    assert 0 < found["t0_ns"] < 50_000
