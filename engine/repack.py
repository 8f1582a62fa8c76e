"""Layouts of weights on the GPU, invertible from the stored (GGUF) rows.

q6_K      256-weight blocks at a stride of 224 bytes: the 210 stored bytes, then 14 zero bytes, so that a
block
          starts on a 16-byte boundary.
q4_K      as stored: 144-byte blocks, a multiple of 16.
q8_0      all int8 quants of the row (cols bytes), then all its f16 scales (cols/32 × 2 bytes), then zero
bytes
          to a multiple of 16.
f16, f32  as stored.

A matrix is its rows one after another; no row needs bytes of another.
"""

from __future__ import annotations

import numpy as np

from attrib.models import BLOCKS, matrix_bytes
from engine.quant import Bytes, QuantError

Q6_K_STRIDE = 224
_ALIGN = 16
GPU_QUANTS = ("q4_K", "q6_K", "q8_0", "f16", "f32")


def gpu_row_bytes(quant: str, cols: int) -> int:
    """Bytes of one row of `cols` weights on the GPU.

    Raises QuantError for a type the kernels cannot read, AttribError for a row that is not whole blocks.
    """
    if quant not in GPU_QUANTS:
        raise QuantError(f"the engine has no kernels for {quant} weights; it reads {', '.join(GPU_QUANTS)}")
    stored = matrix_bytes(quant, 1, cols)
    if quant == "q6_K":
        return cols // BLOCKS["q6_K"][0] * Q6_K_STRIDE
    if quant == "q8_0":
        return -(-stored // _ALIGN) * _ALIGN
    return stored


def gpu_bytes(quant: str, rows: int, cols: int) -> int:
    """Bytes of a rows × cols matrix on the GPU."""
    return rows * gpu_row_bytes(quant, cols)


def to_gpu(quant: str, stored: Bytes, cols: int) -> Bytes:
    """Stored rows, uint8 [rows][stored row bytes], in the GPU layout, uint8 [rows][gpu_row_bytes]."""
    rows = len(stored)
    width = gpu_row_bytes(quant, cols)
    if quant == "q6_K":
        size = BLOCKS["q6_K"][1]
        out = np.zeros((rows, width // Q6_K_STRIDE, Q6_K_STRIDE), np.uint8)
        out[:, :, :size] = stored.reshape(rows, -1, size)
        return out.reshape(rows, width)
    if quant == "q8_0":
        blocks = stored.reshape(rows, -1, BLOCKS["q8_0"][1])
        out = np.zeros((rows, width), np.uint8)
        out[:, :cols] = blocks[:, :, 2:].reshape(rows, cols)
        out[:, cols : cols + cols // 16] = blocks[:, :, :2].reshape(rows, -1)
        return out
    return stored


def from_gpu(quant: str, laid_out: Bytes, cols: int) -> Bytes:
    """The inverse of `to_gpu`."""
    rows = len(laid_out)
    size = BLOCKS[quant][1]
    if quant == "q6_K":
        blocks = laid_out.reshape(rows, -1, Q6_K_STRIDE)[:, :, :size]
        return np.ascontiguousarray(blocks).reshape(rows, -1)
    if quant == "q8_0":
        out = np.empty((rows, cols // 32, size), np.uint8)
        out[:, :, 2:] = laid_out[:, :cols].reshape(rows, -1, 32)
        out[:, :, :2] = laid_out[:, cols : cols + cols // 16].reshape(rows, -1, 2)
        return out.reshape(rows, -1)
    return laid_out
