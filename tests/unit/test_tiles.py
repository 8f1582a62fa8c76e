"""The tile layout: nothing is lost, the bits are where the kernels read them, and records lie where `places` says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib.models import BLOCKS
from engine import tiles
from engine.errors import EngineError
from engine.quant import dequantize

KINDS = tuple(tiles.RECORD_BYTES)
D, DMIN = 1.5, 0.25
F16_BITS = np.array([D, DMIN], np.float16).view(np.uint16)


def random_bytes(kind: str, rows: int, cols: int, seed: int) -> np.ndarray:
    elements, size, _ = BLOCKS[kind]
    return np.random.default_rng(seed).integers(0, 256, (rows, cols // elements * size), dtype=np.uint8)


def one_step(kind: str, scales: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """(weights f32 [8][512], the only record) of a tile with random quants and these f16 at these bytes of a block."""
    size = BLOCKS[kind][1]
    stored = random_bytes(kind, 8, 512, 3).reshape(-1, size)
    for at, value in scales.items():
        stored[:, at : at + 2] = np.array([value], np.float16).view(np.uint8)
    stored = stored.reshape(8, -1)
    return dequantize(kind, stored, 512), tiles.pack(kind, stored, 512)[0, 0]


def plane(record: np.ndarray, j: int, lane: int) -> np.ndarray:
    """The 16 bytes of a lane in plane j."""
    return record[512 * j + 16 * lane :][:16]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 3), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_packing_any_bits_loses_none(kind: str, count: int, blocks: int, seed: int) -> None:
    rows, cols = 8 * count, blocks * BLOCKS[kind][0]
    stored = random_bytes(kind, rows, cols, seed)
    records = tiles.pack(kind, stored, cols)
    assert records.shape == (count, -(-cols // 512), tiles.RECORD_BYTES[kind])
    assert records.nbytes == tiles.tile_bytes(kind, rows, cols)
    np.testing.assert_array_equal(tiles.unpack(kind, records, cols), stored)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_and_a_step_do_not_touch_their_neighbours(kind: str) -> None:
    stored = random_bytes(kind, 16, 1024, 5)
    before = tiles.pack(kind, stored, 1024)
    other = stored.copy()
    other[11, other.shape[1] // 2 :] ^= 255
    changed = before != tiles.pack(kind, other, 1024)
    assert not changed[0].any()
    assert not changed[1, 0].any()
    lanes = np.flatnonzero(changed[1, 1][:512].reshape(32, 16).any(axis=1))
    assert lanes.tolist() == [12, 13, 14, 15]  # row 3 of tile 1


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_fill_a_step_up_weigh_nothing(kind: str) -> None:
    elements, size, _ = BLOCKS[kind]
    stored = random_bytes(kind, 8, 768, 7)
    whole = tiles.unpack(kind, tiles.pack(kind, stored, 768), 1024).reshape(8, -1, size)
    assert not whole[:, 768 // elements :].any()


def test_q4_k_bits_by_hand() -> None:
    weights, record = one_step("q4_K", {0: D, 2: DMIN})
    for lane in range(32):
        row, unit = divmod(lane, 4)
        head = record[2048 + 8 * lane :][:8]
        for j in range(4):
            bytes_ = plane(record, j, lane)
            quants = np.concatenate([bytes_ & 15, bytes_ >> 4]).astype(float)
            want = weights[row, 128 * unit + 32 * j :][:32]
            np.testing.assert_array_equal(D * (head[j] & 63) * quants - DMIN * (head[4 + j] & 63), want)
        assert sum(int(head[i] >> 6) << 2 * i for i in range(8)) == F16_BITS[unit & 1]


def test_q6_k_bits_by_hand() -> None:
    weights, record = one_step("q6_K", {208: D})
    for lane in range(32):
        row, unit = divmod(lane, 4)
        words = np.concatenate([plane(record, j, lane) for j in range(6)]).reshape(8, 3, 4)
        scales = record[3072 + 8 * lane :][:8].view(np.int8)
        for group, word in enumerate(words):
            last = word[0] >> 6 | word[1] >> 6 << 2 | word[2] >> 6 << 4
            six = np.concatenate([*(word & 63), last]).astype(float)
            want = weights[row, 128 * unit + 16 * group :][:16]
            np.testing.assert_array_equal(D * float(scales[group]) * (six - 32), want)
        assert record[3328 + 2 * (lane // 2) :][:2].view(np.uint16)[0] == F16_BITS[0]


def test_q5_0_bits_by_hand() -> None:
    weights, record = one_step("q5_0", {0: D})
    for lane in range(32):
        row, unit = divmod(lane, 4)
        for j in range(4):
            bytes_ = plane(record, j, lane)
            fifth = record[2048 + 16 * lane + 4 * j :][:4]
            quants = (
                np.concatenate([bytes_ & 15, bytes_ >> 4]).reshape(8, 4)
                | (fifth[None, :] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
            )
            want = weights[row, 128 * unit + 32 * j :][:32]
            np.testing.assert_array_equal(D * (quants.reshape(-1).astype(float) - 16), want)
            assert record[2560 + 8 * lane + 2 * j :][:2].view(np.uint16)[0] == F16_BITS[0]


def test_q8_0_bits_by_hand() -> None:
    weights, record = one_step("q8_0", {0: D})
    for lane in range(32):
        row, unit = divmod(lane, 4)
        quants = np.concatenate([plane(record, j, lane) for j in range(8)]).view(np.int8).astype(float)
        np.testing.assert_array_equal(D * quants, weights[row, 128 * unit :][:128])
        scales = record[4096 + 8 * lane :][:8].view(np.uint16)
        assert (scales == F16_BITS[0]).all()


def test_sizes_by_hand() -> None:
    assert tiles.tile_bytes("q4_K", 8, 512) == 8 * 2 * 144  # as many bytes as stored
    assert tiles.tile_bytes("q6_K", 8, 512) == 8 * 2 * 210
    assert tiles.tile_bytes("q5_0", 8, 512) == 8 * 16 * 22
    assert tiles.tile_bytes("q8_0", 8, 512) == 8 * 16 * 34
    assert tiles.tile_bytes("q6_K", 5120, 13824) == 640 * 27 * 3360
    assert (
        tiles.tile_bytes("q5_0", 16, 896) == 2 * 2 * 2816
    )  # 896 columns are two steps, the second three quarters full
    assert tiles.steps(18944) == 37


@pytest.mark.parametrize(
    ("kind", "rows", "cols", "sentence"),
    [
        ("q2_K", 8, 512, "q2_K weights have no tile layout; it exists for q4_K, q6_K, q5_0, q8_0"),
        ("f16", 8, 512, "f16 weights have no tile layout"),
        ("q4_K", 12, 512, "a 12 × 512 q4_K matrix has no tile layout: rows go by 8"),
        ("q6_K", 8, 896, "a 8 × 896 q6_K matrix has no tile layout: .* columns by blocks"),
        ("q8_0", 8, 48, "a 8 × 48 q8_0 matrix has no tile layout"),
    ],
)
def test_what_has_no_tiles_is_refused(kind: str, rows: int, cols: int, sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        tiles.tile_bytes(kind, rows, cols)


def test_packing_refuses_rows_that_are_no_whole_tile() -> None:
    with pytest.raises(EngineError, match="rows go by 8"):
        tiles.pack("q4_K", random_bytes("q4_K", 7, 512, 1), 512)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 90), st.integers(1, 40), st.integers(1, 140))
def test_places_are_a_permutation(count: int, steps: int, blocks: int) -> None:
    found = tiles.places(count, steps, blocks)
    assert found.shape == (count, steps)
    assert sorted(found.reshape(-1).tolist()) == list(range(count * steps))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 70))
def test_a_block_streams_its_own_tiles_and_each_warp_a_run(count: int, steps: int, blocks: int) -> None:
    """What a block reads in order is 15 records a round, one a warp, and a warp's records follow each other."""
    lies = np.empty((count * steps, 2), np.int64)
    lies[tiles.places(count, steps, blocks).reshape(-1)] = np.stack(np.divmod(np.arange(count * steps), steps), 1)
    for block in range(blocks):
        first, end = block * count // blocks, (block + 1) * count // blocks
        mine = lies[first * steps : end * steps]
        numbers = mine[:, 1] * (end - first) + mine[:, 0] - first
        runs = [numbers[warp :: tiles.WARPS] for warp in range(tiles.WARPS)]
        assert np.concatenate(runs).tolist() == list(range(len(numbers)))


def test_places_by_hand() -> None:
    # one block, 2 tiles of 16 steps: 32 records numbered step × 2 + tile; warps 0 and 1 take three, the others two
    found = tiles.places(2, 16, 1)
    assert found[0, 0] == 0  # record 0: warp 0, turn 0
    assert found[1, 0] == 15  # record 1: warp 0, turn 1
    assert found[0, 1] == 30  # record 2: warp 0, turn 2
    assert found[1, 1] == 1  # record 3: warp 1, turn 0
    assert found[0, 3] == 2  # record 6: warp 2, turn 0
    assert found[1, 15] == 29  # record 31: warp 14, turn 1
    # two blocks of one tile each: the second begins where the first one's 16 records end
    assert tiles.places(2, 16, 2)[:, 0].tolist() == [0, 16]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 50), st.integers(1, 6), st.integers(1, 60), st.integers(1, 20))
def test_arranged_records_are_found_again(count: int, steps: int, piece: int, blocks: int) -> None:
    records = np.arange(count * steps, dtype="<u4").view(np.uint8).reshape(count, steps, 4)
    flat = tiles.arrange(records, piece, blocks).view("<u4")
    for first in range(0, count, piece):
        size = min(piece, count - first)
        part = flat[first * steps : (first + size) * steps]
        want = np.arange(first * steps, (first + size) * steps).reshape(size, steps)
        np.testing.assert_array_equal(part[tiles.places(size, steps, blocks)], want)


def test_split_pairs_become_neighbours_in_every_head() -> None:
    assert tiles.pair_order(8, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    order = tiles.pair_order(384, 128)
    assert sorted(order.tolist()) == list(range(384))
    np.testing.assert_array_equal(order[1::2] - order[::2], 64)
    np.testing.assert_array_equal(order[::2].reshape(3, 64), np.arange(3)[:, None] * 128 + np.arange(64))
