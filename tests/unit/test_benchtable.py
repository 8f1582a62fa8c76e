"""The llama-bench-shaped table: numbers by hand, three formats, and the command on a session by script."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from engine import bench, cli, session
from engine.bench import anchor
from engine.benchtable import render, row
from engine.benchtable import test_name as name_of
from engine.config import synthetic

SECOND = 1_000_000_000
CONFIG = synthetic("14b")


def found(step_ns: list[list[int]], tokens: int = 1) -> dict[str, Any]:
    """What `bench.measure` returns, as far as the table reads it."""
    windows = [{"step_ns": times, "tok_per_s": tokens * len(times) * SECOND / sum(times)} for times in step_ns]
    about = {"model": "qwen2.5-14b", "recipe": "q4_k_m", "build": "reference", "build_hash": "abc", "device": "H200"}
    return {**about, "windows": windows}


def test_rates_are_the_mean_and_deviation_over_windows() -> None:
    """Windows of 4 steps in 1 s and in 2 s: 4 and 2 tokens a second, 3 ± √2; 1.5 ± √0.5 s."""
    made = row(CONFIG, anchor("tg4"), found([[SECOND // 4] * 4, [SECOND // 2] * 4]))
    assert made["avg_ts"] == 3
    assert made["stddev_ts"] == pytest.approx(2**0.5)
    assert made["samples_ts"] == [4, 2]
    assert (made["avg_ns"], made["stddev_ns"]) == (3 * SECOND // 2, round(0.5**0.5 * SECOND))
    assert row(CONFIG, anchor("tg4"), found([[SECOND] * 4]))["stddev_ts"] == 0


def test_sizes_are_all_tensors_as_stored() -> None:
    """14B as published: 14.77 billion weights, 8.37 GiB in q4_K_M."""
    made = row(CONFIG, anchor("pp512"), found([[SECOND]], 512))
    assert made["model_n_params"] == 14_770_033_664
    assert made["model_size"] / 2**30 == pytest.approx(8.37, abs=0.01)


@pytest.mark.parametrize(("at", "name"), [("pp512", "pp512"), ("tg128", "tg128"), ("@3254", "tg32 @ d3254")])
def test_names_of_tests(at: str, name: str) -> None:
    assert name_of(row(CONFIG, anchor(at), found([[SECOND]]))) == name


def rows() -> list[dict[str, Any]]:
    return [
        row(CONFIG, anchor("pp512"), found([[SECOND], [SECOND]], 512)),
        row(CONFIG, anchor("tg128"), found([[SECOND // 128] * 128])),
    ]


def test_markdown() -> None:
    assert render(rows(), "md").splitlines() == [
        "| model              |     size |  params | backend |  test |           t/s |",
        "| ------------------ | -------: | ------: | ------- | ----: | ------------: |",
        "| qwen2.5-14b q4_k_m | 8.37 GiB | 14.77 B | CUDA    | pp512 | 512.00 ± 0.00 |",
        "| qwen2.5-14b q4_k_m | 8.37 GiB | 14.77 B | CUDA    | tg128 | 128.00 ± 0.00 |",
        "",
        "build: reference abc, H200",
    ]


def test_a_long_name_leaves_the_table_within_100_columns() -> None:
    big = {"model_type": "x" * 200, "n_depth": 16384, "avg_ts": 12345.67, "stddev_ts": 1234.56}
    longest = [entry | big for entry in rows()]
    assert max(len(line) for line in render(longest, "md").splitlines()) <= 100


def test_json_and_csv_hold_the_same_numbers() -> None:
    read = json.loads(render(rows(), "json"))
    assert [entry["n_prompt"] for entry in read] == [512, 0]
    table = list(csv.DictReader(io.StringIO(render(rows(), "csv"))))
    assert [float(entry["avg_ts"]) for entry in table] == [entry["avg_ts"] for entry in read]
    assert set(table[0]) == {name for name in read[0] if not name.startswith("samples")}


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["engine", "bench", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_the_command_opens_one_session_for_all_anchors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capacities = []

    @contextmanager
    def opened(config: Any, build: Any, capacity: int, gpu: int) -> Iterator[None]:
        capacities.append(capacity)
        yield

    monkeypatch.setattr(session, "open_session", opened)
    monkeypatch.setattr(bench, "measure", lambda session, at, windows: found([[SECOND] * (at.steps or 1)] * windows))
    assert command(monkeypatch, "14b", "-o", "json") == 0
    assert [name_of(entry) for entry in json.loads(capsys.readouterr().out)] == ["pp512", "tg128"]
    assert command(monkeypatch, "14b", "-o", "md", "--anchor", "@1000", "--steps", "8", "--windows", "2") == 0
    assert "| tg8 @ d1000 | 1.00 ± 0.00 |" in capsys.readouterr().out
    assert capacities == [768, anchor("@1000", 8).capacity]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "xml"], "--output 'xml' is not one of md, json, csv"),
        (["-o", "md", "--json"], "--json does not go with --output"),
        (["-o", "md", "--traced"], "--traced does not go with --output"),
        (["-o", "md", "--unproven"], "--unproven does not go with --output"),
        (["-o", "md", "--anchor", "fast"], "anchor 'fast' is not one of"),
        (["--anchor", "tg1", "--anchor", "tg2"], "2 anchors need --output"),
    ],
)
def test_what_does_not_go_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert command(monkeypatch, "14b", *options) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""
