"""Norm, rope, attention, embedding, sampling and conversion kernels on the host build."""

from __future__ import annotations

import numpy as np
import pytest

from attrib.models import BLOCKS
from engine import kernels_ops as ops
from engine import quant, synthetic
from engine.kernels import Shape
from engine.kernels_weights import dequantize_f16, synth_fill
from engine.repack import GPU_QUANTS, gpu_row_bytes, to_gpu
from engine.rope import rope_table
from tests.helpers import reference
from tests.host_cuda.launcher import aligned, launch, zeros

HEADS, KV_HEADS = 10, 2


def normal(*size: int, seed: int = 0) -> np.ndarray:
    return aligned(np.random.default_rng(seed).standard_normal(size).astype(np.float32))


def integer(*values: int) -> np.ndarray:
    return aligned(np.array(values, np.int32))


def close(got: np.ndarray, want: np.ndarray, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize("cols", [4, 132, 5120])
def test_rms_norm(cols: int) -> None:
    x, weight = normal(3, cols), normal(cols, seed=1)
    want = reference.rms_norm(x.astype(np.float64), weight.astype(np.float64), 1e-6)
    rounded = zeros((3, cols), np.float16)
    launch(ops.rms_norm(half=True), Shape(cols=cols, tokens=3), x, weight, rounded, cols, 1e-6)
    launch(ops.rms_norm(), Shape(cols=cols, tokens=3), x, weight, x, cols, 1e-6)  # in place
    np.testing.assert_array_equal(rounded, x.astype(np.float16))
    close(x, want)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("head_dim", "tokens"), [(64, 3), (64, 19), (128, 1), (128, 5)])
def test_rope_and_kv_write(interleaved: int, head_dim: int, tokens: int, biased: bool) -> None:
    first, capacity = 5, tokens + 6
    q, k, v = (normal(tokens, n, head_dim, seed=n) for n in (HEADS, KV_HEADS, 3))
    v = aligned(v[:, :KV_HEADS])
    biases = [normal(n, head_dim, seed=n + 9) for n in (HEADS, KV_HEADS, KV_HEADS)] if biased else [None] * 3
    whole = [x if bias is None else x + bias for x, bias in zip((q, k, v), biases, strict=True)]
    want_q, want_k = (
        reference.rope(x.astype(np.float64), first + np.arange(tokens), 1e6, bool(interleaved)) for x in whole[:2]
    )
    caches = [aligned(np.full((KV_HEADS, capacity, head_dim), 7, np.float16)) for _ in range(2)]
    table = aligned(rope_table(1e6, head_dim, capacity))
    shape = Shape(heads=HEADS, kv_heads=KV_HEADS, head_dim=head_dim, tokens=tokens, capacity=capacity)
    sizes = (tokens, HEADS, KV_HEADS, head_dim, capacity, interleaved)
    launch(ops.rope_kv_write(), shape, q, k, v, *biases, table, integer(first), *caches, *sizes)
    close(q, want_q)
    end = first + tokens
    close(caches[0][:, first:end], want_k.transpose(1, 0, 2), 1e-3)
    np.testing.assert_array_equal(caches[1][:, first:end], whole[2].transpose(1, 0, 2).astype(np.float16))
    for cache in caches:  # every other position keeps what it had
        assert (np.delete(cache, np.arange(first, end), axis=1) == 7).all()


def test_rope_past_the_capacity_writes_nothing() -> None:
    q, k = normal(1, HEADS, 64), normal(1, KV_HEADS, 64)
    caches = [aligned(np.full((KV_HEADS, 4, 64), 7, np.float16)) for _ in range(2)]
    before = q.copy()
    shape = Shape(heads=HEADS, kv_heads=KV_HEADS, head_dim=64, capacity=4)
    table, none = aligned(rope_table(1e4, 64, 4)), (None, None, None)
    launch(ops.rope_kv_write(), shape, q, k, k, *none, table, integer(4), *caches, 1, HEADS, KV_HEADS, 64, 4, 0)
    np.testing.assert_array_equal(q, before)
    assert all((cache == 7).all() for cache in caches)


def test_rope_table_worked_by_hand() -> None:
    table = rope_table(100.0, 4, 3, np.array([1, 5], np.float32))
    assert table.shape == (3, 2, 2)
    np.testing.assert_allclose(table[2, 0], [np.cos(2), np.sin(2)], rtol=1e-6)
    np.testing.assert_allclose(table[1, 1], [np.cos(0.02), np.sin(0.02)], rtol=1e-6)  # 100^(-1/2) / 5


def decode_attention(heads: int, kv_heads: int, head_dim: int, length: int, splits: int) -> None:
    capacity = length + 3
    q = normal(1, heads, head_dim) * np.float32(3)
    cache = [np.full((kv_heads, capacity, head_dim), np.nan, np.float16) for _ in range(2)]
    for seed, part in enumerate(cache):
        part[:, :length] = normal(kv_heads, length, head_dim, seed=seed + 5)
    shape = Shape(heads=heads, kv_heads=kv_heads, head_dim=head_dim, splits=splits, kv_len=length, capacity=capacity)
    part_acc = aligned(np.full((heads, splits, head_dim), np.nan, np.float32))
    part_ml = aligned(np.full((heads, splits, 2), np.nan, np.float32))
    position, out = integer(length - 1), zeros((heads, head_dim))
    spec, scale = ops.attn_split(heads, kv_heads, head_dim), 1 / np.sqrt(head_dim)
    sizes = (heads, kv_heads, capacity, splits, scale)
    caches = [aligned(part) for part in cache]
    launch(spec, shape, aligned(q), *caches, position, part_acc, part_ml, *sizes)
    launch(ops.attn_combine(), shape, part_acc, part_ml, position, out, head_dim, splits)
    keys, values = (part[:, :length].astype(np.float64) for part in cache)
    want = reference.attention(q.astype(np.float64), keys, values, length - 1)[0]
    assert reference.nmse(out, want) < 1e-11
    _, live = ops.live_splits(length, splits)
    assert np.isnan(part_ml[:, live:]).all()  # splits without positions write nothing
    assert np.isfinite(part_ml[:, :live]).all()


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 65, 127, 128, 129, 300])
def test_decode_attention_at_tile_and_split_boundaries(length: int) -> None:
    decode_attention(HEADS, KV_HEADS, 128, length, 4)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(7, 1, 64), (3, 3, 128), (14, 2, 64), (20, 2, 128)])
def test_decode_attention_groups(heads: int, kv_heads: int, head_dim: int) -> None:
    decode_attention(heads, kv_heads, head_dim, 97, 3)


def test_query_groups_and_live_splits() -> None:
    assert [ops.query_group(*pair) for pair in ((40, 8), (28, 4), (32, 32), (20, 2), (22, 2))] == [
        5,
        7,
        1,
        5,
        1,
    ]
    assert ops.live_splits(1, 4) == (32, 1)
    assert ops.live_splits(129, 4) == (64, 3)
    assert ops.live_splits(128, 4) == (32, 4)


@pytest.mark.parametrize(("first", "tokens"), [(0, 1), (0, 33), (30, 5), (31, 40)])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(HEADS, KV_HEADS, 128), (3, 3, 64)])
def test_prefill_attention(first: int, tokens: int, heads: int, kv_heads: int, head_dim: int) -> None:
    length, capacity = first + tokens, first + tokens + 2
    q = normal(tokens, heads, head_dim)
    cache = [np.full((kv_heads, capacity, head_dim), np.nan, np.float16) for _ in range(2)]
    for seed, part in enumerate(cache):
        part[:, :length] = normal(kv_heads, length, head_dim, seed=seed + 5)
    shape = Shape(heads=heads, kv_heads=kv_heads, head_dim=head_dim, tokens=tokens, capacity=capacity, kv_len=length)
    spec, out = ops.attn_prefill(head_dim), zeros((tokens, heads, head_dim), np.float16)
    sizes = (tokens, heads, kv_heads, capacity, 1 / np.sqrt(head_dim))
    launch(spec, shape, q, *(aligned(part) for part in cache), integer(first), out, *sizes)
    keys, values = (part[:, :length].astype(np.float64) for part in cache)
    assert reference.nmse(out, reference.attention(q.astype(np.float64), keys, values, first)) < 1e-6  # q, weights: f16
    assert spec.coverage(shape, spec.grid(shape), spec.block(shape)).exact


def test_elementwise() -> None:
    shape = Shape(cols=260, tokens=3)
    a, b, bias, out = normal(3, 260), normal(3, 260, seed=1), normal(260, seed=2), zeros((3, 260))
    a[0, 0], a[0, 1] = 200, -200  # both ends of the sigmoid
    launch(ops.swiglu(), shape, a, b, out, 780)
    with np.errstate(over="ignore"):
        close(out, reference.swiglu(a.astype(np.float64), b.astype(np.float64)), 2e-6)
        rounded = zeros((3, 260), np.float16)
        launch(ops.swiglu(half=True), shape, a, b, rounded, 780)
        np.testing.assert_array_equal(rounded, out.astype(np.float16))
    both = aligned(a)
    launch(ops.add_residual(), shape, both, b, 780)
    np.testing.assert_array_equal(both, a + b)
    launch(ops.add_bias(), shape, both, bias, 260)
    np.testing.assert_array_equal(both, (a + b) + bias)


@pytest.mark.parametrize(
    ("kind", "cols"),
    [*((kind, 1280) for kind in GPU_QUANTS), *((kind, 96) for kind in GPU_QUANTS if BLOCKS[kind][0] <= 32)],
)
def test_embedding_and_dequantization_are_exact(kind: str, cols: int) -> None:
    stored = synthetic.random_rows(kind, 5, cols, np.random.default_rng(8))
    want, weights = quant.dequantize(kind, stored, cols), aligned(to_gpu(kind, stored, cols))
    out = zeros((3, cols))
    launch(ops.embed(kind), Shape(rows=5, cols=cols, tokens=3), weights, integer(4, 0, 2), out, cols)
    np.testing.assert_array_equal(out, want[[4, 0, 2]])
    if kind != "f16":
        halves = zeros((5, cols), np.float16)
        launch(dequantize_f16(kind), Shape(rows=5, cols=cols), weights, halves, cols)
        np.testing.assert_array_equal(halves, want.astype(np.float16))


@pytest.mark.parametrize("kind", GPU_QUANTS)
def test_synthetic_fill_makes_the_bytes_of_numpy(kind: str) -> None:
    rows, cols, key = 3, 2816, synthetic.tensor_key(11, "blk.0.ffn_down.weight")
    out = aligned(np.full((rows, gpu_row_bytes(kind, cols)), 0xEE, np.uint8))
    if kind in quant.FLOATS:
        tail = (0.125, 0.5)
        stored = synthetic.synth_floats(kind, rows, cols, key, offset=tail[0], scale=tail[1])
    else:
        tail = synthetic.scale_bits(kind, 0.02)
        stored = synthetic.synth_rows(kind, rows, cols, key, d_bits=tail[0], dmin_bits=tail[1])
    spec = synth_fill(kind)
    launch(spec, Shape(rows=rows, cols=cols), out, cols, *synthetic.key_halves(key), *tail)
    np.testing.assert_array_equal(out, to_gpu(kind, stored, cols))


def sample(logits: np.ndarray, parts: int, state: np.ndarray, ring: np.ndarray, consumed: int) -> int:
    shape = Shape(cols=len(logits), parts=parts)
    values, indices = zeros(parts), zeros(parts, np.int32)
    launch(ops.argmax_partial(), shape, aligned(logits), values, indices, len(logits))
    launch(ops.advance(), shape, values, indices, state, ring, parts, consumed, len(ring))
    return int(state[ops.STATE_TOKEN])


@pytest.mark.parametrize(("n", "parts"), [(1, 1), (300, 2), (3001, 128), (1000, 3)])
def test_sampling_takes_the_lowest_index_of_the_largest(n: int, parts: int) -> None:
    state, ring = integer(0, 0, 0), integer(-1, -1)
    logits = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    assert sample(logits, parts, state, ring, 1) == logits.argmax()
    ties = np.full(n, -3, np.float32)
    ties[[n // 2, n - 1]] = 9
    assert sample(ties, parts, state, ring, 1) == n // 2
    assert sample(np.full(n, -np.inf, np.float32), parts, state, ring, 1) == 0
    broken = logits.copy()
    broken[n // 3] = np.nan
    if n > 1:
        assert sample(broken, parts, state, ring, 1) == np.nanargmax(broken)


def test_advance_moves_the_state_and_wraps_the_ring() -> None:
    state, ring = integer(10, 3, 0), integer(-1, -1)
    for turn, best in enumerate((5, 2, 7)):
        sample(np.eye(8, dtype=np.float32)[best], 2, state, ring, 512 if turn == 0 else 1)
    assert state.tolist() == [524, 7, 3]
    assert ring.tolist() == [7, 2]
