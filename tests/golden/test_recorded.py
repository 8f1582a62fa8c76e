"""Published numbers of the recorded traces, each also recomputed from raw rows by the oracle.

A site's GB/s is bytes over the mean time of its launches in a step, then the median over steps.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from tests.conftest import Attrib
from tests.golden import golden
from tests.helpers import data
from tests.helpers import nsysgen_oracle as oracle

DECODE_14B = "llama.cpp-14b-tg16-h200"
DECODE_7B = "llama.cpp-7b-pp512-tg16-h200"
MODELS = {DECODE_14B: "qwen2.5-14b:q4_k_m", DECODE_7B: "qwen2.5-7b:q4_k_m"}
LAYERS = {DECODE_14B: 48, DECODE_7B: 28}
LAUNCHES = {DECODE_14B: 918, DECODE_7B: 538}
HIDDEN_FFN = {DECODE_14B: (5120, 13824), DECODE_7B: (3584, 18944)}
ORDER = ("attn_q", "attn_v", "attn_k", "attn_output", "ffn_gate_up", "ffn_down")
QUANTS = {"12": ("q4_K", 144), "14": ("q6_K", 210)}  # ggml_type -> name, bytes of 256 weights

# exclusive GB/s, and by duration
PUBLISHED = {
    "ffn_gate_up/q4_K": (1789, 1630),
    "ffn_down/q6_K": (1550, 1502),
    "ffn_down/q4_K": (1845, 1750),
    "attn_q/q4_K": (1291, 933),
    "attn_output/q4_K": (1295, 953),
    "output/q6_K": (1961, 1933),
}


@cache
def steps(name: str) -> list[list[oracle.Row]]:
    return [replay for replay in oracle.replays(data.trace(name)) if len(replay) == LAUNCHES[name]]


@cache
def expected_rates(name: str) -> dict[str, tuple[float, float]]:
    """Site -> (exclusive GB/s, GB/s by duration): six matrix-vector launches a layer, then the head."""
    hidden, ffn = HIDDEN_FFN[name]
    per_step: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for step in steps(name):
        times: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        matvec = [p for p in zip(step, oracle.exclusive(oracle.intervals(step)), strict=True) if "vec_q" in p[0].short]
        for i, (row, own) in enumerate(matvec):
            role = ORDER[i % 6] if i < 6 * LAYERS[name] else "output"
            found = re.search(r"ggml_type\)(\d+)", row.demangled)
            assert found is not None
            quant, block = QUANTS[found.group(1)]
            cols = ffn if role == "ffn_down" else hidden
            nbytes = row.grid[0] * cols // 256 * block * (2 if role == "ffn_gate_up" else 1)
            times[f"{role}/{quant}", nbytes].append((own, row.duration))
        for (site, nbytes), launches in times.items():
            exclusive, total = (fmean(values) for values in zip(*launches, strict=True))
            per_step[site].append((nbytes / exclusive, nbytes / total))
    return {site: (median(r[0] for r in rates), median(r[1] for r in rates)) for site, rates in per_step.items()}


@cache
def expected_step(name: str) -> tuple[float, float, float]:
    """Medians over steps, ms: span, sum of durations, time that no launch covers."""
    rows = []
    for step in steps(name):
        launches = oracle.intervals(step)
        covered = sum(oracle.exclusive(launches))
        rows.append((oracle.span(launches), sum(row.duration for row in step), oracle.span(launches) - covered))
    span, durations, idle = (median(column) / 1e6 for column in zip(*rows, strict=True))
    return span, durations, idle


def census(attrib: Attrib, name: str) -> dict[str, Any]:
    return attrib("census", data.trace(name), "--model", MODELS[name], "--json").json()


def test_published_numbers_follow_from_the_raw_rows() -> None:
    for site, (exclusive, by_duration) in PUBLISHED.items():
        assert expected_rates(DECODE_14B)[site] == pytest.approx((exclusive, by_duration), rel=1e-3), site
    assert expected_step(DECODE_14B) == pytest.approx((6.5097, 8.2344, 0), abs=1e-4)
    assert expected_step(DECODE_7B) == pytest.approx((3.5411, 4.4764, 0), abs=1e-4)


@pytest.mark.parametrize("name", [DECODE_14B, DECODE_7B])
def test_steps_close_to_the_nanosecond(attrib: Attrib, name: str) -> None:
    document = census(attrib, name)
    span, durations, _ = expected_step(name)
    found = document["steps"]
    assert (found["count"], found["launches"]) == (16, LAUNCHES[name])
    assert found["span_ms"] == pytest.approx(span, abs=1e-6)
    assert found["duration_sum_ms"] == pytest.approx(durations, rel=1e-3)
    assert found["idle_ms"] < 0.001
    assert document["ledger"]["closure_ns"] == 0
    assert document["schema"] == "attrib.census/1"


@pytest.mark.parametrize("name", [DECODE_14B, DECODE_7B])
def test_rates_of_every_matrix(attrib: Attrib, name: str) -> None:
    sites = {site_key(row): row for row in census(attrib, name)["sites"] if row["bytes"]}
    expected = expected_rates(name)
    assert set(sites) == set(expected)
    for site, (exclusive, by_duration) in expected.items():
        assert sites[site]["gbps"] == pytest.approx(exclusive, rel=2e-3), site
        assert sites[site]["gbps_duration"] == pytest.approx(by_duration, rel=2e-3), site
        if name == DECODE_14B and site in PUBLISHED:
            assert (sites[site]["gbps"], sites[site]["gbps_duration"]) == pytest.approx(PUBLISHED[site], rel=5e-3)


def site_key(row: dict[str, Any]) -> str:
    """`role/quant`, whether or not `site` carries the quant already."""
    return row["site"] if "/" in row["site"] else f"{row['site']}/{row['quant']}"


COMMANDS = ("census", "stragglers", "anatomy")


@pytest.mark.parametrize("command", COMMANDS)
def test_golden_json(attrib: Attrib, command: str, update_golden: bool) -> None:
    document = attrib(command, data.trace(DECODE_14B), "--model", MODELS[DECODE_14B], "--json").json()
    golden.check(f"{command}-14b.json", json.dumps(rounded(document), indent=1) + "\n", update_golden)


def rounded(value: Any) -> Any:
    """Floats to nine significant digits, so that the last bits of a sum may differ between machines."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


@pytest.mark.parametrize("command", COMMANDS)
def test_golden_tables(attrib: Attrib, command: str, update_golden: bool) -> None:
    outcome = attrib(command, data.trace(DECODE_14B), "--model", MODELS[DECODE_14B])
    assert outcome.code == 0, outcome.err
    golden.check(f"{command}-14b.txt", outcome.out, update_golden)


def test_shares_and_counts(attrib: Attrib) -> None:
    document = attrib("anatomy", data.trace(DECODE_14B), "--model", MODELS[DECODE_14B], "--json").json()
    rows = {row["category"]: row for row in document["categories"]}
    assert rows["weight streaming"]["pct_of_span"] == pytest.approx(81.9, abs=0.05)
    assert rows["norm"]["launches"] == 97
    assert rows["quantize"]["launches"] == 289
    assert rows["quantize"]["ms"] == pytest.approx(0.30, abs=0.01)


def test_a_golden_mismatch_leaves_the_new_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    golden.check("a.txt", "old\n", update=True)
    golden.check("a.txt", "old\n", update=False)
    with pytest.raises(AssertionError, match=r"differs from .*a\.txt; see .*a\.txt\.new"):
        golden.check("a.txt", "new\n", update=False)
    assert (tmp_path / "a.txt.new").read_text() == "new\n"
    golden.check("a.txt", "old\n", update=False)
    assert not (tmp_path / "a.txt.new").exists()
    with pytest.raises(AssertionError, match="has no"):
        golden.check("b.txt", "new\n", update=False)
