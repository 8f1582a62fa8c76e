"""Generation on a session that answers by script, and on a small decoder in float64; stop strings; the command."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import cli, config, session
from engine.errors import EngineError
from engine.generate import Generation, Request, generate, require_context
from engine.sampler import Sampling
from engine.session import State
from engine.stops import StopFilter
from engine.tokenizer import Tokenizer
from tests.gpu.support import decoder, small
from tests.helpers.reference import Rounding
from tests.helpers.reference_session import ReferenceSession
from tests.helpers.slow_bpe import SPECIAL, vocabulary, write

HELLO = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
TOKENIZER = Tokenizer(vocabulary(HELLO))
SIZE = len(TOKENIZER.vocabulary.tokens)
END = TOKENIZER.vocabulary.tokens.index(SPECIAL[0])


class Script:
    """A session whose logits at each position favour the script's next token; what it was told is kept."""

    def __init__(self, tokens: Sequence[int], *, poison: bool = False) -> None:
        self.tokens, self.poison = list(tokens), poison
        self.prompt: list[int] = []
        self.taken: list[tuple[int, int]] = []
        self._state = State(0, 0, 0)

    def prefill(self, tokens: Sequence[int]) -> None:
        self.prompt = list(tokens)
        self.taken.clear()
        self._state = State(len(self.prompt), self._favoured(len(self.prompt)), 1)

    def _favoured(self, position: int) -> int:
        return self.tokens[position - len(self.prompt)]

    def logits(self) -> np.ndarray:
        found = np.full(SIZE, math.nan if self.poison else 0.0)
        found[self._favoured(self._state.position)] = 50.0
        return found

    def state(self) -> State:
        return self._state

    def set_state(self, position: int, token: int) -> None:
        self._state = State(position, token, 0)

    def step(self) -> None:
        self.taken.append((self._state.position, self._state.token))
        position = self._state.position + 1
        more = position - len(self.prompt) < len(self.tokens)
        self._state = State(position, self._favoured(position) if more else 0, 1)

    def wait(self) -> None:
        """Nothing is ever pending."""

    def device(self) -> SimpleNamespace:
        return SimpleNamespace(name="a GPU by script")


def run(script: Script, count: int = 20, stops: tuple[str, ...] = (), **sampling: Any) -> tuple[Generation, list[str]]:
    shown: list[str] = []
    request = Request(TOKENIZER.encode("ab"), count, Sampling(**sampling), stops)
    return generate(script, TOKENIZER, request, shown.append), shown  # type: ignore[arg-type]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 1, "top_k": 1}, {"temperature": 0.7, "seed": 2}])
def test_text_up_to_an_end_token(sampling: dict[str, Any]) -> None:
    ids = TOKENIZER.encode("hello 日!")
    script = Script([*ids, END, 0])
    found, shown = run(script, **sampling)
    assert found.text == "hello 日!" == "".join(shown)
    assert found.tokens == (*ids, END)
    assert found.ended == "end token"
    assert all("\ufffd" not in piece for piece in shown)
    # every chosen token but the last was fed to a step, at the position after the one before
    assert script.taken == [(2 + i, token) for i, token in enumerate(ids)]


def test_a_count_is_exact_and_its_last_token_takes_no_step() -> None:
    script = Script(TOKENIZER.encode("hellohello"))
    found, _ = run(script, count=1)
    assert (found.text, found.ended, script.taken) == ("hello", "count", [])
    assert math.isnan(found.step_rate)
    assert run(Script(TOKENIZER.encode("hello" * 4)), count=3)[0].text == "hellohellohello"


def test_a_character_cut_off_by_the_count_becomes_a_replacement_at_the_end() -> None:
    found, shown = run(Script(TOKENIZER.encode("a日")), count=3)
    assert shown == ["a", "\ufffd"]
    assert found.text == "a\ufffd"


def test_an_end_token_at_once_gives_no_text() -> None:
    found, shown = run(Script([END, 0]))
    assert (found.text, found.tokens, shown) == ("", (END,), [])


def test_a_stop_string_over_several_tokens_is_never_shown() -> None:
    found, shown = run(Script(TOKENIZER.encode("one\nstop here")), stops=("\nstop", "never"))
    assert found.text == "one" == "".join(shown)
    assert found.ended == "stop string"
    assert found.tokens == tuple(TOKENIZER.encode("one\nstop"))


def test_text_that_only_began_like_a_stop_string_is_shown_in_the_end() -> None:
    found, shown = run(Script([*TOKENIZER.encode("one\nsto"), END]), stops=("\nstop",))
    assert shown == ["o", "n", "e", "\nsto"]
    assert found.text == "one\nsto"


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}])
def test_logits_that_are_not_finite_end_in_a_sentence(sampling: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="logits are not finite"):
        run(Script([1, 2], poison=True), **sampling)


def test_rates_are_tokens_over_seconds() -> None:
    found = Generation(10, (1, 2, 3), "abc", "count", prompt_seconds=0.5, step_seconds=0.25)
    assert (found.prompt_rate, found.step_rate) == (20.0, 8.0)
    assert found.describe() == "prompt 10 tokens, 20.0 tok/s; generation 3 tokens, 8.0 tok/s; ended by count"


def test_what_the_context_cannot_hold_is_refused() -> None:
    require_context(Request([1] * 90, 10), 100)
    with pytest.raises(EngineError, match="90 tokens and 11 to produce exceed the model's context of 100"):
        require_context(Request([1] * 90, 11), 100)
    with pytest.raises(EngineError, match="the prompt holds no tokens"):
        require_context(Request([], 1), 100)
    assert Request([1] * 90, 10).capacity == 101


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30)),
)
def test_stops_do_not_depend_on_how_the_text_was_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    """Of the stop strings in a text the one that ends first counts; what is shown is the text before it."""
    ends = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    places = sorted({0, *(c for c in cuts if c < len(text)), len(text)})
    held, shown = StopFilter(stops), ""
    for start, end in pairwise(places):
        shown += held.feed(text[start:end])
        assert text.startswith(shown)
    if ends:
        first, at = min(ends)
        assert (shown, held.found) == (text[:at], text[at:first])
        assert held.feed("more") == held.end() == ""
    else:
        assert held.found is None
        assert shown + held.end() == text


def test_of_stop_strings_that_end_together_the_longest_counts() -> None:
    held = StopFilter(["bc", "abc", "abcd"])
    assert (held.feed("xabcd"), held.found) == ("x", "abc")
    with pytest.raises(EngineError, match="--stop is empty"):
        StopFilter(["a", ""])


def test_greedy_on_a_decoder_is_its_own_arg_max() -> None:
    """The float64 decoder, asked for one token after another with the whole text each time."""
    model = decoder(small(), Rounding())
    request = Request(TOKENIZER.encode("hello ab"), 6)
    found = generate(ReferenceSession(model), TOKENIZER, request)  # type: ignore[arg-type]
    tokens = list(request.prompt)
    for token in found.tokens:
        model.cache = [(k[:, :0], v[:, :0]) for k, v in model.cache]
        assert token == int(np.argmax(model.forward(tokens)[-1]))
        tokens.append(token)


TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m['role'] }}:{{ m['content'] }};{% endfor %}a:"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Script]:
    """A vocabulary in a file, a model of its size, and a session by script instead of a GPU."""
    path = write(tmp_path / "model.gguf", vocabulary(HELLO, template=TEMPLATE))
    script = Script([*TOKENIZER.encode("hello\nyou"), END])

    @contextmanager
    def opened(model: Any, build: Any, capacity: int, gpu: int) -> Iterator[Script]:
        script.capacity = capacity  # type: ignore[attr-defined]
        yield script

    def resolve(spec: str, seed: int = 1) -> SimpleNamespace:
        known = Path(spec) if spec.endswith(".gguf") else None
        return SimpleNamespace(path=known, context=64, model=SimpleNamespace(shape=SimpleNamespace(name="tiny")))

    monkeypatch.setattr(session, "open_session", opened)
    monkeypatch.setattr(config, "resolve", resolve)
    return path, script


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["engine", "generate", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_the_command_streams_text_and_tells_the_speed_apart(
    scripted: tuple[Path, Script], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, script = scripted
    assert command(monkeypatch, "-m", str(path), "-p", "<|start|>hello", "-n", "9") == 0
    shown = capsys.readouterr()
    assert shown.out == "hello\nyou\n"
    assert "prompt 2 tokens" in shown.err
    assert "ended by end token (tiny, build reference, a GPU by script)" in shown.err
    assert script.prompt == [END + 1, *TOKENIZER.encode("hello")]
    assert script.capacity == 2 + 9 + 1  # type: ignore[attr-defined]


def test_the_command_puts_a_message_into_the_template(
    scripted: tuple[Path, Script], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, script = scripted
    options = ("--chat", "--system", "s", "-p", "p", "-n", "20", "--stop", "\n", "--stop", "zz", "--json")
    assert command(monkeypatch, str(path), *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert TOKENIZER.decode(script.prompt) == "system:s;user:p;a:"
    assert found["prompt"] == script.prompt
    assert (found["text"], found["ended"], found["schema"]) == ("hello", "stop string", "engine.generate/1")
    assert found["prompt_tok_per_s"] > 0


def test_the_default_count_fits_the_context(scripted: tuple[Path, Script], monkeypatch: pytest.MonkeyPatch) -> None:
    path, script = scripted
    assert command(monkeypatch, "-m", str(path), "-p", "hello") == 0
    assert script.capacity == 64 + 1  # type: ignore[attr-defined]


def test_a_seed_makes_draws_repeat(
    scripted: tuple[Path, Script], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, script = scripted
    monkeypatch.setattr(script, "logits", lambda: np.zeros(SIZE))
    texts = []
    for seed in ("5", "5", "6"):
        options = ("-p", "x", "-n", "5", "--temp", "1", "--top-k", "0", "--min-p", "0", "--top-p", "1", "--seed", seed)
        assert command(monkeypatch, "-m", str(path), *options, "--json") == 0
        texts.append(json.loads(capsys.readouterr().out)["tokens"])
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", "x"], "no model was given"),
        (["FILE", "-m", "other.gguf", "-p", "x"], "two models were given"),
        (["FILE"], "generate needs a prompt"),
        (["FILE", "-p", ""], "the prompt holds no tokens"),
        (["FILE", "-p", "x", "-n", "64"], "exceed the model's context of 64"),
        (["FILE", "-p", "x", "--system", "y"], "--system is a message of a chat"),
        (["FILE", "-p", "x", "--top-p", "0.5"], "--top-p has no effect at temperature 0"),
        (["FILE", "-p", "x", "--temp", "1", "--top-p", "2"], "--top-p 2.0 is not above 0"),
        (["FILE", "-p", "x", "-n", "9", "--stop", ""], "--stop is empty"),
        (["FILE", "--tokens", "1,2", "-p", "x"], "--prompt is about text and --tokens gives ids"),
        (["FILE", "--tokens", "1,2", "--temp", "1"], "--temp is about text"),
        (["7b", "-p", "x"], "built-in model 7b has random weights and no tokenizer"),
    ],
)
def test_what_does_not_go_together_is_one_sentence_and_code_2(
    scripted: tuple[Path, Script],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    given_options = [str(scripted[0]) if option == "FILE" else option for option in options]
    assert command(monkeypatch, *given_options) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("engine: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_a_reader_that_left_is_no_failure() -> None:
    """As after `engine generate … | head -1`: the program ends quietly with code 0 and takes no further step."""
    code = (
        "import sys, typer; from engine.cli_common import show\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def endless() -> None:\n"
        "    while True:\n"
        "        show('x' * 1000)\n"
        "app()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
