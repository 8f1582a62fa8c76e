"""Block formats of quantized weights as GGUF stores them, and what they mean as numbers.

A row is a whole number of blocks; integers are little-endian; d, dmin and m are f16. Quants are packed in runs:
`bits, run` says that a byte holds 8/bits quants which are `run` elements apart, lowest bits first, so that `run`
neighbouring bytes hold `run` neighbouring quants of each level (`unpack_bits`). Sources: the GGUF specification
and ggml's block structures.

32 weights a block
q4_0    18 bytes: d, 16 bytes of quants (4, run 16).                        w = d · (q − 8)
q4_1    20 bytes: d, m, 16 bytes of quants (4, run 16).                     w = d · q + m
q5_0    22 bytes: d, 4 bytes of fifth bits (1, run 1), 16 bytes (4, run 16).     w = d · (q − 16)
q5_1    24 bytes: d, m, 4 bytes of fifth bits (1, run 1), 16 bytes (4, run 16).  w = d · q + m
q8_0    34 bytes: d, 32 int8.                                               w = d · q
iq4_nl  18 bytes: d, 16 bytes of indices (4, run 16).                       w = d · IQ4_VALUES[q]

256 weights a block, eight sub-blocks of 32 or sixteen of 16
q2_K    84 bytes: 16 bytes with a scale in the low and a min in the high nibble, one a 16 weights; 64 bytes of
        quants (2, run 32); d, dmin.                                        w = d · scale · q − dmin · min
q3_K    110 bytes: 32 bytes of third bits (1, run 32), 64 bytes of low bits (2, run 32), 12 bytes of 6-bit scales,
        d. w = d · (scale − 32) · (q − 4). Scale i < 16 has its low four bits in nibble i // 8 of byte i % 8 and
        its high two in bits 2 (i // 4) of byte 8 + i % 4.
q4_K    144 bytes: d, dmin, 12 bytes of 6-bit scales and mins, 128 bytes of quants (4, run 32).
        w = d · sc[s] · q − dmin · m[s]. For s < 4: sc = b[s] & 63, m = b[s+4] & 63; otherwise
        sc = (b[s+4] & 15) | (b[s−4] >> 6) << 4 and m = (b[s+4] >> 4) | (b[s] >> 6) << 4.
q5_K    176 bytes: d, dmin and scales as q4_K, 32 bytes of fifth bits (1, run 32), 128 bytes (4, run 32); as q4_K.
q6_K    210 bytes: 128 bytes of low four bits, 64 bytes of high two bits, 16 int8 scales, d. Of half h (128
        weights), quarter j (32 weights), element l, the low bits are nibble j//2 of ql[64h + 32(j%2) + l] and the
        high bits 2j of qh[32h + l].                                        w = d · scale[8h + 2j + l//16] · (q − 32)
iq4_xs  136 bytes: d, u16 of high scale bits, 4 bytes of low scale bits, 128 bytes of indices (4, run 16).
        w = d · (scale − 32) · IQ4_VALUES[q]; scale s has nibble s of the low bits and bits 2s of the high ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
# where a stored block keeps its f16 scales, the only bytes that can hold a NaN or an infinity
SCALES_AT: dict[str, tuple[int, ...]] = {
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q8_0": (0,),
    "iq4_nl": (0,),
    "q2_K": (80, 82),
    "q3_K": (108,),
    "q4_K": (0, 2),
    "q5_K": (0, 2),
    "q6_K": (208,),
    "iq4_xs": (0,),
}


_WORDS: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def _words(run: int) -> tuple[type[np.unsignedinteger[Any]], int]:
    """The widest integer that a run is whole ones of, and a 1 in each of its bytes: shifts then move many quants."""
    kind = _WORDS.get(run, np.uint64)
    return kind, int.from_bytes(b"\1" * np.dtype(kind).itemsize)


def unpack_bits(packed: Bytes, bits: int, run: int) -> Bytes:
    """Quants, uint8 [n][m · 8/bits], of packed bytes [n][m]; m a multiple of `run`, run 1, 2, 4 or a multiple of 8."""
    kind, ones = _words(run)
    fields = np.ascontiguousarray(packed).reshape(len(packed), -1, run).view(kind)
    out = np.empty((*fields.shape[:2], 8 // bits, fields.shape[2]), kind)
    for k in range(8 // bits):
        np.right_shift(fields, kind(bits * k), out=out[:, :, k])
    out &= kind(ones * ((1 << bits) - 1))
    return out.view(np.uint8).reshape(len(packed), -1)


def pack_bits(quants: Bytes, bits: int, run: int) -> Bytes:
    """The inverse of `unpack_bits`; quants below 2^bits."""
    kind, _ = _words(run)
    levels = np.ascontiguousarray(quants).reshape(len(quants), -1, 8 // bits, run).view(kind)
    out = levels[:, :, 0].copy()
    for k in range(1, 8 // bits):
        out |= levels[:, :, k] << kind(bits * k)
    return out.view(np.uint8).reshape(len(quants), -1)


def f16(raw: Bytes) -> F32:
    """Two bytes each as f32."""
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


def q3_k_scales(packed: Bytes) -> NDArray[np.int8]:
    """The sixteen scales, int8 [n][16] in −32..31, of 12 packed bytes [n][12]."""
    low, high = unpack_bits(packed[:, :8], 4, 8), unpack_bits(packed[:, 8:], 2, 4)
    return (low | high << 4).astype(np.int8) - np.int8(32)


def _q4_0(blocks: Bytes) -> F32:
    q = unpack_bits(blocks[:, 2:], 4, 16).astype(np.int8) - np.int8(8)
    return f16(blocks[:, :2]) * q.astype(np.float32)


def _q4_1(blocks: Bytes) -> F32:
    q = unpack_bits(blocks[:, 4:], 4, 16)
    return f16(blocks[:, :2]) * q.astype(np.float32) + f16(blocks[:, 2:4])


def _q5_0(blocks: Bytes) -> F32:
    q = unpack_bits(blocks[:, 6:], 4, 16) | unpack_bits(blocks[:, 2:6], 1, 1) << 4
    return f16(blocks[:, :2]) * (q.astype(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: Bytes) -> F32:
    q = unpack_bits(blocks[:, 8:], 4, 16) | unpack_bits(blocks[:, 4:8], 1, 1) << 4
    return f16(blocks[:, :2]) * q.astype(np.float32) + f16(blocks[:, 2:4])


def _q8_0(blocks: Bytes) -> F32:
    return f16(blocks[:, :2]) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


def _iq4_nl(blocks: Bytes) -> F32:
    return f16(blocks[:, :2]) * IQ4_VALUES[unpack_bits(blocks[:, 2:], 4, 16)].astype(np.float32)


def _q2_k(blocks: Bytes) -> F32:
    q = unpack_bits(blocks[:, 16:80], 2, 32).reshape(-1, 16, 16).astype(np.float32)
    scale, least = f16(blocks[:, 80:82]) * (blocks[:, :16] & 15), f16(blocks[:, 82:84]) * (blocks[:, :16] >> 4)
    out: F32 = scale[:, :, None] * q - least[:, :, None]
    return out


def _q3_k(blocks: Bytes) -> F32:
    q = unpack_bits(blocks[:, 32:96], 2, 32) | unpack_bits(blocks[:, :32], 1, 32) << 2
    scale = f16(blocks[:, 108:]) * q3_k_scales(blocks[:, 96:108]).astype(np.float32)
    out: F32 = scale[:, :, None] * (q.astype(np.int8) - np.int8(4)).reshape(-1, 16, 16).astype(np.float32)
    return out


def _with_mins(blocks: Bytes, q: Bytes) -> F32:
    scales, mins = q4_k_scales(blocks[:, 4:16])
    d, dmin = f16(blocks[:, 0:2]), f16(blocks[:, 2:4])
    out: F32 = (d * scales)[:, :, None] * q.reshape(-1, 8, 32).astype(np.float32) - (dmin * mins)[:, :, None]
    return out


def _q4_k(blocks: Bytes) -> F32:
    return _with_mins(blocks, unpack_bits(blocks[:, 16:], 4, 32))


def _q5_k(blocks: Bytes) -> F32:
    fifth: Bytes = unpack_bits(blocks[:, 16:48], 1, 32) << np.uint8(4)
    return _with_mins(blocks, unpack_bits(blocks[:, 48:], 4, 32) | fifth)


def _q6_k(blocks: Bytes) -> F32:
    low, high = unpack_bits(blocks[:, :128], 4, 64), unpack_bits(blocks[:, 128:192], 2, 32)
    q = (low | high << 4).astype(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    out: F32 = (f16(blocks[:, 208:210]) * scales)[:, :, None] * q.reshape(-1, 16, 16).astype(np.float32)
    return out


def _iq4_xs(blocks: Bytes) -> F32:
    scales = unpack_bits(blocks[:, 4:8], 4, 1) | unpack_bits(blocks[:, 2:4], 2, 1) << 4
    d = f16(blocks[:, :2]) * (scales.astype(np.int8) - np.int8(32)).astype(np.float32)
    values = IQ4_VALUES[unpack_bits(blocks[:, 8:], 4, 16)].reshape(-1, 8, 32).astype(np.float32)
    out: F32 = d[:, :, None] * values
    return out


# blocks, uint8 [n][bytes a block] -> f32, n × the weights of a block in order
DEQUANTIZERS: dict[str, Callable[[Bytes], F32]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q2_K": _q2_k,
    "q3_K": _q3_k,
    "q4_K": _q4_k,
    "q5_K": _q5_k,
    "q6_K": _q6_k,
    "iq4_nl": _iq4_nl,
    "iq4_xs": _iq4_xs,
}
