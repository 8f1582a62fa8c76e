"""The comparison of a real model with its file in float64, on a small decoder instead of a GPU."""

from __future__ import annotations

import copy
import importlib.util
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from engine.tokenizer import Tokenizer
from tests.gpu.support import decoder, small
from tests.helpers.reference import Decoder, Rounding
from tests.helpers.reference_session import ReferenceSession
from tests.helpers.slow_bpe import vocabulary

SCRIPT = Path(__file__).parents[2] / "analyses" / "benchmarks" / "real_model.py"
TOKENIZER = Tokenizer(vocabulary([("t", "h"), ("th", "e")], template="{{ messages[0].content[:9] }}"))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with a text of three windows and a short answer."""
    spec = importlib.util.spec_from_file_location("real_model", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = tmp_path / "text.txt"
    text.write_text(module.TEXT.read_text(encoding="utf-8")[:450], encoding="utf-8")
    monkeypatch.setattr(module, "TEXT", text)
    monkeypatch.setattr(module, "ANSWER", 5)
    return module


@pytest.fixture(scope="module")
def model() -> Decoder:
    return decoder(small(), Rounding())


def test_the_reference_agrees_with_itself(script: ModuleType, model: Decoder) -> None:
    found = script.compare(ReferenceSession(copy.copy(model)), model, TOKENIZER)
    assert found["top1"] == 1
    assert found["kl_max"] < 1e-12
    assert abs(found["kl_prompt"]) < 1e-12
    assert abs(found["perplexity_difference"]) < 1e-9
    assert found["answer_tokens_equal"] == len(found["answer"]["tokens"]) == 5
    assert found["answer"]["text"] == found["answer_reference"]
    assert all(script.met(name, found[name]) for name in script.LIMITS)


def test_other_logits_are_seen(script: ModuleType, model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits turned round: no arg max agrees, and neither do probabilities or perplexity."""
    session = ReferenceSession(copy.copy(model))
    true = session.logits
    monkeypatch.setattr(session, "logits", lambda: true()[::-1])
    found = script.compare(session, model, TOKENIZER)
    assert found["top1"] < 0.1
    assert not any(script.met(name, found[name]) for name in script.LIMITS)
    assert len(found["top1_reference_margins"]) == round((1 - found["top1"]) * 64)
    assert min(found["top1_reference_margins"]) > 0


def test_limits(script: ModuleType) -> None:
    assert [script.met("top1", value) for value in (0.98, 0.99, 1.0)] == [False, True, True]
    assert [script.met("kl_mean", value) for value in (1e-4, 1e-3)] == [True, False]
    assert [script.met("perplexity_difference", value) for value in (-0.004, -0.006, 0.006)] == [True, False, False]
    assert not script.met("kl_mean", math.nan)


def test_the_table_names_what_is_not_met(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = dict.fromkeys(("kl_max", "kl_prompt", "perplexity", "perplexity_reference", "answer_tokens_equal"), 1.0)
    about = {"model": "m", "build": "b", "device": "d", "source": "s", "question": "q?"}
    answer = {"answer": {"text": "yes", "tokens": [1, 2], "tok_per_s": 10.0}}
    script.show(numbers | about | answer | {"top1": 1.0, "kl_mean": np.float64(0.5), "perplexity_difference": 0.0})
    shown = capsys.readouterr().out
    assert "kl_mean                            0.5  below 0.001: NOT MET" in shown
    assert shown.count(": met") == 2
    assert "> q?\nyes\n(2 tokens, 10.0 tok/s)" in shown


def test_the_text_is_long_enough_for_several_windows(script: ModuleType) -> None:
    text = (SCRIPT.parents[2] / "tests" / "data" / "plain-text.txt").read_text(encoding="utf-8")
    assert 550 < len(text.split()) < 650
    assert text.isascii()
