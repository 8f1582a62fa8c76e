"""The Perfetto file against the ledger and the census, as Perfetto's own trace processor reads it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attrib import api
from attrib.device import GIGA
from attrib.perfetto import write_perfetto
from attrib.perfetto_layout import gaps, lanes, layer_bounds
from tests.conftest import Attrib
from tests.helpers import data, small_step
from tests.helpers.trace_processor import TraceProcessor, trace_processor

RECORDED = "llama.cpp-14b-tg16-h200"
MODEL = "qwen2.5-14b:q4_k_m"
SLICES = "SELECT {} FROM slice JOIN track ON track.id = slice.track_id WHERE track.name {} ORDER BY slice.ts, dur"
ARGUMENT = "EXTRACT_ARG(arg_set_id, 'debug.{}')"
TROUBLE = "SELECT name, value FROM stats WHERE value <> 0 AND severity IN ('error', 'data_loss')"

Intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=40)


def slices(tp: TraceProcessor, names: str, *columns: str) -> list[tuple[Any, ...]]:
    return tp.query(SLICES.format(", ".join(f"{c} AS c{i}" for i, c in enumerate(columns)), names))


@given(Intervals)
def test_lanes_never_overlap_and_are_as_few_as_possible(pairs: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in pairs], np.int64)
    end = start + np.array([b for _, b in pairs], np.int64)
    found = lanes(start, end)
    for lane in np.unique(found):
        mine = np.flatnonzero(found == lane)
        mine = mine[np.lexsort((end[mine], start[mine]))]
        assert (start[mine][1:] >= end[mine][:-1]).all()
    deepest = max((int(((start <= t) & (end > t)).sum()) for t in start.tolist()), default=0)
    # an interval of no length needs a lane although nothing overlaps it
    assert len(np.unique(found)) <= max(deepest + bool((start == end).any()), 0)
    assert len(np.unique(found)) >= deepest


@given(Intervals.filter(len))
def test_gaps_are_what_no_interval_covers(pairs: list[tuple[int, int]]) -> None:
    start = np.array([a for a, _ in pairs], np.int64)
    end = start + np.array([b for _, b in pairs], np.int64)
    covered = {t for a, b in zip(start.tolist(), end.tolist(), strict=True) for t in range(a, b)}
    idle = {t for a, b in gaps(start, end) for t in range(a, b)}
    assert idle == set(range(int(start.min()), int(end.max()))) - covered


def test_layers_by_hand() -> None:
    layer = np.array([-1, 0, 0, 1, 1, -1])
    weight = np.array([np.nan, 100.0, 50.0, np.nan, 70.0, 9.0])
    start = np.array([[0, 10, 20, 28, 30, 45]])
    found = layer_bounds(layer, weight, start, start + 9)
    assert found is not None
    assert (found.layer, found.nbytes) == ([0, 1], [150.0, 70.0])
    assert (found.begin.tolist(), found.end.tolist()) == ([[10, 30]], [[30, 39]])
    assert layer_bounds(layer, np.full(6, np.nan), start, start + 9) is None


def test_the_small_step_by_hand(tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path)
    out = tmp_path / "step.pftrace"
    written = write_perfetto(api.attribution(trace, manifest=manifest), out)
    assert (written.steps, written.launches, written.lanes) == (3, 12, 2)
    with trace_processor(out) as tp:
        assert tp.query(TROUBLE) == []
        # scales 1.2, 1.0, 0.9 of the durations; gaps are not scaled
        assert [d for (d,) in slices(tp, "= 'steps'", "dur")] == [36_000, 30_000, 27_000]
        assert [d for (d,) in slices(tp, "= 'idle'", "dur")] == [500, 500, 500]
        named = slices(tp, "GLOB 'launches*'", "slice.name", "dur", ARGUMENT.format("exclusive_us"))
        assert named[4:8] == [
            ("rms_norm", 2000, 2.0),
            ("blk.0.ffn_down/q4_K", 10_000, 10.0),
            ("blk.1.ffn_down/q4_K", 8000, 7.5),
            ("output/q6_K", 10_000, 10.0),
        ]
        (rates,) = zip(
            *tp.query("SELECT value FROM counter JOIN counter_track t ON t.id = track_id WHERE t.name = 'output/q6_K'"),
            strict=True,
        )
        assert rates == pytest.approx([2250 / 12, 2250 / 10, 2250 / 9, 2250 / 9])  # kB/µs; held to the last end
        # layer 0 from 2500 to layer 1 at 12000; layer 1 to the end of its launch at 20000
        assert [d for (d,) in slices(tp, "= 'layers'", "dur")][2:4] == [9500, 8000]


def test_a_recorded_trace_closes_with_ledger_and_census(tmp_path: Path) -> None:
    attribution = api.attribution(data.trace(RECORDED), model=MODEL)
    census = api.census(attribution)
    out = tmp_path / "recorded.pftrace"
    written = write_perfetto(attribution, out)
    assert written.lanes > 1, "launches of this trace overlap"
    with trace_processor(out) as tp:
        assert tp.query(TROUBLE) == []
        found = slices(tp, "= 'steps'", "slice.ts", "dur", ARGUMENT.format("idle_us"))
        assert [d for _, d, _ in found] == attribution.ledger.span.tolist()
        assert [ts for ts, _, _ in found] == attribution.ledger.begin.tolist()
        assert [round(idle * 1e3) for *_, idle in found] == attribution.ledger.idle.tolist()
        assert sum(d for (d,) in slices(tp, "= 'idle'", "dur")) == attribution.ledger.idle.sum()
        launches = slices(tp, "GLOB 'launches*'", "dur", "depth", ARGUMENT.format("exclusive_us"))
        assert len(launches) == attribution.steps.rows.size == written.launches
        assert sum(d for d, *_ in launches) == attribution.ledger.duration.sum()
        assert {depth for _, depth, _ in launches} == {0}
        assert round(sum(e for *_, e in launches) * 1e3) == attribution.ledger.exclusive.sum()
        # a lane is a track: no slice of one begins before the one before it has ended
        late = tp.query(
            "SELECT COUNT(*) FROM (SELECT ts, LAG(ts + dur) OVER (PARTITION BY track_id ORDER BY ts, dur) AS ended "
            "FROM slice) WHERE ended > ts"
        )
        assert late == [(0,)]
        for row in census.rows:
            values = [v for (v,) in tp.query(
                "SELECT value FROM counter JOIN counter_track t ON t.id = track_id "
                f"WHERE t.name = '{row.site}' ORDER BY ts"
            )]  # fmt: skip
            assert len(values) == (census.step_count + 1 if np.isfinite(row.rate) else 0)
            if values:
                assert statistics.median(values[:-1]) == pytest.approx(row.rate / GIGA, rel=1e-3)
        units = tp.query("SELECT DISTINCT unit FROM counter_track ORDER BY 1")
        assert units == [("GB/s",), ("µs",)]


def test_without_bytes_there_is_no_rate(tmp_path: Path) -> None:
    out = tmp_path / "names.pftrace"
    write_perfetto(api.attribution(data.trace("train-2gpu-after-2026.2")), out)
    with trace_processor(out) as tp:
        assert tp.query("SELECT name FROM counter_track") == [("idle per step",)]
        assert tp.query("SELECT COUNT(*) FROM args WHERE key = 'debug.gbps'") == [(0,)]
        assert slices(tp, "= 'copies'", "COUNT(*)") != [(0,)]


def test_only_the_first_steps(attrib: Attrib, tmp_path: Path) -> None:
    out = tmp_path / "two.pftrace"
    found = attrib("perfetto", data.trace(RECORDED), out, "-m", MODEL, "--max-steps", 2, "--json").json()
    assert (found["steps"], found["steps_found"], found["launches"]) == (2, 16, 2 * 918)
    assert "the file holds the first 2 of 16 steps; choose with --max-steps" in found["warnings"]
    assert found["file_bytes"] == out.stat().st_size
    with trace_processor(out) as tp:
        assert tp.query("SELECT COUNT(*) FROM slice JOIN track t ON t.id = track_id WHERE t.name = 'steps'") == [(2,)]


def test_refusals_leave_nothing(attrib: Attrib, tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    assert "is an input and would be overwritten" in attrib("perfetto", trace, trace).refusal()
    assert "cannot be written" in attrib("perfetto", trace, tmp_path / "no" / "t.pftrace").refusal()
    assert "cannot be read" in attrib("perfetto", tmp_path / "none.sqlite", tmp_path / "t.pftrace").refusal()
    assert sorted(p.name for p in tmp_path.iterdir()) == before
