"""Coverage probe: a matrix and an activation whose product counts the units of 32 weights a kernel computed.

In every unit weight 0 is 1 and the others are 0; activation 0 is 1, activation 1 is 127 and the others are 0.
The 127 makes the q8 scale exactly 1, so a unit adds exactly 1.0 whether the kernel takes q8 or f32
activations, and sums of ones are exact in any order: out[row] is the number of units computed for that row.
"""

from __future__ import annotations

import numpy as np

from engine.quant import F32, Bytes, QuantError, pack_q4_k_scales

UNIT = 32
_ONE = np.array([1.0], np.float16).view(np.uint8)


def probe_activations(tokens: int, cols: int) -> F32:
    """f32 [tokens][cols]."""
    x = np.zeros((tokens, cols // UNIT, UNIT), np.float32)
    x[:, :, 0], x[:, :, 1] = 1, 127
    return x.reshape(tokens, cols)


def probe_rows(quant: str, rows: int, cols: int) -> Bytes:
    """Stored rows, uint8 [rows][row bytes]; raises QuantError for a type without a probe."""
    if quant in ("f16", "f32"):
        values = np.zeros((rows, cols), np.float16 if quant == "f16" else np.float32)
        values[:, ::UNIT] = 1
        return values.view(np.uint8).reshape(rows, -1)
    if quant == "q4_K":
        block = np.zeros(144, np.uint8)
        block[:2] = _ONE
        block[4:16] = pack_q4_k_scales(np.ones(8, np.uint8), np.zeros(8, np.uint8))
        block[16::UNIT] = 0x11  # element 0 of both sub-blocks that share these bytes
    elif quant == "q6_K":
        block = np.zeros(210, np.uint8)
        block[0:128:UNIT] = 0x11
        block[128:192] = 0xAA  # high bits 2: q = 32, weight 0
        block[192:208] = 1
        block[208:] = _ONE
    elif quant == "q8_0":
        block = np.zeros(34, np.uint8)
        block[:2] = _ONE
        block[2] = 1
    else:
        raise QuantError(f"there is no coverage probe for {quant} weights")
    elements = UNIT if quant == "q8_0" else 256
    return np.tile(block, (rows, cols // elements))
