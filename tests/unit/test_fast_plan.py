"""Plans of the fast build: every launch proven, bytes and manifests, refusals in a sentence, memory and prefill."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from attrib.manifest import DeviceInfo, dump, load
from attrib.models import BLOCKS, LAYER_ROLES, Model, recipe_tensors
from engine import dispatch, fast_load, fast_model, fast_plan, fast_tables, plan, program
from engine.buffers import TILE_BYTES, layout
from engine.config import ModelConfig, synthetic
from engine.driver import Gpu
from engine.errors import PlanError
from engine.prefill import BATCH, Gemm
from engine.session import Session
from tests.helpers.fast_plans import (
    BUILDS,
    KV_LEN,
    MODELS,
    SHAPE,
    SHARED,
    SMS,
    argument,
    made,
    planned,
    steps_of,
    tables_of,
)

H200 = DeviceInfo("NVIDIA H200", SMS, 4.814e12, 2048, "9.0")


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("model", MODELS)
def test_every_launch_and_stage_is_proven(model: str, build: str) -> None:
    config = synthetic(model)
    launches = planned(config, build)
    assert all(launch.units == launch.units_covered > 0 for launch in launches)
    if build == "fast":
        assert [launch.site.partition("/")[0] for launch in launches] == ["embed", "step", "advance"]
        parts = launches[1].stages
        assert all(stage.units == stage.units_covered > 0 for stage in parts)
    else:
        assert not any(launch.stages for launch in launches)
        parts = steps_of(launches)
    sites = Counter(part.site.partition("/")[0] for part in parts)
    layer = ("attn_qkv", "attention", "attn_output", "ffn_gate_up", "ffn_down")
    shape = config.model.shape
    assert {site: count for site, count in sites.items() if site != "output"} == dict.fromkeys(layer, shape.layers)
    streamed = [*(t for t in config.model.tensors if t.role in LAYER_ROLES), config.model.head()]
    in_matrices = sum(t.rows * t.cols for t in streamed) // 32
    assert sum(launch.units for launch in steps_of(launches)) == in_matrices + shape.layers * shape.heads * KV_LEN


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("model", MODELS)
def test_weight_bytes_are_the_model_s_and_padding_to_whole_steps(model: str, build: str) -> None:
    config = synthetic(model)
    moved = sum(launch.spec.traffic(launch.shape).weight_bytes for launch in steps_of(planned(config, build)))
    streamed = [*(t for t in config.model.tensors if t.role in LAYER_ROLES), config.model.head()]
    padding = sum(t.rows * (-t.cols % 512) // BLOCKS[t.quant][0] * BLOCKS[t.quant][1] for t in streamed)
    assert moved == config.model.step_bytes() + padding
    padded = {"qwen2.5-0.5b": {896, 4864}, "qwen2.5-1.5b": {8960}, "qwen2.5-3b": {11008}}
    assert {t.cols for t in streamed if t.cols % 512} == padded.get(model, set())


@pytest.mark.parametrize("model", MODELS)
def test_a_manifest_with_stages_survives_its_file(model: str, tmp_path: Path) -> None:
    """The reader refuses a launch whose stages do not add up to it."""
    config = synthetic(model)
    one = plan.manifest(config, dispatch.load("fast"), H200, "tg128", planned(config))
    dump(one, tmp_path / "manifest.json")
    assert load(tmp_path / "manifest.json") == one
    step = one.graph().nodes[1]
    assert (step.kernel, step.grid, step.block) == (
        "fast_step", (fast_model.blocks_of(config, SMS), 1, 1), (512, 1, 1),
    )  # fmt: skip
    assert [stage.i for stage in step.stages] == list(range(len(step.stages)))
    many = plan.manifest(config, dispatch.load("phases"), H200, "tg128", planned(config, "phases")).graph().nodes
    for name in ("weight_bytes", "kv_bytes", "act_bytes", "units"):
        assert sum(getattr(node, name) for node in many[1:-1]) == getattr(step, name), name


def test_14b_by_hand() -> None:
    config = synthetic("14b")
    (step,) = steps_of(planned(config))
    stages = {stage.site: stage for stage in step.stages if stage.layer in (0, None)}
    assert stages["attn_qkv/q4_K+q6_K"].weight_bytes == 768 * 10 * 2304 + 128 * 10 * 3360
    assert stages["attn_qkv/q4_K+q6_K"].kv_bytes == 2 * 2 * 8 * 128
    assert stages["attention"].kv_bytes == 2 * 2 * 8 * 128 * 100
    assert stages["attention"].act_bytes == 2 * 4 * 40 * 128
    assert stages["attention"].units == 40 * 100
    assert stages["ffn_gate_up/q4_K"].units == 27648 * 160
    assert stages["ffn_down/q6_K"].weight_bytes == 640 * 27 * 3360
    head = [stage.weight_bytes for stage in step.stages if stage.site == "output/q6_K"]
    # 19008 tiles are 144 a block and 1440 records, in at most 320 at once: five pieces of 3802 tiles, the last of 3800
    assert head == [*[3802 * 10 * 3360] * 4, 3800 * 10 * 3360]
    assert len(step.stages) == 48 * 5 + 5
    assert argument(step, "image_steps") == 27  # ffn_down has 13824 columns
    assert argument(step, "most_pairs") == 24  # 768 tiles of q and k are six a block, four pairs each
    assert argument(step, "turns") == 0
    assert dict(step.spec.defines) == {"HEAD_DIM": 128, "GROUP": 5, "FORMATS": 3}


def test_blocks_have_rows_in_every_residual() -> None:
    blocks = {model: fast_model.blocks_of(synthetic(model), SMS) for model in MODELS}
    assert blocks == {"qwen2.5-0.5b": 112, **dict.fromkeys(MODELS[1:], 132)}  # 0.5b: 896 rows are 112 tiles
    assert fast_model.blocks_of(synthetic("14b"), 64) == 64
    config = made()
    assert fast_model.blocks_of(config, 1000) == 64  # 512 rows; v has 16 tiles and is not waited for
    (step,) = steps_of(planned(config))
    assert step.grid == (64, 1, 1)


def test_a_build_s_hash_tells_its_macros_and_its_launches_apart() -> None:
    fast = dispatch.load("fast")
    text = "[step]\npersistent = {}\nparams = {{ {} }}\n"
    builds = [
        fast,
        dispatch.load("phases"),
        dispatch.parse("fast", text.format("true", "DEEP = 6")),
        dispatch.parse("fast", text.format("true", "DEEP = 7")),
        dispatch.parse("fast", text.format("false", "DEEP = 7")),
    ]
    assert len({build.info("sources").hash for build in builds}) == 5
    assert dispatch.parse("fast", text.format("true", "")).info("sources") == fast.info("sources")
    assert fast.info("sources").hash != fast.info("other sources").hash
    assert set(dispatch.STEP_SOURCES) <= set(fast.sources())
    config = made()
    geo = plan.geometry(config, 4096, SMS, SHARED)
    (step,) = steps_of(program.decode(config, builds[2], geo, 1))
    assert ("DEEP", 6) in step.spec.defines


@pytest.mark.parametrize("text", ["[step]\n", "[step]\npersistent = 1\n", "[step]\npersistent = true\nblocks = 3\n"])
def test_a_step_table_that_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"\[step\] takes persistent = true or false and params"):
        dispatch.parse("broken", text)


def unchecked(**changes: int) -> ModelConfig:
    """A model that the engine as a whole would refuse."""
    shape = replace(SHAPE, **changes)
    return ModelConfig(Model(shape, "made-up", tuple(recipe_tensors(shape))), "made-up", 4096)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (synthetic("qwen3-0.6b"), r"the fast build has no norm of q and k \(qwen3\); use the reference build"),
        (
            made({"attn_k": "q6_K"}),
            r"the fast build streams blk\.0\.attn_q\.weight \(q4_K\) and blk\.0\.attn_k\.weight \(q6_K\) as one "
            "matrix, so they must be of one type; use the reference build",
        ),
        (
            made({"ffn_up": "q8_0"}),
            r"blk\.0\.ffn_gate\.weight \(q4_K\) and blk\.0\.ffn_up\.weight \(q8_0\) as one matrix",
        ),
        (
            made({"ffn_down": "q2_K"}),
            r"the fast build has no tiles for blk\.0\.ffn_down\.weight \(q2_K\); it has q4_K, q6_K, q5_0, q8_0; "
            "use the reference build",
        ),
        (made({"output": "f16"}), r"the fast build has no tiles for output\.weight \(f16\)"),
        (made(vocab=644), r"the fast build takes whole tiles of 8 rows, and output\.weight has 644"),
        (
            unchecked(head_dim=96),
            "the fast build's attention takes a head_dim of 64 or 128, not 96",
        ),
    ],
    ids=["qwen3", "mixed-qk", "mixed-gate-up", "q2_K", "f16", "vocab", "head_dim"],
)
def test_what_the_fast_build_cannot_run_is_refused_in_a_sentence(
    config: ModelConfig, sentence: str, build: str
) -> None:
    with pytest.raises(PlanError, match=sentence) as refusal:
        planned(config, build)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("build", BUILDS)
def test_too_little_shared_memory_is_refused_with_both_numbers(build: str) -> None:
    sentence = (
        r"a block has 101376 bytes of shared memory; besides \d+ for activations, a ring of at least 100800 bytes"
    )
    with pytest.raises(PlanError, match=sentence):
        planned(synthetic("14b"), build, shared=101_376)


@pytest.mark.parametrize("build", BUILDS)
def test_a_gpu_without_bulk_copies_is_refused_by_name(build: str) -> None:
    gpu = Gpu(0, "NVIDIA A100", 108, 2048, 1.5e12, 40 << 20, 166_912, (8, 0))
    config = made()
    geo = plan.geometry(config, 64, gpu.sms, gpu.shared_bytes)
    sentence = (
        f"build {build} needs a GPU of compute capability 9.0 or later, and NVIDIA A100 has 8.0; use the reference"
    )
    with pytest.raises(PlanError, match=sentence):
        Session(config, dispatch.load(build), gpu, geo)
    Session(config, dispatch.load("reference"), gpu, geo)
    Session(config, dispatch.load(build), replace(gpu, compute_capability=(10, 3)), geo)


@pytest.mark.parametrize("kv_len", [0, 65])
def test_a_position_outside_the_cache_is_refused(kv_len: int) -> None:
    config = made()
    with pytest.raises(PlanError, match=f"KV length {kv_len} is not between 1 and the capacity 64"):
        program.decode(config, dispatch.load("fast"), plan.geometry(config, 64, SMS, SHARED), kv_len)


@pytest.mark.parametrize("model", [*MODELS, "llama-3.1-8b"])
def test_arguments_name_buffers_and_weights_that_exist(model: str) -> None:
    config = synthetic(model)
    build, geo = dispatch.load("fast"), plan.geometry(config, 4096, SMS, SHARED, stamps=True)
    sizes, weights = program.buffer_sizes(config, build, geo, BATCH), program.weight_sizes(config, build)
    work = [*program.decode(config, build, geo, KV_LEN), *program.prefill(config, build, geo, 77, sample=True)]
    for item in work:
        args = (item.weights, item.x, item.out) if isinstance(item, Gemm) else item.args
        for arg in args:
            if isinstance(arg, plan.Buf):
                assert arg.offset < sizes[arg.name]
            elif isinstance(arg, plan.Weight):
                assert arg.offset < weights[arg.name]
        if isinstance(item, plan.PlannedLaunch):
            assert len(item.args) == len(item.spec.params)
    arrays = tables_of(config).arrays(sizes.__getitem__, weights.__getitem__)
    assert {name: array.nbytes for name, array in arrays.items()} == {name: sizes[name] for name in arrays}
    blocks, s = fast_model.blocks_of(config, SMS), config.model.shape
    assert sizes["stamps"] == 16 * len(tables_of(config).phases) * blocks
    most = max(1, min(blocks // fast_plan.groups(config), fast_tables.MOST_SPLITS))
    assert sizes["part_acc"] >= 4 * s.heads * s.head_dim * most
    assert sizes["part_ml"] >= 8 * s.heads * most
    assert sizes["part_value"] >= 4 * blocks


@pytest.mark.parametrize("model", [*MODELS, "llama-3.1-8b"])
def test_every_tensor_has_a_place_and_biases_are_one_vector(model: str) -> None:
    config = synthetic(model)
    found = fast_model.places(config)
    offsets, _ = layout(found)
    packed = {part.tensor.name for matrix in fast_model.matrices(config).values() for part in matrix.parts}
    direct = {tensor.name for tensor in fast_model.resident(config)}
    names = {tensor.name for tensor in config.model.tensors}
    assert packed | direct == names
    assert packed & direct == ({"token_embd.weight"} if config.model.shape.tied else set())
    q = config.model.find("attn_q_bias", 1)
    assert (q is not None) == config.model.shape.bias
    if q is not None:
        k, v = (config.model.find(f"attn_{each}_bias", 1) for each in "kv")
        assert offsets[k.name] == offsets[q.name] + 4 * q.cols
        assert offsets[v.name] == offsets[k.name] + 4 * k.cols


@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "qwen2.5-7b"])
def test_loading_stages_every_tensor_once(model: str) -> None:
    config = synthetic(model)
    work = fast_load.groups(config)
    assert Counter(t.name for group in work for t in group) == Counter(t.name for t in config.model.tensors)
    staged = {name for group in work for name in fast_load.staged(config, group)}
    assert staged == {part.tensor.name for m in fast_model.matrices(config).values() for part in m.parts}
    assert {spec.name for spec in fast_load.pack_specs(config)} == {
        f"tile_pack_{matrix.quant}" for matrix in fast_model.matrices(config).values()
    }


def test_prefill_multiplies_every_row_of_every_matrix_once() -> None:
    config = synthetic("7b")
    geo = plan.geometry(config, 4096, SMS, SHARED)
    rows: Counter[tuple[int | None, str]] = Counter()
    tiled: Counter[tuple[int | None, str]] = Counter()
    for item in program.prefill(config, dispatch.load("fast"), geo, 512, sample=True):
        if isinstance(item, Gemm):
            role = item.site.partition("/")[0]
            assert item.out.offset == 4 * rows[item.layer, role]
            assert 2 * item.rows * item.cols <= TILE_BYTES
            rows[item.layer, role] += item.rows
        elif item.spec.name.startswith("tile_dequantize"):
            tiled[item.layer, item.args[0].name] += item.shape.rows
    shape = config.model.shape
    assert rows == {(i, role): shape.matrix(role)[0] for i in range(28) for role in LAYER_ROLES}
    found = fast_model.matrices(config)
    assert tiled == {(m.layer, name): m.rows for name, m in found.items() if m.layer is not None}


def test_places_of_tensors_in_their_matrices_by_hand() -> None:
    config = made()
    planner = fast_plan.FastPlanner(config, dispatch.load("fast"), plan.geometry(config, 64, SMS, SHARED), layer=1)
    want = {  # columns, first row, after the count of rows; base, stride, half; tiles, piece, blocks
        "attn_q": (512, 40, 0, 1, 32, 80, 80, 64),
        "attn_k": (512, 40, 512, 1, 32, 80, 80, 64),
        "attn_v": (512, 40, 0, 1, 0, 16, 16, 64),
        "ffn_gate": (512, 40, 0, 2, 0, 256, 256, 64),
        "ffn_up": (512, 40, 1, 2, 0, 256, 256, 64),
        "ffn_down": (1024, 40, 0, 1, 0, 64, 64, 64),
    }
    for role, numbers in want.items():
        _, args = planner.dequantize(role, 40, 8)
        assert args[2:] == (8, *numbers), role
    with pytest.raises(PlanError, match=r"token_embd\.weight is not part of a fused matrix"):
        fast_model.place_of(fast_model.matrices(config), config.model.find("token_embd"))
