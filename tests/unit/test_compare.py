"""Comparison of two steps: hand-worked parts, exact sums for any pair, recorded traces, and a peer's trace."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib import manifest as mf
from attrib.categories import order
from attrib.compare import BYTES, COPIED, COUNT, RATE, UNKNOWN, Comparison, compare
from attrib.compare_delta import spread_of_difference
from attrib.compare_join import NAME, ONLY_A, ONLY_B, ROLE, join
from attrib.compare_sides import Side, SiteTimes
from attrib.errors import RefusedError
from attrib.traffic import STREAMING, Site
from engine import dispatch, plan
from engine.config import synthetic
from tests.conftest import Attrib, Outcome
from tests.golden import golden
from tests.helpers import data, small_step
from tests.helpers.nsysgen import H200, Kernel, Node, Trace

DECODE, LONG = "llama.cpp-14b-tg16-h200", "llama.cpp-14b-d3254-tg16-h200"
MODEL = "qwen2.5-14b:q4_k_m"


def site(
    key: str, times: Sequence[int], launches: int = 1, nbytes: float = np.nan, category: str = STREAMING
) -> SiteTimes:
    role, _, quant = key.partition("/")
    return SiteTimes(Site(key, quant, category, role), launches, 0, nbytes, np.array(times, np.int64))


def side(sites: Sequence[SiteTimes], idle: Sequence[int], copied: Sequence[int] | None = None, **names: str) -> Side:
    """A side whose span is what its parts add up to."""
    gaps = np.array(idle, np.int64)
    copies = np.zeros_like(gaps) if copied is None else np.array(copied, np.int64)
    facts = {"label": "x", "device": "GPU", "model": "m", "build": "", "anchor": "tg16", "source": "graph replays"}
    return Side(
        **{**facts, **names},
        launches=sum(s.launches for s in sites),
        sites=tuple(sites),
        span=sum((s.exclusive for s in sites), gaps + copies),
        idle=gaps,
        copied=copies,
    )


def parts(found: Comparison) -> dict[str, Fraction]:
    return {part.name: part.delta.ns for part in found.parts}


def test_a_gap_by_hand() -> None:
    a = side(
        [site("ffn_down/q4_K", [100, 102], 2, 2000), site("rms", [30, 30], 3, category="norm")],
        idle=[5, 5],
    )
    b = side(
        [site("ffn_down/q4_K", [121, 121, 121], 2, 2200), site("rms", [43, 44, 45], 4, category="norm")],
        idle=[3, 5, 7],
        copied=[0, 0, 6],
    )
    found = compare(a, b)
    # means 136 and 172; bytes 101 × 10 %, rate 121 − 101 × 1.1; one launch more at 10 ns; 44 − 4 × 10; copies 2
    assert found.gap.ns == 36
    assert parts(found) == {
        RATE: Fraction(99, 10), BYTES: Fraction(101, 10), "norm: per launch": 4, COPIED: 2, COUNT: 10, "idle": 0,
    }  # fmt: skip
    assert found.closure_ns == 0
    row = next(row for row in found.rows if row.site == "ffn_down/q4_K")
    assert row.a is not None
    assert row.b is not None
    assert (row.how, row.delta.ns, row.a.ns, row.b.ns) == (NAME, 20, 101, 121)
    assert row.a.rate == pytest.approx(2000 / 101e-9)
    assert row.a.each_ns == 50.5
    assert (row.a.spread_ns, row.b.spread_ns) == (1, 0)
    # 121 − {100, 102}, three times each: 19 and 21; the middle half of them
    assert row.delta.spread_ns == 2
    assert row.delta.clear
    categories = {row.category: (row.a_ns, row.b_ns) for row in found.categories}
    assert categories == {STREAMING: (101, 121), "norm": (30, 44), "copies": (0, 2), "idle": (5, 5)}
    assert found.share(row.delta) == pytest.approx(20 / 36)


def test_a_difference_within_its_spread_is_not_clear() -> None:
    a, b = side([site("k", [10, 20, 30])], [0, 0, 0]), side([site("k", [11, 21, 31])], [0, 0, 0])
    assert compare(a, b).rows[0].delta.ns == 1
    assert not compare(a, b).rows[0].delta.clear


def test_one_step_has_no_spread_and_is_never_clear() -> None:
    found = compare(side([site("k", [10])], [0]), side([site("k", [99])], [0]))
    assert np.isnan(found.gap.spread_ns)
    assert not found.gap.clear
    assert any("spread over steps is not known" in note for note in found.warnings)


def test_spread_of_a_difference() -> None:
    one, other = np.array([0.0, 10.0]), np.array([100.0, 101.0, 103.0])
    # 90, 91, 93, 100, 101, 103: quartiles at 1/4 and 3/4 of five intervals
    assert spread_of_difference(one, other) == (100.75 - 91.5)
    assert np.isnan(spread_of_difference(one[:1], other))
    many = np.random.default_rng(7).normal(size=20_000)
    # √2 σ of the difference, 1.349 σ between its quartiles
    assert spread_of_difference(many, many + 5) == pytest.approx(1.349 * 2**0.5, rel=0.02)


def test_a_slow_step_that_moves_the_mean_is_said() -> None:
    a, b = side([site("k", [10] * 8)], [0] * 8), side([site("k", [10] * 7 + [90])], [0] * 8)
    assert any("single slow steps weigh on it" in note for note in compare(a, b).warnings)
    assert not any("single slow steps" in note for note in compare(a, a).warnings)


def joined(a: Sequence[SiteTimes], b: Sequence[SiteTimes]) -> dict[str, tuple[str, list[str], list[str]]]:
    return {p.label: (p.how, [s.site.key for s in p.a], [s.site.key for s in p.b]) for p in join(a, b)}


def test_a_fused_role_meets_the_sum_of_its_parts() -> None:
    ours = [site("ffn_gate/q4_K", [1], 48, 100.0), site("ffn_up/q4_K", [1], 48, 100.0)]
    fused = [site("ffn_gate_up/q4_K", [1], 48, 200.0)]
    expected = {"ffn_gate_up/q4_K": (ROLE, ["ffn_gate/q4_K", "ffn_up/q4_K"], ["ffn_gate_up/q4_K"])}
    assert joined(ours, fused) == expected
    qkv = [site("attn_qkv/q4_K", [1], 24, 90.0), site("attn_qkv/q6_K", [1], 24, 110.0)]
    apart = [site(f"attn_{r}", [1], 48, b) for r, b in (("q/q4_K", 120.0), ("k/q4_K", 40.0))]
    apart += [site("attn_v/q4_K", [1], 24, 18.0), site("attn_v/q6_K", [1], 24, 22.0)]
    assert joined(qkv, apart) == {"attn_qkv": (ROLE, [s.site.key for s in qkv], [s.site.key for s in apart])}


def test_a_role_in_another_quant_meets_itself() -> None:
    q6, q8 = site("output/q6_K", [1], 1, 210.0), site("output/q8_0", [1], 1, 272.0)
    assert joined([q6], [q8]) == {"output/q6_K": (ROLE, ["output/q6_K"], ["output/q8_0"])}
    mixed = [site("attn_v/q4_K", [1], 24, 10.0), site("attn_v/q6_K", [1], 24, 15.0)]
    plain = [site("attn_v/q4_K", [1], 48, 20.0)]
    assert joined(mixed, plain) == {"attn_v/q4_K": (ROLE, ["attn_v/q4_K", "attn_v/q6_K"], ["attn_v/q4_K"])}


def test_a_site_of_one_side_stays_a_row() -> None:
    both = [site("ffn_down/q4_K", [1], 24, 40.0), site("ffn_down/q6_K", [1], 24, 58.0)]
    assert joined(both, both[:1]) == {
        "ffn_down/q4_K": (NAME, ["ffn_down/q4_K"], ["ffn_down/q4_K"]),
        "ffn_down/q6_K": (ONLY_A, ["ffn_down/q6_K"], []),
    }
    norms = site("rms_norm", [1], category="norm"), site("rms_norm_f32<1024>", [1], category="norm")
    assert {how for how, _, _ in joined(norms[:1], norms[1:]).values()} == {ONLY_A, ONLY_B}


def test_unlike_kernels_of_a_category_are_set_against_each_other() -> None:
    a = side([site("norm_a", [60], 3, category="norm"), site("cast", [8], 2, category="elementwise")], [0])
    b = side([site("norm_b", [50], 2, category="norm")], [0])
    # two launches in place of three at 20 ns save 20; they take 25 ns each, 5 more; the cast goes altogether
    assert parts(compare(a, b)) == {"norm: per launch": 10, COUNT: -28, "idle": 0}


def test_bytes_known_on_one_side_only_have_no_rate() -> None:
    a, b = side([site("k", [10], 1, 5.0)], [0]), side([site("k", [14], 1)], [0])
    assert parts(compare(a, b)) == {UNKNOWN: 4, "idle": 0}
    alone = compare(side([], [3]), side([site("output/q6_K", [9], 1, 5.0)], [3]))
    assert parts(alone) == {BYTES: 9, "idle": 0}


KEYS = ("ffn_gate/q4_K", "ffn_up/q4_K", "ffn_gate_up/q4_K", "ffn_down/q4_K", "ffn_down/q6_K", "output/q6_K")


@st.composite
def sides(draw: st.DrawFn) -> Side:
    steps = draw(st.integers(1, 5))
    times = st.lists(st.integers(0, 10**9), min_size=steps, max_size=steps)
    sites = [
        site(key, draw(times), draw(st.integers(1, 60)), draw(st.sampled_from([np.nan, 1.0, 7.5, 1e6, 1e9 / 3])))
        for key in draw(st.lists(st.sampled_from(KEYS), unique=True))
    ]
    for category in draw(st.lists(st.sampled_from([c for c in order() if c not in (STREAMING, "idle")]), unique=True)):
        for name in draw(st.lists(st.sampled_from("abc"), unique=True, min_size=1)):
            sites.append(site(f"{category}_{name}", draw(times), draw(st.integers(1, 300)), category=category))
    return side(sites, draw(times), draw(times))


@settings(max_examples=100, deadline=None)
@given(sides(), sides())
def test_parts_rows_and_categories_add_up_to_the_gap_exactly(a: Side, b: Side) -> None:
    found = compare(a, b)
    gap = Fraction(int(b.span.sum()), b.steps) - Fraction(int(a.span.sum()), a.steps)
    between = sum(sign * Fraction(int((s.idle + s.copied).sum()), s.steps) for sign, s in ((-1, a), (1, b)))
    assert found.gap.ns == gap
    assert sum(part.delta.ns for part in found.parts) == gap
    assert sum(row.delta.ns for row in found.categories) == gap
    assert sum(row.delta.ns for row in found.rows) + between == gap
    assert found.closure_ns == 0
    for own, cells in ((a, [r.a for r in found.rows]), (b, [r.b for r in found.rows])):
        shown = [name for cell in cells if cell for name in cell.sites]
        assert sorted(shown) == sorted(s.site.key for s in own.sites)
    turned = compare(b, a)
    assert turned.gap.ns == -gap
    assert {(r.category, r.delta.ns) for r in turned.categories} == {
        (r.category, -r.delta.ns) for r in found.categories
    }
    assert all(d.ns == 0 for d in (p.delta for p in compare(a, a).parts))


@pytest.mark.parametrize(
    ("field", "values"),
    [("device", ("H200", "GB10")), ("model", ("14b:q4_k_m", "14b:q8_0")), ("anchor", ("14b:tg128", "@3254"))],
)
def test_unlike_sides_are_refused_or_labelled(field: str, values: tuple[str, str]) -> None:
    a, b = (side([site("k", [9])], [0], **{field: value}) for value in values)
    with pytest.raises(RefusedError, match=f"{field}: {values[0]} and {values[1]}.*--force"):
        compare(a, b)
    assert compare(a, b, force=True).differences == (f"{field}: {values[0]} and {values[1]}",)


def test_an_unknown_model_or_anchor_is_said_and_not_refused() -> None:
    a = side([site("k", [9])], [0], model="14b", anchor="tg128")
    b = side([site("k", [9])], [0], model="14b:q4_k_m", anchor="14b:tg128")
    assert compare(a, b).differences == ()
    unknown = side([site("k", [9])], [0], model="", anchor="")
    notes = compare(a, unknown).warnings
    assert {what for what in ("model", "anchor") for n in notes if n.startswith(f"the {what} of B is not known")} == {
        "model", "anchor",
    }  # fmt: skip
    whole = side([site("k", [9])], [0], source="whole trace")
    with pytest.raises(RefusedError, match="what a step is"):
        compare(side([site("k", [9])], [0]), whole)


K, L, M = site("k", [9]), site("l", [9]), site("m", [9], 3)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ([K], [K], ""),
        ([K], [M], "a step has 1 launch in A and 3 in B, 1 site only in A and 1 only in B"),
        ([K, L], [K], "a step has 2 launches in A and 1 in B, 1 site only in A and 0 only in B"),
        ([K], [L], "1 site only in A and 1 only in B"),
        ([K], [site("k", [9], 2)], "a step has 1 launch in A and 2 in B"),
    ],
)
@pytest.mark.parametrize("models", [("", ""), ("m", ""), ("", "m"), ("m", "m")])
def test_steps_of_perhaps_two_models_are_told_apart(
    a: list[SiteTimes], b: list[SiteTimes], said: str, models: tuple[str, str]
) -> None:
    """Where both models are known they are one, and what differs is what the builds do."""
    found = compare(side(a, [0], model=models[0]), side(b, [0], model=models[1]))
    assert found.unlike == ("" if all(models) else said)
    assert found.to_json()["unlike"] == (found.unlike or None)


def test_a_7b_against_a_14b_is_not_like_for_like(attrib: Attrib) -> None:
    traces = [data.trace(name) for name in ("llama.cpp-7b-pp512-tg16-h200", DECODE)]
    lines = attrib("compare", *traces).out.splitlines()
    (gap,) = (n for n, line in enumerate(lines) if "gap B − A" in line)
    (warned,) = (n for n, line in enumerate(lines) if line.startswith("not like for like, perhaps of two models: "))
    assert gap < warned < gap + 4
    assert "a step has 538 launches in A and 918 in B" in lines[warned]
    named = attrib("compare", *traces, "--model-a", "qwen2.5-7b:q4_k_m", "--model-b", MODEL, "--force").out
    assert "not like for like" not in named
    assert "FORCED: not the same model" in named


def test_a_trace_against_itself_differs_by_nothing(attrib: Attrib) -> None:
    found = attrib("compare", data.trace(DECODE), data.trace(DECODE), "-m", MODEL, "--json").json()
    deltas = [entry["delta_ms"] for name in ("parts", "categories", "sites") for entry in found[name]]
    assert len(deltas) > 30
    assert set(deltas) == {0}
    assert found["gap"]["delta_ms"] == found["gap"]["closure_ns"] == 0
    assert found["gap"]["pct_of_gap"] is None
    assert len(found["sites"]) == 18


def without(source: Path, target: Path, short_name: str) -> Path:
    """A copy in which the graph launches of a kernel are gone and everything after them is that much earlier."""
    shutil.copyfile(source, target)
    target.chmod(0o644)
    with sqlite3.connect(target) as db:
        rows = db.execute(
            "SELECT k.rowid, start, end, correlationId, graphNodeId NOT NULL AND s.value = ? "
            "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.shortName "
            "WHERE graphNodeId NOT NULL ORDER BY correlationId, start, end",
            (short_name,),
        ).fetchall()
        replay = None
        for rowid, start, end, correlation, removed in rows:
            if correlation != replay:
                replay, latest, cut, shift = correlation, start, start, 0
            if removed:
                shift += max(end - max(start, latest), 0)
                cut = max(latest, end)
                db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid = ?", (rowid,))
            else:
                times = (max(start, cut) - shift, max(end, cut) - shift, rowid)
                db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = ?, end = ? WHERE rowid = ?", times)
            latest = max(latest, end)
    db.close()
    return target


@pytest.mark.parametrize(
    ("kernel", "site", "model", "cause"),
    [
        ("quantize_q8_1", "quantize_q8_1", ("-m", MODEL), COUNT),
        ("flash_attn_combine_results", "flash_attn_combine_results<128>", (), COUNT),
    ],
)
def test_one_kind_of_launch_removed_is_the_whole_gap(
    attrib: Attrib, tmp_path: Path, kernel: str, site: str, model: tuple[str, ...], cause: str
) -> None:
    whole = data.trace(DECODE)
    found = attrib("compare", whole, without(whole, tmp_path / "b.sqlite", kernel), *model, "--json").json()
    gap = found["gap"]["delta_ms"]
    changed = [row for row in found["sites"] if row["delta_ms"]]
    assert [(row["site"], row["joined_by"], row["delta_ms"]) for row in changed] == [(site, ONLY_A, gap)]
    assert changed[0]["pct_of_gap"] == 100
    assert changed[0]["launches_a"] > changed[0]["launches_b"] == 0
    assert changed[0]["ms_a"] == -gap > 0
    assert changed[0]["gbps_b"] is None
    assert [(part["part"], part["delta_ms"]) for part in found["parts"] if part["delta_ms"]] == [(cause, gap)]
    assert found["gap"]["closure_ns"] == 0


TRAIN = [f"train-2gpu-{when}-2026.2" for when in ("before", "after")]


def test_devices_of_whole_traces_have_the_published_times(attrib: Attrib) -> None:
    arguments = ("compare", *map(data.trace, TRAIN), "--devices")
    found = attrib(*arguments, "--json").json()
    devices = {entry["device"]: entry for entry in found["devices"]}
    published = {1: (298.662, 299.238, 264.325, 251.362), 0: (299.849, 299.220, 270.863, 237.473)}
    for device, times in published.items():
        a, b = devices[device]["a"], devices[device]["b"]
        assert (a["span_ms"], b["span_ms"], a["busy_ms"], b["busy_ms"]) == pytest.approx(times, abs=5.1e-4)
        assert a["idle_ms"] == pytest.approx(a["span_ms"] - a["busy_ms"])
    assert len({entry[name]["process"] for entry in found["devices"] for name in "ab"}) == 4
    assert found["total"]["delta_span_ms"] == pytest.approx(-0.05, abs=0.005)
    assert [entry["b"]["early"] for entry in found["devices"]] == [5, 5]
    text = attrib(*arguments)
    assert text.code == 0
    assert "one capture a side is no proof" in " ".join(text.out.split())
    assert fits(text)


def test_devices_without_a_partner_are_rows(attrib: Attrib, tmp_path: Path) -> None:
    found = attrib("compare", data.trace(TRAIN[0]), data.trace(DECODE), "--devices", "--json").json()
    assert [(entry["device"], entry["b"] is None) for entry in found["devices"]] == [(0, False), (1, True)]
    assert found["devices"][1]["delta_span_ms"] is None
    assert "no chart" in attrib("compare", *map(data.trace, TRAIN), "--devices", "--plot", "x.png").refusal()
    assert attrib("compare", *map(data.trace, TRAIN), "--devices", "--csv", tmp_path / "d.csv").code == 0
    assert [row["launches_a"] for row in table(tmp_path / "d.csv")] == ["1993", "2017"]


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def fits(outcome: Outcome, lines: int = 80) -> bool:
    """One page of at most 100 columns."""
    found = outcome.out.splitlines()
    return max(map(len, found)) <= 100 and len(found) <= lines


def engine_run(folder: Path, steps: int = 6) -> Path:
    """A run directory of the reference build at 14B: every launch 2 µs and its bytes at 3 TB/s, 100 ns apart."""
    config, build = synthetic(MODEL), dispatch.load("reference")
    launches = plan.decode(config, build, plan.geometry(config, 4096, H200.sms), 3254)
    device = mf.DeviceInfo(H200.name, H200.sms, float(H200.bandwidth), 2048)
    made = plan.manifest(config, build, device, "@3254", launches)
    folder.mkdir()
    mf.dump(made, folder / "manifest.json")
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(H200))
    nodes = [
        Node(Kernel(n.kernel, grid=n.grid, block=n.block), 2000 + round((n.weight_bytes + n.kv_bytes) / 3000), gap=100)
        for n in made.graph().nodes
    ]
    graph = process.graph(nodes)
    at = 1_000_000
    for step in range(steps):
        at = process.replay(graph, at, scale=1 + step / 1000) + 20_000
    trace.write(folder / "trace.sqlite")
    return folder


def test_our_run_against_a_peers_trace_on_one_page(attrib: Attrib, tmp_path: Path) -> None:
    run, peer, chart = engine_run(tmp_path / "run"), data.trace(LONG), tmp_path / "gap.svg"
    arguments = ("compare", run, peer, "--model", MODEL, "--anchor-b", "14b:@3254")
    text = attrib(*arguments, "--plot", chart, "--csv", tmp_path / "sites.csv")
    assert text.code == 0, text.err
    assert fits(text)
    for needed in ("streaming: rate", "streaming: bytes", "launch count", "one capture each", "ffn_gate_up/q4_K *"):
        assert needed in text.out
    found = attrib(*arguments, "--json").json()
    rows = {row["site"]: row for row in found["sites"]}
    fused = rows["ffn_gate_up/q4_K"]
    assert (fused["joined_by"], fused["sites_a"], fused["sites_b"]) == (
        ROLE, ["ffn_gate/q4_K", "ffn_up/q4_K"], ["ffn_gate_up/q4_K"],
    )  # fmt: skip
    assert (fused["launches_a"], fused["launches_b"]) == (96, 48)
    assert fused["bytes_a"] == pytest.approx(fused["bytes_b"], rel=0.05)
    streams = [row for row in found["sites"] if row["category"] == STREAMING]
    assert {row["joined_by"] for row in streams} == {NAME, ROLE}
    assert sum(part["delta_ms"] for part in found["parts"]) == pytest.approx(found["gap"]["delta_ms"], abs=1e-6)
    assert found["gap"]["closure_ns"] == 0
    assert all(entry["spread_ms"] is not None for name in ("parts", "categories", "sites") for entry in found[name])
    drawn = chart.read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    written = {row["site"]: row for row in table(tmp_path / "sites.csv")}
    assert written.keys() == rows.keys()
    assert written["ffn_gate_up/q4_K"]["sites_a"] == "ffn_gate/q4_K + ffn_up/q4_K"
    assert float(written["ffn_gate_up/q4_K"]["delta_ms"]) == fused["delta_ms"]


@pytest.mark.parametrize("form", ["json", "txt"])
def test_golden(attrib: Attrib, form: str, update_golden: bool) -> None:
    outcome = attrib("compare", data.trace(DECODE), data.trace(LONG), "-m", MODEL, *(["--json"] * (form == "json")))
    assert outcome.code == 0, outcome.err
    text = json.dumps(rounded(outcome.json()), indent=1) + "\n" if form == "json" else outcome.out
    golden.check(f"compare-14b.{form}", text, update_golden)


def rounded(value: object) -> object:
    """Floats to nine significant digits, so that the last bits of a spread may differ between machines."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def test_growth_of_the_recorded_pair(attrib: Attrib) -> None:
    """Anchors published for the two KV lengths: attention 0.157 + 0.069 → 0.597 + 0.107 ms."""
    found = attrib("compare", data.trace(DECODE), data.trace(LONG), "-m", MODEL, "--json").json()
    rows = {row["site"]: row for row in found["sites"]}
    published = {"flash_attn_ext_vec<128,1,1,1,0>": (0.157, 0.597), "flash_attn_combine_results<128>": (0.069, 0.107)}
    for name, times in published.items():
        assert (rows[name]["ms_a"], rows[name]["ms_b"]) == pytest.approx(times, abs=6e-4)
    assert rows["flash_attn_ext_vec<128,1,1,1,0>"]["beyond_spread"]
    assert (found["span_a_ms"], found["span_b_ms"]) == pytest.approx((6.510, 6.937), abs=2e-3)


def prompt_run(folder: Path, duration: int) -> Path:
    """A run directory of a prompt: a warm-up, then a prefill range with one launch of this many ns."""
    folder.mkdir()
    mf.dump(replace(small_step.manifest(), anchor="pp512"), folder / "manifest.json")
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(H200))
    for name, at, ns in (("warm-up", 1_000_000, 9999), ("prefill", 2_000_000, duration)):
        trace_end = process.launch(Kernel("gemm"), at, ns)
        process.nvtx(name, at - 10_000, trace_end)
    trace.write(folder / "trace.sqlite")
    return folder


def test_runs_of_a_prompt_are_compared_over_its_range(attrib: Attrib, tmp_path: Path) -> None:
    base, new = prompt_run(tmp_path / "base", 5000), prompt_run(tmp_path / "new", 7000)
    found = attrib("compare", base, new, "--json").json()
    assert found["gap"]["delta_ms"] == pytest.approx(0.002)
    assert found["gap"]["spread_ms"] is None
    assert not found["gap"]["beyond_spread"]
    assert {key: found["a"][key] for key in ("model", "anchor", "build", "label")} == {
        "model": "tiny", "anchor": "pp512", "build": "reference abcdef01", "label": "base",
    }  # fmt: skip


def test_refusals(attrib: Attrib, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    trace, manifest = small_step.write(tmp_path / "run")
    assert "no trace.sqlite and no manifest.json" in attrib("compare", tmp_path / "empty", trace).refusal()
    message = attrib("compare", data.trace(DECODE), data.trace("llama.cpp-7b-d1641-tg16-h200"),
                     "--model-a", MODEL, "--model-b", "qwen2.5-7b:q4_k_m").refusal()  # fmt: skip
    assert "differ in model: qwen2.5-14b:q4_k_m and qwen2.5-7b:q4_k_m" in message
    assert "device: NVIDIA GB10 and NVIDIA H200" in attrib("compare", manifest.parent, data.trace(DECODE)).refusal()
    assert "model and manifest" in attrib("compare", manifest.parent, trace, "--model-a", MODEL).refusal()
    forced = attrib("compare", manifest.parent, data.trace(DECODE), "--force")
    assert forced.code == 0
    assert "FORCED: not the same device: NVIDIA GB10 and NVIDIA H200" in forced.out
