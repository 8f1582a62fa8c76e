"""Weights and activations as numbers: stored rows of any type to f32, and the q8 blocks that kernels multiply.

Block types are those of `quant_blocks`; f16, bf16 (the upper half of an f32) and f32 are stored value by value.

q8 activations (`Q8_DTYPE`, never stored in a file): 48 bytes for 32 values, so that the quants are 16-byte
aligned and one 16-byte load brings all the rest: f32 d, i32 sum of quants 0..15, i32 sum of quants 16..31,
i32 zero, int8 q[32]. d = max|x| / 127, q = round-half-even(x · (127 / max|x|)), every operation in f32; a
block whose max|x| is below 1e-30 has q = 0, because 127 / max|x| could overflow; a block holding NaN has
d = NaN. The sums are exact and serve the offsets of weights, such as q6_K's −32 and q4_K's mins.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attrib.models import BLOCKS, matrix_bytes
from engine.errors import EngineError
from engine.quant_blocks import DEQUANTIZERS, F32, SCALES_AT, Bytes

Q8_DTYPE = np.dtype([("d", "<f4"), ("sum_lo", "<i4"), ("sum_hi", "<i4"), ("zero", "<i4"), ("q", "i1", (32,))])
Q8_BLOCK_BYTES = Q8_DTYPE.itemsize
Q8_SMALLEST = np.float32(1e-30)
FLOATS = ("f16", "bf16", "f32")
QUANTS = (*DEQUANTIZERS, *FLOATS)
# exponent bits, all ones in a NaN or an infinity
_EXPONENTS: dict[str, tuple[str, np.unsignedinteger]] = {
    "f16": ("<u2", np.uint16(0x7C00)),
    "bf16": ("<u2", np.uint16(0x7F80)),
    "f32": ("<u4", np.uint32(0x7F800000)),
}


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


def float_values(quant: str, stored: Bytes) -> F32:
    """f16, bf16 or f32 bytes as f32, flat and in order."""
    raw = np.ascontiguousarray(stored).reshape(-1)
    if quant == "bf16":
        return (raw.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return raw.view(np.float16 if quant == "f16" else np.float32).astype(np.float32)


def float_bytes(quant: str, values: F32) -> Bytes:
    """f32 values as f16, bf16 (both rounded to nearest even; finite values only for bf16) or f32 bytes, flat."""
    if quant == "bf16":
        bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        return (rounded >> np.uint32(16)).astype("<u2").view(np.uint8)
    return np.ascontiguousarray(values.astype(np.float16 if quant == "f16" else np.float32)).reshape(-1).view(np.uint8)


def dequantize(quant: str, stored: Bytes, cols: int) -> F32:
    """Stored rows, uint8 [rows][row bytes], as f32 [rows][cols].

    Raises QuantError for a type without a dequantizer.
    """
    rows = len(stored)
    if quant in FLOATS:
        return float_values(quant, stored).reshape(rows, cols)
    if quant not in DEQUANTIZERS:
        raise QuantError(f"{quant} weights cannot be dequantized here; known are {', '.join(QUANTS)}")
    blocks = np.ascontiguousarray(stored).reshape(-1, BLOCKS[quant][1])
    return DEQUANTIZERS[quant](blocks).reshape(rows, cols)


def not_finite(quant: str, stored: Bytes) -> int | None:
    """The first of these stored rows that holds a NaN or an infinity, in a scale or a value, or None."""
    if quant in FLOATS:
        kind, exponent = _EXPONENTS[quant]
        wrong = np.ascontiguousarray(stored).view(kind) & exponent == exponent
    else:
        blocks = stored.reshape(len(stored), -1, BLOCKS[quant][1])
        wrong = np.zeros(blocks.shape[:2], bool)
        for at in SCALES_AT[quant]:
            # an f16 is NaN or infinite when its five exponent bits are all ones
            wrong |= blocks[:, :, at + 1] & np.uint8(0x7C) == np.uint8(0x7C)
    rows = wrong.any(axis=1)
    return int(rows.argmax()) if rows.any() else None


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
