"""Text from a prompt, token by token, shown as it comes.

Greedy reads one token a step back, the device's arg max; a draw reads the logits back and puts the chosen token
into the device's state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError
from engine.sampler import GREEDY, Sampler, Sampling, require_finite
from engine.stops import StopFilter
from engine.tokenizer import Stream, Tokenizer

if TYPE_CHECKING:
    from engine.session import Session

SCHEMA = "engine.generate/1"


@dataclass(frozen=True)
class Request:
    """What to generate: at most `count` tokens after the prompt, up to an end token or one of the stop strings."""

    prompt: Sequence[int]
    count: int
    sampling: Sampling = GREEDY
    stops: tuple[str, ...] = ()

    @property
    def capacity(self) -> int:
        """KV positions the request needs."""
        return len(self.prompt) + self.count + 1


@dataclass(frozen=True)
class Generation:
    """What came out. tokens: every token chosen, an end token included; text: what was shown.

    ended: `end token`, `stop string` or `count`. Seconds: from the prompt's first launch to the first token chosen,
    and of the steps after it.
    """

    prompt_tokens: int
    tokens: tuple[int, ...]
    text: str
    ended: str
    prompt_seconds: float
    step_seconds: float

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second."""
        return self.prompt_tokens / self.prompt_seconds

    @property
    def step_rate(self) -> float:
        """Tokens a second after the first; NaN where there is only one."""
        return (len(self.tokens) - 1) / self.step_seconds if len(self.tokens) > 1 else float("nan")

    def to_json(self) -> dict[str, Any]:
        """The fields of the JSON object."""
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "ended": self.ended,
            "prompt_tokens": self.prompt_tokens,
            "prompt_seconds": self.prompt_seconds,
            "prompt_tok_per_s": self.prompt_rate,
            "step_seconds": self.step_seconds,
            "tok_per_s": self.step_rate,
        }

    def describe(self) -> str:
        """One line for people."""
        parts = [
            f"prompt {self.prompt_tokens} tokens, {self.prompt_rate:.1f} tok/s",
            f"generation {len(self.tokens)} tokens, {self.step_rate:.1f} tok/s",
            f"ended by {self.ended}",
        ]
        return "; ".join(parts)


def require_context(request: Request, context: int) -> None:
    """Raise EngineError for an empty prompt or one that leaves no room in what the model was trained for."""
    if not request.prompt:
        raise EngineError("the prompt holds no tokens; give some text")
    if len(request.prompt) + request.count > context:
        raise EngineError(
            f"a prompt of {len(request.prompt)} tokens and {request.count} to produce exceed the model's context of "
            f"{context}; lower --count or shorten the prompt"
        )


def generate(
    session: Session, tokenizer: Tokenizer, request: Request, show: Callable[[str], None] = lambda text: None
) -> Generation:
    """Run a request on a session with room for it; `show` gets the text in pieces of whole characters.

    Raises EngineError when the prompt's logits are not finite, and what the session raises.
    """
    stream, stops = Stream(tokenizer), StopFilter(request.stops)
    ends = tokenizer.vocabulary.ends
    shown: list[str] = []

    def give(text: str) -> None:
        if text:
            shown.append(text)
            show(text)

    session.prefill(request.prompt[:1])  # opens the libraries a first prefill needs, which is no speed of a prompt
    session.wait()
    choose = _chooser(session, request)
    started = time.perf_counter()
    session.prefill(request.prompt)
    tokens = [choose()]
    require_finite(session.logits())
    first = time.perf_counter()
    while tokens[-1] not in ends:
        give(stops.feed(stream.feed(tokens[-1])))
        if stops.found is not None or len(tokens) == request.count:
            break
        session.step()
        tokens.append(choose())
    finished = time.perf_counter()
    ended = "stop string" if stops.found is not None else "end token" if tokens[-1] in ends else "count"
    give(stops.feed(stream.end()))
    give(stops.end())
    return Generation(
        prompt_tokens=len(request.prompt),
        tokens=tuple(tokens),
        text="".join(shown),
        ended=ended,
        prompt_seconds=first - started,
        step_seconds=finished - first,
    )


def _chooser(session: Session, request: Request) -> Callable[[], int]:
    """What names the token after everything enqueued, and leaves it in the device's state for the next step."""
    if request.sampling.greedy:
        return lambda: session.state().token
    sampler = Sampler(request.sampling)

    def draw() -> int:
        token = sampler.choose(session.logits())
        session.set_state(session.state().position, token)
        return token

    return draw
