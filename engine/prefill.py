"""The work of one prefill pass over up to a batch of tokens: kernels, and matrix products on f16 tiles. Pure.

A weight matrix is dequantized a tile of rows at a time, so no f16 copy of the model ever exists.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine import kernels_ops as ops
from engine.buffers import TILE_BYTES
from engine.config import HEAD_NORMS, ModelConfig
from engine.dispatch import Build
from engine.errors import PlanError
from engine.kernels import Shape, ceil_div
from engine.plan import Arg, Buf, Geometry, PlannedLaunch, Planner, Weight, embed

BATCH = 512
TILE_STEP = 128
QKV = (("attn_q", "q"), ("attn_k", "k"), ("attn_v", "v"))


@dataclass(frozen=True)
class Gemm:
    """out f32 [tokens][stride], `rows` columns from out's offset = x f16 [tokens][cols] · weights f16ᵀ.

    add: add to `out`, as a residual connection does.
    """

    site: str
    layer: int | None
    weights: Buf | Weight
    x: Buf
    out: Buf
    rows: int
    cols: int
    tokens: int
    stride: int
    add: bool


Work = PlannedLaunch | Gemm


def tile_rows(rows: int, cols: int, limit: int = TILE_BYTES) -> int:
    """Rows of an f16 tile of at most `limit` bytes: equal tiles, whole multiples of 128 where there are several.

    A thin last tile would run a matrix product of its own at a fraction of the rate.
    """
    most = limit // (2 * cols)
    if rows <= most:
        return rows
    if most < TILE_STEP:
        raise PlanError(f"{TILE_STEP} rows of {cols} f16 weights do not fit a tile of {limit} bytes")
    tiles = ceil_div(rows, most // TILE_STEP * TILE_STEP)
    return ceil_div(ceil_div(rows, tiles), TILE_STEP) * TILE_STEP


class _Prefill:
    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.work: list[Work] = []

    def flush(self) -> None:
        self.work += self.planner.launches
        self.planner.launches.clear()

    def norm(self, role: str) -> None:
        """The residual's RMSNorm, as the f16 input of matrix products."""
        planner, s = self.planner, self.planner.config.model.shape
        args: tuple[Arg, ...] = (
            Buf("hidden"),
            Weight(planner.tensor(role).name),
            Buf("half"),
            s.hidden,
            s.norm_eps,
        )
        shape = Shape(cols=s.hidden, tokens=planner.tokens)
        out_bytes = 2 * s.hidden * planner.tokens
        planner.add("rms_norm", ops.rms_norm(half=True), shape, args, out=Buf("half"), out_bytes=out_bytes)

    def swiglu(self) -> None:
        """silu(gate) · up, as the f16 input of a matrix product."""
        planner = self.planner
        shape = Shape(cols=planner.config.model.shape.ffn, tokens=planner.tokens)
        count = shape.cols * shape.tokens
        args: tuple[Arg, ...] = (Buf("gate"), Buf("up"), Buf("half"), count)
        planner.add("swiglu", ops.swiglu(half=True), shape, args, out=Buf("half"), out_bytes=2 * count)

    def matrix(self, role: str, out: str, *, add: bool = False) -> None:
        planner, tokens = self.planner, self.planner.tokens
        tensor = planner.tensor(role)
        rows, cols = tensor.rows, tensor.cols
        most = rows if tensor.quant == "f16" else tile_rows(rows, cols)
        for first in range(0, rows, most):
            taken = min(most, rows - first)
            source: Buf | Weight = Weight(tensor.name, 2 * first * cols)
            if tensor.quant != "f16":
                spec, args = planner.dequantize(role, first, taken)
                shape = Shape(rows=taken, cols=cols)
                site = f"dequantize/{tensor.quant}"
                planner.add(site, spec, shape, args, out=Buf("tile"), out_bytes=2 * taken * cols)
                source = Buf("tile")
            self.flush()
            place = Buf(out, 4 * first)
            site = f"{role}/{tensor.quant}"
            self.work.append(Gemm(site, planner.layer, source, Buf("half"), place, taken, cols, tokens, rows, add))

    def heads(self) -> None:
        """Queries of the pass, and its keys and values into the cache, biases on the way."""
        planner, layer = self.planner, self.planner.layer
        find, biases = planner.config.model.find, []
        for role, out in QKV:
            self.matrix(role, out)
            found = find(f"{role}_bias", layer)
            biases.append(Weight(found.name) if found else None)
        if any(find(norm, layer) for norm in HEAD_NORMS):  # which take heads with their biases
            for (role, out), bias in zip(QKV, biases, strict=True):
                if bias is not None:
                    shape = Shape(cols=planner.tensor(role).rows, tokens=planner.tokens)
                    args: tuple[Arg, ...] = (Buf(out), bias, shape.cols)
                    out_bytes = 4 * shape.tokens * shape.cols
                    planner.add("add_bias", ops.add_bias(), shape, args, out=Buf(out), out_bytes=out_bytes)
            planner.head_norms()
            planner.rope()
        else:
            planner.rope(*biases)

    def attention(self, kv_len: int) -> None:
        planner = self.planner
        s, tokens = planner.config.model.shape, planner.tokens
        shape = Shape(
            heads=s.heads,
            kv_heads=s.kv_heads,
            head_dim=s.head_dim,
            capacity=planner.geometry.capacity,
            tokens=tokens,
            kv_len=kv_len,
        )
        args: tuple[Arg, ...] = (
            Buf("q"),
            *planner.kv(),
            Buf("state"),
            Buf("half"),
            tokens,
            s.heads,
            s.kv_heads,
            planner.geometry.capacity,
            s.head_dim**-0.5,
        )
        out_bytes = 2 * tokens * s.heads * s.head_dim
        planner.add(
            "attn_prefill",
            ops.attn_prefill(s.head_dim),
            shape,
            args,
            out=Buf("half"),
            out_bytes=out_bytes,
        )


def prefill(
    config: ModelConfig,
    build: Build,
    geo: Geometry,
    tokens: int,
    *,
    sample: bool,
    planner_of: type[Planner] = Planner,
) -> tuple[Work, ...]:
    """The work of one pass over `tokens` ids in the buffer `tokens`, at the position in `state`.

    sample: end with the last token's logits, its arg max and the move to the next position; a pass that is
    not the prompt's last leaves `state` to its caller. Raises PlanError as decode plans do.
    """
    if not 1 <= tokens <= min(BATCH, geo.capacity):
        raise PlanError(f"a prefill pass takes 1 to {min(BATCH, geo.capacity)} tokens, not {tokens}")
    s = config.model.shape
    planner = planner_of(config, build, geo, tokens=tokens)
    pass_ = _Prefill(planner)
    embed(planner, Buf("tokens"))
    for layer in range(s.layers):
        planner.layer = layer
        pass_.norm("attn_norm")
        pass_.heads()
        pass_.attention(tokens)
        pass_.matrix("attn_output", "hidden", add=True)
        pass_.norm("ffn_norm")
        pass_.matrix("ffn_gate", "gate")
        pass_.matrix("ffn_up", "up")
        pass_.swiglu()
        pass_.matrix("ffn_down", "hidden", add=True)
    planner.layer = None
    if sample:
        planner.tokens = 1
        planner.norm("output_norm", "hidden", "normed", offset=4 * s.hidden * (tokens - 1))
        planner.head()
        planner.sample(tokens)
    pass_.flush()
    return tuple(pass_.work)
