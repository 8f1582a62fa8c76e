"""The launches of a decode step as data: kernels, shapes, symbolic arguments, and the manifest. Pure, no GPU.

Making a plan proves that every launch computes each of its units exactly once, or raises PlanError with the
shape and the missing units. Buffers and weights are named; a session turns names into addresses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from attrib.manifest import DeviceInfo, Dim3, Graph, Launch, Manifest, Stage
from attrib.models import Tensor
from engine import kernels_ops as ops
from engine.config import HEAD_NORMS, ModelConfig
from engine.dispatch import Build
from engine.errors import PlanError
from engine.kernels import Coverage, KernelSpec, Shape, ceil_div
from engine.kernels_matvec import quantize_q8
from engine.kernels_weights import dequantize_f16
from engine.module import build_hash
from engine.repack import gpu_row_bytes

MAX_SPLITS = 64
RING = 4096
STATE_TOKEN_OFFSET = 4 * ops.STATE_TOKEN


@dataclass(frozen=True)
class Buf:
    """An address inside a named buffer."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Weight:
    """The address of a tensor, by its GGUF name; an absent tensor is a null pointer."""

    name: str
    offset: int = 0


Arg = Buf | Weight | int | float | None


@dataclass(frozen=True)
class PlannedLaunch:
    """One kernel launch. `output` is the buffer it writes and `output_bytes` how much of it, for dumps.

    stages: the parts of a persistent kernel, in order; empty for all others.
    """

    site: str
    layer: int | None
    spec: KernelSpec
    shape: Shape
    grid: Dim3
    block: Dim3
    args: tuple[Arg, ...]
    output: Buf
    output_bytes: int
    units: int
    units_covered: int
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True)
class Geometry:
    """Sizes frozen when a step is captured: KV capacity in positions, pieces the KV range is cut into.

    sms, shared_bytes: multiprocessors, and shared memory a block may have, for kernels of one block each. stamps: a
    persistent kernel writes when each of its stages began and ended.
    """

    capacity: int
    splits: int
    sms: int = 1
    shared_bytes: int = 0
    stamps: bool = False

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.splits < 1:
            raise PlanError(f"a KV capacity of {self.capacity} and {self.splits} splits are not both positive")


def geometry(config: ModelConfig, capacity: int, sms: int, shared_bytes: int = 0, *, stamps: bool = False) -> Geometry:
    """Four attention blocks a multiprocessor where the capacity has that many tiles, at most 64 splits."""
    shape = config.model.shape
    across = shape.heads // ops.query_group(shape.heads, shape.kv_heads)
    tiles = ceil_div(max(capacity, 1), ops.ATTN_TILE)
    splits = max(1, min(MAX_SPLITS, tiles, ceil_div(4 * sms, across)))
    return Geometry(capacity, splits, sms, shared_bytes, stamps)


@dataclass
class Planner:
    """Collects launches, proving each; `where` of a refusal names the tensor or site."""

    config: ModelConfig
    build: Build
    geometry: Geometry
    tokens: int = 1
    kv_len: int = 1
    launches: list[PlannedLaunch] = field(default_factory=list)
    layer: int | None = None
    proofs: dict[tuple[object, ...], Coverage] = field(default_factory=dict)

    def add(
        self,
        site: str,
        spec: KernelSpec,
        shape: Shape,
        args: tuple[Arg, ...],
        *,
        out: Buf,
        out_bytes: int,
        parts: tuple[Stage, ...] = (),
        stages: tuple[Stage, ...] = (),
    ) -> None:
        """Append a launch; raises PlanError when it would skip or repeat units, KernelError for a shape.

        parts: what a launch of several parts computes, whose units it has; stages: those that a manifest names. A
        build that is marked unproven keeps its gaps: the manifest then says units_covered < units.
        """
        spec.check(shape)
        grid, block = spec.grid(shape), spec.block(shape)
        key = (spec.name, spec.defines, shape, grid, block, parts)
        coverage = self.proofs.get(key)
        if coverage is None:
            coverage = self.proofs[key] = spec.coverage(shape, grid, block)
        if not coverage.exact and not self.build.unproven:
            where = site if self.layer is None else f"blk.{self.layer}.{site}"
            raise PlanError(
                f"build {self.build.name} refused: {spec.name} on {where} ({shape.rows} × {shape.cols}) "
                f"does not compute every unit once; {coverage.gaps()}"
            )
        self.launches.append(
            PlannedLaunch(
                site,
                self.layer,
                spec,
                shape,
                grid,
                block,
                args,
                out,
                out_bytes,
                sum(part.units for part in parts) if parts else coverage.units,
                sum(part.units_covered for part in parts) if parts else coverage.once,
                stages,
            )
        )

    def matrix(self, role: str, source: str, out: str, residual: str | None = None, *, site: str | None = None) -> None:
        """A matrix × vector product of the current layer, bias included; its site is named by `site` or the role."""
        tensor = self.tensor(role)
        rule = self.build.select(tensor.quant, tensor.rows, tensor.cols)
        spec = rule.spec(tensor.quant)
        bias = self.config.model.find(f"{role}_bias", self.layer)
        shape = Shape(rows=tensor.rows, cols=tensor.cols, tokens=self.tokens)
        args: tuple[Arg, ...] = (
            Weight(tensor.name),
            Buf("q8" if rule.quantized_input else source),
            Weight(bias.name) if bias else None,
            Buf(residual) if residual else None,
            Buf(out),
            tensor.rows,
            tensor.cols,
        )
        name = f"{site or role}/{tensor.quant}"
        self.add(name, spec, shape, args, out=Buf(out), out_bytes=4 * tensor.rows * self.tokens)

    def dequantize(self, role: str, first: int, rows: int) -> tuple[KernelSpec, tuple[Arg, ...]]:
        """The launch that puts rows of a matrix of the current layer, from row `first` on, into `tile` as f16."""
        del rows  # the grid has a block each
        tensor = self.tensor(role)
        source = Weight(tensor.name, first * gpu_row_bytes(tensor.quant, tensor.cols))
        return dequantize_f16(tensor.quant), (source, Buf("tile"), tensor.cols)

    def quantize_for(self, source: str, *roles: str) -> None:
        """Quantize an activation once where a kernel of any of these matrices reads q8."""
        tensors = [self.tensor(role) for role in roles]
        if any(self.build.select(t.quant, t.rows, t.cols).quantized_input for t in tensors):
            shape = Shape(cols=tensors[0].cols, tokens=self.tokens)
            out_bytes = shape.tokens * shape.cols // 32 * 48
            args: tuple[Arg, ...] = (Buf(source), Buf("q8"), shape.cols)
            self.add("quantize_q8", quantize_q8(), shape, args, out=Buf("q8"), out_bytes=out_bytes)

    def norm(self, role: str, source: str, out: str, offset: int = 0) -> None:
        """RMSNorm with the weight of this role, of what starts `offset` bytes into the source."""
        cols, eps = self.config.model.shape.hidden, self.config.model.shape.norm_eps
        args: tuple[Arg, ...] = (Buf(source, offset), Weight(self.tensor(role).name), Buf(out), cols, eps)
        shape = Shape(cols=cols, tokens=self.tokens)
        self.add("rms_norm", ops.rms_norm(), shape, args, out=Buf(out), out_bytes=4 * cols * self.tokens)

    def head_norms(self) -> None:
        """RMSNorm of each head of q and k, in place, where the model has weights for it."""
        s = self.config.model.shape
        for role, name, heads in zip(HEAD_NORMS, ("q", "k"), (s.heads, s.kv_heads), strict=True):
            weight = self.config.model.find(role, self.layer)
            if weight is not None:
                shape = Shape(cols=s.head_dim, tokens=self.tokens * heads)
                args: tuple[Arg, ...] = (Buf(name), Weight(weight.name), Buf(name), s.head_dim, s.norm_eps)
                out_bytes = 4 * shape.cols * shape.tokens
                self.add(role, ops.rms_norm(ops.HEAD_NORM_THREADS), shape, args, out=Buf(name), out_bytes=out_bytes)

    def rope(self, *biases: Weight | None) -> None:
        """Rotate q and k and write the layer's KV; biases of q, k and v that are not in them yet, if any."""
        s = self.config.model.shape
        shape = Shape(
            heads=s.heads,
            kv_heads=s.kv_heads,
            head_dim=s.head_dim,
            capacity=self.geometry.capacity,
            tokens=self.tokens,
        )
        args: tuple[Arg, ...] = (
            *(Buf(name) for name in ("q", "k", "v")),
            *(biases or (None, None, None)),
            Buf("rope"),
            Buf("state"),
            *self.kv(),
            self.tokens,
            s.heads,
            s.kv_heads,
            s.head_dim,
            self.geometry.capacity,
            int(self.config.paired_rope),
        )
        out_bytes = 4 * s.heads * s.head_dim * self.tokens
        self.add("rope_kv_write", ops.rope_kv_write(), shape, args, out=Buf("q"), out_bytes=out_bytes)

    def kv(self) -> tuple[Buf, Buf]:
        """K and V of the current layer."""
        return Buf(f"k.{self.layer}"), Buf(f"v.{self.layer}")

    def tensor(self, role: str) -> Tensor:
        """The tensor of a role in the current layer; raises PlanError when the model has none."""
        found = self.config.model.find(role, self.layer)
        if found is None:
            raise PlanError(f"model {self.config.model.shape.name} has no {role} in layer {self.layer}")
        return found

    def head(self) -> None:
        """Logits of one token from `normed`, by the output matrix; site `output` also where that is the embedding."""
        tensor = self.config.model.head()
        self.tokens, self.layer = 1, None
        self.quantize_for("normed", tensor.role)
        # by the embedding's role the launch would be taken for a lookup of rows, whose bytes are no streaming
        self.matrix(tensor.role, "normed", "logits", site="output")

    def sample(self, consumed: int) -> None:
        """Greedy sampling: the token goes to `state` and `ring`, the position moves on."""
        shape = Shape(cols=self.config.model.head().rows, parts=ops.ARGMAX_PARTS)
        parts = (Buf("part_value"), Buf("part_index"))
        args: tuple[Arg, ...] = (Buf("logits"), *parts, shape.cols)
        self.add("argmax", ops.argmax_partial(), shape, args, out=parts[0], out_bytes=4 * shape.parts)
        args = (*parts, Buf("state"), Buf("ring"), shape.parts, consumed, RING)
        self.add("advance", ops.advance(), shape, args, out=Buf("state"), out_bytes=4 * ops.STATE_INTS)


def decode(config: ModelConfig, build: Build, geo: Geometry, kv_len: int) -> tuple[PlannedLaunch, ...]:
    """The launches of one decode step, one kernel an operation, in order.

    kv_len: KV length for the bytes of the manifest, at most the capacity. Raises PlanError when a launch
    would skip or repeat work, or when no dispatch rule or two fit a matrix.
    """
    if not 1 <= kv_len <= geo.capacity:
        raise PlanError(f"KV length {kv_len} is not between 1 and the capacity {geo.capacity}")
    planner = Planner(config, build, geo, kv_len=kv_len)
    embed(planner, Buf("state", STATE_TOKEN_OFFSET))
    for layer in range(config.model.shape.layers):
        planner.layer = layer
        planner.norm("attn_norm", "hidden", "normed")
        planner.quantize_for("normed", "attn_q", "attn_k", "attn_v")
        for role, out in (("attn_q", "q"), ("attn_k", "k"), ("attn_v", "v")):
            planner.matrix(role, "normed", out)
        planner.head_norms()
        planner.rope()
        _attention(planner)
        planner.quantize_for("attn", "attn_output")
        planner.matrix("attn_output", "attn", "hidden", residual="hidden")
        planner.norm("ffn_norm", "hidden", "normed")
        planner.quantize_for("normed", "ffn_gate", "ffn_up")
        planner.matrix("ffn_gate", "normed", "gate")
        planner.matrix("ffn_up", "normed", "up")
        swiglu(planner)
        planner.quantize_for("gate", "ffn_down")
        planner.matrix("ffn_down", "gate", "hidden", residual="hidden")
    planner.layer = None
    planner.norm("output_norm", "hidden", "normed")
    planner.head()
    planner.sample(1)
    return tuple(planner.launches)


def embed(planner: Planner, tokens: Buf) -> None:
    """hidden = the embedding rows of the token ids at `tokens`."""
    tensor = planner.tensor("token_embd")
    shape = Shape(rows=tensor.rows, cols=tensor.cols, tokens=planner.tokens)
    args: tuple[Arg, ...] = (Weight(tensor.name), tokens, Buf("hidden"), tensor.cols)
    out_bytes = 4 * tensor.cols * planner.tokens
    planner.add(f"embed/{tensor.quant}", ops.embed(tensor.quant), shape, args, out=Buf("hidden"), out_bytes=out_bytes)


def swiglu(planner: Planner) -> None:
    """gate = silu(gate) · up, in place."""
    shape = Shape(cols=planner.config.model.shape.ffn, tokens=planner.tokens)
    count = shape.cols * shape.tokens
    args: tuple[Arg, ...] = (Buf("gate"), Buf("up"), Buf("gate"), count)
    planner.add("swiglu", ops.swiglu(), shape, args, out=Buf("gate"), out_bytes=4 * count)


def _attention(planner: Planner) -> None:
    s, geo = planner.config.model.shape, planner.geometry
    shape = Shape(
        heads=s.heads,
        kv_heads=s.kv_heads,
        head_dim=s.head_dim,
        capacity=geo.capacity,
        kv_len=planner.kv_len,
        splits=geo.splits,
    )
    parts = (Buf("part_acc"), Buf("part_ml"))
    args: tuple[Arg, ...] = (
        Buf("q"),
        *planner.kv(),
        Buf("state"),
        *parts,
        s.heads,
        s.kv_heads,
        geo.capacity,
        geo.splits,
        s.head_dim**-0.5,
    )
    split = ops.attn_split(s.heads, s.kv_heads, s.head_dim)
    # splits without positions write nothing, so nothing of the partial results is worth dumping by itself
    planner.add("attn_split", split, shape, args, out=parts[0], out_bytes=0)
    args = (*parts, Buf("state"), Buf("attn"), s.head_dim, geo.splits)
    planner.add("attn_combine", ops.attn_combine(), shape, args, out=Buf("attn"), out_bytes=4 * s.heads * s.head_dim)


def manifest(
    config: ModelConfig, build: Build, device: DeviceInfo, anchor: str, launches: tuple[PlannedLaunch, ...]
) -> Manifest:
    """What the launches are, for whoever reads a trace of them; wall times are added by whoever measures."""
    nodes = tuple(_node(i, launch) for i, launch in enumerate(launches))
    found = build.info(build_hash(build.sources()))
    return Manifest(device, config.info(), anchor, found, (Graph("decode", nodes),))


def _node(i: int, launch: PlannedLaunch) -> Launch:
    traffic = launch.spec.traffic(launch.shape)
    return Launch(
        i=i,
        site=launch.site,
        layer=launch.layer,
        kernel=launch.spec.name,
        grid=launch.grid,
        block=launch.block,
        weight_bytes=traffic.weight_bytes,
        kv_bytes=traffic.kv_bytes,
        act_bytes=traffic.act_bytes,
        units=launch.units,
        units_covered=launch.units_covered,
        stages=launch.stages,
    )
