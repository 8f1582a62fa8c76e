"""Sizes and places of what a session keeps on the device besides weights: activations, KV cache, state."""

from __future__ import annotations

from collections.abc import Mapping

from attrib.models import LAYER_ROLES
from engine import kernels_ops as ops
from engine.config import ModelConfig
from engine.plan import RING, Geometry
from engine.quant import Q8_BLOCK_BYTES

ALIGN = 256
TILE_BYTES = 256 << 20


def sizes(config: ModelConfig, geo: Geometry, batch: int) -> dict[str, int]:
    """Bytes of every buffer by name; `batch` is the most tokens one prefill pass takes.

    Activations are f32 [batch][width]. `q8` serves one token. `half` holds the f16 inputs of a GEMM, `tile`
    its f16 weights. `k.i`, `v.i` are f16 [kv_heads][capacity][head_dim].
    """
    s = config.model.shape
    heads, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    widths = {"hidden": s.hidden, "normed": s.hidden, "q": heads, "k": kv, "v": kv, "attn": heads}
    widest = max(s.matrix(role)[1] for role in LAYER_ROLES)
    found = {name: 4 * width * batch for name, width in {**widths, "gate": s.ffn, "up": s.ffn}.items()}
    found |= {
        "q8": widest // 32 * Q8_BLOCK_BYTES,
        "half": 2 * widest * batch,
        "tile": TILE_BYTES,
        "part_acc": 4 * s.heads * geo.splits * s.head_dim,
        "part_ml": 8 * s.heads * geo.splits,
        "logits": 4 * config.model.head().rows,
        "part_value": 4 * ops.ARGMAX_PARTS,
        "part_index": 4 * ops.ARGMAX_PARTS,
        "state": 4 * ops.STATE_INTS,
        "ring": 4 * RING,
        "tokens": 4 * batch,
        "rope": 4 * geo.capacity * s.head_dim,
    }
    cache = 2 * geo.capacity * kv
    return found | {f"{name}.{layer}": cache for layer in range(s.layers) for name in ("k", "v")}


def layout(wanted: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """(offset of each name, total bytes), every offset a multiple of 256."""
    offsets, total = {}, 0
    for name, nbytes in wanted.items():
        offsets[name] = total
        total += -(-nbytes // ALIGN) * ALIGN
    return offsets, total
