"""A decode step of four launches whose every number can be worked out by hand, as a trace with its manifest.

Step of scale 1, ns: norm 0–2000, idle 500, gemv of layer 0 2500–12500, gemv of layer 1 12000–20000 (500 of it
under its predecessor), head 20000–30000. Span 30000, idle 500, durations 30000, exclusive 2000 + 10000 + 7500 + 10000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attrib import manifest as mf
from tests.helpers.nsysgen import GB10, Gpu, Kernel, Node, Trace

NORM = Kernel("rms_norm", grid=(1, 1, 1))
DOWN = Kernel("gemv_q4", "void gemv_q4<(int)12>(float *)", grid=(5120, 1, 1))
HEAD = Kernel("gemv_q6", "void gemv_q6<(int)14>(float *)", grid=(1024, 1, 1))
DOWN_BYTES, HEAD_BYTES = 2_000_000, 2_250_000
SCALES = (1.2, 1.0, 0.9)


@dataclass(frozen=True)
class Part:
    """One launch of the step with what it streams; a site without quant streams nothing."""

    node: Node
    site: str
    layer: int | None = None
    weight_bytes: int = 0
    kv_bytes: int = 0


PARTS = (
    Part(Node(NORM, 2000), "rms_norm"),
    Part(Node(DOWN, 10_000, gap=500), "ffn_down/q4_K", 0, DOWN_BYTES),
    Part(Node(DOWN, 8000, gap=-500), "ffn_down/q4_K", 1, DOWN_BYTES),
    Part(Node(HEAD, 10_000), "output/q6_K", None, HEAD_BYTES),
)


def write(
    folder: Path, parts: Sequence[Part] = PARTS, scales: Sequence[float] = SCALES, gpu: Gpu = GB10
) -> tuple[Path, Path]:
    """(trace, manifest) with one replay of the parts for each scale of their durations."""
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(gpu))
    graph = process.graph([part.node for part in parts])
    at = 1_000_000
    for scale in scales:
        at = process.replay(graph, at, scale=scale) + 20_000
    mf.dump(manifest(parts, gpu), folder / "manifest.json")
    return trace.write(folder / "trace.sqlite"), folder / "manifest.json"


def manifest(parts: Sequence[Part] = PARTS, gpu: Gpu = GB10) -> mf.Manifest:
    """What the engine would say of these parts."""
    nodes = tuple(
        mf.Launch(
            i=i,
            site=part.site,
            layer=part.layer,
            kernel=part.node.kernel.name,
            grid=part.node.kernel.grid,
            block=part.node.kernel.block,
            weight_bytes=part.weight_bytes,
            kv_bytes=part.kv_bytes,
        )
        for i, part in enumerate(parts)
    )
    return mf.Manifest(
        device=mf.DeviceInfo(gpu.name, gpu.sms, float(gpu.bandwidth), 1536),
        model=mf.ModelInfo("tiny", "qwen2", "q4_k_m", "synthetic:1", {"layers": 2}),
        anchor="tiny:tg16",
        build=mf.BuildInfo("reference", "abcdef0123456789"),
        graphs=(mf.Graph("decode", nodes),),
    )
