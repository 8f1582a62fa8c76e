"""Gates between two builds: byte-identical dumps, identical greedy tokens, and close logits.

A bitwise gate proves that nothing changed. It cannot see work that both builds skip; the coverage proof does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.bench import prompt
from engine.config import ModelConfig
from engine.dispatch import Build
from engine.dump import NODE, SLOT, Dump, collect, compare
from engine.session import Session, open_session

GATES = ("dump", "greedy", "tolerance")
GREEDY_TOKENS = 256
PROMPT_TOKENS = 48
TEACHER_STEPS = 256
# Taking q8 for f32 activations in attn_v costs an NMSE of 2.5e-4 and a KL of 6e-5 on 14B; flat logits of random
# weights change places in a few of a hundred steps.
MOST_NMSE, MOST_KL, LEAST_TOP1 = 5e-4, 1e-3, 0.9
Logits = NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """One gate's outcome; `notes` are sentences for a report, `numbers` what was measured."""

    gate: str
    passed: bool
    notes: tuple[str, ...]
    numbers: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """The verdict as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Run:
    """What one build produced: dump, greedy tokens, and logits f32 [steps][vocab] fed the same tokens."""

    dump: Dump
    tokens: list[int]
    logits: NDArray[np.float32]


def run(config: ModelConfig, build: Build, gates: tuple[str, ...], ordinal: int = 0) -> Run:
    """Run a build for the gates asked for; the other fields stay empty."""
    capacity = PROMPT_TOKENS + GREEDY_TOKENS + TEACHER_STEPS
    with open_session(config, build, capacity, ordinal) as session:
        start = prompt(session, PROMPT_TOKENS)
        return Run(
            collect(session, start) if "dump" in gates else {},
            greedy(session, start, GREEDY_TOKENS) if "greedy" in gates else [],
            forced(session, start, TEACHER_STEPS) if "tolerance" in gates else np.zeros((0, 0), np.float32),
        )


def greedy(session: Session, start: list[int], count: int) -> list[int]:
    """`count` tokens by arg max after a prompt."""
    session.prefill(start)
    for _ in range(count - 1):
        session.step()
    return session.produced(count)


def forced(session: Session, start: list[int], count: int) -> NDArray[np.float32]:
    """Logits f32 [count][vocab] of decode steps fed given tokens, so that one early choice cannot spread."""
    session.prefill(start)
    session.wait()
    found = []
    for i, token in enumerate(prompt(session, len(start) + count)[len(start) :]):
        session.set_state(len(start) + i, token)
        session.step()
        found.append(session.logits())
    return np.stack(found)


def judge(first: Run, second: Run, gates: tuple[str, ...]) -> list[Verdict]:
    """The verdict of every gate asked for, in the order of `GATES`."""
    makers = {"dump": _judge_dump, "greedy": _judge_greedy, "tolerance": _judge_tolerance}
    return [makers[gate](first, second) for gate in GATES if gate in gates]


def _judge_dump(first: Run, second: Run) -> Verdict:
    differences, unmatched = compare(first.dump, second.dump)
    real = [d for d in differences if not d.aliasing]
    notes = [d.sentence() for d in real[:1]]
    notes += [d.sentence() for d in differences if d.aliasing]
    if unmatched:
        notes.append(f"{len(unmatched)} files exist in one build only or differ in type, the first {unmatched[0]}")
    # builds that fuse operations have other nodes and slots; logits and KV must be there to be equal
    lost = [name for name in unmatched if not name.startswith((NODE, SLOT))]
    if lost:
        notes.append(f"{lost[0]} cannot be compared, so the builds are not proven equal")
    compared = len(first.dump.keys() | second.dump.keys()) - len(unmatched)
    numbers = {"files": float(compared), "different": float(len(real)), "unmatched": float(len(unmatched))}
    return Verdict("dump", not real and not lost and compared > 0, tuple(notes), numbers)


def _judge_greedy(first: Run, second: Run) -> Verdict:
    if len(first.tokens) != len(second.tokens):
        note = f"one build produced {len(first.tokens)} tokens and the other {len(second.tokens)}"
        return Verdict("greedy", False, (note,), {})
    pairs = list(zip(first.tokens, second.tokens, strict=True))
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
    notes = () if same == len(pairs) else (f"token {same} is {pairs[same][0]} and {pairs[same][1]}",)
    return Verdict("greedy", same == len(pairs), notes, {"tokens": float(len(pairs)), "same": float(same)})


def _judge_tolerance(first: Run, second: Run) -> Verdict:
    reference, other = first.logits.astype(np.float64), second.logits.astype(np.float64)
    if reference.shape != other.shape:
        note = f"logits are {list(reference.shape)} in one build and {list(other.shape)} in the other"
        return Verdict("tolerance", False, (note,), {})
    if not (np.isfinite(reference).all() and np.isfinite(other).all()):
        return Verdict("tolerance", False, ("logits are not all finite",), {})
    error, divergence, agree = nmse(reference, other), kl(reference, other), top1(reference, other)
    limits = (
        (error <= MOST_NMSE, f"NMSE {error:.3g} is above {MOST_NMSE:g}"),
        (divergence <= MOST_KL, f"mean KL {divergence:.3g} is above {MOST_KL:g}"),
        (agree >= LEAST_TOP1, f"top-1 agreement {agree:.3f} is below {LEAST_TOP1:g}"),
    )
    notes = tuple(text for held, text in limits if not held)
    return Verdict("tolerance", not notes, notes, {"nmse": error, "kl": divergence, "top1": agree})


def nmse(reference: Logits, other: Logits) -> float:
    """Σ (other − reference)² / Σ reference²."""
    return float(((other - reference) ** 2).sum() / (reference**2).sum())


def kl(reference: Logits, other: Logits) -> float:
    """Mean over rows of KL(softmax(reference) ‖ softmax(other)), in nats."""

    def log_softmax(x: Logits) -> Logits:
        shifted = x - x.max(axis=-1, keepdims=True)
        result: Logits = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return result

    p, q = log_softmax(reference), log_softmax(other)
    return float((np.exp(p) * (p - q)).sum(axis=-1).mean())


def top1(reference: Logits, other: Logits) -> float:
    """Share of rows whose largest logit is at the same index."""
    return float((reference.argmax(axis=-1) == other.argmax(axis=-1)).mean())
