"""Layouts of weights on the GPU, invertible from the stored (GGUF) rows.

q4_K            as stored: 144-byte blocks, a multiple of 16.
q6_K            256-weight blocks at a stride of 224 bytes: the 210 stored bytes, then 14 zero bytes, so that a
                block starts on a 16-byte boundary.
f16, bf16, f32  as stored.
all others      planes (`PLANES`): a row is one field of all its blocks, then the next field of all its blocks, and
                zero bytes to a multiple of 16. A thread's 32 weights are then neighbouring bytes, loaded whole and
                only by it: 16 bytes of quants (8 for q2_K and q3_K, whose 32 quants are no more), 4 of high bits.

Within a plane quants may be packed in other runs than in the file (`quant_blocks.unpack_bits` explains runs): 4-bit
quants in runs of 16, so that masks give what dp4a takes, or of 1 where a table is indexed (iq4); 2-bit quants and
high bits in runs of 4, so that one shift and one mask give four neighbours as bytes.

A matrix is its rows one after another; no row needs bytes of another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attrib.models import BLOCKS, matrix_bytes
from engine.quant import QUANTS, QuantError
from engine.quant_blocks import Bytes, pack_bits, unpack_bits

Q6_K_STRIDE = 224
_ALIGN = 16
GPU_QUANTS = QUANTS


@dataclass(frozen=True)
class Plane:
    """Bytes first..end-1 of a stored block; quants of `bits` bits go from runs of `run` to runs of `gpu_run`."""

    first: int
    end: int
    bits: int = 8
    run: int = 1
    gpu_run: int = 1

    @property
    def size(self) -> int:
        """Bytes a block."""
        return self.end - self.first


# Ordered so that each plane starts on a multiple of what its kernels load at once.
PLANES: dict[str, tuple[Plane, ...]] = {
    "q4_0": (Plane(2, 18), Plane(0, 2)),
    "q4_1": (Plane(4, 20), Plane(0, 4)),
    "q5_0": (Plane(6, 22), Plane(2, 6, bits=1, run=1, gpu_run=4), Plane(0, 2)),
    "q5_1": (Plane(8, 24), Plane(4, 8, bits=1, run=1, gpu_run=4), Plane(0, 4)),
    "q8_0": (Plane(2, 34), Plane(0, 2)),
    "iq4_nl": (Plane(2, 18, bits=4, run=16, gpu_run=1), Plane(0, 2)),
    "q2_K": (Plane(16, 80, bits=2, run=32, gpu_run=4), Plane(0, 16), Plane(80, 84)),
    "q3_K": (
        Plane(32, 96, bits=2, run=32, gpu_run=4),
        Plane(0, 32, bits=1, run=32, gpu_run=4),
        Plane(96, 108),
        Plane(108, 110),
    ),
    "q5_K": (Plane(48, 176, bits=4, run=32, gpu_run=16), Plane(16, 48, bits=1, run=32, gpu_run=4), Plane(0, 16)),
    "iq4_xs": (Plane(8, 136, bits=4, run=16, gpu_run=1), Plane(0, 8)),
}


def gpu_row_bytes(quant: str, cols: int) -> int:
    """Bytes of one row of `cols` weights on the GPU.

    Raises QuantError for a type the kernels cannot read, AttribError for a row that is not whole blocks.
    """
    if quant not in GPU_QUANTS:
        raise QuantError(f"the engine has no kernels for {quant} weights; it reads {', '.join(GPU_QUANTS)}")
    stored = matrix_bytes(quant, 1, cols)
    if quant == "q6_K":
        return cols // BLOCKS["q6_K"][0] * Q6_K_STRIDE
    if quant in PLANES:
        return -(-stored // _ALIGN) * _ALIGN
    return stored


def gpu_bytes(quant: str, rows: int, cols: int) -> int:
    """Bytes of a rows × cols matrix on the GPU."""
    return rows * gpu_row_bytes(quant, cols)


def _repacked(fields: Bytes, bits: int, run: int, to: int) -> Bytes:
    return fields if run == to else pack_bits(unpack_bits(fields, bits, run), bits, to)


def to_gpu(quant: str, stored: Bytes, cols: int) -> Bytes:
    """Stored rows, uint8 [rows][stored row bytes], in the GPU layout, uint8 [rows][gpu_row_bytes]."""
    rows, width = len(stored), gpu_row_bytes(quant, cols)
    if quant == "q6_K":
        size = BLOCKS["q6_K"][1]
        out = np.zeros((rows, width // Q6_K_STRIDE, Q6_K_STRIDE), np.uint8)
        out[:, :, :size] = stored.reshape(rows, -1, size)
        return out.reshape(rows, width)
    if quant not in PLANES:
        return stored
    blocks = stored.reshape(-1, BLOCKS[quant][1])
    out, at, count = np.zeros((rows, width), np.uint8), 0, len(blocks) // max(rows, 1)
    for plane in PLANES[quant]:
        fields = _repacked(blocks[:, plane.first : plane.end], plane.bits, plane.run, plane.gpu_run)
        out[:, at : at + count * plane.size] = fields.reshape(rows, -1)
        at += count * plane.size
    return out


def from_gpu(quant: str, laid_out: Bytes, cols: int) -> Bytes:
    """The inverse of `to_gpu`."""
    rows = len(laid_out)
    elements, size, _ = BLOCKS[quant]
    if quant == "q6_K":
        blocks = laid_out.reshape(rows, -1, Q6_K_STRIDE)[:, :, :size]
        return np.ascontiguousarray(blocks).reshape(rows, -1)
    if quant not in PLANES:
        return laid_out
    count, at = cols // elements, 0
    out = np.empty((rows * count, size), np.uint8)
    for plane in PLANES[quant]:
        fields = laid_out[:, at : at + count * plane.size].reshape(-1, plane.size)
        out[:, plane.first : plane.end] = _repacked(fields, plane.bits, plane.gpu_run, plane.run)
        at += count * plane.size
    return out.reshape(rows, -1)
