"""Perplexity of a text over consecutive windows, as llama.cpp's tool defines it.

A text of N tokens is cut into N // c windows of c tokens, each from an empty KV cache; where the file asks for a
first token, it replaces the first token of every window. Of a window, tokens c // 2 + 1 to c − 1 are scored, so
that each has at least half a window before it: c − c // 2 − 1 losses −ln p. The perplexity is e to their mean.

The first half of a window runs as a prompt, every scored token as a decode step fed the text's own tokens: what
is scored is the path that generates. The next step runs on the GPU while the processor scores the last.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError
from engine.sampler import log_softmax, require_finite

if TYPE_CHECKING:
    from engine.session import Session

SCHEMA = "engine.perplexity/1"
SMALLEST_WINDOW = 4


@dataclass(frozen=True)
class Perplexity:
    """e^mean(losses), from the losses −ln p (natural logarithm) of every scored token, f64 [scored]."""

    losses: NDArray[np.float64]
    window: int
    windows: int
    tokens: int
    seconds: float

    @property
    def value(self) -> float:
        """e to the mean loss."""
        return math.exp(self.losses.mean())

    @property
    def error(self) -> float:
        """The perplexity times the standard error of the mean loss; NaN for a single loss."""
        count = len(self.losses)
        return self.value * float(self.losses.std(ddof=1)) / math.sqrt(count) if count > 1 else float("nan")

    def to_json(self) -> dict[str, Any]:
        """The fields of the JSON object."""
        return {
            "perplexity": self.value,
            "standard_error": self.error,
            "mean_loss": float(self.losses.mean()),
            "window": self.window,
            "windows": self.windows,
            "tokens": self.tokens,
            "scored_tokens": len(self.losses),
            "unused_tokens": self.tokens - self.window * self.windows,
            "seconds": self.seconds,
        }


def windows(tokens: Sequence[int], size: int, bos: int | None) -> list[list[int]]:
    """Consecutive windows of `size` tokens; what is left at the end is not used. bos replaces their first token.

    Raises EngineError for a text shorter than a window or a window without scored tokens.
    """
    if size < SMALLEST_WINDOW:
        raise EngineError(f"--context {size} leaves nothing to score; give at least {SMALLEST_WINDOW}")
    if len(tokens) < size:
        raise EngineError(f"the text has {len(tokens)} tokens, less than one window of {size}; lower --context")
    found = [list(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size)]
    return found if bos is None else [[bos, *window[1:]] for window in found]


def loss(logits: NDArray[np.floating], token: int) -> float:
    """−ln of the probability of a token under logits [vocab]."""
    return float(-log_softmax(np.asarray(logits, np.float64))[token])


def window_losses(session: Session, window: Sequence[int]) -> list[float]:
    """The losses of a window's second half; the session must have room for one position more than the window."""
    half = len(window) // 2
    session.prefill(window[: half + 1])
    found = []
    for position in range(half + 1, len(window)):
        logits = session.logits()
        if position + 1 < len(window):
            session.set_state(position, window[position])
            session.step()
        require_finite(logits)
        found.append(loss(logits, window[position]))
    return found


def measure(
    session: Session,
    tokens: Sequence[int],
    size: int,
    bos: int | None,
    done: Callable[[], None] = lambda: None,
) -> Perplexity:
    """The perplexity of a text's tokens in windows of `size`; `done` is called after each."""
    cut = windows(tokens, size, bos)
    started = time.perf_counter()
    losses: list[float] = []
    for window in cut:
        losses += window_losses(session, window)
        done()
    return Perplexity(np.array(losses), size, len(cut), len(tokens), time.perf_counter() - started)
