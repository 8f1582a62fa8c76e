"""A real model on the engine against the same file in float64: logits, perplexity, and an answer to a question.

    python analyses/benchmarks/real_model.py models/SmolLM2-135M-Instruct.Q4_1.gguf      (make model fetches it)

The reference shares no arithmetic with the engine: the `gguf` package dequantizes, tests/helpers/reference.py
computes in NumPy. Logits are of decode steps that are fed the text's tokens; perplexity is of windows of 128
tokens, the second half of each. Exit code 1 when a limit is not met. Needs a GPU, no network.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from engine import perplexity  # noqa: E402 - tests/helpers is found from the root of the repository
from engine.chat import messages, render  # noqa: E402
from engine.config import ModelConfig  # noqa: E402
from engine.dispatch import load  # noqa: E402
from engine.errors import EngineError  # noqa: E402
from engine.generate import Request, generate  # noqa: E402
from engine.gguf import read_config  # noqa: E402
from engine.sampler import log_softmax  # noqa: E402
from engine.session import Session, open_session  # noqa: E402
from engine.tokenizer import Tokenizer  # noqa: E402
from engine.vocabulary import read_vocabulary  # noqa: E402
from tests.helpers.reference import Decoder, Rounding  # noqa: E402
from tests.helpers.reference_session import ReferenceSession  # noqa: E402

TEXT = ROOT / "tests" / "data" / "plain-text.txt"
QUESTION = "What is the capital of France, and what is it known for?"
POSITIONS, WINDOW, ANSWER = 64, 128, 64
LEAST_TOP1, MOST_KL, MOST_PERPLEXITY = 0.99, 1e-3, 0.005


def reference(config: ModelConfig) -> Decoder:
    """The file in float64."""
    tensors = gguf.GGUFReader(config.path).tensors
    return Decoder(
        config.model.shape, {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in tensors}, Rounding()
    )


def fresh(decoder: Decoder) -> Decoder:
    """The same weights and an empty KV cache."""
    decoder.cache = [(k[:, :0], v[:, :0]) for k, v in decoder.cache]
    return decoder


def forced(session: Session, tokens: list[int]) -> np.ndarray:
    """Logits [tokens][vocab] of decode steps from an empty KV cache, each fed the next token of the text."""
    found = []
    for position, token in enumerate(tokens):
        session.set_state(position, token)
        session.step()
        found.append(session.logits())
    return np.stack(found).astype(np.float64)


def reference_perplexity(decoder: Decoder, tokens: list[int]) -> float:
    """e to the mean loss of the second half of every window, from one pass over each."""
    losses: list[float] = []
    for at in range(0, len(tokens) - WINDOW + 1, WINDOW):
        window = tokens[at : at + WINDOW]
        scores = log_softmax(fresh(decoder).forward(window))
        losses += [-scores[i - 1, window[i]] for i in range(WINDOW // 2 + 1, WINDOW)]
    return float(np.exp(np.mean(losses)))


def compare(session: Session, decoder: Decoder, tokenizer: Tokenizer) -> dict[str, Any]:
    """Everything measured, engine and reference side by side."""
    tokens = tokenizer.prompt(TEXT.read_text(encoding="utf-8"), specials=False)
    got, want = (
        log_softmax(x) for x in (forced(session, tokens[:POSITIONS]), fresh(decoder).forward(tokens[:POSITIONS]))
    )
    kl = (np.exp(want) * (want - got)).sum(axis=1)
    other = np.flatnonzero(got.argmax(axis=1) != want.argmax(axis=1))
    margins = want[other].max(axis=1) - want[other, got[other].argmax(axis=1)]
    ours, theirs = perplexity.measure(session, tokens, WINDOW, None).value, reference_perplexity(decoder, tokens)
    request = Request(tokenizer.prompt(render(tokenizer.vocabulary, messages(QUESTION))), ANSWER)
    answer, expected = (
        generate(session, tokenizer, request),
        generate(
            ReferenceSession(fresh(decoder)),
            tokenizer,
            request,  # type: ignore[arg-type]
        ),
    )
    pairs = list(zip(answer.tokens, expected.tokens, strict=False))
    return {
        "positions": POSITIONS,
        "top1": 1 - len(other) / POSITIONS,
        "top1_margins": margins.tolist(),
        "kl_mean": float(kl.mean()),
        "kl_max": float(kl.max()),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--build", default="reference")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    config = read_config(options.model)
    tokenizer = Tokenizer(read_vocabulary(options.model))
    with open_session(config, load(options.build), 1024, options.gpu) as session:
        found = compare(session, reference(config), tokenizer)
        found |= {"schema": "engine.real_model/1", "model": config.model.shape.name, "build": options.build}
        found |= {"device": session.device().name, "source": config.source}
    limits = [
        ("top-1 equal", found["top1"], f"at least {LEAST_TOP1}", found["top1"] >= LEAST_TOP1),
        ("KL, mean", found["kl_mean"], f"below {MOST_KL}", found["kl_mean"] < MOST_KL),
        (
            "perplexity against reference",
            found["perplexity_difference"],
            f"within {MOST_PERPLEXITY}",
            abs(found["perplexity_difference"]) < MOST_PERPLEXITY,
        ),
    ]
    found["passed"] = all(met for *_, met in limits)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(f"{found['model']}, build {found['build']}, {found['device']}; {found['source']}")
        for name, value, limit, met in limits:
            print(f"{name:30}{value:>12.6g}  {limit:16} {'met' if met else 'NOT MET'}")
        print(f"{'KL, largest':30}{found['kl_max']:>12.6g}")
        print(f"{'perplexity':30}{found['perplexity']:>12.4f}  reference {found['perplexity_reference']:.4f}")
        print(f"{'answer tokens equal':30}{found['answer_tokens_equal']:>12}  of {len(found['answer']['tokens'])}")
        print(f"{'tok/s of the answer':30}{found['answer']['tok_per_s']:>12.1f}")
        print(f"\n{found['question']}\n{found['answer']['text']}")
    sys.exit(0 if found["passed"] else 1)


if __name__ == "__main__":
    try:
        main()
    except EngineError as error:
        sys.exit(f"real_model: {error}")
