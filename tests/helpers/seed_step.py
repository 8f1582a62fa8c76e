"""A recorded 14B q4_K_M decode step of a GB10 engine, rebuilt launch by launch from its published figures.

The figures: 43.84 ms a step; attn_v q6_K at 134.8 GB/s with a padded 224-byte super-block, ffn_down q6_K at
198.9, output at 200.1, every other matrix at 220-225; 93.4 % of kernel time streams weights; attention is
0.75 % of the step; 97 norms, 265 quantizes and about 700 launches under 2 us.

The engine runs one kernel per operation. 265 is a quantize for every matrix that reads int8 activations, one
for ffn_gate and ffn_up together and none for the 24 q6_K attn_v, which read float: 4 x 48 (q, k, output
projection, gate with up) + 24 (v where it is q4_K) + 48 (down) + 1 (head). Norms and quantizes take more
than 2 us each, or the 6.6 % that is not weights could not be filled: see tests/unit/test_seed.py, which also
states which of the figures cannot hold together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from attrib import manifest as mf
from attrib import models
from tests.helpers.nsysgen import GB10, Dim3, Kernel, Node, Trace

STEP_NS = 43_840_000
STREAMING_OF_KERNEL_TIME = 0.934
ATTENTION_OF_STEP = 0.0075
CLASS_GBPS = (220.0, 225.0)
RATES_GBPS = {
    "attn_v/q6_K": 134.8,
    "ffn_down/q6_K": 198.9,
    "output/q6_K": 200.1,
    "attn_q/q4_K": 221.5,
    "attn_k/q4_K": 220.5,
    "attn_v/q4_K": 220.5,
    "attn_output/q4_K": 221.5,
    "ffn_gate/q4_K": 223.0,
    "ffn_up/q4_K": 223.0,
    "ffn_down/q4_K": 222.5,
}
STRAGGLERS = ("attn_v/q6_K", "ffn_down/q6_K", "output/q6_K")
PADDED_BLOCK_BYTES = 224
MODEL = models.builtin("qwen2.5-14b:q4_k_m")
LAYERS = MODEL.shape.layers
KV_ROWS = MODEL.shape.matrix("attn_k")[0]
KV_POSITION = 128

_COMBINE_NS = 1800
_NORM_NS = 5500
_ATTENTION_NS = round(STEP_NS * ATTENTION_OF_STEP) // LAYERS - _COMBINE_NS
_QUANTIZE = "quantize_q8"


@dataclass(frozen=True)
class Op:
    """One launch of the step; `ns` is its duration, `weight_bytes` what it streams in its own layout."""

    site: str
    kernel: str
    ns: int
    layer: int | None = None
    grid: Dim3 = (20, 1, 1)
    block: Dim3 = (256, 1, 1)
    weight_bytes: int = 0
    kv_bytes: int = 0


def streamed_bytes(tensor: models.Tensor) -> int:
    """Bytes a launch streams: as stored, or with 224-byte super-blocks in the layout of the padded kernel."""
    if (tensor.role, tensor.quant) == ("attn_v", "q6_K"):
        return tensor.rows * (tensor.cols // models.BLOCKS["q6_K"][0]) * PADDED_BLOCK_BYTES
    return tensor.nbytes


def matrices() -> tuple[models.Tensor, ...]:
    """Every matrix a decode step streams."""
    return tuple(t for t in MODEL.tensors if t.role in models.LAYER_ROLES or t.role == "output")


def site(tensor: models.Tensor) -> str:
    """`role/quant` of a matrix."""
    return f"{tensor.role}/{tensor.quant}"


def _gemv(role: str, layer: int | None = None) -> Op:
    tensor = MODEL.find(role, layer)
    assert tensor is not None
    kernel, grid, block = "q4_k_q8_mmvq", (tensor.rows, 1, 1), (256, 1, 1)
    if site(tensor) == "attn_v/q6_K":
        # 2 rows a warp, 2 warps a block
        kernel, grid, block = "q6_k_q8_mmvq_padded", (tensor.rows // 4, 1, 1), (64, 1, 1)
    elif tensor.quant == "q6_K":
        kernel = "q6_k_q8_mmvq_v2"
    nbytes = streamed_bytes(tensor)
    ns = round(nbytes / RATES_GBPS[site(tensor)])
    return Op(site(tensor), kernel, ns, layer, grid, block, weight_bytes=nbytes)


def _layer(i: int) -> Iterator[Op]:
    def op(kernel: str, ns: int, grid: Dim3 = (20, 1, 1)) -> Op:
        return Op(kernel, kernel, ns, i, grid)

    padded = models.more_bits(i, LAYERS)
    norm, quantize = op("rms_norm", _NORM_NS, (1, 1, 1)), op(_QUANTIZE, 0, (160, 1, 1))
    bias, convert = op("add_bias", 1400), op("convert_f32_f16", 1300)
    yield from (norm, quantize, _gemv("attn_q", i), bias, quantize, _gemv("attn_k", i), bias)
    yield from () if padded else (quantize,)
    yield from (_gemv("attn_v", i), bias)
    yield from (op("rope", 1600), convert, op("rope", 1600), convert)
    yield from (convert,) if padded else ()
    yield from (op("kv_append", 1500), op("kv_append", 1500))
    kv_bytes = 2 * KV_ROWS * 2 * KV_POSITION
    yield Op("fattn_vec", "fattn_vec", _ATTENTION_NS, i, (40, 8, 1), (128, 1, 1), kv_bytes=kv_bytes)
    yield Op("fattn_combine", "fattn_combine", _COMBINE_NS, i, (40, 1, 1), (128, 1, 1))
    yield from (quantize, _gemv("attn_output", i), op("add_residual", 1500), norm, quantize)
    yield from (
        _gemv("ffn_gate", i),
        _gemv("ffn_up", i),
        op("silu", 1700, (54, 1, 1)),
        op("mul", 1500, (54, 1, 1)),
    )
    yield from (op(_QUANTIZE, 0, (432, 1, 1)), _gemv("ffn_down", i), op("add_residual", 1500))


def _unfilled() -> Iterator[Op]:
    yield Op("embed", "embed_row", 1900)
    for i in range(LAYERS):
        yield from _layer(i)
    yield Op("rms_norm", "rms_norm", _NORM_NS, grid=(1, 1, 1))
    yield Op(_QUANTIZE, _QUANTIZE, 0, grid=(160, 1, 1))
    yield _gemv("output")
    yield Op("argmax", "argmax_partial", 1900, grid=(64, 1, 1))
    yield Op("argmax", "argmax_final", 1200, grid=(1, 1, 1))
    yield Op("advance", "advance_position", 1000, grid=(1, 1, 1), block=(32, 1, 1))


def kernel_ns() -> int:
    """Kernel time of a step: what makes weight streaming 93.4 % of it."""
    return round(sum(op.ns for op in _unfilled() if op.weight_bytes) / STREAMING_OF_KERNEL_TIME)


def ops() -> tuple[Op, ...]:
    """The launches of a step in order; the quantizes share, to the ns, the kernel time nothing else takes."""
    plan = list(_unfilled())
    where = [i for i, op in enumerate(plan) if op.kernel == _QUANTIZE]
    each = _share(kernel_ns() - sum(op.ns for op in plan), len(where))
    for i, ns in zip(where, each, strict=True):
        plan[i] = replace(plan[i], ns=ns)
    return tuple(plan)


def _share(total: int, parts: int) -> list[int]:
    return [total // parts + (i < total % parts) for i in range(parts)]


def write_trace(path: Path, steps: int = 6) -> Path:
    """The step as `steps` graph replays in an nsys 2025.3 export, after one eager launch of every kernel."""
    plan = ops()
    gaps = [0, *_share(STEP_NS - kernel_ns(), len(plan) - 1)]
    trace = Trace("2025.3")
    process = trace.process(pid=4242, name="decode")
    process.device(trace.gpu(GB10))
    kernels = [Kernel(op.kernel, f"{op.kernel}(unsigned char const *)", op.grid, op.block) for op in plan]
    end = 1_000_000
    for kernel in dict.fromkeys(kernels):
        end = process.launch(kernel, end + 5_000, 20_000)
    nodes = [Node(kernel, op.ns, gap) for kernel, op, gap in zip(kernels, plan, gaps, strict=True)]
    graph = process.graph(nodes, at=end)
    for _ in range(steps):
        end = process.replay(graph, end + 60_000, call="cuGraphLaunch")
        process.memcpy(end + 10_000, 1_200, 4, kind=2)
    return trace.write(path)


def manifest() -> mf.Manifest:
    """What the engine would write beside the trace."""
    nodes = tuple(
        mf.Launch(
            i=i,
            site=op.site,
            layer=op.layer,
            kernel=op.kernel,
            grid=op.grid,
            block=op.block,
            weight_bytes=op.weight_bytes,
            kv_bytes=op.kv_bytes,
        )
        for i, op in enumerate(ops())
    )
    shape = MODEL.shape
    return mf.Manifest(
        device=mf.DeviceInfo(GB10.name, GB10.sms, float(GB10.bandwidth), 1536, "12.1"),
        model=mf.ModelInfo(shape.name, shape.arch, MODEL.recipe, "synthetic:0", {"layers": LAYERS}),
        anchor="14b:tg128",
        build=mf.BuildInfo("reference", "0" * 64),
        graphs=(mf.Graph("decode", nodes),),
        wall_step_ns=(STEP_NS - 40_000,) * 3,
    )
