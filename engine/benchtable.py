"""Timings in the shape llama-bench prints: a Markdown table for people, JSON or CSV with its field names.

Rates are the mean and the sample standard deviation over windows, as llama-bench gives them over repetitions.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from engine.bench import Anchor
from engine.config import ModelConfig

GIB, BILLION, MILLION = 1 << 30, 1e9, 1e6
FORMATS = ("md", "json", "csv")
_LONGEST_MODEL = 25
_COLUMNS = ("model", "size", "params", "backend", "test", "t/s")
_TO_THE_RIGHT = ("size", "params", "test", "t/s")


def row(config: ModelConfig, at: Anchor, found: dict[str, Any]) -> dict[str, Any]:
    """One test from what `bench.measure` returned, under llama-bench's field names."""
    windows = found["windows"]
    rates = [float(window["tok_per_s"]) for window in windows]
    times = [sum(window["step_ns"]) for window in windows]
    return {
        "build_commit": found["build_hash"],
        "build": found["build"],
        "gpu_info": found["device"],
        "backends": "CUDA",
        "model_filename": str(config.path or config.source),
        "model_type": f"{found['model']} {found['recipe']}",
        "model_size": sum(t.nbytes for t in config.model.tensors),
        "model_n_params": sum(t.rows * t.cols for t in config.model.tensors),
        "n_prompt": at.start if at.phase == "prefill" else 0,
        "n_gen": at.steps if at.phase == "decode" else 0,
        "n_depth": at.start if at.phase == "decode" else 0,
        "test_time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": round(statistics.mean(times)),
        "stddev_ns": round(_deviation(times)),
        "avg_ts": statistics.mean(rates),
        "stddev_ts": _deviation(rates),
        "samples_ns": times,
        "samples_ts": rates,
    }


def _deviation(values: Sequence[float]) -> float:
    """The sample standard deviation, 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def test_name(entry: dict[str, Any]) -> str:
    """`pp512`, `tg128`, or `tg32 @ d3254` for steps after 3254 tokens."""
    name = f"pp{entry['n_prompt']}" if entry["n_prompt"] else f"tg{entry['n_gen']}"
    return f"{name} @ d{entry['n_depth']}" if entry["n_depth"] else name


def render(rows: Sequence[dict[str, Any]], form: str) -> str:
    """The rows as `md`, `json` or `csv`."""
    if form == "json":
        return json.dumps(list(rows), indent=1, allow_nan=False)
    return _csv(rows) if form == "csv" else _markdown(rows)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """The fields but the samples, which are lists; every value in quotes."""
    names = [name for name in rows[0] if not name.startswith("samples")]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([entry[name] for name in names] for entry in rows)
    return out.getvalue().rstrip("\n")


def _markdown(rows: Sequence[dict[str, Any]]) -> str:
    cells = [_COLUMNS, *(_cells(entry) for entry in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_COLUMNS))]
    right = [name in _TO_THE_RIGHT for name in _COLUMNS]

    def line(values: Sequence[str]) -> str:
        padded = (v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = "| " + " | ".join("-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)) + " |"
    builds = {f"build: {entry['build']} {entry['build_commit']}, {entry['gpu_info']}" for entry in rows}
    return "\n".join([line(_COLUMNS), rule, *(line(values) for values in cells[1:]), "", *sorted(builds)])


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    params, model = entry["model_n_params"], entry["model_type"]
    return (
        model if len(model) <= _LONGEST_MODEL else f"{model[: _LONGEST_MODEL - 1]}…",
        f"{entry['model_size'] / GIB:.2f} GiB",
        f"{params / BILLION:.2f} B" if params >= BILLION else f"{params / MILLION:.2f} M",
        entry["backends"],
        test_name(entry),
        f"{entry['avg_ts']:.2f} ± {entry['stddev_ts']:.2f}",
    )
