"""Untraced timing of a model at an anchor, and the run a profiler records.

A decode window sets the sequence back to the anchor's position and times each token on the host clock, from one
token's arrival to the next one's. The next step is launched before a token is read, as the device needs no host to go
on. Host overhead is what such a step takes beyond one of many replays.
"""

from __future__ import annotations

import re
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attrib.manifest import Manifest
from engine import driver
from engine.errors import EngineError
from engine.plan import manifest
from engine.program import decode
from engine.session import Session, span
from engine.stamps import Replay

FIRST_TOKEN = 1
WARM_UP_STEPS = 16
DEPTH_STEPS, TRACED_STEPS = 32, 16
REPLAYS = 64
SCHEMA = "engine.bench/1"


@dataclass(frozen=True)
class Anchor:
    """Where to measure: `decode` steps from KV position `start`, or the `prefill` of `start` tokens."""

    name: str
    phase: str
    start: int
    steps: int

    @property
    def capacity(self) -> int:
        """KV positions a run at this anchor needs, in whole attention tiles."""
        return -(-(self.start + max(self.steps, WARM_UP_STEPS, REPLAYS) + 1) // 256) * 256

    @property
    def kv_len(self) -> int:
        """KV length in the middle of the timed steps, for the manifest's bytes."""
        return max(1, self.start + self.steps // 2)


def anchor(name: str, steps: int | None = None) -> Anchor:
    """`tg128` (128 steps from an empty context), `@N` (steps after N tokens), `pp512` (a 512-token prompt).

    Raises EngineError for anything else.
    """
    if steps is not None and steps < 1:
        raise EngineError(f"--steps {steps} is not a positive number of steps")
    if found := re.fullmatch(r"tg(\d+)", name):
        return Anchor(name, "decode", 0, _positive(name, steps or int(found[1])))
    if found := re.fullmatch(r"@(\d+)", name):
        return Anchor(name, "decode", int(found[1]), steps or DEPTH_STEPS)
    if found := re.fullmatch(r"pp(\d+)", name):
        return Anchor(name, "prefill", _positive(name, int(found[1])), 0)
    raise EngineError(f"anchor {name!r} is not one of tgN, @N, ppN, for example tg128, @3254 or pp512")


def _positive(name: str, count: int) -> int:
    if count < 1:
        raise EngineError(f"anchor {name} asks for no tokens")
    return count


def prompt(session: Session, count: int) -> list[int]:
    """`count` token ids, the same every time for a vocabulary."""
    rng = np.random.default_rng(0)
    return [int(t) for t in rng.integers(0, session.config.model.shape.vocab, count)]


def reach(session: Session, position: int) -> None:
    """Fill the KV cache up to a position with a real prefill, and wait."""
    if position:
        with span("prefill"):
            session.prefill(prompt(session, position))
            session.wait()
    session.set_state(position, FIRST_TOKEN)


def decode_window(session: Session, at: Anchor) -> list[int]:
    """Nanoseconds between the tokens of one window, each read back while the next step runs."""
    session.set_state(at.start, FIRST_TOKEN)
    session.wait()
    times = []
    last = time.perf_counter_ns()
    for i in range(at.steps):
        session.step()
        session.send_state(i % 2)
        if i:
            session.arrived((i - 1) % 2)
            now = time.perf_counter_ns()
            times.append(now - last)
            last = now
    session.arrived((at.steps - 1) % 2)
    return [*times, time.perf_counter_ns() - last]


def prefill_window(session: Session, at: Anchor) -> list[int]:
    """Nanoseconds of one prompt, from the first launch to its logits' arg max."""
    tokens = prompt(session, at.start)
    session.wait()
    started = time.perf_counter_ns()
    session.prefill(tokens)
    session.state()
    return [time.perf_counter_ns() - started]


def replay_ns(session: Session, at: Anchor) -> float:
    """Device nanoseconds of a replay in a run of replays nobody waits for."""
    session.set_state(at.start, FIRST_TOKEN)
    with driver.event() as first, driver.event() as last:
        driver.record(first, session.stream)
        for _ in range(REPLAYS):
            session.step()
        driver.record(last, session.stream)
        session.wait()
        return driver.elapsed_ns(first, last) / REPLAYS


def measure(session: Session, at: Anchor, windows: int) -> dict[str, Any]:
    """Time `windows` windows after a warm-up; the object `engine bench --json` prints."""
    if at.phase == "prefill":
        prefill_window(session, at)
        prefill_window(session, at)
        found = [prefill_window(session, at) for _ in range(windows)]
        tokens, extra = at.start, {}
    else:
        reach(session, at.start)
        decode_window(session, replace(at, steps=WARM_UP_STEPS))
        found = [decode_window(session, at) for _ in range(windows)]
        tokens, extra = 1, {"replay_ns": replay_ns(session, at)}
    medians = [statistics.median(times) for times in found]
    step = statistics.median(medians)
    if extra:
        extra["host_share"] = max(0.0, 1 - extra["replay_ns"] / step)
    return {
        **description(session, at),
        "windows": [{"step_ns": times, "tok_per_s": tokens * len(times) * 1e9 / sum(times)} for times in found],
        "step_ns": step,
        "tok_per_s": tokens * 1e9 / step,
        **extra,
    }


def description(session: Session, at: Anchor) -> dict[str, Any]:
    """What ran and on what: device, model, build, anchor, load rate."""
    made = plan_manifest(session, at)
    nodes = made.graph().nodes
    units = sum(node.units for node in nodes)
    return {
        "schema": SCHEMA,
        "device": made.device.name,
        "compute_capability": made.device.compute_capability,
        "model": made.model.name,
        "recipe": made.model.recipe,
        "source": made.model.source,
        "build": made.build.name,
        "build_hash": made.build.hash,
        "anchor": at.name,
        "phase": at.phase,
        "start_position": at.start if at.phase == "decode" else 0,
        "kv_filled_by": "prefill" if at.phase == "decode" and at.start else "nothing",
        "kv_capacity": session.geometry.capacity,
        "launches_per_step": len(session.launches),
        "units": units,
        "units_missing": units - sum(node.units_covered for node in nodes),
        "weight_bytes": session.weight_bytes,
        "load_seconds": session.load_seconds,
        "load_gbps": session.weight_bytes / session.load_seconds / 1e9,
    }


def plan_manifest(session: Session, at: Anchor) -> Manifest:
    """The manifest of the session's decode graph, with KV bytes at the anchor; it holds no times."""
    kv_len = min(at.kv_len, session.geometry.capacity)
    launches = decode(session.config, session.build, session.geometry, kv_len)
    return manifest(session.config, session.build, session.device(), at.name, launches)


def traced(session: Session, at: Anchor, replays: list[Replay] | None = None) -> dict[str, Any]:
    """What a profiler records: the prefill, a warm-up, then each step in an NVTX range `step`, untimed.

    replays: gets the stamps of each step of a session that was opened with stamps.
    """
    if at.phase == "prefill":
        for name in ("warm-up", "prefill"):
            with span(name):
                session.prefill(prompt(session, at.start))
                session.wait()
        return description(session, at) | {"steps": 1}
    reach(session, at.start)
    with span("warm-up"):
        for _ in range(WARM_UP_STEPS):
            session.step()
        session.wait()
    session.set_state(at.start, FIRST_TOKEN)
    session.wait()
    for _ in range(at.steps):
        with span("step"):
            session.step()
            session.state()
        if replays is not None:
            replays.append(session.stamps())
    return description(session, at) | {"steps": at.steps}
