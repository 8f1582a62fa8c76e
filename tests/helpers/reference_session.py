"""The float64 decoder behind the methods of a session that text needs: prefill, step, state, logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.session import State
from tests.helpers.reference import Decoder


class ReferenceSession:
    """Computes a step when it is asked for one; a position that is set cuts the KV cache there."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._state = State(0, 0, 0)
        self._logits = np.zeros(0)
        self.steps = 0

    def set_state(self, position: int, token: int, produced: int = 0) -> None:
        self._state = State(position, token, produced)
        cut = [(k[:, :position], v[:, :position]) for k, v in self.decoder.cache]
        assert all(k.shape[1] == position for k, _ in cut), f"no KV before position {position}"
        self.decoder.cache = cut

    def state(self) -> State:
        return self._state

    def prefill(self, tokens: Sequence[int], start: int = 0) -> None:
        self.set_state(start, tokens[0])
        self._take(list(tokens))

    def step(self) -> None:
        self.steps += 1
        self._take([self._state.token])

    def _take(self, tokens: list[int]) -> None:
        self._logits = self.decoder.forward(tokens)[-1]
        before = self._state
        self._state = State(before.position + len(tokens), int(np.argmax(self._logits)), before.produced + 1)

    def logits(self) -> NDArray[np.float64]:
        return self._logits

    def wait(self) -> None:
        """Nothing is ever pending."""
