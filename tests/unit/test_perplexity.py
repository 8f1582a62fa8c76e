"""Perplexity: windows and losses by hand, a session against whole passes of the float64 decoder, the command."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine import cli, config, session
from engine.errors import EngineError
from engine.perplexity import Perplexity, loss, measure, window_losses, windows
from engine.sampler import log_softmax
from tests.gpu.support import decoder, small
from tests.helpers.reference import Decoder, Rounding
from tests.helpers.reference_session import ReferenceSession
from tests.helpers.slow_bpe import vocabulary, write

TOKENS = [(37 * i + 11) % 259 for i in range(50)]


@pytest.fixture(scope="module")
def model() -> Decoder:
    return decoder(small(), Rounding())


def test_loss_of_known_odds() -> None:
    assert math.isclose(loss(np.log([1.0, 3.0, 4.0]), 1), math.log(8 / 3))
    assert math.isclose(loss(np.zeros(512), 5), math.log(512))


def test_windows() -> None:
    assert windows(range(11), 4, None) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert windows(range(8), 4, 99) == [[99, 1, 2, 3], [99, 5, 6, 7]]
    with pytest.raises(EngineError, match="the text has 7 tokens, less than one window of 8"):
        windows(range(7), 8, None)
    with pytest.raises(EngineError, match="--context 3 leaves nothing to score"):
        windows(range(7), 3, None)


def test_numbers_from_losses() -> None:
    """Losses ln 2 and ln 8: the mean is ln 4; their deviation is ln 2 · √2, over √2 tokens, times 4."""
    found = Perplexity(np.log([2.0, 8.0]), 4, 2, 9, 0.5)
    assert math.isclose(found.value, 4)
    assert math.isclose(found.error, 4 * math.log(2))
    assert found.to_json()["unused_tokens"] == 1
    assert math.isnan(Perplexity(np.log([2.0]), 4, 1, 4, 0.5).error)


@pytest.mark.parametrize("size", [4, 7, 12])
def test_the_second_half_of_a_window_is_scored(model: Decoder, size: int) -> None:
    """Of c tokens those from c // 2 + 1 on, as one pass over the window gives them."""
    window = TOKENS[:size]
    session = ReferenceSession(model)
    found = window_losses(session, window)  # type: ignore[arg-type]
    model.cache = [(k[:, :0], v[:, :0]) for k, v in model.cache]
    scores = log_softmax(model.forward(window))
    want = [-scores[i - 1, window[i]] for i in range(size // 2 + 1, size)]
    np.testing.assert_allclose(found, want, rtol=1e-9)
    assert len(found) == size - size // 2 - 1
    assert session.steps == len(found) - 1  # the last token is scored and never fed


def test_a_text_is_the_mean_over_all_windows(model: Decoder) -> None:
    calls: list[None] = []
    found = measure(ReferenceSession(model), TOKENS, 12, 3, lambda: calls.append(None))  # type: ignore[arg-type]
    parts = [window_losses(ReferenceSession(model), [3, *TOKENS[at + 1 : at + 12]]) for at in (0, 12, 24, 36)]  # type: ignore[arg-type]
    np.testing.assert_allclose(found.losses, np.concatenate(parts), rtol=1e-9)
    assert (found.windows, found.window, found.tokens, len(calls)) == (4, 12, 50, 4)
    assert math.isclose(found.value, math.exp(np.mean(np.concatenate(parts))))


def test_logits_that_are_not_finite_are_refused(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ReferenceSession(model)
    monkeypatch.setattr(broken, "logits", lambda: np.full(512, np.nan))
    with pytest.raises(EngineError, match="512 of 512 logits are not finite"):
        window_losses(broken, TOKENS[:8])  # type: ignore[arg-type]


@pytest.fixture
def opened(model: Decoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A vocabulary in a file, and the decoder instead of a GPU."""
    path = write(tmp_path / "model.gguf", vocabulary([("a", "b")], add_bos=True))

    @contextmanager
    def open_session(config: Any, build: Any, capacity: int, gpu: int) -> Iterator[ReferenceSession]:
        assert capacity == 9
        found = ReferenceSession(model)
        found.device = lambda: SimpleNamespace(name="NumPy")  # type: ignore[attr-defined]
        yield found

    shape = SimpleNamespace(name="tiny")
    resolved = SimpleNamespace(path=path, context=16, model=SimpleNamespace(shape=shape))
    monkeypatch.setattr(session, "open_session", open_session)
    monkeypatch.setattr(config, "resolve", lambda spec: resolved)
    return path


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["engine", "perplexity", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_the_command(opened: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = opened.with_name("text.txt")
    text.write_text("ab" * 10 + "<|end|>", encoding="utf-8")
    assert command(monkeypatch, "-m", str(opened), "-f", str(text), "-c", "8", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    # a first token, ten of `ab`, and seven letters of a text that is no control token here
    assert (found["tokens"], found["windows"], found["scored_tokens"], found["unused_tokens"]) == (18, 2, 6, 2)
    assert command(monkeypatch, str(opened), "-f", str(text), "-c", "8") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"perplexity {found['perplexity']:.4f} ± {found['standard_error']:.4f} (tiny, build")
    assert "6 of 18 tokens scored in 2 windows of 8" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"ab", [], "the text has 2 tokens, less than one window of 8"),
        (b"ab" * 40, ["-c", "32"], "--context 32 exceeds the model's context of 16"),
        (b"\xff", [], "text.txt is not UTF-8: byte 0 is 0xff"),
        (None, [], "text.txt cannot be read: No such file"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(
    opened: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    options: list[str],
    message: str,
) -> None:
    text = opened.with_name("text.txt")
    if content is not None:
        text.write_bytes(content)
    assert command(monkeypatch, "-m", str(opened), "-f", str(text), *(options or ["-c", "8"])) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert command(monkeypatch, "-m", str(opened)) == 2
    assert "perplexity needs a text" in capsys.readouterr().err
