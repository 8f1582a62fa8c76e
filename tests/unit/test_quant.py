"""Block formats against the gguf package, worked numbers, and the layouts' round trips."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib.errors import AttribError
from attrib.models import BLOCKS
from engine import quant, repack, synthetic
from engine.probe import probe_activations, probe_rows

QUANTS = ("q4_K", "q6_K", "q8_0", "f16", "f32")
COLS = 512


def rows_of(kind: str, rows: int = 7, seed: int = 1) -> np.ndarray:
    return synthetic.random_rows(kind, rows, COLS, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", QUANTS)
def test_dequantizer_agrees_with_the_gguf_package(kind: str) -> None:
    stored = rows_of(kind)
    number = gguf.GGMLQuantizationType(BLOCKS[kind][2])
    want = gguf.quants.dequantize(np.ascontiguousarray(stored), number).reshape(7, COLS)
    np.testing.assert_array_equal(quant.dequantize(kind, stored, COLS), want)


@pytest.mark.parametrize("kind", QUANTS)
def test_gpu_layout_is_invertible_and_keeps_rows_apart(kind: str) -> None:
    stored = rows_of(kind)
    laid_out = repack.to_gpu(kind, stored, COLS)
    assert laid_out.shape == (7, repack.gpu_row_bytes(kind, COLS))
    np.testing.assert_array_equal(repack.from_gpu(kind, laid_out, COLS), stored)
    np.testing.assert_array_equal(repack.to_gpu(kind, stored[3:4], COLS), laid_out[3:4])


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
    block[0, 4:16] = quant.pack_q4_k_scales(scales, mins)[0]
    block[0, 16 + 64 + 7] = 0xB0  # sub-block 5 is the high nibble of bytes 64..95
    values = quant.dequantize("q4_K", block, 256)[0]
    assert values[160 + 7] == 0.25 * 49 * 11 - 2.0 * 18
    assert values[160 + 8] == -2.0 * 18
    assert values[128 + 7] == 0


@given(st.lists(st.integers(0, 63), min_size=16, max_size=16))
def test_q4_k_scales_pack_and_unpack(values: list[int]) -> None:
    scales, mins = np.array(values[:8], np.uint8), np.array(values[8:], np.uint8)
    got = quant.q4_k_scales(quant.pack_q4_k_scales(scales, mins))
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
    with pytest.raises(AttribError, match="no kernels for iq4_xs"):
        repack.gpu_row_bytes("iq4_xs", 256)
    with pytest.raises(AttribError, match="not whole rows of 256 q4_K weights"):
        quant.stored_rows("q4_K", np.zeros(145, np.uint8), 256)
    with pytest.raises(AttribError, match="cannot be dequantized"):
        quant.dequantize("q5_0", np.zeros((1, 22), np.uint8), 32)
    with pytest.raises(AttribError, match="not a whole number"):
        repack.gpu_row_bytes("q6_K", 255)


@pytest.mark.parametrize("kind", ["q4_K", "q6_K", "q8_0"])
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
    with pytest.raises(AttribError, match="no coverage probe for q5_0"):
        probe_rows("q5_0", 1, 32)
