"""The decode step of the fast build: embedding, one launch of all phases (or one a phase), and the next token.

Five phases a layer, each ending where all blocks need its result: q, k, v with rotation and KV write; attention; the
output projection added to the residual; gate and up with SwiGLU; down added to the residual. Then the output matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from attrib.manifest import Stage
from engine import fast_tables as tables
from engine import kernels_ops as ops
from engine.config import ModelConfig
from engine.dispatch import Build
from engine.errors import PlanError
from engine.fast_model import Matrix, blocks_of, matrices, place_of
from engine.fast_tables import (
    ADD,
    AFTER_ALL,
    ATTEND,
    BRIEF_INPUT,
    GATE_UP,
    IN_ODD,
    LAST_LOGITS,
    LOGITS,
    NORM_INPUT,
    NORMED_ROWS,
    OUT_ODD,
    PLAIN_INPUT,
    QKV,
    Phase,
    Segment,
    Tables,
)
from engine.kernels import Coverage, KernelSpec, Shape, Traffic
from engine.kernels_fast import FORMATS, fast_step, tile_dequantize
from engine.plan import RING, STATE_TOKEN_OFFSET, Arg, Buf, Geometry, PlannedLaunch, Planner, Weight, embed
from engine.tiles import ROWS

HEAD_OF_PREFILL = "normed"
COUNTERS = 2  # blocks that left, and the turn of the first layer
NEVER = 1 << 30


def groups(config: ModelConfig) -> int:
    """Query-head groups of attention, each with a counter."""
    shape = config.model.shape
    return shape.heads // ops.query_group(shape.heads, shape.kv_heads)


@lru_cache(maxsize=8)
def step_tables(config: ModelConfig, blocks: int) -> Tables:
    """All phases of a decode step, and after them those of the output matrix for prefill's last token.

    Raises PlanError for a model the fast build cannot run.
    """
    shape, found = config.model.shape, matrices(config)
    if shape.head_dim not in ops.HEAD_DIMS:
        raise PlanError(f"the fast build's attention takes a head_dim of 64 or 128, not {shape.head_dim}")
    if config.model.find("attn_q_norm", 0) is not None:
        raise PlanError("the fast build has no norm of q and k (qwen3); use the reference build")
    phases: list[Phase] = []
    for layer in range(shape.layers):
        phases += _layer(config, found, layer)
    last = IN_ODD if _written_in(shape.layers - 1) else 0
    head = [("residual_b", NORM_INPUT | last, "output_norm.weight"), (HEAD_OF_PREFILL, PLAIN_INPUT, None)]
    for source, how, gamma in head:
        phases += _head(config, found["head"], blocks, source, how, gamma)
    return Tables(tuple(phases))


def _layer(config: ModelConfig, found: Mapping[str, Matrix], layer: int) -> list[Phase]:
    shape = config.model.shape
    kv = ((f"k.{layer}", 0), (f"v.{layer}", 0))
    names = ("attn_qk", "attn_v", "attn_output", "ffn_gate_up", "ffn_down")
    qk, v, output, gate_up, down = (found[f"blk.{layer}.{name}"] for name in names)
    bias = config.model.find("attn_q_bias", layer)
    quants = qk.quant if qk.quant == v.quant else f"{qk.quant}+{v.quant}"
    norm = f"blk.{layer}.{{}}_norm.weight".format
    turn = _written_in(layer)
    within = AFTER_ALL | (IN_ODD if turn else 0) | turn
    from_before = IN_ODD if layer and _written_in(layer - 1) else 0
    return [
        Phase(
            f"attn_qkv/{quants}",
            layer,
            QKV,
            AFTER_ALL | NORM_INPUT | NORMED_ROWS | from_before | turn,
            (_whole(qk), _whole(v)),
            x=("residual_b" if layer else "hidden", 0),
            gamma=norm("attn"),
            bias=bias.name if bias else None,
            shared=("qkv", 0),
            kv=kv,
            cols=shape.hidden,
        ),
        Phase("attention", layer, ATTEND, within, x=("qkv", 0), shared=("attended", 0), kv=kv),
        _added(output, layer, within | PLAIN_INPUT, "attended", "residual_a"),
        Phase(
            f"ffn_gate_up/{gate_up.quant}",
            layer,
            GATE_UP,
            within | NORM_INPUT | NORMED_ROWS,
            (_whole(gate_up),),
            x=("residual_a", 0),
            gamma=norm("ffn"),
            shared=("gated", 0),
            cols=shape.hidden,
        ),
        _added(down, layer, within | BRIEF_INPUT, "gated", "residual_b"),
    ]


def _written_in(layer: int) -> int:
    """The flag of what a layer shares: turns alternate, and memory starts in the even one."""
    return 0 if layer & 1 else OUT_ODD


def _added(matrix: Matrix, layer: int, flags: int, source: str, shared: str) -> Phase:
    site, whole = f"{matrix.role}/{matrix.quant}", (_whole(matrix),)
    out = ("hidden", 0)
    return Phase(site, layer, ADD, flags, whole, x=(source, 0), out=out, shared=(shared, 0), cols=matrix.cols)


def _whole(matrix: Matrix) -> Segment:
    return Segment(matrix, 0, matrix.rows // ROWS)


def _head(config: ModelConfig, matrix: Matrix, blocks: int, source: str, how: int, gamma: str | None) -> list[Phase]:
    pieces = tables.segments_of(matrix, blocks)
    found = []
    for i, piece in enumerate(pieces):
        flags = (AFTER_ALL | how if i == 0 else 0) | (NORMED_ROWS if gamma else 0)
        flags |= LAST_LOGITS if i == len(pieces) - 1 else 0
        found.append(
            Phase(
                f"output/{matrix.quant}",
                None,
                LOGITS,
                flags,
                (piece,),
                x=(source, 0),
                gamma=gamma if i == 0 else None,
                out=("logits", 0),
                cols=config.model.shape.hidden,
                row=piece.first * ROWS,
            )
        )
    return found


def decode(config: ModelConfig, build: Build, geo: Geometry, kv_len: int) -> tuple[PlannedLaunch, ...]:
    """The launches of one decode step. Raises PlanError as `engine.plan.decode` does."""
    if not 1 <= kv_len <= geo.capacity:
        raise PlanError(f"KV length {kv_len} is not between 1 and the capacity {geo.capacity}")
    planner = Planner(config, build, geo, kv_len=kv_len)
    embed(planner, Buf("state", STATE_TOKEN_OFFSET))
    blocks = blocks_of(config, geo.sms)
    every = step_tables(config, blocks)
    last = len(every.phases) - len(tables.segments_of(matrices(config)["head"], blocks))
    starts = [i for i in range(last) if every.phases[i].flags & AFTER_ALL]
    ranges = [(0, last)] if build.persistent else list(zip(starts, [*starts[1:], last], strict=True))
    for first, end in ranges:
        _phases(planner, every, first, end)
    _advance(planner, 1)
    return tuple(planner.launches)


def _advance(planner: Planner, consumed: int) -> None:
    blocks = blocks_of(planner.config, planner.geometry.sms)
    shape = Shape(cols=planner.config.model.head().rows, parts=blocks)
    args: tuple[Arg, ...] = (
        Buf("part_value"),
        Buf("part_index"),
        Buf("state"),
        Buf("ring"),
        blocks,
        consumed,
        RING,
    )
    planner.add("advance", ops.advance(), shape, args, out=Buf("state"), out_bytes=4 * ops.STATE_INTS)


def _phases(planner: Planner, every: Tables, first: int, end: int) -> None:
    config, geo = planner.config, planner.geometry
    s = config.model.shape
    some = every.phases[first:end]
    layout = tables.shared_layout(
        every,
        end - first,
        blocks=blocks_of(config, geo.sms),
        group=ops.query_group(s.heads, s.kv_heads),
        head_dim=s.head_dim,
        limit=geo.shared_bytes,
    )
    stages = tuple(_stage(planner, i, phase) for i, phase in enumerate(some))
    args: tuple[Arg, ...] = (
        *(Buf(name) for name in ("phases", "streams", "segments", "state", "rope", "part_acc", "part_ml", "counters")),
        Buf("part_value"),
        Buf("part_index"),
        Buf("stamps") if geo.stamps else None,
        first,
        end,
        len(every.kinds),
        every.qk_segment,
        layout.ring_bytes,
        layout.scratch_bytes,
        layout.image_steps,
        layout.most_pairs,
        s.heads,
        s.kv_heads,
        geo.capacity,
        int(config.paired_rope),
        # the turn changes where a launch goes through an odd number of layers, not in prefill's output matrix
        s.layers & 1 if planner.build.persistent and some[0].layer is not None else 0,
        s.norm_eps,
        s.head_dim**-0.5,
    )
    out = some[-1].out or some[-1].shared or ("hidden", 0)
    site = "step" if len(stages) > 1 and any(p.layer is not None for p in some) else some[0].site
    planner.layer = some[0].layer if len({p.layer for p in some}) == 1 else None
    spec = step_spec(planner, every, some, stages, layout.total)
    named = stages if planner.build.persistent and len(stages) > 1 else ()
    planner.add(site, spec, Shape(), args, out=Buf(*out), out_bytes=0, parts=stages, stages=named)
    planner.layer = None


def step_spec(
    planner: Planner, every: Tables, some: tuple[Phase, ...], stages: tuple[Stage, ...], shared_bytes: int
) -> KernelSpec:
    """The spec of a launch of some phases: coverage of all their records, bytes of all their stages."""
    s, geo = planner.config.model.shape, planner.geometry
    segments = tuple(dict.fromkeys(segment for phase in some for segment in phase.segments))

    def coverage(grid: tuple[int, int, int]) -> Coverage:
        return Coverage(tuple((segment.matrix.name, tables.coverage_of(segment, grid[0])) for segment in segments))

    formats = sum({1 << FORMATS.index(segment.matrix.quant) for phase in every.phases for segment in phase.segments})
    defines = (
        ("HEAD_DIM", s.head_dim),
        ("GROUP", ops.query_group(s.heads, s.kv_heads)),
        ("FORMATS", formats),
        # which pieces a KV range has may change from step to step, and turns of an odd number of layers do too
        *((("SPLIT", NEVER),) if s.layers & 1 else ()),
        *sorted((planner.build.step or {}).items()),
    )
    traffic = Traffic(
        sum(stage.weight_bytes for stage in stages),
        sum(stage.kv_bytes for stage in stages),
        sum(stage.act_bytes for stage in stages),
    )
    return fast_step(
        blocks=blocks_of(planner.config, geo.sms),
        shared_bytes=shared_bytes,
        defines=defines,
        coverage=coverage,
        traffic=traffic,
    )


def _stage(planner: Planner, i: int, phase: Phase) -> Stage:
    s, kv_len = planner.config.model.shape, planner.kv_len
    units = covered = weight_bytes = act_bytes = 0
    for segment in phase.segments:
        asked, once = tables.units_of(
            segment, tables.coverage_of(segment, blocks_of(planner.config, planner.geometry.sms))
        )
        units, covered, weight_bytes = units + asked, covered + once, weight_bytes + segment.nbytes
        act_bytes += 4 * (segment.matrix.cols + ROWS * segment.tiles)
    kv_bytes = 2 * 2 * s.kv_heads * s.head_dim if phase.operation == QKV else 0
    if phase.operation == ATTEND:
        kv_bytes = 4 * s.kv_heads * kv_len * s.head_dim
        act_bytes = 8 * s.heads * s.head_dim
        units = covered = s.heads * kv_len
    return Stage(i, phase.site, phase.layer, weight_bytes, kv_bytes, act_bytes, units, covered)


class FastPlanner(Planner):
    """Prefill's launches over a model in tiles."""

    def dequantize(self, role: str, first: int, rows: int) -> tuple[KernelSpec, tuple[Arg, ...]]:
        """The launch that puts rows of a tensor into `tile` as f16."""
        matrix, part = place_of(matrices(self.config), self.tensor(role))
        blocks = blocks_of(self.config, self.geometry.sms)
        place = (part.base, part.stride, part.half, matrix.rows // ROWS, tables.piece_of(matrix, blocks), blocks)
        return tile_dequantize(matrix.quant), (Weight(matrix.name), Buf("tile"), rows, matrix.cols, first, *place)

    def head(self) -> None:
        """Logits of one token from `normed` and each block's best."""
        self.tokens, self.layer = 1, None
        blocks = blocks_of(self.config, self.geometry.sms)
        every = step_tables(self.config, blocks)
        pieces = len(tables.segments_of(matrices(self.config)["head"], blocks))
        _phases(self, every, len(every.phases) - pieces, len(every.phases))

    def sample(self, consumed: int) -> None:
        """The best token of all blocks, and the move to the next position."""
        _advance(self, consumed)
