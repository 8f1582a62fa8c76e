"""What every kernel should compute, in float64, and a whole decoder built from the same functions.

`Rounding` holds the places where an engine rounds; with all of them set the reference computes what the
kernels compute up to the order of sums, with none of them it is the model itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attrib.models import ModelShape
from engine.quant import dequantize_q8, quantize_q8

F64 = NDArray[np.float64]
Round = Callable[[F64], F64]


def exact(x: F64) -> F64:
    """No rounding."""
    return x


def through_f16(x: F64) -> F64:
    """The value after a round trip through f16."""
    return x.astype(np.float32).astype(np.float16).astype(np.float64)


def through_q8(x: F64) -> F64:
    """The value after q8 activation quantization, [..., cols] with cols a multiple of 32."""
    return dequantize_q8(quantize_q8(x.astype(np.float32))).astype(np.float64)


@dataclass(frozen=True)
class Rounding:
    """activations: inputs of matrix products. kv: keys and values as cached."""

    activations: Round = exact
    kv: Round = exact


def rms_norm(x: F64, weight: F64, eps: float) -> F64:
    """x [..., n] / sqrt(mean x² + eps) · weight [n]."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def rope(
    x: F64, positions: NDArray[np.int64], theta: float, interleaved: bool = False, factors: F64 | float = 1.0
) -> F64:
    """Rotate x [tokens][heads][head_dim] by its positions [tokens]; factors [head_dim/2] divide the frequencies."""
    half = x.shape[-1] // 2
    angle = positions[:, None] * (theta ** (-2.0 * np.arange(half) / x.shape[-1]) / factors)
    turn = np.exp(1j * angle)[:, None, :]
    pairs = x[..., 0::2] + 1j * x[..., 1::2] if interleaved else x[..., :half] + 1j * x[..., half:]
    turned = pairs * turn
    if not interleaved:
        return np.concatenate([turned.real, turned.imag], axis=-1)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def attention(q: F64, k: F64, v: F64, first: int) -> F64:
    """Causal attention of q [tokens][heads][d] at positions first… over k, v [kv_heads][length][d]."""
    tokens, heads, dim = q.shape
    group = heads // k.shape[0]
    scores = np.einsum("thd,hpd->htp", q, np.repeat(k, group, axis=0)) / np.sqrt(dim)
    hidden = np.arange(k.shape[1])[None, :] > first + np.arange(tokens)[:, None]
    scores = np.where(hidden[None], -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("htp,hpd->thd", weights, np.repeat(v, group, axis=0))


def swiglu(gate: F64, up: F64) -> F64:
    """silu(gate) · up."""
    return gate / (1.0 + np.exp(-gate)) * up


class Decoder:
    """A Qwen2, Qwen3, Llama or Mistral decoder over dequantized weights; keeps its KV cache between calls.

    weights: GGUF tensor name -> float array, matrices [rows][cols], norms and biases [n].
    """

    def __init__(self, shape: ModelShape, weights: dict[str, NDArray[np.floating]], rounding: Rounding) -> None:
        self.shape = shape
        self.weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
        self.rounding = rounding
        empty = np.zeros((shape.kv_heads, 0, shape.head_dim))
        self.cache = [(empty, empty) for _ in range(shape.layers)]

    def _product(self, name: str, x: F64) -> F64:
        out = self.rounding.activations(x) @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return out if bias is None else out + bias

    def _attention(self, layer: int, x: F64) -> F64:
        shape, at = self.shape, f"blk.{layer}"
        q, k, v = (
            self._product(f"{at}.attn_{part}", x).reshape(len(x), -1, shape.head_dim) for part in ("q", "k", "v")
        )
        keys, values = self.cache[layer]
        first = keys.shape[1]
        positions = first + np.arange(len(x))
        if shape.arch == "qwen3":
            norms = (self.weights[f"{at}.attn_{part}_norm.weight"] for part in ("q", "k"))
            q, k = (rms_norm(x, norm, shape.norm_eps) for x, norm in zip((q, k), norms, strict=True))
        interleaved, factors = shape.arch in ("llama", "mistral"), self.weights.get("rope_freqs.weight", 1.0)
        q, k = (rope(x, positions, shape.rope_theta, interleaved, factors) for x in (q, k))
        keys = np.concatenate([keys, self.rounding.kv(k).transpose(1, 0, 2)], axis=1)
        values = np.concatenate([values, self.rounding.kv(v).transpose(1, 0, 2)], axis=1)
        self.cache[layer] = (keys, values)
        out = self.attend(q, keys, values, first).reshape(len(x), -1)
        return self._product(f"{at}.attn_output", out)

    def attend(self, q: F64, k: F64, v: F64, first: int) -> F64:
        """Attention of q [tokens][heads][d] over the cache of its layer; an engine that rounds here overrides it."""
        return attention(q, k, v, first)

    def forward(self, tokens: list[int]) -> F64:
        """Logits [tokens][vocab] of the next tokens; the cache grows by them."""
        shape = self.shape
        x = self.weights["token_embd.weight"][tokens]
        for layer in range(shape.layers):
            at = f"blk.{layer}"
            normed = rms_norm(x, self.weights[f"{at}.attn_norm.weight"], shape.norm_eps)
            x = x + self._attention(layer, normed)
            normed = rms_norm(x, self.weights[f"{at}.ffn_norm.weight"], shape.norm_eps)
            gate, up = self._product(f"{at}.ffn_gate", normed), self._product(f"{at}.ffn_up", normed)
            x = x + self._product(f"{at}.ffn_down", swiglu(gate, up))
        normed = rms_norm(x, self.weights["output_norm.weight"], shape.norm_eps)
        return self._product("token_embd" if shape.tied else "output", normed)


def nmse(got: NDArray[np.floating], want: NDArray[np.floating]) -> float:
    """Σ (got − want)² / Σ want²."""
    a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(((a - b) ** 2).sum() / (b**2).sum())
