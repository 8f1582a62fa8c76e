"""Block formats of quantized weights and activations, and what they mean as numbers.

Stored formats follow the GGUF specification. A row is a whole number of blocks; all integers are
little-endian and every nibble or bit pair named "low" is the less significant one.

q4_K  256 weights, 144 bytes: f16 d, f16 dmin, 12 bytes of 6-bit scales and mins, 128 bytes of nibbles.
      Eight sub-blocks of 32; sub-block s is nibble (s % 2) of bytes 32·(s//2) .. +31.
      w = d · sc[s] · q − dmin · m[s], with q in 0..15. For s < 4: sc = b[s] & 63, m = b[s+4] & 63; otherwise
      sc = (b[s+4] & 15) | (b[s−4] >> 6) << 4 and m = (b[s+4] >> 4) | (b[s] >> 6) << 4.
q6_K  256 weights, 210 bytes: 128 bytes ql, 64 bytes qh, 16 int8 scales, f16 d.
      Half h (128 weights), quarter j (32 weights), element l: weight 128h + 32j + l has the low four bits in
      nibble j//2 of ql[64h + 32(j%2) + l] and the high two in bits 2j of qh[32h + l];
      w = d · scale[8h + 2j + l//16] · (q − 32), with q in 0..63.
q8_0  32 weights, 34 bytes: f16 d, 32 int8; w = d · q.
f16, f32: as named.

q8 activations (`Q8_DTYPE`, never stored in a file): 48 bytes for 32 values, so that the quants are 16-byte
aligned and one 16-byte load brings all the rest: f32 d, i32 sum of quants 0..15, i32 sum of quants 16..31,
i32 zero, int8 q[32]. d = max|x| / 127, q = round-half-even(x · (127 / max|x|)), every operation in f32; a
block whose max|x| is below 1e-30 has q = 0, because 127 / max|x| could overflow; a block holding NaN has
d = NaN. The sums are exact and serve q6_K's −32 and q4_K's mins.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attrib.models import BLOCKS, matrix_bytes
from engine.errors import EngineError

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]

Q8_DTYPE = np.dtype([("d", "<f4"), ("sum_lo", "<i4"), ("sum_hi", "<i4"), ("zero", "<i4"), ("q", "i1", (32,))])
Q8_BLOCK_BYTES = Q8_DTYPE.itemsize
Q8_SMALLEST = np.float32(1e-30)
DEQUANTIZABLE = ("q4_K", "q6_K", "q8_0", "f16", "f32")


class QuantError(EngineError):
    """A quant type the engine does not read, or bytes that are not whole rows of it."""


def stored_rows(quant: str, data: Bytes, cols: int) -> Bytes:
    """The bytes of a tensor as uint8 [rows][row bytes].

    Raises QuantError when they are not a whole number of rows of `cols` weights.
    """
    width = matrix_bytes(quant, 1, cols)
    if data.size % width:
        raise QuantError(f"{data.size} bytes are not whole rows of {cols} {quant} weights ({width} bytes each)")
    return data.reshape(-1, width)


def _f16(raw: Bytes) -> F32:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def q4_k_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The eight scales and eight mins, uint8 [..., 8] each, of 12 packed bytes [..., 12]."""
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=-1)
    mins = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=-1)
    return scales, mins


def pack_q4_k_scales(scales: Bytes, mins: Bytes) -> Bytes:
    """The inverse of `q4_k_scales`; scales and mins below 64."""
    first = (scales[..., :4] & 63) | (scales[..., 4:] >> 4 << 6)
    second = (mins[..., :4] & 63) | (mins[..., 4:] >> 4 << 6)
    third = (scales[..., 4:] & 15) | ((mins[..., 4:] & 15) << 4)
    return np.concatenate([first, second, third], axis=-1).astype(np.uint8)


def _dequantize_q4_k(blocks: Bytes) -> F32:
    d, dmin = _f16(blocks[:, 0:2]), _f16(blocks[:, 2:4])
    scales, mins = q4_k_scales(blocks[:, 4:16])
    nibbles = blocks[:, 16:].reshape(-1, 4, 1, 32) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & 15
    q = nibbles.reshape(-1, 8, 32).astype(np.float32)
    out: F32 = (d * scales)[:, :, None] * q - (dmin * mins)[:, :, None]
    return out


def _dequantize_q6_k(blocks: Bytes) -> F32:
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & 15
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
    q = (low.reshape(-1, 8, 32) | high.reshape(-1, 8, 32) << 4).astype(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    d = _f16(blocks[:, 208:210])
    out: F32 = (d * scales)[:, :, None] * q.reshape(-1, 16, 16).astype(np.float32)
    return out


def dequantize(quant: str, stored: Bytes, cols: int) -> F32:
    """Stored rows, uint8 [rows][row bytes], as f32 [rows][cols].

    Raises QuantError for a type without a dequantizer.
    """
    rows = len(stored)
    if quant not in DEQUANTIZABLE:
        raise QuantError(f"{quant} weights cannot be dequantized here; known are {', '.join(DEQUANTIZABLE)}")
    if quant in ("f16", "f32"):
        kind = np.float16 if quant == "f16" else np.float32
        return np.ascontiguousarray(stored).view(kind).astype(np.float32).reshape(rows, cols)
    blocks = np.ascontiguousarray(stored).reshape(-1, BLOCKS[quant][1])
    if quant == "q8_0":
        values = _f16(blocks[:, :2]) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
    else:
        values = _dequantize_q4_k(blocks) if quant == "q4_K" else _dequantize_q6_k(blocks)
    return values.reshape(rows, cols)


def quantize_q8(x: F32) -> NDArray[np.void]:
    """f32 [..., cols] -> q8 blocks [..., cols/32] of `Q8_DTYPE`, bit for bit what the kernel writes."""
    values = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(values).max(axis=-1)  # numpy's max propagates NaN, as the kernel's does
    out = np.zeros(values.shape[:-1], Q8_DTYPE)
    out["d"] = largest / np.float32(127)
    with np.errstate(all="ignore"):
        inverse = np.where(largest >= Q8_SMALLEST, np.float32(127) / largest, np.float32(0)).astype(np.float32)
        scaled = np.rint(values * inverse[..., None])
    out["q"] = np.where(np.isfinite(scaled), scaled, 0).astype(np.int8)
    out["sum_lo"] = out["q"][..., :16].sum(axis=-1, dtype=np.int32)
    out["sum_hi"] = out["q"][..., 16:].sum(axis=-1, dtype=np.int32)
    return out


def dequantize_q8(blocks: NDArray[np.void]) -> F32:
    """q8 blocks [..., n] -> f32 [..., 32 n]."""
    values = blocks["d"][..., None] * blocks["q"].astype(np.float32)
    return values.reshape(*blocks.shape[:-1], -1)
