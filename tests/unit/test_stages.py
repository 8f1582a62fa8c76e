"""A persistent kernel divided into its stages: every number by hand, from tests/helpers/persistent_step.py.

Three replays with times × 1.2, 1 and 0.9, so that the median step is the one of scale 1.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib import api, ledger, stages
from attrib import manifest as mf
from attrib.attribution import Attribution, Options
from attrib.census import Census, SiteRow
from attrib.compare_sides import load as load_side
from attrib.errors import JoinError
from tests.conftest import Attrib
from tests.helpers import nsysgen as gen
from tests.helpers import persistent_step as ps
from tests.helpers.faults.case import state

NS = 1e-9
GIGA = 1e9


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTRIB_CONFIG_DIR", str(tmp_path))


def attribution(folder: Path, *made: Any, **options: Any) -> Attribution:
    trace, manifest = ps.write(folder, *made)
    return api.attribution(trace, manifest=manifest, **options)


def row(found: Census, site: str) -> SiteRow:
    (match,) = (r for r in found.rows if r.site == site)
    return match


# ---------------------------------------------------------------- attributed


def test_sites_of_a_persistent_kernel_by_hand(tmp_path: Path) -> None:
    found = api.census(attribution(tmp_path), "2000:3000")
    assert [r.site for r in found.rows] == [
        "output/q6_K", "attn_q/q4_K", "attn_split", "embed/q4_K", "attn_norm", "argmax",
    ]  # fmt: skip
    head, q, attention = (row(found, site) for site in ("output/q6_K", "attn_q/q4_K", "attn_split"))
    assert head.exclusive == head.duration == pytest.approx(24_000 * NS)  # 23800 stamped, 200 more in the trace
    assert head.rate == head.rate_duration == pytest.approx(60_000_000 / (24_000 * NS))
    assert (q.launches, q.bytes, q.quant, q.category) == (2, 30_000_000, "q4_K", "weight streaming")
    assert q.step_seconds == pytest.approx(18_000 * NS)
    assert q.rate == pytest.approx(30_000_000 / (9000 * NS))
    assert (attention.launches, attention.kv_bytes, attention.category) == (2, 500_000, "attention")
    assert attention.step_seconds == pytest.approx(6000 * NS)
    assert row(found, "attn_norm").category == "norm"
    assert [r.wait for r in (head, q, attention)] == pytest.approx([500 * NS, 200 * NS, 300 * NS])
    assert math.isnan(row(found, "argmax").wait)
    assert (head.straggler, q.straggler, head.impossible, q.overlapped) == (False, False, False, False)


def test_the_step_of_a_persistent_kernel_by_hand(tmp_path: Path) -> None:
    found = api.census(attribution(tmp_path))
    assert (found.step_count, found.launches, found.closure_ns) == (3, 3, 0)
    assert found.span == pytest.approx(54_500 * NS)
    assert found.idle == pytest.approx(1000 * NS)
    assert found.duration_sum == pytest.approx(53_500 * NS)
    assert found.step_rate == pytest.approx(121_000_000 / (54_500 * NS))
    # layer 0 lasts from its attn_q to that of layer 1: 10000 + 3000
    assert found.layer_rates == (pytest.approx(30_000_000 / (13_000 * NS)),)
    assert found.matched_share == pytest.approx(42_000 / 53_500)
    assert found.stages is not None
    assert (found.stages.kernel, found.stages.sites, found.stages.stages, found.stages.tick) == (
        "persistent_step", 4, 6, 20,
    )  # fmt: skip
    assert found.stages.seconds == pytest.approx(50_000 * NS)
    assert found.stages.waiting == pytest.approx(1500 * NS)
    assert sum(r.step_seconds for r in found.rows) + found.idle == pytest.approx(found.span)
    document = found.to_json()
    assert document["steps"]["launches"] == 3
    assert document["stages"] == {
        "kernel": "persistent_step", "sites": 4, "stages": 6, "ms": pytest.approx(0.05),
        "waiting_ms": pytest.approx(0.0015), "timer_tick_ns": 20,
    }  # fmt: skip
    waits = {entry["site"]: entry["wait_us"] for entry in document["sites"]}
    assert (waits["output/q6_K"], waits["argmax"]) == (pytest.approx(0.5), None)


def test_stages_are_kernel_rows_of_the_trace(tmp_path: Path) -> None:
    """What reads rows and columns directly (a timeline, a trace viewer) meets stages as launches."""
    found = attribution(tmp_path)
    kernels, rows = found.trace.kernels, found.steps.rows
    assert len(kernels.start) == 3 * 8
    assert rows.shape == (3, 8)
    assert len(np.unique(rows)) == rows.size
    order = np.lexsort((kernels.end, kernels.start))
    assert np.array_equal(order, np.arange(len(order)))
    middle = kernels.start[rows[1]] - kernels.start[rows[1, 0]]
    assert middle.tolist() == [0, 2500, 4500, 14_500, 17_500, 25_500, 28_500, 53_000]
    assert (kernels.end - kernels.start)[rows[1]].tolist() == [2000, 2000, 10_000, 3000, 8000, 3000, 24_000, 1500]
    assert [found.trace.names.short[v] for v in kernels.variant[rows[1]]] == [
        "embed_q4_K", *["persistent_step"] * 6, "argmax_partial",
    ]  # fmt: skip
    assert np.unique(kernels.correlation[rows[1]]).size == 1
    assert (found.launches, found.steps.launches, found.staged.tolist()) == (3, 8, [False] + [True] * 6 + [False])


def test_by_kernel_the_persistent_kernel_is_one_launch(tmp_path: Path) -> None:
    found = api.census(attribution(tmp_path), "2000:3000", by="kernel")
    whole = row(found, "persistent_step [132]")
    assert (whole.launches, whole.bytes, whole.kv_bytes) == (1, 120_000_000, 1_000_000)
    assert whole.rate == pytest.approx(120_000_000 / (50_000 * NS))
    assert (found.stages, found.closure_ns) == (None, 0)


def test_by_layer_stages_have_theirs(tmp_path: Path) -> None:
    found = api.census(attribution(tmp_path), by="layer")
    assert row(found, "blk.0.attn_q/q4_K").rate == pytest.approx(3000 * GIGA)
    assert row(found, "blk.1.attn_q/q4_K").rate == pytest.approx(3750 * GIGA)


def test_the_anatomy_counts_launches_and_stages_apart(tmp_path: Path) -> None:
    found = api.anatomy(attribution(tmp_path))
    rows = {r.category: r for r in found.rows}
    counts = {name: (r.launches, r.short_launches, r.stages) for name, r in rows.items()}
    assert counts == {
        "weight streaming": (0, 0, 3), "attention": (0, 0, 2), "norm": (0, 0, 1), "sampling": (1, 1, 0),
        "copies": (1, 0, 0), "idle": (0, 0, 0),
    }  # fmt: skip
    assert (found.launches, found.short_launches, found.closure_ns) == (3, 1, 0)
    assert rows["weight streaming"].seconds == pytest.approx(42_000 * NS)
    assert rows["weight streaming"].waiting == pytest.approx(900 * NS)
    assert rows["attention"].waiting == pytest.approx(600 * NS)
    assert math.isnan(rows["sampling"].waiting)
    assert sum(r.share_of_span for r in found.rows) == pytest.approx(1)
    document = found.to_json()
    assert document["stages"]["stages"] == 6
    assert document["categories"][0]["waiting_ms"] == pytest.approx(0.0009)


def test_a_comparison_has_stages_as_sites(tmp_path: Path) -> None:
    ps.write(tmp_path)
    side = load_side(tmp_path, Options())
    document = api.compare(side.attribution, side.attribution).to_json()
    assert {"attn_q/q4_K", "attn_split", "output/q6_K"} <= {entry["site"] for entry in document["sites"]}
    assert document["a"]["steps"]["launches"] == 3
    rows = {entry["category"]: entry for entry in document["categories"]}
    assert (rows["weight streaming"]["launches_a"], rows["norm"]["launches_under_2us_a"]) == (3, 0)


def test_a_kernel_under_its_neighbours_keeps_its_ledger(tmp_path: Path) -> None:
    """Embed ends 1000 ns into the kernel, argmax begins 25000 ns before its end and ends 5000 after it.

    The kernel's own time is 49000 of its 50000 ns, the first stage's 1000 of 2000; argmax adds what comes after.
    """
    nodes = (ps.NODES[0], replace(ps.NODES[1], gap=-1000), gen.Node(ps.ARGMAX, 30_000, gap=-25_000))
    found = attribution(tmp_path, ps.trace(nodes))
    whole = found.by_launch
    assert whole is not None
    assert whole.ledger.exclusive[1].tolist() == [2000, 49_000, 5000]
    assert found.ledger.exclusive[1].tolist() == [2000, 1000, 10_000, 3000, 8000, 3000, 24_000, 5000]
    assert found.ledger.duration[1].tolist() == [2000, 2000, 10_000, 3000, 8000, 3000, 24_000, 30_000]
    assert found.ledger.closure_ns == 0
    assert np.array_equal(found.ledger.idle, whole.ledger.idle)


def test_a_stage_above_the_peak_has_prefetched_and_a_layer_may_not(tmp_path: Path) -> None:
    """Of layer 1, 45 MB in 8 µs are 5625 GB/s, above 4814; in its layer of 13 µs 60 MB would be 4615, 75 MB 5769."""

    def taken(nbytes: int) -> Census:
        ps.write(tmp_path)
        changed = [
            replace(stage, weight_bytes=nbytes) if stage.site.startswith("attn_q") else stage for stage in ps.STAGES
        ]
        mf.dump(ps.manifest(changed), tmp_path / "manifest.json")
        return api.census(tmp_path, by="layer")

    found = taken(45_000_000)
    fast = row(found, "blk.1.attn_q/q4_K")
    assert (fast.overlapped, fast.impossible) == (True, False)
    assert fast.rate == fast.rate_duration == pytest.approx(5625 * GIGA)
    assert not row(found, "blk.0.attn_q/q4_K").overlapped
    assert not any("IMPOSSIBLE" in note for note in found.warnings)
    assert not any("IMPOSSIBLE" in note for note in taken(60_000_000).warnings)
    (note,) = (note for note in taken(75_000_000).warnings if "IMPOSSIBLE" in note)
    assert note == (
        "IMPOSSIBLE RATE: the median layer moves its weights at 5769 GB/s, above the DRAM peak of 4814 GB/s: "
        "work was dropped, or the weights stayed in cache"
    )


def test_a_step_above_the_peak_is_impossible_with_stages_too(tmp_path: Path) -> None:
    ps.write(tmp_path)
    changed = [*ps.STAGES[:5], replace(ps.STAGES[5], weight_bytes=250_000_000)]
    mf.dump(ps.manifest(changed), tmp_path / "manifest.json")
    found = api.census(tmp_path)
    assert found.impossible_step
    assert not any(r.impossible for r in found.rows)


# ---------------------------------------------------------------- which replay


def test_replays_before_the_stamped_ones_are_no_steps(tmp_path: Path) -> None:
    """Four warm-up replays of scale 2 and 1.5 have no stamps; the three traced ones are joined from the end."""
    found = attribution(tmp_path, ps.trace(scales=(1.5, 1.5, 1.5, 1.5, *ps.SCALES)))
    assert (found.steps.count, found.steps.outside) == (3, 12)
    assert found.steps.excluded == {"step without stamps of its stages": 4}
    assert found.ledger.duration[:, 2].tolist() == [12_000, 10_000, 9000]  # attn_q of layer 0
    assert "excluded: 4 × step without stamps of its stages" in found.warnings


def test_a_replay_cut_short_does_not_shift_the_stamps(tmp_path: Path) -> None:
    made = ps.trace(scales=(1.2, 1.0, 0.9, 0.9), keep=2)
    found = attribution(tmp_path, made, ps.stamps((1.2, 1.0, 0.9, 0.9)))
    assert found.steps.excluded == {"step cut short": 1}
    assert found.ledger.duration[:, 2].tolist() == [12_000, 10_000, 9000]


def test_a_part_of_a_trace_keeps_each_step_its_stamps(tmp_path: Path) -> None:
    """Steps begin at 1000, 1085.4 and 1159.9 µs; the window holds the first two."""
    found = attribution(tmp_path, range="1000us:1145us")
    assert found.steps.count == 2
    assert found.ledger.duration[:, 2].tolist() == [12_000, 10_000]
    assert found.ledger.closure_ns == 0


def test_fewer_replays_than_stamps_are_joined_from_the_last(tmp_path: Path) -> None:
    found = attribution(tmp_path, None, ps.stamps((5.0, *ps.SCALES)))
    assert found.ledger.duration[:, 2].tolist() == [12_000, 10_000, 9000]
    path = tmp_path / "stages.json"
    assert f"{path} has stamps of 4 replays, the trace 3: joined from the last backwards" in found.warnings


def test_steps_by_nvtx_range_are_joined_too(tmp_path: Path) -> None:
    made = gen.Trace("2025.3")
    process = made.process()
    process.device(made.gpu(gen.H200))
    graph = process.graph(ps.NODES)
    at = 1_000_000
    for scale in (1.5, *ps.SCALES):
        end = process.replay(graph, at, scale=scale)
        process.nvtx("step", at - 10_000, end)
        at = end + 20_000
    found = attribution(tmp_path, made, nvtx="^step$")
    assert found.steps.excluded == {"step without stamps of its stages": 1}
    assert found.ledger.duration[:, 2].tolist() == [12_000, 10_000, 9000]


def test_no_step_that_was_stamped_is_refused(tmp_path: Path) -> None:
    """The last replay, the only one with stamps, is cut short and no step."""
    made = ps.trace(scales=(1.2, 1.0, 0.9, 0.9), keep=2)
    with pytest.raises(JoinError) as caught:
        attribution(tmp_path, made, ps.stamps((0.9,)))
    assert str(caught.value) == (
        f"{tmp_path / 'stages.json'} is of the last 1 of 4 replays in the trace and no step kept is among them, so "
        "they cannot be matched; record again"
    )


# ---------------------------------------------------------------- stamps off the traced duration


@pytest.mark.parametrize(("end", "scaled"), [(47_500, False), (52_500, False), (47_400, True), (52_600, True)])
def test_stamps_further_than_five_percent_off_are_scaled(tmp_path: Path, end: int, scaled: bool) -> None:
    ends = [end // 10, end // 5, end // 4, end // 2, end // 2, end]
    replays = [{"end_ns": ends, "wait_ns": [0, 0, 0, 0, 0, 1000]}] * 3
    found = attribution(tmp_path, ps.trace(scales=(1, 1, 1)), ps.stamps(replays=replays))
    first = 5000 if scaled else end // 10
    assert found.ledger.duration[1, 1] == first
    assert found.ledger.duration[1, 1:7].sum() == 50_000
    assert found.waiting[1, 6] == pytest.approx(1000 * 50_000 / end if scaled else 1000)
    notes = [note for note in found.warnings if "scaled" in note]
    ratio = f"{end / 50_000:.3f}"
    assert (
        notes
        == [
            f"in 3 of 3 steps the stamps of persistent_step reach over {ratio} to {ratio} of its traced duration, more "
            "than 5 % off; they were scaled to it, so shares are the kernel's own and times are not"
        ]
        * scaled
    )


@pytest.mark.parametrize(("last", "refused"), [(24_999, True), (25_000, False), (100_000, False), (100_001, True)])
@pytest.mark.parametrize("replay", [0, 2])
def test_stamps_beyond_a_factor_of_two_are_of_another_run(
    tmp_path: Path, attrib: Attrib, replay: int, last: int, refused: bool
) -> None:
    document = ps.stamps((1, 1, 1))
    document["replays"][replay]["end_ns"] = [*range(0, 5000, 1000), last]
    _, manifest = ps.write(tmp_path, ps.trace(scales=(1, 1, 1)), document)
    before = state(tmp_path)
    for arguments in ([tmp_path], [tmp_path / "trace.sqlite", "--manifest", manifest]):
        found = attrib("census", *arguments)
        assert (found.code == 2) is refused
        if refused:
            assert found.refusal().endswith(
                f"stages.json has stamps over {last} ns of a replay whose kernel ran 50000 ns in the trace; they are "
                "not from the same run"
            )
    assert state(tmp_path) == before


@pytest.mark.parametrize("factor", [1e-4, 1e-3, 0.4, 2.5, 1e3, 1e6])
def test_stamps_of_another_clock_are_of_another_run(tmp_path: Path, factor: float) -> None:
    """Ticks taken for ns, µs for ns, cycles for ns: no calibration makes shares of them."""
    with pytest.raises(JoinError, match="they are not from the same run"):
        attribution(tmp_path, None, ps.stamps([scale * factor for scale in ps.SCALES]))


def test_stamps_past_the_end_are_clipped(tmp_path: Path) -> None:
    """51000 of 50000 ns: stages 4 and 5 end at the kernel's end; the last has nothing left."""
    replays = [{"end_ns": [2000, 12_000, 15_000, 50_500, 50_800, 51_000], "wait_ns": [0] * 6}] * 3
    found = attribution(tmp_path, ps.trace(scales=(1, 1, 1)), ps.stamps(replays=replays))
    assert found.ledger.duration[0, 1:7].tolist() == [2000, 10_000, 3000, 35_000, 0, 0]
    census = api.census(found)
    assert math.isnan(row(census, "output/q6_K").rate)
    assert census.closure_ns == 0


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_dividing_keeps_span_idle_closure_and_sums(data: st.DataObject) -> None:
    """Whatever the launches overlap and the stamps say: parts are in order, without gaps, and add up to the launch."""
    steps, launches, count = (data.draw(st.integers(1, top)) for top in (4, 4, 6))
    node = data.draw(st.integers(0, launches - 1))
    times = st.integers(0, 3000)
    begin = np.array(data.draw(st.lists(times, min_size=steps * launches, max_size=steps * launches)), np.int64)
    lasts = np.array(data.draw(st.lists(times, min_size=steps * launches, max_size=steps * launches)), np.int64)
    start = begin.reshape(steps, launches)
    end = start + lasts.reshape(steps, launches)
    gaps = np.array(data.draw(st.lists(times, min_size=steps * count, max_size=steps * count)), np.int64)
    end[:, node] = np.maximum(end[:, node], start[:, node] + 1)
    ran = (end - start)[:, node]
    last = np.array([data.draw(st.integers(-(-int(ns) // 2), 2 * int(ns))) for ns in ran], np.int64)
    share = np.cumsum(gaps.reshape(steps, count) + 1, axis=1)
    stamped = share * last[:, None] // share[:, -1:]
    waits = np.full((steps, count), 7, np.int64)
    stamps = stages.Stamps(Path("stages.json"), node, stamped, waits)
    found = stages.divide(start, end, stamps, np.arange(steps))
    whole = ledger.close(start, end)
    parts = ledger.divide(whole, end, found.launch, found.start, found.end)

    inside = slice(node, node + count)
    assert np.array_equal(found.start[:, node], start[:, node])
    assert np.array_equal(found.end[:, node + count - 1], end[:, node])
    assert np.array_equal(found.start[:, inside][:, 1:], found.end[:, inside][:, :-1])
    assert (parts.duration >= 0).all()
    assert parts.closure_ns == 0
    for name in ("span", "idle", "begin"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name))
    for launch in range(launches):
        mine = found.launch == launch
        assert np.array_equal(parts.exclusive[:, mine].sum(axis=1), whole.exclusive[:, launch])
        assert np.array_equal(parts.duration[:, mine].sum(axis=1), whole.duration[:, launch])
        if launch != node:
            assert np.array_equal(found.start[:, mine][:, 0], start[:, launch])
    alone = whole.exclusive[:, node] == whole.duration[:, node]
    assert np.array_equal(parts.exclusive[alone][:, inside], parts.duration[alone][:, inside])
