"""From a persistent kernel's stamps to stages.json, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attrib.manifest import Graph, Launch, Stage
from engine import stamps
from engine.errors import EngineError

# three stages, two blocks: (let in, done) in ns from 2^60, more than a float can hold to the nanosecond
BASE = 1 << 60
RAW = np.array([[(5, 100), (0, 120)], [(110, 200), (130, 190)], [(230, 300), (250, 280)]]) + BASE
NODES = (
    Launch(0, "embed/q4_K", None, "embed_q4_K", (1, 1, 1), (128, 1, 1)),
    Launch(
        1, "step", None, "fast_step", (2, 1, 1), (512, 1, 1), stages=tuple(Stage(i, "attention", i) for i in range(3))
    ),
    Launch(2, "advance", None, "advance", (1, 1, 1), (32, 1, 1)),
)


def test_ends_are_the_last_block_s_and_waits_the_mean_block_s() -> None:
    found = stamps.reduce(RAW.astype(np.uint64))
    assert found.end_ns == (120, 200, 300)  # from the first block's start, which is block 1's
    # stage 1: 110 - 100 and 130 - 120; stage 2: 230 - 200 and 250 - 190
    assert found.wait_ns == (0, 10, 45)


def test_a_stage_that_ends_before_the_one_ahead_of_it_adds_no_time() -> None:
    """A block without work in a stage may be through with it before others are with the stage before."""
    raw = np.array([[(0, 50), (0, 90)], [(50, 60), (90, 70)]]).astype(np.uint64)
    assert stamps.reduce(raw).end_ns == (90, 90)


def test_a_wait_is_never_negative() -> None:
    raw = np.array([[(0, 50)], [(40, 60)]]).astype(np.uint64)
    assert stamps.reduce(raw).wait_ns == (0, 0)


def test_the_document_names_the_node_and_keeps_the_order_of_replays() -> None:
    replays = [stamps.Replay((1, 2, 3), (0, 0, 1)), stamps.Replay((4, 5, 6), (0, 1, 0))]
    assert stamps.document(Graph("decode", NODES), replays) == {
        "schema": "attrib.stages/1",
        "node": 1,
        "stages": 3,
        "sms": 2,
        "replays": [
            {"end_ns": [1, 2, 3], "wait_ns": [0, 0, 1]},
            {"end_ns": [4, 5, 6], "wait_ns": [0, 1, 0]},
        ],
    }


def test_what_is_written_is_whole(tmp_path: Path) -> None:
    content = stamps.document(Graph("decode", NODES), [stamps.reduce(RAW.astype(np.uint64))])
    path = tmp_path / "stages.json"
    stamps.write(path, content)
    assert json.loads(path.read_text(encoding="utf-8")) == content
    stamps.write(path, content | {"replays": []})
    assert json.loads(path.read_text(encoding="utf-8"))["replays"] == []
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "stages.json").mkdir()
    for path in (tmp_path / "gone" / "stages.json", tmp_path / "stages.json"):
        with pytest.raises(EngineError, match=r"stages\.json cannot be written: "):
            stamps.write(path, {})
    assert list(tmp_path.iterdir()) == [tmp_path / "stages.json"]
