"""From the times a persistent kernel writes of its stages to `stages.json`, which the toolkit joins with a trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attrib.manifest import Graph
from engine.errors import EngineError

SCHEMA = "attrib.stages/1"
Stamps = NDArray[np.uint64]


@dataclass(frozen=True)
class Replay:
    """One replay: when the last block was done with each stage, from the first block's start; the mean wait before."""

    end_ns: tuple[int, ...]
    wait_ns: tuple[int, ...]


def reduce(stamps: Stamps) -> Replay:
    """stamps u64 [stages][blocks][2]: when a block was let into a stage, and when it was done with it, in ns."""
    start = int(stamps[0, :, 0].min())
    let_in, done = ((stamps[:, :, i] - np.uint64(start)).astype(np.int64) for i in (0, 1))
    ends = np.maximum.accumulate(done.max(axis=1))
    waits = np.zeros(len(stamps))
    waits[1:] = (let_in[1:] - done[:-1]).mean(axis=1)
    return Replay(tuple(int(e) for e in ends), tuple(max(0, round(w)) for w in waits))


def document(graph: Graph, replays: list[Replay]) -> dict[str, Any]:
    """The content of stages.json: replays in the order they ran, of the one node of a graph that has stages."""
    node = next(node for node in graph.nodes if node.stages)
    found = [{"end_ns": list(r.end_ns), "wait_ns": list(r.wait_ns)} for r in replays]
    return {"schema": SCHEMA, "node": node.i, "stages": len(node.stages), "sms": node.grid[0], "replays": found}


def write(path: Path, content: dict[str, Any]) -> None:
    """Write stages.json; it appears whole or not at all. Raises EngineError when its folder cannot be written."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        temporary.write_text(json.dumps(content), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise EngineError(f"{path} cannot be written: {error.strerror}") from error
