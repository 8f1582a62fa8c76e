"""The float64 decoder with every place where the fast build's step rounds more than the reference build's."""

from __future__ import annotations

import numpy as np

from engine.config import ModelConfig
from tests.gpu.support import dense
from tests.helpers.reference import F64, Decoder, Rounding, through_f16, through_q8

TILE = 16  # positions whose scores share one maximum: a warp's turn
WARPS = 15  # tiles are dealt to them in turn, and each goes on from the maximum of its tiles before


def shared_pairs(x: F64, odd: bool) -> F64:
    """silu(gate) · up as blocks share it: bf16, rounded to nearest even, and each pair's lowest bit is the turn."""
    bits = x.astype(np.float32).view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) & np.uint32(0xFFFF0000)
    bits[..., ::2] = bits[..., ::2] & np.uint32(0xFFFE0000) | np.uint32(odd << 16)
    return bits.view(np.float32).astype(np.float64)


class FastDecoder(Decoder):
    """Decode steps of the fast build; `turn` is that of the first layer, which an odd number of layers changes."""

    turn = 0

    def _product(self, name: str, x: F64) -> F64:
        if name.endswith("ffn_down"):
            layer = int(name.split(".")[1])
            x = shared_pairs(x, odd=bool(self.turn ^ 1 ^ layer & 1))
        return super()._product(name, x)

    def attend(self, q: F64, k: F64, v: F64, first: int) -> F64:
        """Queries in base-2 units and unnormalized weights are f16; the KV range is in one piece."""
        assert len(q) == 1
        group = q.shape[1] // k.shape[0]
        query = through_f16(q[0] / np.sqrt(q.shape[2]) * np.log2(np.e))
        scores = np.einsum("hd,hpd->hp", query, np.repeat(k, group, axis=0))
        values = np.repeat(v, group, axis=0)
        acc, total, best = np.zeros(query.shape), np.zeros((len(query), 1)), scores.max(axis=1, keepdims=True)
        tops = [np.full((len(query), 1), -np.inf)] * WARPS
        for tile, at in enumerate(range(0, scores.shape[1], TILE)):
            some = scores[:, at : at + TILE]
            top = np.maximum(tops[tile % WARPS], some.max(axis=1, keepdims=True))
            tops[tile % WARPS] = top
            weights, down = np.exp2(some - top), np.exp2(top - best)
            acc += down * np.einsum("hp,hpd->hd", through_f16(weights), values[:, at : at + TILE])
            total += down * weights.sum(axis=1, keepdims=True)
        return (acc / total).reshape(1, *q.shape[1:])


def fast_decoder(config: ModelConfig) -> FastDecoder:
    """The fast build's arithmetic over a synthetic model."""
    weights = {tensor.name: dense(config, tensor) for tensor in config.model.tensors}
    return FastDecoder(config.model.shape, weights, Rounding(through_q8, through_f16))
