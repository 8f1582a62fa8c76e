"""Synthetic weights: bytes that follow from a seed, a tensor's name and a place, on host and GPU alike.

Word i of a tensor's stream is the splitmix64 output function of key + (i + 1) · 0x9e3779b97f4a7c15 (Steele,
Lea and Flood, "Fast splittable pseudorandom number generators", 2014). A block of the format takes a fixed
number of words, so any block can be made alone; `cuda_src/synth_fill.cu` and `synth_planes.cu` make the same
bytes in the GPU layout. Quants, scales and mins are uniform over all their bit patterns; only the f16 block
scales are chosen, so that the weights have mean 0 and a given standard deviation.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from attrib.models import BLOCKS, matrix_bytes
from engine.quant import FLOATS, QuantError, float_bytes
from engine.quant_blocks import SCALES_AT, Bytes
from engine.repack import PLANES, from_gpu

Words = NDArray[np.uint64]
# q8_0's stream is older than the planes it is laid out in: its scale comes from a fifth word, without a sign
OWN_STREAM = {"q4_K": 18, "q6_K": 27, "q8_0": 5}
# words a block: its bytes in plane order, then one word for the scales
WORDS = OWN_STREAM | {quant: -(-BLOCKS[quant][1] // 8) + 1 for quant in PLANES if quant not in OWN_STREAM}
# variance of the weights of a block with d = 1 and dmin (or m) as below, every field uniform
_VARIANCE = {
    "q4_0": 21.5,  # E[(q − 8)²], q in 0..15
    "q4_1": 21.25,
    "q5_0": 85.5,
    "q5_1": 85.25,
    "q8_0": 5461.5,
    "iq4_nl": 4548.0,  # mean of the squares of IQ4_VALUES
    "q2_K": 192.5,  # E[scale²] E[q²] + 1.5² E[min²] − 2 · 1.5 E[scale] E[q] E[min] = 271.25 + 174.375 − 253.125
    "q3_K": 341.5 * 5.5,
    "q4_K": 66726.0,
    "q5_K": 277651.5,
    "q6_K": 5461.5 * 341.5,
    "iq4_xs": 341.5 * 4548.0,
}
# dmin over d, or m over −d, that makes the mean 0: the mean quant
_OFFSET = {"q4_1": -7.5, "q5_1": -15.5, "q2_K": 1.5, "q4_K": 7.5, "q5_K": 15.5}
_GAMMA, _MIX_1, _MIX_2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_JITTER = 15


def tensor_key(seed: int, name: str) -> int:
    """The 64-bit stream key of a tensor."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest(), "little")


def key_halves(key: int) -> tuple[int, int]:
    """(low, high) 32 bits of a key as signed integers, the form a kernel takes them in."""
    low, high = key & 0xFFFFFFFF, key >> 32
    return low - (low >> 31 << 32), high - (high >> 31 << 32)


def random_words(key: int, first: int, count: int) -> Words:
    """Words first .. first + count − 1 of the stream, uint64."""
    with np.errstate(over="ignore"):
        z = np.uint64(key) + (np.arange(first, first + count, dtype=np.uint64) + np.uint64(1)) * _GAMMA
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return np.asarray(z ^ (z >> np.uint64(31)))


def _f16_bits(value: float) -> int:
    return int(np.float16(value).view(np.uint16))


def scale_bits(quant: str, std: float) -> tuple[int, int]:
    """(d_bits, dmin_bits) for weights of mean 0 and this standard deviation; dmin_bits is 0 where unused.

    d = std / √variance, dmin = offset · d (m for q4_1 and q5_1), from the moments of uniform fields. Types
    without an offset get scales of random sign, as their quants are not centred on 0.
    """
    if quant not in WORDS:
        raise QuantError(f"{quant} weights have no block scale; give offset and scale instead")
    d = std / math.sqrt(_VARIANCE[quant])
    half = _JITTER // 2  # jitter adds 0..15 to the pattern, so start half below
    dmin = max(_f16_bits(_OFFSET[quant] * d) - half, 0) if quant in _OFFSET else 0
    return max(_f16_bits(d) - half, 1), dmin


def synth_rows(
    quant: str, rows: int, cols: int, key: int, *, d_bits: int, dmin_bits: int = 0, first_row: int = 0
) -> Bytes:
    """Rows first_row .. first_row + rows − 1 of a block-quantized tensor as stored, uint8 [rows][row bytes].

    Raises QuantError for f16, bf16 and f32, which `synth_floats` makes.
    """
    if quant not in WORDS:
        raise QuantError(f"{quant} weights are made by synth_floats")
    width = matrix_bytes(quant, 1, cols)
    elements, size, _ = BLOCKS[quant]
    blocks, words = rows * (cols // elements), WORDS[quant]
    stream = random_words(key, first_row * (cols // elements) * words, blocks * words).reshape(blocks, words)
    raw = np.ascontiguousarray(stream).view(np.uint8)
    if quant not in OWN_STREAM:
        return _synth_planes(quant, raw[:, :size], stream[:, -1], (d_bits, dmin_bits)).reshape(rows, width)
    out = np.empty((blocks, size), np.uint8)
    last = stream[:, 0] if quant == "q4_K" else stream[:, -1]
    d = _bits_as_bytes(d_bits + (last >> np.uint64(60)))
    if quant == "q4_K":
        out[:] = raw
        out[:, :2] = d
        out[:, 2:4] = _bits_as_bytes(dmin_bits + (last << np.uint64(4) >> np.uint64(60)))
    elif quant == "q6_K":
        out[:, :208] = raw[:, :208]
        out[:, 208:] = d
    else:
        out[:, 2:] = raw[:, :32]
        out[:, :2] = d
    return out.reshape(rows, width)


def _synth_planes(quant: str, fields: Bytes, last: Words, bits: tuple[int, int]) -> Bytes:
    """Stored blocks whose planes hold these bytes, one block after another, but for the scales.

    The scales start the last plane. Their patterns have the top bits of `last` added; a lone scale takes its
    sign from bit 59.
    """
    fields = fields.copy()
    at = fields.shape[1] - PLANES[quant][-1].size
    d = bits[0] + (last >> np.uint64(60))
    if len(SCALES_AT[quant]) == 1:
        d = d | (last >> np.uint64(59) & np.uint64(1)) << np.uint64(15)
    else:
        fields[:, at + 2 : at + 4] = _bits_as_bytes(bits[1] + (last << np.uint64(4) >> np.uint64(60)))
    fields[:, at : at + 2] = _bits_as_bytes(d)
    # a row of one block has its planes one after another; the row's padding follows
    laid_out = np.zeros((len(fields), -(-fields.shape[1] // 16) * 16), np.uint8)
    laid_out[:, : fields.shape[1]] = fields
    return from_gpu(quant, laid_out, BLOCKS[quant][0])


def _bits_as_bytes(bits: Words) -> Bytes:
    return bits.astype("<u2").view(np.uint8).reshape(-1, 2)


def synth_floats(
    quant: str, rows: int, cols: int, key: int, *, offset: float, scale: float, first_row: int = 0
) -> Bytes:
    """f16, bf16 or f32 rows, offset + scale · u with u uniform in [−1, 1), as stored: uint8 [rows][row bytes]."""
    if quant not in FLOATS:
        raise QuantError(f"{quant} weights are made by synth_rows")
    top = (random_words(key, first_row * cols, rows * cols) >> np.uint64(40)).astype(np.int64) - (1 << 23)
    unit = top.astype(np.float32) * np.float32(2.0**-23)
    return float_bytes(quant, np.float32(offset) + np.float32(scale) * unit).reshape(rows, -1)


def random_rows(quant: str, rows: int, cols: int, rng: np.random.Generator, std: float = 0.05) -> Bytes:
    """Valid stored rows: every field random, block scales spread over 0.5 to 1.5 times the one for `std`."""
    if quant in FLOATS:
        return float_bytes(quant, (rng.standard_normal((rows, cols)) * std).astype(np.float32)).reshape(rows, -1)
    width = matrix_bytes(quant, 1, cols)
    _, size, _ = BLOCKS[quant]
    out = rng.integers(0, 256, (rows * width // size, size), np.uint8)
    for offset, bits in zip(SCALES_AT[quant], scale_bits(quant, std), strict=False):
        base = float(np.uint16(bits).view(np.float16))
        values = (base * rng.uniform(0.5, 1.5, len(out))).astype(np.float16)
        out[:, offset : offset + 2] = values.view(np.uint8).reshape(-1, 2)
    return out.reshape(rows, width)
