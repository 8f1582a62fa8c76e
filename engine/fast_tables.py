"""The tables that fast_step.cu runs by: segments, phases, streams, and how a block's shared memory is divided.

Pure arithmetic; `coverage_of` repeats the kernel's division of records among blocks and warps and counts each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from engine.errors import PlanError
from engine.fast_model import Matrix
from engine.kernels import Counts, ceil_div
from engine.kernels_fast import FORMATS
from engine.tiles import RECORD_BYTES, ROWS, STEP, WARPS, places, steps, tile_range

QKV, ATTEND, ADD, GATE_UP, LOGITS = range(5)
AFTER_ALL, NORM_INPUT, PLAIN_INPUT, BRIEF_INPUT, LAST_LOGITS = 1, 2, 4, 8, 16
IN_ODD, OUT_ODD, NORMED_ROWS = 32, 64, 128
PHASE = np.dtype(
    [(name, "<u8") for name in ("x", "gamma", "bias", "out", "shared", "k", "v")]
    + [(name, "<i4") for name in ("operation", "flags", "cols", "row")]
    + [("unused", "<u8")]
)
STREAM = np.dtype([("weights", "<u8", 2), ("segment", "<i4", 2), ("shallow", "<i4"), ("unused", "<i4")])
SEGMENT = np.dtype([(name, "<i4") for name in ("tiles", "steps", "record", "format")])
_IMAGE_BYTES, _SHARE_BYTES, _ANGLE_BYTES, _ROUNDS, _PLACES_BYTES = 640, 12, 8, 8, 128
_COPIES = 3  # a round is sent in
# static shared memory of fast_step.cu and what the driver keeps of a block's
_RESERVED = 3072
# partial sums of the output matrix are taken in pieces of at most this many records a block
_HEAD_RECORDS = 320
# about what a ring holds of a phase's weights before the phase begins
_SHALLOW_ROUNDS = 5
# the same of keys and values, whose rounds are larger
_SHALLOW_CACHE_ROUNDS = 3
_CACHE = -2  # a stream's first segment where it is of keys and values
_CACHE_POSITIONS = 16  # of a record of keys, or of values
MOST_SPLITS = 72
Address = tuple[str, int]  # a name and an offset in bytes


@dataclass(frozen=True)
class Segment:
    """Tiles first .. first + tiles - 1 of a matrix, streamed in one phase."""

    matrix: Matrix
    first: int
    tiles: int

    @property
    def steps(self) -> int:
        """Records a tile."""
        return steps(self.matrix.cols)

    @property
    def nbytes(self) -> int:
        """Bytes of its records."""
        return self.tiles * self.steps * RECORD_BYTES[self.matrix.quant]

    @property
    def offset(self) -> int:
        """Where it begins in its matrix, in bytes."""
        return self.first * self.steps * RECORD_BYTES[self.matrix.quant]

    @property
    def kind(self) -> tuple[int, int, int, int]:
        """A row of the segment table."""
        quant = self.matrix.quant
        return self.tiles, self.steps, RECORD_BYTES[quant], FORMATS.index(quant)


@dataclass(frozen=True)
class Phase:
    """One stage of a step; names are of buffers and weights, resolved when the tables are uploaded."""

    site: str
    layer: int | None
    operation: int
    flags: int
    segments: tuple[Segment, ...] = ()
    x: Address | None = None
    gamma: str | None = None
    bias: str | None = None
    out: Address | None = None
    shared: Address | None = None
    kv: tuple[Address, Address] | None = None
    cols: int = 0
    row: int = 0


@dataclass(frozen=True)
class Tables:
    """All phases of a step, and the segments they use."""

    phases: tuple[Phase, ...]
    kinds: tuple[tuple[int, int, int, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        kinds = dict.fromkeys(segment.kind for phase in self.phases for segment in phase.segments)
        object.__setattr__(self, "kinds", tuple(kinds))

    @property
    def qk_segment(self) -> int:
        """A segment whose rows are those of the fused q and k matrices."""
        return next(self.kinds.index(p.segments[0].kind) for p in self.phases if p.operation == QKV)

    def arrays(self, buffer: Callable[[str], int], weight: Callable[[str], int]) -> dict[str, NDArray[np.void]]:
        """The device tables by buffer name, given the addresses of buffers and of weights."""
        phases, streams = np.zeros(len(self.phases), PHASE), np.zeros(len(self.phases), STREAM)
        for i, phase in enumerate(self.phases):
            row = phases[i]
            for name, address in (("x", phase.x), ("out", phase.out), ("shared", phase.shared)):
                row[name] = buffer(address[0]) + address[1] if address else 0
            for name, tensor in (("gamma", phase.gamma), ("bias", phase.bias)):
                row[name] = weight(tensor) if tensor else 0
            for name, address in zip(("k", "v"), phase.kv or (), strict=False):
                row[name] = buffer(address[0]) + address[1]
            for name in ("operation", "flags", "cols", "row"):
                row[name] = getattr(phase, name)
            streams[i]["segment"] = -1
            streams[i]["shallow"] = _SHALLOW_ROUNDS if phase.flags & AFTER_ALL else 0
            if phase.operation == ATTEND:
                streams[i]["weights"] = row["k"], row["v"]
                streams[i]["segment"][0] = _CACHE
                streams[i]["shallow"] = _SHALLOW_CACHE_ROUNDS
            for place, segment in enumerate(phase.segments):
                streams[i]["weights"][place] = weight(segment.matrix.name) + segment.offset
                streams[i]["segment"][place] = self.kinds.index(segment.kind)
        return {"phases": phases, "streams": streams, "segments": np.array(list(self.kinds), SEGMENT)}


@dataclass(frozen=True)
class SharedLayout:
    """Dynamic shared memory of a launch of `count` phases: ring, scratch, tables; bytes."""

    ring_bytes: int
    scratch_bytes: int
    image_steps: int
    most_pairs: int
    total: int


def tiles_a_block(tiles: int, blocks: int) -> int:
    """The most tiles a block gets; blocks get tile ranges b·tiles/blocks .. (b + 1)·tiles/blocks."""
    return ceil_div(tiles, blocks)


def records_a_block(phase: Phase, blocks: int) -> int:
    """The most records, and so partial sums of 8 rows, that a block has in a phase."""
    return sum(tiles_a_block(segment.tiles, blocks) * segment.steps for segment in phase.segments)


def shared_layout(tables: Tables, count: int, *, blocks: int, group: int, head_dim: int, limit: int) -> SharedLayout:
    """Divide `limit` bytes of shared memory a block; raises PlanError when the ring would be too short.

    The ring takes what is left, up to as many rounds of the smallest records as can be in it.
    """
    segments = [segment for phase in tables.phases for segment in phase.segments]
    image_steps = max(segment.steps for segment in segments)
    partials = max(records_a_block(phase, blocks) for phase in tables.phases) * ROWS * 4
    attention = attention_bytes(group, head_dim)
    scratch = _rounded(max(image_steps * _IMAGE_BYTES + partials, attention), 128)
    pairs = tiles_a_block(tables.kinds[tables.qk_segment][0], blocks) * ROWS // 2
    kinds = len(tables.kinds) * (SEGMENT.itemsize + _SHARE_BYTES)
    rest = _PLACES_BYTES + scratch + count * STREAM.itemsize + kinds + pairs * _ANGLE_BYTES
    rounds = [WARPS * RECORD_BYTES[segment.matrix.quant] for segment in segments]
    ring = min((limit - _RESERVED - rest) // 128 * 128, _ROUNDS * min(rounds))
    # two rounds of weights; of keys or values one, and what a copy skips that would cross the ring's end
    least = max(2 * max(rounds), (WARPS + WARPS // _COPIES) * _CACHE_POSITIONS * 2 * head_dim)
    if ring < least:
        raise PlanError(
            f"a block has {limit} bytes of shared memory; besides {rest} for activations, a ring of at least "
            f"{least} bytes does not fit; use the reference build"
        )
    return SharedLayout(ring, scratch, image_steps, pairs, ring + _rounded(rest, 16))


def attention_bytes(group: int, head_dim: int) -> int:
    """Shared memory of the attention phase, at most: AttentionMemory of fast_attention.cuh with its padding."""
    token = 2 * 8 * (head_dim + 8) + 4 * head_dim
    slots = ceil_div(WARPS, 2) * (group + group % 2) * head_dim
    parts = 2 * group * MOST_SPLITS + group * head_dim + MOST_SPLITS
    return token + 4 * (2 * WARPS * 8 + slots + parts) + 64


def _rounded(nbytes: int, to: int) -> int:
    return ceil_div(nbytes, to) * to


def piece_of(matrix: Matrix, blocks: int) -> int:
    """Tiles of a phase's part of a matrix: all, but for the output matrix, whose partial sums would not fit."""
    tiles = matrix.rows // ROWS
    if matrix.layer is not None:
        return tiles
    return ceil_div(tiles, ceil_div(tiles_a_block(tiles, blocks) * steps(matrix.cols), _HEAD_RECORDS))


def segments_of(matrix: Matrix, blocks: int) -> tuple[Segment, ...]:
    """A matrix in the pieces that its phases stream."""
    tiles, piece = matrix.rows // ROWS, piece_of(matrix, blocks)
    return tuple(Segment(matrix, first, min(piece, tiles - first)) for first in range(0, tiles, piece))


def coverage_of(segment: Segment, blocks: int) -> Counts:
    """How often each record (tile × steps + step) of a segment is multiplied by a launch of `blocks` blocks.

    A block streams the records between its first tile's and the next block's; which record lies where, `places` says.
    Of records that would lie in one place only one can be there, so none of them counts.
    """
    return _counts(segment.tiles, segment.steps, blocks)


@lru_cache(maxsize=64)
def _counts(tiles: int, steps_each: int, blocks: int) -> Counts:
    streamed = np.zeros(tiles * steps_each, np.int64)
    for block in range(blocks):
        first, end = tile_range(tiles, block, blocks)
        streamed[first * steps_each : end * steps_each] += 1
    lies = places(tiles, steps_each, blocks).reshape(-1)
    alone = np.bincount(lies, minlength=len(lies))[lies] == 1
    counts = np.where(alone, streamed[lies], 0)
    counts.setflags(write=False)
    return counts


def units_of(segment: Segment, counts: Counts) -> tuple[int, int]:
    """(units, units computed exactly once) of a segment: 32 weights of a row each, padding not counted."""
    left = segment.matrix.cols - STEP * np.arange(segment.steps)
    each = ROWS * np.minimum(left, STEP) // 32
    return int(each.sum()) * segment.tiles, int(((counts == 1).reshape(segment.tiles, -1) * each).sum())
