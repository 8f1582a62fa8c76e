"""A decode step of three launches, the second a persistent kernel of six stages whose times can be added up by hand.

Step of scale 1, ns: embed 0–2000, idle 500, persistent_step 2500–52500, idle 500, argmax 53000–54500. Span 54500,
idle 1000. The stamps end at 49800, so the last stage has the 200 ns that the trace saw after them. Stages, ns:
norm 2000, attn_q of layer 0 10000, attention 3000, attn_q of layer 1 8000, attention 3000, output 24000.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrib import manifest as mf
from tests.helpers.nsysgen import H200, Kernel, Node, Trace

EMBED, STEP, ARGMAX = (
    Kernel("embed_q4_K", grid=(1, 1, 1)),
    Kernel("persistent_step", grid=(132, 1, 1), block=(640, 1, 1)),
    Kernel("argmax_partial", grid=(64, 1, 1)),
)
NODES = (Node(EMBED, 2000), Node(STEP, 50_000, gap=500), Node(ARGMAX, 1500, gap=500))
Q_BYTES, KV_BYTES, HEAD_BYTES = 30_000_000, 500_000, 60_000_000
STAGES = (
    mf.Stage(0, "attn_norm", 0, act_bytes=100, units=1, units_covered=1),
    mf.Stage(1, "attn_q/q4_K", 0, weight_bytes=Q_BYTES, units=10, units_covered=10),
    mf.Stage(2, "attn_split", 0, kv_bytes=KV_BYTES, units=2, units_covered=2),
    mf.Stage(3, "attn_q/q4_K", 1, weight_bytes=Q_BYTES, units=10, units_covered=10),
    mf.Stage(4, "attn_split", 1, kv_bytes=KV_BYTES, units=2, units_covered=2),
    mf.Stage(5, "output/q6_K", None, weight_bytes=HEAD_BYTES, units=20, units_covered=20),
)
END = (2000, 12_000, 15_000, 23_000, 26_000, 49_800)
WAIT = (0, 100, 200, 300, 400, 500)
SCALES = (1.2, 1.0, 0.9)


def manifest(stages: Sequence[mf.Stage] = STAGES) -> mf.Manifest:
    """What the engine would say of this step."""
    sums = {key: sum(getattr(stage, key) for stage in stages) for key in mf.SIZES}
    sites = (("embed/q4_K", {"weight_bytes": 2880}), ("step", sums), ("argmax", {}))
    nodes = tuple(
        mf.Launch(
            i, site, None, node.kernel.name, node.kernel.grid, node.kernel.block, **sizes,
            stages=tuple(stages) if site == "step" else (),
        )
        for i, (node, (site, sizes)) in enumerate(zip(NODES, sites, strict=True))
    )  # fmt: skip
    return mf.Manifest(
        device=mf.DeviceInfo(H200.name, H200.sms, float(H200.bandwidth), 2048),
        model=mf.ModelInfo("tiny", "qwen2", "q4_k_m", "synthetic:1", {"layers": 2}),
        anchor="tiny:tg16",
        build=mf.BuildInfo("fast", "abcdef0123456789"),
        graphs=(mf.Graph("decode", nodes),),
    )


def stamps(scales: Sequence[float] = SCALES, **fields: Any) -> dict[str, Any]:
    """The document of stages.json with one replay for each scale; `fields` replace its own."""
    replays = [{"end_ns": [round(t * s) for t in END], "wait_ns": [round(t * s) for t in WAIT]} for s in scales]
    return {
        "schema": "attrib.stages/1", "node": 1, "stages": len(END), "sms": 132, "replays": replays, **fields,
    }  # fmt: skip


def trace(nodes: Sequence[Node] = NODES, scales: Sequence[float] = SCALES, **options: Any) -> Trace:
    """One replay of the step for each scale of its durations, 20 µs apart; `options` are of the last replay."""
    made = Trace("2025.3")
    process = made.process()
    process.device(made.gpu(H200))
    graph = process.graph(nodes)
    at = 1_000_000
    for place, scale in enumerate(scales):
        more = options if place == len(scales) - 1 else {}
        at = process.replay(graph, at, scale=scale, **more) + 20_000
    return made


def write(folder: Path, made: Trace | None = None, document: dict[str, Any] | None = None) -> tuple[Path, Path]:
    """(trace, manifest) in `folder`, with stages.json beside them."""
    mf.dump(manifest(), folder / "manifest.json")
    (folder / "stages.json").write_text(json.dumps(stamps() if document is None else document), encoding="utf-8")
    return (trace() if made is None else made).write(folder / "trace.sqlite"), folder / "manifest.json"
