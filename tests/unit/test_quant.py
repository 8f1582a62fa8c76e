"""Block formats against the gguf package, worked numbers, and the layouts' round trips."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib.errors import AttribError
from attrib.models import BLOCKS
from engine import quant, quant_blocks, repack, synthetic
from engine.probe import probe_activations, probe_rows

QUANTS = quant.QUANTS
BLOCK_QUANTS = tuple(quant_blocks.DEQUANTIZERS)
COLS = 512


def rows_of(kind: str, rows: int = 7, seed: int = 1) -> np.ndarray:
    return synthetic.random_rows(kind, rows, COLS, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", QUANTS)
def test_dequantizer_agrees_with_the_gguf_package(kind: str) -> None:
    stored = rows_of(kind)
    number = gguf.GGMLQuantizationType(BLOCKS[kind][2])
    want = gguf.quants.dequantize(np.ascontiguousarray(stored), number).reshape(7, COLS)
    np.testing.assert_array_equal(quant.dequantize(kind, stored, COLS), want)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(QUANTS), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_any_bits_mean_what_the_gguf_package_says(kind: str, blocks: int, seed: int) -> None:
    elements, size, number = BLOCKS[kind]
    cols = 32 * blocks * max(1, elements // 32)
    stored = np.random.default_rng(seed).integers(0, 256, (3, cols // elements * size), np.uint8)
    with np.errstate(all="ignore"):  # scales that are NaN or infinite
        want = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType(number)).reshape(3, cols)
        np.testing.assert_array_equal(quant.dequantize(kind, stored, cols), want)
    np.testing.assert_array_equal(repack.from_gpu(kind, repack.to_gpu(kind, stored, cols), cols), stored)


@pytest.mark.parametrize("kind", QUANTS)
def test_gpu_layout_is_invertible_and_keeps_rows_apart(kind: str) -> None:
    stored = rows_of(kind)
    laid_out = repack.to_gpu(kind, stored, COLS)
    assert laid_out.shape == (7, repack.gpu_row_bytes(kind, COLS))
    assert laid_out.shape[1] % 16 == 0
    np.testing.assert_array_equal(repack.from_gpu(kind, laid_out, COLS), stored)
    np.testing.assert_array_equal(repack.to_gpu(kind, stored[3:4], COLS), laid_out[3:4])


@pytest.mark.parametrize("kind", repack.PLANES)
def test_planes_take_every_stored_byte_once(kind: str) -> None:
    taken = sorted(byte for plane in repack.PLANES[kind] for byte in range(plane.first, plane.end))
    assert taken == list(range(BLOCKS[kind][1]))
    stored = rows_of(kind)
    laid_out = repack.to_gpu(kind, stored, COLS)
    assert not laid_out[:, stored.shape[1] :].any()
    if all(plane.run == plane.gpu_run for plane in repack.PLANES[kind]):
        np.testing.assert_array_equal(np.sort(laid_out[:, : stored.shape[1]], axis=1), np.sort(stored, axis=1))


def test_runs_worked_by_hand() -> None:
    # one byte, 2-bit quants 3, 0, 2, 1 from the lowest bits up
    assert quant_blocks.unpack_bits(np.array([[0b01_10_00_11]], np.uint8), 2, 1).tolist() == [[3, 0, 2, 1]]
    # two bytes in runs of 2: the low nibbles of both, then the high ones
    assert quant_blocks.unpack_bits(np.array([[0x21, 0x43]], np.uint8), 4, 2).tolist() == [[1, 3, 2, 4]]
    assert quant_blocks.pack_bits(np.array([[1, 3, 2, 4]], np.uint8), 4, 2).tolist() == [[0x21, 0x43]]


def test_a_fifth_bit_on_the_gpu_is_bit_n_of_byte_b_for_quant_4n_plus_b() -> None:
    block = np.zeros((1, 22), np.uint8)
    block[0, 2:6] = np.array([1 << 27], "<u4").view(np.uint8)  # quant 27 = 4 · 6 + 3
    laid_out = repack.to_gpu("q5_0", block, 32)[0]
    assert laid_out[16:20].tolist() == [0, 0, 0, 1 << 6]


def test_a_q3_k_weight_worked_by_hand() -> None:
    block = np.zeros((1, 110), np.uint8)
    block[0, 9] = 1 << 6  # third bit of sub-block 6, element 9
    block[0, 32 + 32 + 9] = 0b00_10_00_00  # low bits 2 of half 1, quarter 2, element 9: q = 6, minus 4 is 2
    block[0, 96 + 4] = 0x70  # scale 12, low bits 7
    block[0, 104 + 0] = 0b11_00_00_00  # and high bits 3: 55 − 32 = 23
    block[0, 108:] = np.array([0.5], np.float16).view(np.uint8)
    values = quant.dequantize("q3_K", block, 256)[0]
    assert values[6 * 32 + 9] == 0.5 * 23 * 2
    assert values[6 * 32 + 10] == 0.5 * 23 * -4
    assert values[0] == 0.5 * -32 * -4


def test_an_iq4_xs_weight_worked_by_hand() -> None:
    block = np.zeros((1, 136), np.uint8)
    block[0, :2] = np.array([2.0], np.float16).view(np.uint8)
    block[0, 2:4] = np.array([0b10 << 6], "<u2").view(np.uint8)  # scale 3: high bits 2
    block[0, 4 + 1] = 0x50  # low bits 5: 37 − 32 = 5
    block[0, 8 + 48 + 1] = 0xF0  # sub-block 3, element 17: index 15, the value 113
    values = quant.dequantize("iq4_xs", block, 256)[0]
    assert values[96 + 17] == 2 * 5 * 113
    assert values[96 + 1] == 2 * 5 * -127
    assert values[0] == 2 * -32 * -127


@pytest.mark.parametrize("kind", QUANTS)
def test_scales_that_are_not_finite_are_found_by_row(kind: str) -> None:
    stored = rows_of(kind).copy()
    assert quant.not_finite(kind, stored) is None
    size = BLOCKS[kind][1]
    for at in quant_blocks.SCALES_AT.get(kind, (0,)):
        broken = stored.copy()
        patterns = {"f32": np.array([np.nan], "<f4"), "bf16": np.array([0x7F80], "<u2")}
        pattern = patterns.get(kind, np.array([np.nan], "<f2")).view(np.uint8)
        broken[5, size + at : size + at + len(pattern)] = pattern
        assert quant.not_finite(kind, broken) == 5


def test_bf16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.0e38, 1e-30], np.float32)  # 1 + 2^-8 and 1 + 3 · 2^-8 are ties
    got = quant.float_values("bf16", quant.float_bytes("bf16", values))
    assert got[:3].tolist() == [1.0, 1.0, 1.015625]
    np.testing.assert_allclose(got, values, rtol=2**-8)


def test_padded_stride_of_the_14b_attn_v() -> None:
    # 1024 rows × 20 blocks × 224 bytes
    assert repack.gpu_bytes("q6_K", 1024, 5120) == 4_587_520
    assert repack.gpu_row_bytes("q4_K", 5120) == 20 * 144
    assert repack.gpu_row_bytes("q8_0", 96) == 112  # 96 + 6 bytes of scales, up to a multiple of 16


def test_q6_k_weight_worked_by_hand() -> None:
    block = np.zeros((1, 210), np.uint8)
    block[0, 64 + 32 + 5] = 0x30  # half 1, quarter 3 (odd, high nibble), element 5: low bits 3
    block[0, 128 + 32 + 5] = 0b10_00_00_00  # its high bits 2: q = 35
    block[0, 192 + 8 + 6] = 0xFE  # scale −2 of half 1, quarter 3, first sixteen
    block[0, 208:] = np.array([0.5], np.float16).view(np.uint8)
    values = quant.dequantize("q6_K", block, 256)[0]
    assert values[128 + 96 + 5] == 0.5 * -2 * (35 - 32)
    assert values[128 + 96 + 6] == 0.5 * -2 * (0 - 32)
    assert values[0] == 0


def test_q4_k_weight_worked_by_hand() -> None:
    block = np.zeros((1, 144), np.uint8)
    block[0, 0:2] = np.array([0.25], np.float16).view(np.uint8)
    block[0, 2:4] = np.array([2.0], np.float16).view(np.uint8)
    scales, mins = np.zeros((1, 8), np.uint8), np.zeros((1, 8), np.uint8)
    scales[0, 5], mins[0, 5] = 49, 18
    block[0, 4:16] = quant_blocks.pack_q4_k_scales(scales, mins)[0]
    block[0, 16 + 64 + 7] = 0xB0  # sub-block 5 is the high nibble of bytes 64..95
    values = quant.dequantize("q4_K", block, 256)[0]
    assert values[160 + 7] == 0.25 * 49 * 11 - 2.0 * 18
    assert values[160 + 8] == -2.0 * 18
    assert values[128 + 7] == 0


@given(st.lists(st.integers(0, 63), min_size=16, max_size=16))
def test_q4_k_scales_pack_and_unpack(values: list[int]) -> None:
    scales, mins = np.array(values[:8], np.uint8), np.array(values[8:], np.uint8)
    got = quant_blocks.q4_k_scales(quant_blocks.pack_q4_k_scales(scales, mins))
    np.testing.assert_array_equal(got[0], scales)
    np.testing.assert_array_equal(got[1], mins)


def test_q8_activation_worked_by_hand() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = [254, -1, 3, 5]  # d = 2: −0.5 and 1.5 round to even, 2.5 too
    x[0, 16] = -254
    block = quant.quantize_q8(x)[0, 0]
    assert block["d"] == 2
    assert block["q"][:4].tolist() == [127, 0, 2, 2]
    assert (block["sum_lo"], block["sum_hi"]) == (131, -127)
    assert quant.Q8_BLOCK_BYTES == 48


def test_q8_of_zeros_is_zero_and_of_nan_is_nan() -> None:
    x = np.zeros((2, 32), np.float32)
    x[1, 9] = np.nan
    blocks = quant.quantize_q8(x)
    assert blocks[0, 0]["d"] == 0
    assert not blocks[0, 0]["q"].any()
    assert np.isnan(quant.dequantize_q8(blocks)[1]).all()


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.floats(2.0**-20, 2.0**20))
def test_q8_error_is_at_most_half_a_step(seed: int, size: float) -> None:
    x = (np.random.default_rng(seed).uniform(-1, 1, (3, 64)) * size).astype(np.float32)
    blocks = quant.quantize_q8(x)
    error = np.abs(quant.dequantize_q8(blocks) - x).reshape(3, 2, 32)
    assert (error <= blocks["d"][..., None] * 0.5001).all()
    np.testing.assert_array_equal(blocks["sum_lo"] + blocks["sum_hi"], blocks["q"].sum(-1, dtype=np.int32))


def test_unknown_types_and_cut_rows_are_one_sentence() -> None:
    with pytest.raises(AttribError, match="no kernels for iq2_xs"):
        repack.gpu_row_bytes("iq2_xs", 256)
    with pytest.raises(AttribError, match="not whole rows of 256 q4_K weights"):
        quant.stored_rows("q4_K", np.zeros(145, np.uint8), 256)
    with pytest.raises(AttribError, match="cannot be dequantized"):
        quant.dequantize("tq1_0", np.zeros((1, 54), np.uint8), 256)
    with pytest.raises(AttribError, match="not a whole number"):
        repack.gpu_row_bytes("q6_K", 255)


@pytest.mark.parametrize("kind", BLOCK_QUANTS)
def test_synthetic_weights_have_the_asked_spread(kind: str) -> None:
    d_bits, dmin_bits = synthetic.scale_bits(kind, 0.02)
    stored = synthetic.synth_rows(kind, 64, 1024, 7, d_bits=d_bits, dmin_bits=dmin_bits)
    values = quant.dequantize(kind, stored, 1024)
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(0.02, rel=0.05)
    assert abs(values.mean()) < 0.001
    part = synthetic.synth_rows(kind, 3, 1024, 7, d_bits=d_bits, dmin_bits=dmin_bits, first_row=10)
    np.testing.assert_array_equal(part, stored[10:13])


def test_synthetic_stream_is_splitmix64() -> None:
    # The published generator seeded with 1234567 gives these first outputs.
    got = synthetic.random_words(1234567, 0, 3).tolist()
    assert got == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_synthetic_floats_and_keys() -> None:
    values = synthetic.synth_floats("f32", 2, 4096, 3, offset=1.0, scale=0.25).view(np.float32)
    assert values.min() >= 0.75
    assert values.max() < 1.25
    assert values.mean() == pytest.approx(1.0, abs=0.01)
    assert synthetic.tensor_key(0, "a") != synthetic.tensor_key(0, "b") != synthetic.tensor_key(1, "b")
    low, high = synthetic.key_halves(0xFFFFFFFE_80000001)
    assert (low, high) == (-(2**31) + 1, -2)
    with pytest.raises(AttribError, match="made by synth_floats"):
        synthetic.synth_rows("f16", 1, 32, 0, d_bits=1)
    with pytest.raises(AttribError, match="made by synth_rows"):
        synthetic.synth_floats("q4_K", 1, 256, 0, offset=0, scale=1)


@pytest.mark.parametrize("kind", QUANTS)
def test_probe_counts_units_in_exact_arithmetic(kind: str) -> None:
    weights = quant.dequantize(kind, probe_rows(kind, 3, COLS), COLS)
    x = probe_activations(2, COLS)
    assert (x @ weights.T == COLS // 32).all()
    np.testing.assert_array_equal(quant.dequantize_q8(quant.quantize_q8(x)), x)


def test_probe_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(AttribError, match="no coverage probe for tq1_0"):
        probe_rows("tq1_0", 1, 256)
