"""Decode and prefill plans: what is launched, what it moves, and that no unit is skipped or repeated."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrib.manifest import DeviceInfo, dump, load
from attrib.models import LAYER_ROLES, shapes
from engine import buffers, dispatch, plan
from engine.config import ModelConfig, synthetic
from engine.errors import PlanError
from engine.prefill import BATCH, Gemm, prefill, tile_rows

# rows of 896 and 576 take q5_0 and q8_0; the 70B class stores attn_v as q5_K
MIXED = {"qwen2.5-0.5b", "smollm2-135m", "llama-3.1-70b", "qwen2.5-72b"}
UNBOUNDED = Path(__file__).parents[2] / "analyses" / "recipes" / "unbounded.toml"
H200 = DeviceInfo("NVIDIA H200", 132, 4.814e12, 2048, "9.0")


@pytest.fixture(scope="module")
def reference() -> dispatch.Build:
    return dispatch.load("reference")


def planned(config: ModelConfig, build: dispatch.Build, kv_len: int = 100) -> tuple[plan.PlannedLaunch, ...]:
    return plan.decode(config, build, plan.geometry(config, 4096, 132), kv_len)


@pytest.mark.parametrize("name", sorted(shapes()))
def test_every_built_in_model_is_planned_whole(name: str, reference: dispatch.Build) -> None:
    config = synthetic(name)
    launches = planned(config, reference)
    assert all(launch.units == launch.units_covered > 0 for launch in launches)
    sites = Counter(launch.site.partition("/")[0] for launch in launches)
    assert all(sites[role] == config.model.shape.layers for role in LAYER_ROLES)
    weights = sum(launch.spec.traffic(launch.shape).weight_bytes for launch in launches)
    assert config.model.step_bytes() < weights < 1.07 * config.model.step_bytes()


@pytest.mark.parametrize("build", [name for name in dispatch.names() if dispatch.load(name).step is None])
@pytest.mark.parametrize("model", sorted(shapes()))
def test_every_build_of_a_table_covers_every_unit(build: str, model: str) -> None:
    if build == "slow1" and model in MIXED:
        with pytest.raises(PlanError, match="build slow1 has no rule for a q5_"):
            planned(synthetic(model), dispatch.load(build))
        return
    for launch in planned(synthetic(model), dispatch.load(build)):
        assert launch.units == launch.units_covered


@given(rows=st.integers(1, 200_000), cols=st.integers(1, 1024), limit=st.integers(1 << 23, 1 << 28))
def test_tiles_are_even_and_fit(rows: int, cols: int, limit: int) -> None:
    tile = tile_rows(rows, 32 * cols, limit)
    assert 0 < tile * 64 * cols <= limit
    if tile < rows:
        assert tile % 128 == 0
        last = rows % tile or tile
        assert tile - last < 128 * -(-rows // tile)


def test_tiles_by_hand() -> None:
    assert tile_rows(13824, 5120) == 13824  # 141.6 MB in one tile
    assert tile_rows(152064, 5120) == 25344  # six of at most 26112 rows, the multiple of 128 below 26214
    with pytest.raises(PlanError, match="128 rows of 2000000 f16 weights do not fit"):
        tile_rows(1000, 2_000_000)


def test_an_unbounded_prefetch_gate_is_refused_with_the_missing_units(reference: dispatch.Build) -> None:
    rules = tuple(
        replace(rule, cols=(8193, 1_048_576)) if rule.kernel == "mmvq_v2_pf" else rule
        for rule in reference.rules
        if not (rule.kernel == "mmvq_v2" and rule.cols[0] == 16385)
    )
    unbounded = replace(reference, name="unbounded", rules=rules)
    planned(synthetic("14b"), unbounded)
    with pytest.raises(PlanError, match=r"mmvq_v2_pf.* on blk\.0\.ffn_down.*3584 × 18944.*80 of 592 never computed"):
        planned(synthetic("7b"), unbounded)


def test_an_unproven_file_is_planned_with_its_gaps_in_the_manifest() -> None:
    build, config = dispatch.unproven(UNBOUNDED), synthetic("7b")
    nodes = plan.manifest(config, build, H200, "7b:tg128", planned(config, build)).graph().nodes
    down = [node for node in nodes if node.site.startswith("ffn_down")]
    assert {(node.units, node.units_covered) for node in down} == {(3584 * 592, 3584 * 512)}
    assert all(node.units == node.units_covered for node in nodes if node not in down)
    assert sum(node.units - node.units_covered for node in nodes) == 28 * 3584 * 80
    proven = dispatch.parse("unbounded", UNBOUNDED.read_text(encoding="utf-8"))
    with pytest.raises(PlanError, match="80 of 592 never computed"):
        planned(config, proven)


def test_blocks_and_sites_of_the_experiments_by_hand() -> None:
    config = synthetic("14b")

    def launches(build: str) -> dict[str, plan.PlannedLaunch]:
        return {launch.site: launch for launch in planned(config, dispatch.load(build))}

    head, before = launches("head160"), launches("reference")
    assert {site for site in head if head[site].block != before[site].block} == {"output/q6_K"}
    assert head["output/q6_K"].block == (160, 1, 1)
    one = launches("warps1")
    changed = {site for site in one if (one[site].grid, one[site].block) != (before[site].grid, before[site].block)}
    assert changed == {"attn_k/q4_K", "attn_v/q4_K", "attn_v/q6_K"}
    assert (one["attn_v/q6_K"].grid, one["attn_v/q6_K"].block) == ((512, 1, 1), (32, 1, 1))
    slow, loop = launches("slow1"), launches("loop")
    slowed = {site.partition("/")[0] for site in slow if slow[site].spec.name != loop[site].spec.name}
    assert slowed == {"attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "output"}
    assert all(slow[site].spec.traffic(slow[site].shape) == loop[site].spec.traffic(loop[site].shape) for site in slow)


def test_heads_of_qwen3_are_normed_before_they_are_rotated(reference: dispatch.Build) -> None:
    config = synthetic("qwen3-0.6b")
    launches = planned(config, reference)
    sites = [launch.site.partition("/")[0] for launch in launches if launch.layer == 27]
    first = sites.index("attn_q_norm")
    assert sites[first - 1 : first + 3] == ["attn_v", "attn_q_norm", "attn_k_norm", "rope_kv_write"]
    norm = next(launch for launch in launches if launch.site == "attn_k_norm")
    assert (norm.grid, norm.block, norm.args[3]) == ((8, 1, 1), (32, 1, 1), 128)
    geo = plan.geometry(config, 4096, 132)
    work = prefill(config, reference, geo, 77, sample=False)
    norms = [w for w in work if isinstance(w, plan.PlannedLaunch) and w.site == "attn_q_norm"]
    assert len(norms) == 28
    assert norms[0].grid == (77 * 16, 1, 1)


def test_14b_step_by_hand(reference: dispatch.Build) -> None:
    config = synthetic("14b")
    launches = planned(config, reference)
    sites = Counter(launch.site for launch in launches)
    assert sites["rms_norm"] == 97
    assert sites["attn_v/q6_K"] == sites["ffn_down/q6_K"] == 24
    assert sites["output/q6_K"] == sites["advance"] == sites["argmax"] == 1
    made = plan.manifest(config, reference, H200, "14b:tg128", launches)
    nodes = made.graph().nodes
    v = next(node for node in nodes if node.site == "attn_v/q6_K")
    assert (v.kernel, v.grid, v.block) == ("matvec_padded_f32_q6_K", (256, 1, 1), (64, 1, 1))
    assert v.weight_bytes == 1024 * 20 * 224 == 4_587_520
    assert v.units == v.units_covered == 1024 * 160
    split = next(node for node in nodes if node.site == "attn_split")
    assert split.kv_bytes == 2 * 2 * 8 * 128 * 100
    down = next(node for node in nodes if node.site == "ffn_down/q4_K")
    assert (down.kernel, down.grid) == ("mmvq_v2_pf_q4_K", (5120, 1, 1))
    assert [node.i for node in nodes] == list(range(len(launches)))


def test_a_build_has_one_hash_for_every_model(reference: dispatch.Build) -> None:
    made = [
        plan.manifest(config, reference, H200, "x", planned(config, reference)).build
        for config in (synthetic("7b"), synthetic("14b"))
    ]
    assert made[0] == made[1]
    assert made[0].name == "reference"


def test_a_manifest_survives_its_file(tmp_path: Path, reference: dispatch.Build) -> None:
    config = synthetic("7b")
    made = plan.manifest(config, reference, H200, "7b:tg128", planned(config, reference))
    dump(made, tmp_path / "manifest.json")
    assert load(tmp_path / "manifest.json") == made


def test_kv_bytes_follow_the_position_and_nothing_else_does(reference: dispatch.Build) -> None:
    config = synthetic("7b")
    short, long = (
        plan.manifest(config, reference, H200, "x", planned(config, reference, kv)).graph().nodes for kv in (64, 1641)
    )
    for a, b in zip(short, long, strict=True):
        assert (a.site, a.grid, a.block, a.weight_bytes) == (b.site, b.grid, b.block, b.weight_bytes)
        if a.site == "attn_split":
            assert b.kv_bytes * 64 == a.kv_bytes * 1641


def test_arguments_name_buffers_and_tensors_that_exist(reference: dispatch.Build) -> None:
    config = synthetic("llama-3.1-8b")
    geo = plan.geometry(config, 4096, 132)
    work = [*planned(config, reference), *prefill(config, reference, geo, 77, sample=True)]
    sizes = buffers.sizes(config, geo, BATCH)
    tensors = {tensor.name for tensor in config.model.tensors}
    for item in work:
        args = (item.weights, item.x, item.out) if isinstance(item, Gemm) else item.args
        for arg in args:
            if isinstance(arg, plan.Buf):
                assert arg.offset < sizes[arg.name]
            elif isinstance(arg, plan.Weight):
                assert arg.name in tensors
        if isinstance(item, plan.PlannedLaunch):
            assert len(item.args) == len(item.spec.params)
            assert item.output.offset + item.output_bytes <= sizes[item.output.name]


def test_prefill_multiplies_every_row_of_every_matrix_once(reference: dispatch.Build) -> None:
    config = synthetic("14b")
    work = prefill(config, reference, plan.geometry(config, 4096, 132), 512, sample=False)
    rows: Counter[tuple[int | None, str]] = Counter()
    for item in work:
        if isinstance(item, Gemm):
            role = item.site.partition("/")[0]
            assert item.out.offset == 4 * rows[item.layer, role]
            assert 2 * item.rows * item.cols <= buffers.TILE_BYTES
            assert item.add == (role in ("attn_output", "ffn_down"))
            rows[item.layer, role] += item.rows
    shape = config.model.shape
    assert rows == {(i, role): shape.matrix(role)[0] for i in range(48) for role in LAYER_ROLES}


@pytest.mark.parametrize("tokens", [0, 513])
def test_a_prefill_pass_has_its_limits(tokens: int, reference: dispatch.Build) -> None:
    config = synthetic("7b")
    with pytest.raises(PlanError, match=f"takes 1 to 512 tokens, not {tokens}"):
        prefill(config, reference, plan.geometry(config, 4096, 132), tokens, sample=True)


def test_a_position_outside_the_cache_is_refused(reference: dispatch.Build) -> None:
    config = synthetic("7b")
    with pytest.raises(PlanError, match="KV length 4097 is not between 1 and the capacity 4096"):
        planned(config, reference, 4097)
    with pytest.raises(PlanError, match="capacity of 0"):
        plan.geometry(config, 0, 132)


def test_a_32k_cache_of_14b_is_planned_and_sized_by_hand(reference: dispatch.Build) -> None:
    config = synthetic("14b")
    geo = plan.geometry(config, 32768, 132)
    assert geo.splits == 64
    plan.decode(config, reference, geo, 32768)
    sizes = buffers.sizes(config, geo, BATCH)
    assert sum(n for name, n in sizes.items() if name[:2] in ("k.", "v.")) == 48 * 2 * 2 * 8 * 128 * 32768
    offsets, total = buffers.layout(sizes)
    ends = sorted((offsets[name], offsets[name] + n) for name, n in sizes.items())
    assert all(a_end <= b for (_, a_end), (b, _) in pairwise(ends))
    assert ends[-1][1] <= total
    assert all(offset % 256 == 0 for offset in offsets.values())
