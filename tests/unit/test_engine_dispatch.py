"""The dispatch table: every bound present, every matrix placed once, the two gates where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrib.errors import AttribError
from attrib.models import LAYER_ROLES, builtin, shapes
from engine import dispatch
from engine.errors import PlanError
from engine.repack import GPU_QUANTS

RULE = '[[rule]]\nkernel = "mmvq_v2"\nquants = ["q4_K"]\nweights = [1, 100]\ncols = [32, 64]\n'


@pytest.fixture(scope="module")
def reference() -> dispatch.Build:
    return dispatch.load("reference")


@pytest.mark.parametrize(
    ("rows", "cols", "kernel"),
    [
        (1024, 5120, "matvec_padded_f32"),  # 14B attn_v, 5.24 M weights
        (5120, 5120, "mmvq_v2"),  # 26.2 M
        (3584, 3584, "matvec_padded_f32"),  # 7B attn_q, 12.8 M
        (13824, 5120, "mmvq_v2"),
        (5120, 13824, "mmvq_v2_pf"),  # 432 units, two a thread
        (3584, 18944, "mmvq_v2"),  # 592 units: past the prefetch kernel's 512
        (152064, 5120, "mmvq_v2"),
        (4096, 8192, "mmvq_v2"),
        (2929, 8194 + 254, "mmvq_v2_pf"),
        (2000, 16384, "mmvq_v2_pf"),
        (2000, 16640, "mmvq_v2"),
        (2343, 10240, "matvec_padded_f32"),  # 23.99 M
        (2344, 10240, "mmvq_v2_pf"),  # 24.00 M
    ],
)
def test_gates_of_the_reference_table(reference: dispatch.Build, rows: int, cols: int, kernel: str) -> None:
    for quant in ("q4_K", "q6_K"):
        assert reference.select(quant, rows, cols).kernel == kernel


@given(rows=st.integers(1, 262_144), blocks=st.integers(1, 128), quant=st.sampled_from(GPU_QUANTS))
def test_exactly_one_rule_fits_any_matrix(rows: int, blocks: int, quant: str) -> None:
    rule = dispatch.load("reference").select(quant, rows, 256 * blocks)
    assert rule.quantized_input == rule.kernel.startswith("mmvq")


def test_every_built_in_matrix_the_engine_reads_has_a_rule(reference: dispatch.Build) -> None:
    seen = 0
    for name in shapes():
        for tensor in builtin(name).tensors:
            if tensor.role in (*LAYER_ROLES, "output") and tensor.quant in GPU_QUANTS:
                reference.select(tensor.quant, tensor.rows, tensor.cols)
                seen += 1
    assert seen > 3000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RULE.replace("cols = [32, 64]\n", ""), r"needs cols = \[lowest, highest\].*not None"),
        (RULE.replace("cols = [32, 64]", "cols = [32]"), r"needs cols = \[lowest, highest\]"),
        (RULE.replace("[1, 100]", "[1, inf]"), r"needs weights = \[lowest, highest\]"),
        (RULE.replace("[32, 64]", "[64, 32]"), r"cols = \[64, 32\], which no matrix can fit"),
        (RULE.replace('"mmvq_v2"', '"mmvq_v9"'), "names kernel 'mmvq_v9'; there are mmvq_v2"),
        (RULE.replace('["q4_K"]', "[]"), "names no quant types"),
        (RULE + "speed = 3\n", "unknown fields speed"),
        (RULE.replace("[32, 64]", "[32, 64"), "build x is not TOML"),
    ],
)
def test_a_rule_without_sound_bounds_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        dispatch.parse("x", text)


def test_no_rule_and_two_rules_are_refused_with_the_shape() -> None:
    once, twice = dispatch.parse("once", RULE), dispatch.parse("twice", RULE + RULE)
    with pytest.raises(PlanError, match="build once has no rule for a q4_K matrix of 9 × 96"):
        once.select("q4_K", 9, 96)
    with pytest.raises(PlanError, match=r"more than one rule \(mmvq_v2, mmvq_v2\) for a q4_K matrix of 2 × 32"):
        twice.select("q4_K", 2, 32)


def test_the_hash_follows_table_flags_and_sources(reference: dispatch.Build) -> None:
    changed = dispatch.parse("reference", RULE)
    flagged = dispatch.parse("reference", 'flags = ["-G"]\n' + RULE)
    hashes = {build.info(sources).hash for build in (reference, changed, flagged) for sources in ("a", "b")}
    assert len(hashes) == 6
    assert reference.info("a") == dispatch.load("reference").info("a")


def test_the_sources_of_a_build_are_its_tables_and_what_all_share(reference: dispatch.Build) -> None:
    loop = dispatch.load("loop").sources()
    assert set(reference.sources()) - set(loop) == {"mmvq_v2_pf.cu"}
    assert {"rms_norm.cu", "attn_split.cu", "attn_prefill.cu", "mmvq_v2.cu"} <= set(loop)


def test_an_unknown_build_is_refused() -> None:
    with pytest.raises(AttribError, match=r"build 'nope' does not exist; there are .*reference"):
        dispatch.load("nope")


def test_only_the_unproven_option_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(RULE, encoding="utf-8")
    found = dispatch.unproven(path)
    assert (found.name, found.unproven) == ("mine (unproven)", True)
    assert not any(dispatch.load(name).unproven for name in dispatch.names())
    with pytest.raises(PlanError, match="only `engine bench --unproven` runs one"):
        dispatch.load(str(path))
    with pytest.raises(PlanError, match=r"takes the path of a \.toml file, not 'reference'; named builds are proven"):
        dispatch.unproven(Path("reference"))
    with pytest.raises(PlanError, match=r"absent\.toml cannot be read"):
        dispatch.unproven(tmp_path / "absent.toml")
    path.write_text("unproven = true\n" + RULE, encoding="utf-8")
    assert not dispatch.parse("mine", path.read_text(encoding="utf-8")).unproven


def test_builds_differ_in_hash() -> None:
    hashes = {dispatch.load(name).info("same").hash for name in dispatch.names()}
    assert len(hashes) == len(dispatch.names()) >= 6
