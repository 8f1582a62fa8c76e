"""Coverage probe: a matrix and an activation whose product counts the units of 32 weights a kernel computed.

In every unit weight 0 is 1 and the others are 0 (or all are 2^-7, where a type has no 0); activation 0 is 1,
activation 1 is 127 and the others are 0. The 127 makes the q8 scale exactly 1, so a unit adds exactly 1.0
whether the kernel takes q8 or f32 activations, and sums of ones are exact in any order: out[row] is the number
of units computed for that row.
"""

from __future__ import annotations

import numpy as np

from attrib.models import BLOCKS
from engine.quant import FLOATS, QuantError, float_bytes
from engine.quant_blocks import F32, SCALES_AT, Bytes, pack_q4_k_scales

UNIT = 32
# 2^-7: iq4 has no weight 0, so all its weights are 2^-7 and 1 · 2^-7 + 127 · 2^-7 is exactly 1
_IQ4_SCALE = 2.0**-7


_PACKED_ONES = pack_q4_k_scales(np.ones(8, np.uint8), np.zeros(8, np.uint8))
# what a probe block holds: (first, end, step) of its bytes, and their value; the rest is 0 and d is 1
_Fields = tuple[tuple[int, int, int, int | Bytes], ...]
_FIELDS: dict[str, _Fields] = {
    "q4_0": ((2, 18, 1, 0x88), (2, 3, 1, 0x89)),
    "q4_1": ((4, 5, 1, 1),),
    "q5_0": ((2, 6, 1, 0xFF), (6, 7, 1, 1)),
    "q5_1": ((8, 9, 1, 1),),
    "q8_0": ((2, 3, 1, 1),),
    "iq4_nl": ((2, 18, 1, 0x88),),
    "q2_K": ((0, 16, 1, 1), (16, 80, UNIT, 0x55)),  # scale 1, min 0; element 0 of the four units that share a byte
    "q3_K": ((0, 32, 1, 0xFF), (32, 96, UNIT, 0x55), (96, 104, 1, 0x11), (104, 108, 1, 0xAA)),  # scale 33 means 1
    "q4_K": ((4, 16, 1, _PACKED_ONES), (16, 144, UNIT, 0x11)),
    "q5_K": ((4, 16, 1, _PACKED_ONES), (48, 176, UNIT, 0x11)),
    "q6_K": ((0, 128, UNIT, 0x11), (128, 192, 1, 0xAA), (192, 208, 1, 1)),  # high bits 2: q = 32, weight 0
    "iq4_xs": ((2, 4, 1, 0xAA), (4, 8, 1, 0x11), (8, 136, 1, 0x88)),  # scale 33 means 1
}


def probe_activations(tokens: int, cols: int) -> F32:
    """f32 [tokens][cols]."""
    x = np.zeros((tokens, cols // UNIT, UNIT), np.float32)
    x[:, :, 0], x[:, :, 1] = 1, 127
    return x.reshape(tokens, cols)


def probe_rows(quant: str, rows: int, cols: int) -> Bytes:
    """Stored rows, uint8 [rows][row bytes]; raises QuantError for a type without a probe."""
    if quant in FLOATS:
        values = np.zeros((rows, cols), np.float32)
        values[:, ::UNIT] = 1
        return float_bytes(quant, values).reshape(rows, -1)
    if quant not in SCALES_AT:
        raise QuantError(f"there is no coverage probe for {quant} weights")
    elements, size, _ = BLOCKS[quant]
    block = np.zeros(size, np.uint8)
    for first, end, step, value in _FIELDS[quant]:
        block[first:end:step] = value
    at = SCALES_AT[quant][0]
    block[at : at + 2] = np.array([_IQ4_SCALE if quant.startswith("iq4") else 1.0], np.float16).view(np.uint8)
    return np.tile(block, (rows, cols // elements))
