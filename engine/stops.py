"""Stop strings in a stream of text: what may be shown now, and what must wait until it is no stop string."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import EngineError


class StopFilter:
    """Passes text on until one of the stop strings is complete, wherever the pieces were cut.

    The end of what was fed is held back while a stop string could begin there. Raises EngineError for an empty
    stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise EngineError("--stop is empty; give the text to stop before")
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The text that is safe to show; nothing from a stop string on (`found` names it)."""
        if self.found is not None:
            return ""
        self._held += text
        # the one that ends first, so that it does not matter how the text was cut; of these the longest
        places = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            _, at, self.found = min(places)
            shown, self._held = self._held[:at], ""
            return shown
        wait = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        shown, self._held = self._held[: len(self._held) - wait], self._held[len(self._held) - wait :]
        return shown

    def end(self) -> str:
        """What was held back, once nothing can follow."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, stop: str) -> int:
    """The longest end of the text that a stop string begins with, without being it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
