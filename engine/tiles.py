"""The tile layout of the fast build: weights ordered as a warp reads them, invertible from the stored (GGUF) rows.

A matrix is tiles of 8 rows, a tile is steps of 512 columns, and a (tile, step) is one record, contiguous in memory, so
that one bulk copy brings what 32 lanes multiply. Lane 4·r + u holds row r of the tile and columns 128·u .. 128·u + 127
of the step: four sub-blocks of 32 weights. Rows whose width is not a multiple of 512 end in weights of scale zero.

q4_K  2304 bytes: 4 planes [32 lanes][16]: byte b of plane j is weight b (low nibble) and 16 + b of sub-block j;
      then [32][8]: byte j is scale j (6 bits), byte 4 + j is min j, and the eight spare bit pairs, lowest first, are
      the f16 d of the lane's block where u is even and its dmin where u is odd.
q6_K  3360 bytes: 6 planes [32][16] = 24 words a lane, three for each 16 weights: word i is weights 4i .. 4i + 3 in the
      low six bits of its bytes, and bits 2i, 2i + 1 of weights 12 .. 15 in the high two; then [32][8] i8 scales of the
      lane's eight 16s; then f16 d [8 rows][2 blocks].
q5_0  2816 bytes: 4 planes of nibbles as in q4_K; a plane [32][4] u32 of fifth bits: bit i of byte b is that of weight
      4i + b of the sub-block; then [32][4] f16 d.
q8_0  4352 bytes: 8 planes [32][16] i8; then [32][4] f16 d.

Records lie in memory in the order in which a device's blocks multiply them (`places`): a block streams its part of a
matrix from one end to the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attrib.models import BLOCKS
from engine.errors import EngineError
from engine.quant_blocks import Bytes

ROWS, STEP, LANES, UNIT = 8, 512, 32, 128
WARPS = 15  # of a block that multiply
RECORD_BYTES = {"q4_K": 2304, "q6_K": 3360, "q5_0": 2816, "q8_0": 4352}
Order = NDArray[np.int64]


def steps(cols: int) -> int:
    """Records in a tile of `cols` columns."""
    return -(-cols // STEP)


def tile_bytes(quant: str, rows: int, cols: int) -> int:
    """Bytes of a rows × cols matrix in tiles; raises EngineError for a shape or type that has no tiles."""
    if quant not in RECORD_BYTES:
        raise EngineError(f"{quant} weights have no tile layout; it exists for {', '.join(RECORD_BYTES)}")
    if rows % ROWS or cols % BLOCKS[quant][0]:
        raise EngineError(f"a {rows} × {cols} {quant} matrix has no tile layout: rows go by {ROWS}, columns by blocks")
    return rows // ROWS * steps(cols) * RECORD_BYTES[quant]


def pair_order(rows: int, head_dim: int) -> Order:
    """Packed rows of q or k with split rotary pairs: d and d + head_dim/2 of a head become neighbours."""
    half = head_dim // 2
    within = np.arange(head_dim).reshape(2, half).T.reshape(-1)
    return (np.arange(0, rows, head_dim)[:, None] + within).reshape(-1)


def tile_range(tiles: int, block: int, blocks: int) -> tuple[int, int]:
    """(first, end) of the tiles that a block multiplies, of a piece of `tiles` tiles."""
    return block * tiles // blocks, (block + 1) * tiles // blocks


def places(tiles: int, steps_each: int, blocks: int) -> NDArray[np.int64]:
    """Where the record (tile, step) of a piece lies, [tiles][steps]: a permutation of 0 .. tiles × steps - 1.

    Each block takes its `tile_range`. Its records, numbered step by step, are divided among its warps in runs that
    differ by one at most; turn by turn, each warp's next record is stored.
    """
    found = np.empty((tiles, steps_each), np.int64)
    for block in range(blocks):
        first, end = tile_range(tiles, block, blocks)
        if first == end:
            continue
        records = (end - first) * steps_each
        record = np.arange(records)
        warp, turn = _turns(records)
        tile, step = first + record % (end - first), record // (end - first)
        found[tile, step] = first * steps_each + turn * WARPS + warp
    return found


def _turns(records: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(warp, turn) of each of a block's records."""
    each, more = divmod(records, WARPS)
    counts = each + (np.arange(WARPS) < more)
    warp = np.repeat(np.arange(WARPS), counts)
    return warp, np.arange(records) - (np.cumsum(counts) - counts)[warp]


def arrange(records: Bytes, piece: int, blocks: int) -> Bytes:
    """Records [tiles][steps][record] of a matrix cut into pieces of `piece` tiles, as they lie in memory (flat)."""
    tiles, steps_each, width = records.shape
    out = np.empty((tiles * steps_each, width), np.uint8)
    for first in range(0, tiles, piece):
        some = records[first : first + piece]
        out[first * steps_each + places(len(some), steps_each, blocks)] = some
    return out.reshape(-1)


def pack(quant: str, stored: Bytes, cols: int) -> Bytes:
    """Stored rows, uint8 [rows][stored row bytes], already in packed order, as records [tiles][steps][record]."""
    rows = len(stored)
    tile_bytes(quant, rows, cols)
    elements, size, _ = BLOCKS[quant]
    blocks = np.zeros((rows, steps(cols) * (STEP // elements), size), np.uint8)
    blocks[:, : cols // elements] = stored.reshape(rows, -1, size)
    # [tile][row][step][unit][blocks of a unit, or half a block]
    return _PACK[quant](blocks.reshape(rows // ROWS, ROWS, steps(cols), -1, size))


def unpack(quant: str, records: Bytes, cols: int) -> Bytes:
    """The inverse of `pack`: stored rows, uint8 [rows][stored row bytes]."""
    elements, size, _ = BLOCKS[quant]
    blocks = _UNPACK[quant](records).reshape(len(records) * ROWS, -1, size)
    return np.ascontiguousarray(blocks[:, : cols // elements]).reshape(len(blocks), -1)


def _planes(units: Bytes) -> Bytes:
    """[tile][row][step][4 units][n × 16] -> [tile][step][n planes][32 lanes][16], flattened after step."""
    tiles, rows, count, four, width = units.shape
    split = units.reshape(tiles, rows, count, four, width // 16, 16)
    return split.transpose(0, 2, 4, 1, 3, 5).reshape(tiles, count, -1)


def _units(planes: Bytes) -> Bytes:
    """The inverse of `_planes`: [tile][row][step][4][n × 16]."""
    tiles, count, width = planes.shape
    split = planes.reshape(tiles, count, width // (LANES * 16), ROWS, 4, 16)
    return split.transpose(0, 3, 1, 4, 2, 5).reshape(tiles, ROWS, count, 4, -1)


def _lanes(values: Bytes) -> Bytes:
    """[tile][row][step][4 units][width] -> [tile][step][32 × width]."""
    return values.transpose(0, 2, 1, 3, 4).reshape(values.shape[0], values.shape[2], -1)


def _from_lanes(flat: Bytes, width: int) -> Bytes:
    """The inverse of `_lanes`."""
    return flat.reshape(flat.shape[0], flat.shape[1], ROWS, 4, width).transpose(0, 2, 1, 3, 4)


def _pack_q4_k(blocks: Bytes) -> Bytes:
    tiles, rows, count = blocks.shape[:3]
    quants = blocks[..., 16:].reshape(tiles, rows, count, 2, 4, 32)
    weights = np.stack([quants & 15, quants >> 4], axis=-2).reshape(tiles, rows, count, 4, 4, 32)
    nibbles = (weights[..., :16] | weights[..., 16:] << 4).reshape(tiles, rows, count, 4, 64)
    first, second, third = (blocks[..., at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    mins = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    both = np.stack([scales.reshape(*scales.shape[:-1], 2, 4), mins.reshape(*mins.shape[:-1], 2, 4)], axis=-2)
    # d belongs to the even unit of a block, dmin to the odd one: two bytes, eight bit pairs, each
    spare = blocks[..., :4].reshape(tiles, rows, count, 2, 2, 2)
    pairs = (spare[..., None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    head = (both | pairs << 6).reshape(tiles, rows, count, 4, 8)
    return np.concatenate([_planes(nibbles), _lanes(head)], axis=-1)


def _unpack_q4_k(records: Bytes) -> Bytes:
    planes = 4 * LANES * 16
    nibbles = _units(records[..., :planes])
    tiles, rows, count = nibbles.shape[:3]
    packed = nibbles.reshape(tiles, rows, count, 4, 4, 16)
    weights = np.concatenate([packed & 15, packed >> 4], axis=-1).reshape(tiles, rows, count, 2, 4, 2, 32)
    head = _from_lanes(records[..., planes:], 8).reshape(tiles, rows, count, 2, 2, 2, 4)
    six, pairs = head & 63, head >> 6
    scales, mins = (six[..., i, :].reshape(tiles, rows, count, 2, 8) for i in (0, 1))
    out = np.empty((tiles, rows, count, 2, 144), np.uint8)
    out[..., :4] = (pairs << np.array([0, 2, 4, 6], np.uint8)).sum(-1, dtype=np.uint8).reshape(*out.shape[:-1], 4)
    out[..., 4:8] = scales[..., :4] | scales[..., 4:] >> 4 << 6
    out[..., 8:12] = mins[..., :4] | mins[..., 4:] >> 4 << 6
    out[..., 12:16] = scales[..., 4:] & 15 | (mins[..., 4:] & 15) << 4
    out[..., 16:] = (weights[..., 0, :] | weights[..., 1, :] << 4).reshape(*out.shape[:-1], 128)
    return out


def _pack_q6_k(blocks: Bytes) -> Bytes:
    tiles, rows, count = blocks.shape[:3]
    low = blocks[..., :128].reshape(tiles, rows, count, 2, 2, 1, 2, 32)
    high = blocks[..., 128:192].reshape(tiles, rows, count, 2, 2, 1, 1, 32)
    nibble = low >> np.array([0, 4], np.uint8).reshape(2, 1, 1) & 15
    pair = high >> np.array([[0, 2], [4, 6]], np.uint8).reshape(2, 2, 1) & 3
    words = (nibble | pair << 4).reshape(tiles, rows, count, 4, 8, 4, 4)  # [unit][16s][word][byte]
    last = words[..., 3:, :] >> np.array([0, 2, 4], np.uint8).reshape(3, 1) & 3
    packed = (words[..., :3, :] | last << 6).reshape(tiles, rows, count, 4, 96)
    scales = blocks[..., 192:208].reshape(tiles, rows, count, 4, 8)
    d = blocks[..., 208:].transpose(0, 2, 1, 3, 4).reshape(tiles, count, -1)
    return np.concatenate([_planes(packed.astype(np.uint8)), _lanes(scales), d], axis=-1)


def _unpack_q6_k(records: Bytes) -> Bytes:
    planes, scales = 6 * LANES * 16, LANES * 8
    packed = _units(records[..., :planes])
    tiles, rows, count = packed.shape[:3]
    words = packed.reshape(tiles, rows, count, 4, 8, 3, 4)
    last = ((words >> 6) << np.array([0, 2, 4], np.uint8).reshape(3, 1)).sum(-2, dtype=np.uint8)
    six = np.concatenate([words & 63, last[..., None, :]], axis=-2).reshape(tiles, rows, count, 2, 2, 2, 2, 32)
    nibbles, pairs = six & 15, six >> 4  # [block][half][nibble][row of 32]
    out = np.empty((tiles, rows, count, 2, 210), np.uint8)
    out[..., :128] = (nibbles[..., 0, :, :] | nibbles[..., 1, :, :] << 4).reshape(*out.shape[:-1], 128)
    shifts = np.array([[0, 2], [4, 6]], np.uint8).reshape(2, 2, 1)
    out[..., 128:192] = (pairs << shifts).sum((-3, -2), dtype=np.uint8).reshape(*out.shape[:-1], 64)
    out[..., 192:208] = _from_lanes(records[..., planes : planes + scales], 8).reshape(*out.shape[:-1], 16)
    d = records[..., planes + scales :].reshape(tiles, count, rows, 2, 2)
    out[..., 208:] = d.transpose(0, 2, 1, 3, 4)
    return out


def _pack_q5_0(blocks: Bytes) -> Bytes:
    tiles, rows, count = blocks.shape[:3]
    nibbles = blocks[..., 6:].reshape(tiles, rows, count, 4, 64)
    bits = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little").reshape(*blocks.shape[:-1], 8, 4)
    fifth = np.packbits(bits.swapaxes(-1, -2), axis=-1, bitorder="little")
    d = blocks[..., :2].reshape(tiles, rows, count, 4, 8)
    return np.concatenate(
        [_planes(nibbles), _planes(fifth.astype(np.uint8).reshape(tiles, rows, count, 4, 16)), _lanes(d)], axis=-1
    )


def _unpack_q5_0(records: Bytes) -> Bytes:
    plane = LANES * 16
    nibbles = _units(records[..., : 4 * plane])
    tiles, rows, count = nibbles.shape[:3]
    fifth = _units(records[..., 4 * plane : 5 * plane]).reshape(tiles, rows, count, 16, 4)
    bits = np.unpackbits(fifth, axis=-1, bitorder="little").reshape(*fifth.shape[:-1], 4, 8)
    out = np.empty((tiles, rows, count, 16, 22), np.uint8)
    out[..., :2] = _from_lanes(records[..., 5 * plane :], 8).reshape(tiles, rows, count, 16, 2)
    out[..., 2:6] = np.packbits(bits.swapaxes(-1, -2).reshape(*fifth.shape[:-1], 32), axis=-1, bitorder="little")
    out[..., 6:] = nibbles.reshape(tiles, rows, count, 16, 16)
    return out


def _pack_q8_0(blocks: Bytes) -> Bytes:
    tiles, rows, count = blocks.shape[:3]
    quants = blocks[..., 2:].reshape(tiles, rows, count, 4, UNIT)
    d = blocks[..., :2].reshape(tiles, rows, count, 4, 8)
    return np.concatenate([_planes(quants), _lanes(d)], axis=-1)


def _unpack_q8_0(records: Bytes) -> Bytes:
    planes = 8 * LANES * 16
    quants = _units(records[..., :planes])
    tiles, rows, count = quants.shape[:3]
    out = np.empty((tiles, rows, count, 16, 34), np.uint8)
    out[..., 2:] = quants.reshape(tiles, rows, count, 16, 32)
    out[..., :2] = _from_lanes(records[..., planes:], 8).reshape(tiles, rows, count, 16, 2)
    return out


_PACK = {"q4_K": _pack_q4_k, "q6_K": _pack_q6_k, "q5_0": _pack_q5_0, "q8_0": _pack_q8_0}
_UNPACK = {"q4_K": _unpack_q4_k, "q6_K": _unpack_q6_k, "q5_0": _unpack_q5_0, "q8_0": _unpack_q8_0}
