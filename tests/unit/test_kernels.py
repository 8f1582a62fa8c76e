"""Coverage proofs, byte counts and refusals of the kernel table, against hand-worked numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib.errors import AttribError
from attrib.models import LAYER_ROLES, builtin, shapes
from engine import kernels_ops as ops
from engine.kernels import Coverage, KernelSpec, Shape, fixed_passes, one_each, strided
from engine.kernels_catalog import catalog
from engine.kernels_matvec import matvec_float, matvec_padded_f32, mmvq, quantize_q8
from engine.kernels_weights import dequantize_f16, synth_fill


def coverage(spec: KernelSpec, shape: Shape) -> Coverage:
    return spec.coverage(shape, spec.grid(shape), spec.block(shape))


def test_the_seeds_dropped_units() -> None:
    down_7b = Shape(rows=3584, cols=18944)
    found = coverage(mmvq("q6_K", prefetch=True), down_7b)
    assert found.units == 3584 * 592
    assert found.covered == found.once == 3584 * 512
    assert not found.exact
    assert found.gaps() == "unit: 80 of 592 never computed (512..591)"
    assert 1 - found.once / found.units == pytest.approx(0.135, abs=0.001)


def test_prefetch_is_whole_up_to_16384_columns() -> None:
    spec = mmvq("q6_K", prefetch=True)
    assert coverage(spec, Shape(rows=4, cols=16384)).exact
    assert coverage(spec, Shape(rows=4, cols=16640)).gaps() == "unit: 8 of 520 never computed (512..519)"
    narrow = mmvq("q4_K", prefetch=True, threads=160)
    assert coverage(narrow, Shape(rows=4, cols=10240)).exact
    assert not coverage(narrow, Shape(rows=4, cols=10496)).exact


@pytest.mark.parametrize("name", sorted(shapes()))
def test_looping_kernels_cover_every_matrix_of_every_model(name: str) -> None:
    for tensor in builtin(name).tensors:
        if tensor.role not in LAYER_ROLES:
            continue
        shape = Shape(rows=tensor.rows, cols=tensor.cols)
        assert coverage(mmvq(tensor.quant), shape).exact
        if tensor.quant in ("q4_K", "q6_K"):
            assert coverage(matvec_padded_f32(tensor.quant), shape).exact


def test_a_grid_too_small_is_seen_on_its_axis() -> None:
    shape = Shape(rows=10, cols=256, tokens=2)
    spec = matvec_padded_f32("q4_K")
    assert spec.grid(shape) == (3, 2, 1)
    assert spec.units(shape) == 10 * 2 * 8
    assert spec.units_covered(shape, (2, 2, 1), spec.block(shape)) == 8 * 2 * 8
    assert spec.coverage(shape, (2, 1, 1), spec.block(shape)).gaps() == (
        "row: 2 of 10 never computed (8..9); token: 1 of 2 never computed (1..1)"
    )
    # Half the warps launched: half the rows, although the block's grid is right.
    assert spec.coverage(shape, (3, 2, 1), (32, 1, 1)).gaps() == "row: 4 of 10 never computed (6..9)"


def test_repeated_work_is_not_exact() -> None:
    twice = Coverage((("row", np.array([1, 2, 1])), ("unit", np.array([1, 1]))))
    assert (twice.units, twice.covered, twice.once) == (6, 6, 4)
    assert twice.gaps() == "row: 1 of 3 computed more than once (1..1)"
    assert not twice.exact


@settings(max_examples=60)
@given(st.integers(1, 2000), st.integers(1, 300), st.integers(1, 4))
def test_counts_agree_with_running_the_loops(size: int, step: int, passes: int) -> None:
    looped, fixed = np.zeros(size, int), np.zeros(size, int)
    for thread in range(step):
        looped[thread::step] += 1
        for k in range(passes):
            if thread + k * step < size:
                fixed[thread + k * step] += 1
    np.testing.assert_array_equal(strided(size, step), looped)
    np.testing.assert_array_equal(fixed_passes(size, step, passes), fixed)
    assert one_each(size, step).sum() == min(size, step)


def any_shape() -> st.SearchStrategy[Shape]:
    return st.builds(
        lambda rows, blocks, tokens, kv_heads, group, dim, kv, splits: Shape(
            rows=rows,
            cols=256 * blocks,
            tokens=tokens,
            heads=kv_heads * group,
            kv_heads=kv_heads,
            head_dim=dim,
            capacity=kv + 1,
            kv_len=kv,
            splits=splits,
            parts=128,
        ),
        st.integers(1, 400),
        st.integers(1, 60),
        st.integers(1, 5),
        st.integers(1, 9),
        st.integers(1, 8),
        st.sampled_from(ops.HEAD_DIMS),
        st.integers(1, 5000),
        st.integers(1, 128),
    )


@settings(max_examples=60)
@given(any_shape())
def test_every_kernel_covers_any_shape_exactly_on_its_own_grid(shape: Shape) -> None:
    for spec in catalog(shape.heads, shape.kv_heads, shape.head_dim):
        if spec.name.startswith("mmvq_v2_pf") and shape.cols > 16384:
            continue
        spec.check(shape)
        found = coverage(spec, shape)
        assert found.exact, f"{spec.name}: {found.gaps()}"
        assert found.units == spec.units(shape) > 0


def test_bytes_of_14b_matrices() -> None:
    attn_v = Shape(rows=1024, cols=5120)
    assert mmvq("q6_K").traffic(attn_v).weight_bytes == 4_587_520  # 1024 × 20 × 224
    assert mmvq("q4_K").traffic(attn_v).weight_bytes == 1024 * 20 * 144
    assert mmvq("q6_K").traffic(attn_v).act_bytes == 160 * 48 + 1024 * 4
    assert matvec_padded_f32("q6_K").traffic(attn_v).act_bytes == 5120 * 4 + 1024 * 4
    assert mmvq("q5_K").traffic(attn_v).weight_bytes == 1024 * 20 * 176
    assert mmvq("q2_K").traffic(attn_v).weight_bytes == 1024 * 20 * 84  # 1680 is a multiple of 16
    assert mmvq("q3_K").traffic(attn_v).weight_bytes == 1024 * 2208  # 20 × 110, padded
    assert mmvq("q4_1").traffic(Shape(rows=3, cols=576)).weight_bytes == 3 * 368  # 18 × 20, padded
    assert matvec_float("f16").traffic(attn_v).weight_bytes == 1024 * 5120 * 2
    assert quantize_q8().traffic(Shape(cols=5120)).act_bytes == 5120 * 4 + 160 * 48


def test_bytes_of_attention_grow_with_the_kv_length_alone() -> None:
    spec = ops.attn_split(40, 8, 128)
    shape = Shape(heads=40, kv_heads=8, head_dim=128, splits=32, kv_len=3254, capacity=4096)
    short = Shape(heads=40, kv_heads=8, head_dim=128, splits=32, kv_len=1, capacity=4096)
    assert spec.traffic(shape).kv_bytes == 2 * 8 * 3254 * 128 * 2
    assert spec.traffic(short).kv_bytes == 4096
    assert spec.grid(shape) == spec.grid(short) == (8, 32, 1)
    assert spec.defines == (("GROUP", 5), ("HEAD_DIM", 128))
    write = ops.rope_kv_write().traffic(Shape(heads=40, kv_heads=8, head_dim=128, capacity=4096))
    assert write.kv_bytes == 2 * 8 * 128 * 2


def test_bytes_of_fills_and_conversions() -> None:
    shape = Shape(rows=2, cols=512)
    assert synth_fill("q6_K").traffic(shape).weight_bytes == 2 * 2 * 224
    moved = dequantize_f16("q4_K").traffic(shape)
    assert (moved.weight_bytes, moved.act_bytes) == (2 * 2 * 144, 2 * 512 * 2)


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (mmvq("q6_K"), Shape(cols=300), "multiple of 256 weights, not 300"),
        (mmvq("iq4_xs"), Shape(cols=288), "multiple of 256 weights, not 288"),
        (mmvq("q5_1"), Shape(cols=48), "multiple of 32 weights, not 48"),
        (matvec_padded_f32("q4_K"), Shape(cols=32), "multiple of 256 weights, not 32"),
        (quantize_q8(), Shape(cols=33), "multiple of 32 values, not 33"),
        (ops.rms_norm(), Shape(cols=6), "multiple of four values a row, not 6"),
        (ops.attn_split(2, 1, 64), Shape(heads=2, head_dim=96), "head_dim of 64 or 128, not 96"),
        (ops.attn_combine(), Shape(head_dim=64, splits=257), "1 to 256 splits, not 257"),
        (ops.argmax_partial(), Shape(parts=0), "1 to 1024 parts"),
    ],
)
def test_shapes_a_kernel_cannot_compute_are_refused(spec: KernelSpec, shape: Shape, message: str) -> None:
    with pytest.raises(AttribError, match=message):
        spec.check(shape)


def test_block_sizes_that_are_not_warps_are_refused() -> None:
    with pytest.raises(AttribError, match="32 to 256 threads"):
        mmvq("q6_K", threads=100)
