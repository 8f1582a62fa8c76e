"""The census of a step of four launches, every number of it worked out by hand in tests/helpers/small_step.py.

Three replays with durations × 1.2, 1 and 0.9. ffn_down is two launches: their exclusive times are 12000 + 9100,
10000 + 7500 and 9000 + 6700 ns, so the means of the steps are 10550, 8750 and 7850 and their median is 8750.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attrib import api
from attrib.census import Census, SiteRow
from attrib.errors import RefusedError
from attrib.measured import store_roofline
from tests.conftest import Attrib
from tests.helpers import data, small_step
from tests.helpers.nsysgen import H200, Gpu, Kernel, Node
from tests.helpers.small_step import DOWN, HEAD, PARTS, Part

GIGA = 1e9
NS = 1e-9
MS_PER_NS = 1e-6


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTRIB_CONFIG_DIR", str(tmp_path))


def census(folder: Path, rate_class: str | None = None, parts: tuple[Part, ...] = PARTS, **options: Any) -> Census:
    trace, manifest = small_step.write(folder, parts)
    return api.census(trace, rate_class, manifest=manifest, **options)


def row(found: Census, site: str) -> SiteRow:
    (match,) = (r for r in found.rows if r.site == site)
    return match


def test_a_step_in_total(tmp_path: Path) -> None:
    found = census(tmp_path)
    assert (found.step_count, found.launches, found.outside, found.excluded) == (3, 4, 0, {})
    assert found.span == pytest.approx(30_000 * NS)  # of 36000, 30000 and 27000
    assert found.idle == pytest.approx(500 * NS)
    assert found.duration_sum == pytest.approx(30_000 * NS)
    assert found.between == pytest.approx(20_000 * NS)
    assert found.closure_ns == 0
    assert found.step_bytes == 6_250_000
    assert found.step_rate == pytest.approx(6_250_000 / (30_000 * NS))
    assert found.matched_share == pytest.approx(85_300 / 91_500)
    assert found.layer_rates == (pytest.approx(2_000_000 / (9500 * NS)),)  # starts of layer 0 and 1, middle step
    assert (found.peak, found.device) == (273 * GIGA, "NVIDIA GB10")
    assert (found.model, found.build, found.anchor) == ("tiny", "reference abcdef01", "tiny:tg16")
    assert found.traffic_source == "manifest reference tiny:tg16"


def test_a_launch_is_the_median_of_the_means_of_steps(tmp_path: Path) -> None:
    found = census(tmp_path)
    assert [r.site for r in found.rows] == ["ffn_down/q4_K", "output/q6_K", "rms_norm"]  # by time in the step
    down = row(found, "ffn_down/q4_K")
    assert (down.launches, down.bytes, down.quant, down.category) == (2, 2_000_000, "q4_K", "weight streaming")
    assert down.exclusive == pytest.approx(8750 * NS)
    assert down.duration == pytest.approx(9000 * NS)
    assert down.step_seconds == pytest.approx(17_500 * NS)
    assert down.rate == pytest.approx(2_000_000 / (8750 * NS))  # 228.6 GB/s
    assert down.rate_duration == pytest.approx(2_000_000 / (9000 * NS))  # 222.2 GB/s
    # totals 15700, 17500, 21100: quartiles 16600 and 19300
    assert down.spread == pytest.approx(2700 / 17_500)
    norm = row(found, "rms_norm")
    assert (norm.launches, norm.category, norm.straggler) == (1, "norm", False)
    assert norm.exclusive == pytest.approx(2000 * NS)
    assert all(math.isnan(v) for v in (norm.bytes, norm.rate, norm.rate_duration, norm.class_rate, norm.recoverable))


def test_recoverable_time_under_a_band(tmp_path: Path) -> None:
    """At the middle of 240–260, 2 MB take 8000 ns and 2.25 MB 9000."""
    found = census(tmp_path, "240:260")
    down, head = row(found, "ffn_down/q4_K"), row(found, "output/q6_K")
    assert (down.straggler, head.straggler) == (True, True)
    assert down.class_rate == head.class_rate == pytest.approx(250 * GIGA)
    assert down.recoverable == pytest.approx((17_500 - 2 * 8000) * NS)
    assert head.recoverable == pytest.approx((10_000 - 9000) * NS)


def test_only_what_is_under_the_band_straggles(tmp_path: Path) -> None:
    """228.6 GB/s is inside 226–230; 225 is under it. Inside the band nothing is recoverable, not even to its middle."""
    found = census(tmp_path, "226:232")
    down, head = row(found, "ffn_down/q4_K"), row(found, "output/q6_K")
    assert (down.straggler, head.straggler) == (False, True)
    assert down.recoverable == 0
    assert head.recoverable == pytest.approx((10_000 - 2_250_000 / 229) * NS)
    assert not row(census(tmp_path, "224.999:230"), "output/q6_K").straggler


def test_recoverable_time_under_a_roofline(tmp_path: Path) -> None:
    """0.5 µs + bytes / 300 GB/s: 2 MB take 7166.7 ns, 2.25 MB 8000 ns; the band is 3 % around it."""
    store_roofline("NVIDIA GB10", 0.5e-6, 300 * GIGA, "2026-01-02T00:00:00Z")
    found = census(tmp_path, "measured")
    down, head = row(found, "ffn_down/q4_K"), row(found, "output/q6_K")
    seconds = 0.5e-6 + 2_000_000 / (300 * GIGA)
    assert down.class_rate == pytest.approx(2_000_000 / seconds)
    assert down.class_lo == pytest.approx(0.97 * 2_000_000 / seconds)
    assert down.recoverable == pytest.approx(17_500 * NS - 2 * seconds)
    assert head.recoverable == pytest.approx(2000 * NS)
    document = found.to_json()["class"]
    assert (document["t0_us"], document["bw_gbps"]) == pytest.approx((0.5, 300))
    assert document["source"] == "measured on the device, 2026-01-02"


def test_one_launch_of_a_site_above_the_peak_by_duration_is_impossible(tmp_path: Path) -> None:
    """1 and 2.4 MB: the mean of the site, 189 GB/s, hides 300 GB/s of the second launch on 273 GB/s of DRAM."""
    parts = (PARTS[0], replace(PARTS[1], weight_bytes=1_000_000), replace(PARTS[2], weight_bytes=2_400_000), PARTS[3])
    found = census(tmp_path, parts=parts)
    down = row(found, "ffn_down/q4_K")
    assert down.rate_duration == pytest.approx(1_700_000 / (9000 * NS))
    assert (down.impossible, down.overlapped, row(found, "output/q6_K").impossible) == (True, False, False)
    assert not found.impossible_step
    (note,) = (text for text in found.warnings if "IMPOSSIBLE" in text)
    assert "ffn_down/q4_K moves its bytes above the DRAM peak of 273 GB/s by duration" in note


def test_a_step_above_the_peak_is_impossible_though_no_launch_is(tmp_path: Path) -> None:
    """Two launches side by side, 200 GB/s each by duration: together 400 GB/s over the span."""
    parts = (
        Part(Node(DOWN, 10_000), "ffn_down/q4_K", 0, 2_000_000),
        Part(Node(HEAD, 10_000, gap=-10_000), "output/q6_K", None, 2_000_000),
    )
    trace, manifest = small_step.write(tmp_path, parts, scales=(1, 1, 1))
    found = api.census(trace, manifest=manifest)
    assert found.impossible_step
    assert found.step_rate == pytest.approx(400 * GIGA)
    assert not any(r.impossible for r in found.rows)
    assert any("the step moves 400 GB/s over its span" in text for text in found.warnings)
    hidden = row(found, "output/q6_K")
    assert hidden.exclusive == 0
    assert math.isnan(hidden.rate)  # 2 MB in no exclusive time is no rate
    assert hidden.rate_duration == pytest.approx(200 * GIGA)
    assert not hidden.straggler
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["sites"][1]["gbps"] is None


def test_an_exclusive_rate_above_the_peak_alone_is_overlap(tmp_path: Path) -> None:
    parts = (PARTS[0], PARTS[1], replace(PARTS[2], node=Node(DOWN, 8000, gap=-4000)), PARTS[3])
    found = census(tmp_path, parts=parts)
    down = row(found, "ffn_down/q4_K")  # 10000 + 4000 exclusive: 286 GB/s; 222 by duration
    assert down.rate == pytest.approx(2_000_000 / (7000 * NS))
    assert (down.overlapped, down.impossible) == (True, False)


def test_without_a_peak_nothing_is_called_impossible(tmp_path: Path) -> None:
    nobody = Gpu("Nonesuch", 1, 0, 1, (1, 0), "X", 1, 1)
    trace, manifest = small_step.write(tmp_path, gpu=nobody)
    found = api.census(trace, manifest=manifest)
    assert math.isnan(found.peak)
    assert not any(r.impossible or r.overlapped for r in found.rows)
    assert any("the DRAM peak of 'Nonesuch' is unknown" in text for text in found.warnings)
    assert found.to_json()["device"] == {"name": "Nonesuch", "peak_gbps": None}
    assert found.rate_class is not None
    assert found.rate_class.source == "fit to this trace"
    assert any("cannot show that all of them are slow" in text for text in found.warnings)


def test_grouped_by_kernel_and_by_layer(tmp_path: Path) -> None:
    by_kernel = census(tmp_path, by="kernel")
    assert [r.site for r in by_kernel.rows] == ["gemv_q4<12> [5120]", "gemv_q6<14> [1024]", "rms_norm [1]"]
    assert by_kernel.rows[0].rate == pytest.approx(2_000_000 / (8750 * NS))
    by_layer = census(tmp_path, by="layer")
    rates = {r.site: r.exclusive / NS for r in by_layer.rows}
    assert rates == pytest.approx(
        {"blk.0.ffn_down/q4_K": 10_000, "output/q6_K": 10_000, "blk.1.ffn_down/q4_K": 7500, "rms_norm": 2000}
    )
    with pytest.raises(RefusedError, match="--by 'tensor' is not one of site, kernel, layer"):
        census(tmp_path, by="tensor")


def test_totals_do_not_depend_on_the_grouping() -> None:
    name, model = "llama.cpp-14b-tg16-h200", "qwen2.5-14b:q4_k_m"
    attribution = api.attribution(data.trace(name), model=model)
    documents = [api.census(attribution, by=by).to_json() for by in ("site", "kernel", "layer")]
    for document in documents[1:]:
        assert document["steps"] == documents[0]["steps"]
        assert document["matched"] == documents[0]["matched"]
        assert document["rates"] == documents[0]["rates"]
    for document in documents:
        assert sum(site["launches"] for site in document["sites"]) == 918
        moved = sum(site["bytes"] * site["launches"] for site in document["sites"] if site["bytes"])
        assert moved == pytest.approx(document["matched"]["bytes"], rel=1e-12)


def test_kv_bytes_are_apart_from_weights(tmp_path: Path) -> None:
    attention = Part(Node(Kernel("fattn_vec"), 4000), "fattn_vec", 0, 0, 400_000)
    found = census(tmp_path, parts=(*PARTS, attention))
    kv = row(found, "fattn_vec")
    assert math.isnan(kv.bytes)
    assert kv.kv_bytes == 400_000
    assert found.step_bytes == 6_250_000
    assert found.step_rate == pytest.approx(6_650_000 / (34_000 * NS))
    (entry,) = (s for s in found.to_json()["sites"] if s["site"] == "fattn_vec")
    assert entry["kv_gbps"] == pytest.approx(100)
    assert entry["gbps"] is None


def test_few_steps_are_said(tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path, scales=(1, 1))
    assert any("only 2 steps: " in text for text in api.census(trace, manifest=manifest).warnings)


# the contract of `attrib census --json`
TOP = {"schema", "device", "class", "steps", "ledger", "matched", "sites", "warnings"}
STEPS = {"count", "excluded", "launches", "span_ms", "idle_ms", "duration_sum_ms"}
SITE = {
    "site", "quant", "launches", "bytes", "duration_us", "exclusive_us", "gbps", "gbps_duration", "pct_of_peak",
    "recoverable_ms", "straggler", "impossible",
}  # fmt: skip


def test_json_keys_types_and_units(tmp_path: Path) -> None:
    document = census(tmp_path, "240:260").to_json()
    assert set(document) == TOP | {"model", "build", "anchor", "rates", "stages", "by"}
    assert set(document["steps"]) == STEPS | {"source", "launches_outside", "between_steps_ms"}
    assert document["schema"] == "attrib.census/1"
    assert document["class"] == {"source": "given", "lo_gbps": 240, "hi_gbps": 260}
    assert set(document["ledger"]) == {"closure_ns"}
    assert set(document["matched"]) == {"time_pct", "bytes", "source"}
    extra = {"category", "kv_bytes", "ms_per_step", "pct_of_span", "spread_pct", "kv_gbps", "class_gbps", "wait_us"}
    extra |= {"overlapped"}
    for site in document["sites"]:
        assert set(site) == SITE | extra
        assert type(site["straggler"]) is bool
        assert type(site["launches"]) is int
    down = document["sites"][0]
    numbers = (down["bytes"], down["duration_us"], down["exclusive_us"], down["gbps"], down["gbps_duration"])
    assert numbers == pytest.approx((2e6, 9, 8.75, 228.571429, 222.222222))
    assert down["pct_of_peak"] == pytest.approx(100 * 228.571429 / 273)
    assert down["recoverable_ms"] == pytest.approx(1500 * MS_PER_NS)
    assert down["ms_per_step"] == pytest.approx(17_500 * MS_PER_NS)
    assert down["pct_of_span"] == pytest.approx(100 * 17_500 / 30_000)
    norm = document["sites"][2]
    assert [norm[key] for key in ("quant", "bytes", "gbps", "recoverable_ms", "class_gbps")] == [None] * 5


@pytest.mark.parametrize("name", [n for n in data.NAMES if n != "not-an-export"])
def test_no_json_output_has_a_nan_token(attrib: Attrib, name: str) -> None:
    """Whatever a recorded trace lacks is null; a command that cannot answer says one sentence."""
    for command in ("census", "stragglers", "anatomy", "info"):
        outcome = attrib(command, data.trace(name), "--json")
        if outcome.code:
            outcome.refusal()
        else:
            assert outcome.json()["schema"] == f"attrib.{command}/1"


def test_several_traces_are_one_object(attrib: Attrib, tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path)
    document = attrib("census", trace, trace, "--manifest", manifest, "--json").json()
    assert document["schema"] == "attrib.list/1"
    assert [result["schema"] for result in document["results"]] == ["attrib.census/1"] * 2


def test_h200_matrices_are_asked_for_the_rate_of_their_size(tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path, gpu=H200)
    found = api.census(trace, manifest=manifest)
    seconds = 3.5e-6 + 2_000_000 / 4.4e12
    assert row(found, "ffn_down/q4_K").class_rate == pytest.approx(2_000_000 / seconds)
    assert found.rate_class is not None
    assert found.rate_class.source == "device table, H200"
