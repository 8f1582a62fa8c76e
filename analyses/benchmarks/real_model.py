"""A real model on the engine against the same file in float64: logits, perplexity, and an answer to a question.

    python analyses/benchmarks/real_model.py models/SmolLM2-135M-Instruct.Q4_1.gguf      (`make model` fetches it)

The reference shares no arithmetic with the engine: the gguf package dequantizes, tests/helpers/reference.py computes
in NumPy. Logits are of decode steps that are fed the text's tokens, and of one prompt. Exit code 1 when a limit is not
met. Needs a GPU and no network; from the repository, installed with `pip install -e .` or with PYTHONPATH=.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from engine import perplexity
from engine.chat import messages, render
from engine.config import ModelConfig
from engine.dispatch import load
from engine.errors import EngineError
from engine.generate import Request, generate
from engine.gguf import read_config
from engine.sampler import log_softmax
from engine.session import Session, open_session
from engine.tokenizer import Tokenizer
from engine.vocabulary import read_vocabulary
from tests.helpers.reference import Decoder, Rounding
from tests.helpers.reference_session import ReferenceSession

TEXT = Path(__file__).parents[2] / "tests" / "data" / "plain-text.txt"
QUESTION = "What is the capital of France, and what is it known for?"
POSITIONS, WINDOW, ANSWER = 64, 128, 64
LIMITS = {"top1": ("at least", 0.99), "kl_mean": ("below", 1e-3), "perplexity_difference": ("within", 0.005)}


def reference(config: ModelConfig) -> Decoder:
    """The file in float64."""
    tensors = gguf.GGUFReader(config.path).tensors
    dense = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in tensors}
    return Decoder(config.model.shape, dense, Rounding())


def whole(decoder: Decoder, tokens: list[int]) -> np.ndarray:
    """Logarithms of the probabilities after each token, f64 [tokens][vocab], in one pass from an empty KV cache."""
    ReferenceSession(decoder).set_state(0, tokens[0])
    return log_softmax(decoder.forward(tokens))


def forced(session: Session, tokens: list[int]) -> np.ndarray:
    """The same of decode steps from an empty KV cache, each fed the next token of the text."""
    found = []
    for position, token in enumerate(tokens):
        session.set_state(position, token)
        session.step()
        found.append(session.logits())
    return log_softmax(np.stack(found).astype(np.float64))


def reference_perplexity(decoder: Decoder, windows: list[list[int]]) -> float:
    """e to the mean loss of the second half of every window."""
    passes = [(window, whole(decoder, window)) for window in windows]
    return float(np.exp(np.mean([-s[i - 1, w[i]] for w, s in passes for i in range(WINDOW // 2 + 1, WINDOW)])))


def compare(session: Session, decoder: Decoder, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything measured, engine and reference side by side; KL in nats, of the reference from the engine."""
    tokens = tokenizer.prompt(TEXT.read_text(encoding="utf-8"), specials=False)
    first = tokens[:POSITIONS]
    got, want = forced(session, first), whole(decoder, first)
    kl = (np.exp(want) * (want - got)).sum(axis=1)
    other = np.flatnonzero(got.argmax(axis=1) != want.argmax(axis=1))
    session.prefill(first)
    prompt = log_softmax(session.logits().astype(np.float64))
    bos = tokenizer.vocabulary.bos if tokenizer.vocabulary.add_bos else None
    ours = perplexity.measure(session, tokens, WINDOW, bos).value
    theirs = reference_perplexity(decoder, perplexity.windows(tokens, WINDOW, bos))
    request = Request(tokenizer.prompt(render(tokenizer.vocabulary, messages(QUESTION))), ANSWER)
    answer = generate(session, tokenizer, request)
    expected = generate(ReferenceSession(decoder), tokenizer, request)  # type: ignore[arg-type]
    pairs = list(zip(answer.tokens, expected.tokens, strict=False))
    return {
        "positions": POSITIONS,
        "top1": 1 - len(other) / POSITIONS,
        "top1_reference_margins": (want[other].max(axis=1) - want[other, got[other].argmax(axis=1)]).tolist(),
        "kl_mean": float(kl.mean()),
        "kl_max": float(kl.max()),
        "kl_prompt": float((np.exp(want[-1]) * (want[-1] - prompt)).sum()),
        "text_tokens": len(tokens),
        "window": WINDOW,
        "perplexity": ours,
        "perplexity_reference": theirs,
        "perplexity_difference": ours / theirs - 1,
        "question": QUESTION,
        "answer": answer.to_json(),
        "answer_reference": expected.text,
        "answer_tokens_equal": next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs)),
    }


def met(name: str, value: float) -> bool:
    """Whether a measured number keeps its limit."""
    kind, limit = LIMITS[name]
    return value >= limit if kind == "at least" else abs(value) < limit


def show(found: dict[str, Any]) -> None:
    """The table, the question and the answer."""
    print(f"{found['model']}, build {found['build']}, {found['device']}; {found['source']}")
    for name, (kind, limit) in LIMITS.items():
        verdict = "met" if met(name, found[name]) else "NOT MET"
        print(f"{name:24}{found[name]:>14.6g}  {kind} {limit:g}: {verdict}")
    for name in ("kl_max", "kl_prompt", "perplexity", "perplexity_reference", "answer_tokens_equal"):
        print(f"{name:24}{found[name]:>14.6g}")
    answer = found["answer"]
    print(
        f"\n> {found['question']}\n{answer['text']}\n({len(answer['tokens'])} tokens, {answer['tok_per_s']:.1f} tok/s)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--build", default="reference")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config, tokenizer = read_config(options.model), Tokenizer(read_vocabulary(options.model))
    with open_session(config, load(options.build), 1024, options.gpu) as session:
        about = {"schema": "engine.real_model/1", "model": config.model.shape.name, "source": config.source}
        found = about | {"build": options.build, "device": session.device().name}
        found |= compare(session, reference(config), tokenizer)
    found["passed"] = all(met(name, found[name]) for name in LIMITS)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        show(found)
    sys.exit(0 if found["passed"] else 1)


if __name__ == "__main__":
    try:
        main()
    except EngineError as error:
        print(f"real_model: {error}", file=sys.stderr)
        sys.exit(2)
