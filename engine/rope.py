"""Rotary position table: the angles' cosines and sines, made once on the host in double precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rope_table(
    theta: float, head_dim: int, capacity: int, factors: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """f32 [capacity][head_dim/2][2]: cos and sin of position · theta^(−2i/head_dim) / factors[i].

    factors: f32 [head_dim/2], the divisors of a model with scaled frequencies (`rope_freqs.weight` in GGUF).
    """
    frequency = theta ** (-2.0 * np.arange(head_dim // 2) / head_dim)
    if factors is not None:
        frequency = frequency / factors.astype(np.float64)
    angles = np.arange(capacity)[:, None] * frequency
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
