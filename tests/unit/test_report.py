"""The report's data against census, anatomy and raw launches; its page against hostile names and the network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attrib as package
from attrib import api
from attrib.attribution import Options
from attrib.errors import NoDataError, RefusedError
from attrib.report.facts import signed
from attrib.report.page import Report, pair_report, run_report
from attrib.report.subject import load
from attrib.report.timeline import gaps, lanes, timeline
from tests.conftest import Attrib
from tests.golden import golden
from tests.golden.test_recorded import rounded
from tests.helpers import data, pages, small_step
from tests.helpers.nsysgen import GB10, Node
from tests.helpers.pages import DECODE, ENGINE, LONG, MODEL, Page

TRACES = [
    (DECODE, MODEL),
    (LONG, MODEL),
    (ENGINE, None),
    ("train-2gpu-after-2026.2", None),
    ("cloverleaf-a100-2024.5", None),
]


@pytest.mark.parametrize("part", ["census", "anatomy", "stragglers"])
def test_numbers_of_the_14b_decode_are_the_golden_ones(part: str) -> None:
    expected = json.loads((golden.FOLDER / f"{part}-14b.json").read_text(encoding="utf-8"))
    assert rounded(pages.of_first_run(pages.recorded(DECODE))[part]) == expected


def test_tables_repeat_the_census_in_every_grouping() -> None:
    run = pages.of_first_run(pages.recorded(DECODE))
    attribution = pages.subject(DECODE).attribution
    for by in ("site", "kernel", "layer"):
        sites = api.census(attribution, by=by).to_json()["sites"]
        columns = run["rows"][by]["columns"]
        assert run["rows"][by]["omitted"] == 0
        for key, values in columns.items():
            for value, row in zip(values, sites, strict=True):
                exact = not isinstance(row[key], float)
                assert value == (row[key] if exact else pytest.approx(row[key], rel=1e-6)), (by, row["site"], key)


def test_the_hand_worked_step(tmp_path: Path) -> None:
    run = pages.of_first_run(pages.small(tmp_path))
    line = run["timeline"]
    assert (line["step"], line["steps"], line["span_ns"], line["omitted"]) == (1, 3, 30_000, 0)
    assert line["start_ns"] == [0, 2500, 12_000, 20_000]
    assert line["duration_ns"] == [2000, 10_000, 8000, 10_000]
    assert line["exclusive_ns"] == [2000, 10_000, 7500, 10_000]
    assert line["idle_ns"] == [[2000, 500]]
    assert line["lane"] == [0, 0, 1, 0]
    assert line["layer"] == [-1, 0, 1, -1]
    assert line["weight_bytes"] == [None, 2_000_000, 2_000_000, 2_250_000]
    assert [run["sites"][site]["site"] for site in line["site"]] == [
        "rms_norm", "ffn_down/q4_K", "ffn_down/q4_K", "output/q6_K"
    ]  # fmt: skip
    assert run["class_curve"] == {"lo_gbps": 220, "hi_gbps": 225}
    rates = {(cell["layer"], cell["site"]): cell["gbps"] for cell in run["heat"]["cells"]}
    assert rates == pytest.approx({(0, "ffn_down/q4_K"): 200.0, (1, "ffn_down/q4_K"): 2_000_000 / 7500})


def test_stages_of_a_persistent_kernel_lie_on_the_timeline(tmp_path: Path) -> None:
    run = pages.of_first_run(pages.staged(tmp_path))
    line = run["timeline"]
    assert line["start_ns"] == [0, 2500, 4500, 14_500, 17_500, 25_500, 28_500, 53_000]
    assert line["wait_ns"] == [None, 0, 100, 200, 300, 400, 500, None]
    assert line["idle_ns"] == [[2000, 500], [52_500, 500]]
    assert "6 stages of one kernel, persistent_step" in run["stages"]
    waits = dict(zip(run["rows"]["site"]["columns"]["site"], run["rows"]["site"]["columns"]["wait_us"], strict=True))
    assert (waits["output/q6_K"], waits["argmax"]) == (pytest.approx(0.5), None)
    assert pages.of_first_run(pages.recorded(DECODE))["stages"] is None


@pytest.mark.parametrize(("name", "model"), TRACES)
def test_the_timeline_closes_to_the_nanosecond(name: str, model: str | None) -> None:
    found = timeline(pages.subject(name, model).attribution)
    assert found.omitted == 0
    assert found.exclusive.sum() + found.idle[:, 1].sum() == found.span
    assert (np.diff(found.start) >= 0).all()
    spans = pages.subject(name, model).attribution.ledger.span
    assert found.span == spans[found.step]
    assert abs(found.span - np.median(spans)) == np.abs(spans - np.median(spans)).min()


def test_a_long_step_is_cut_and_says_so() -> None:
    attribution = pages.subject(DECODE).attribution
    cut, whole = timeline(attribution, most=100), timeline(attribution)
    assert (len(cut.start), cut.omitted) == (100, 818)
    assert cut.start.tolist() == whole.start[:100].tolist()
    assert cut.span == (cut.start + cut.duration).max() < whole.span


launches = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 50)), min_size=1, max_size=40).map(sorted)


@given(launches)
def test_lanes_never_overlap_and_are_as_few_as_can_be(found: list[tuple[int, int]]) -> None:
    start, length = (np.array(column, np.int64) for column in zip(*found, strict=True))
    lane = lanes(start, start + length)
    for number in set(lane.tolist()):
        mine = lane == number
        assert (start[mine][1:] >= (start + length)[mine][:-1]).all()
    deepest = max(sum(s <= t < s + n for s, n in found) for t in start.tolist())
    assert lane.max() + 1 <= max(deepest, 1) + sum(n == 0 for _, n in found)


@given(launches)
def test_gaps_are_what_no_launch_covers(found: list[tuple[int, int]]) -> None:
    start, length = (np.array(column, np.int64) for column in zip(*found, strict=True))
    covered = {t for s, n in found for t in range(s, s + n)}
    span = range(int(start[0]), int((start + length).max()))
    idle = [t for s, n in gaps(start, start + length).tolist() for t in range(s, s + n)]
    assert idle == [t for t in span if t not in covered]


def test_the_heat_map_repeats_the_census_by_layer() -> None:
    heat = pages.of_first_run(pages.recorded(DECODE))["heat"]
    rows = {row["site"]: row for row in api.census(pages.subject(DECODE).attribution, by="layer").to_json()["sites"]}
    assert heat["layers"] == list(range(48))
    assert heat["roles"] == ["attn_q", "attn_v", "attn_k", "attn_output", "ffn_gate_up", "ffn_down"]
    assert len(heat["cells"]) == 48 * 6
    assert len(heat["layer_gbps"]) == 47
    for cell in heat["cells"]:
        assert cell["gbps"] == pytest.approx(rows[f"blk.{cell['layer']}.{cell['site']}"]["gbps"])
    assert pages.of_first_run(pages.recorded("train-2gpu-after-2026.2", None))["heat"] is None


def test_a_role_of_two_sites_in_one_layer_is_divided(tmp_path: Path) -> None:
    norm, down, *rest = small_step.PARTS
    other = small_step.Part(Node(small_step.HEAD, 4000), "ffn_down/q6_K", 0, 1_000_000)
    trace, manifest = small_step.write(tmp_path, (norm, down, other, *rest))
    heat = pages.of_first_run(run_report(load(trace, Options(manifest=manifest)), "220:225"))["heat"]
    assert heat["roles"] == ["ffn_down/q4_K", "ffn_down/q6_K"]
    assert [(cell["layer"], cell["role"]) for cell in heat["cells"]] == [
        (0, "ffn_down/q4_K"), (1, "ffn_down/q4_K"), (0, "ffn_down/q6_K")
    ]  # fmt: skip


def test_every_launch_has_its_kernel() -> None:
    run = pages.of_first_run(pages.recorded(DECODE))
    assert sum(number for _, _, number in run["site_variants"]) == 918
    longest = max(run["variants"], key=lambda variant: len(variant["kernel"]))
    assert longest["kernel"].startswith("void ")
    assert {len(v["grid"]) for v in run["variants"]} == {len(v["block"]) for v in run["variants"]} == {3}
    down = next(i for i, site in enumerate(run["sites"]) if site["site"] == "ffn_down/q6_K")
    kernels = [run["variants"][variant]["kernel"] for site, variant, _ in run["site_variants"] if site == down]
    assert all("mul_mat_vec_q<(ggml_type)14" in kernel for kernel in kernels)


def test_verdicts(tmp_path: Path) -> None:
    below = pages.recorded(DECODE)
    assert below.verdict.level == "below"
    assert below.verdict.headline == "2.429 ms of every step (37.3 %) can be recovered"
    unknown = pages.recorded("train-2gpu-after-2026.2", None)
    assert unknown.verdict.level == "open"
    assert unknown.verdict.detail.startswith("No launch has known weight bytes")
    trace, manifest = small_step.write(tmp_path)
    subject = load(trace, Options(manifest=manifest))
    assert run_report(subject, "100:110").verdict.level == "clear"
    fast = (
        small_step.PARTS[0],
        *(small_step.Part(p.node, p.site, p.layer, 40 * p.weight_bytes) for p in small_step.PARTS[1:]),
    )
    trace, manifest = small_step.write(tmp_path, fast, gpu=GB10)
    alarm = run_report(load(trace, Options(manifest=manifest)))
    assert alarm.verdict.level == "alarm"
    assert "ffn_down/q4_K" in alarm.verdict.detail


def test_figures_of_a_run() -> None:
    facts = {fact.name: fact for fact in pages.recorded(ENGINE, None).facts}
    census = api.census(pages.subject(ENGINE).attribution)
    assert facts["traced step"].value == f"{census.span * 1e3:.3f}"
    walls = pages.subject(ENGINE).manifest.wall_step_ns
    assert facts["untraced step"].value == f"{np.median(walls) / 1e6:.3f}"
    assert "host clock, median of 96" in facts["untraced step"].note
    ledger = pages.subject(ENGINE).attribution.ledger
    overlap = np.median((ledger.duration - ledger.exclusive).sum(axis=1)) / 1e6
    assert facts["overlap"].value == f"{overlap:.3f}"
    plain = {fact.name: fact for fact in pages.recorded("train-2gpu-after-2026.2", None).facts}
    assert (plain["untraced step"].value, plain["step rate"].value) == ("–", "–")
    assert float(plain["overlap"].value) >= 0
    assert "recoverable" not in plain


def test_a_sign_is_as_wide_as_the_other() -> None:
    assert [signed(v, 2) for v in (1234.5, -0.125, 0.0, float("nan"))] == ["+1,234.50", "−0.12", "+0.00", "–"]


def test_provenance_says_what_it_does_not_know(tmp_path: Path) -> None:
    facts = dict(pages.recorded(ENGINE, None).runs[0].provenance)
    assert facts["device"] == "NVIDIA H200 · 132 SMs · DRAM peak 4,814 GB/s"
    assert facts["driver"] == "580.159.04"
    assert facts["CUDA driver API"] == "13.0"
    assert facts["Nsight Systems"].startswith("2025.3.2.0")
    assert facts["build"] == "reference 94fb928100e19b68"
    assert facts["weights"] == "synthetic seed 1, recipe q4_k_m"
    assert facts["anchor"] == "@3254"
    plain = dict(run_report(load(data.trace("trimmed-2026.1"), Options())).runs[0].provenance)
    assert {plain[name] for name in ("driver", "model", "build", "anchor", "recorded (UTC)")} == {"unknown"}


def test_a_run_directory_brings_its_manifest_and_its_date(tmp_path: Path) -> None:
    folder = tmp_path / "20260131T120005Z-14b-@3254-reference"
    folder.mkdir()
    small_step.write(folder)
    subject = load(folder, Options())
    assert (subject.label, subject.recorded) == (folder.name, "2026-01-31 12:00:05")
    assert subject.manifest is not None
    given = load(folder, Options(table=_table(tmp_path)), label="other")
    assert (given.label, given.recorded, given.manifest) == ("other", "", None)
    assert given.attribution.traffic.source.startswith("table")
    with pytest.raises(NoDataError, match="no run directory"):
        load(tmp_path, Options())


def _table(folder: Path) -> Path:
    path = folder / "bytes.csv"
    path.write_text("kernel,bytes,site\ngemv_q4,2000000,down\n", encoding="utf-8")
    return path


def embedded(report: Report) -> dict[str, Any]:
    """The document as the page holds it."""
    found: dict[str, Any] = json.loads(Page(report.to_html()).scripts[0])
    return found


@pytest.mark.parametrize("make", [lambda: pages.recorded(DECODE), pages.pair], ids=["run", "pair"])
def test_the_page_holds_its_document_and_loads_nothing(make: Any) -> None:
    report = make()
    text = report.to_html()
    page = Page(text)
    assert embedded(report) == report.to_json()
    assert len(text.encode()) < 2_000_000
    assert [name for name, _ in page.elements if name in ("link", "img", "iframe", "object", "embed", "base")] == []
    assert [attrs for _, attrs in page.elements if "src" in attrs or "srcset" in attrs] == []
    assert [attrs["href"] for _, attrs in page.elements if not (attrs.get("href") or "#").startswith("#")] == []
    assert set(re.findall(r"https?://[\w./-]+", page.scripts[1])) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in text
    assert "@import" not in text


def test_the_policy_allows_the_pages_own_script_alone() -> None:
    page = Page(pages.recorded(DECODE).to_html())
    policy = next(attrs["content"] for _, attrs in page.elements if attrs.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in (policy or "")
    assert (policy or "").startswith("default-src 'none'")


def test_names_are_text_whatever_they_say(tmp_path: Path) -> None:
    report = pages.hostile(tmp_path)
    text = report.to_html()
    page = Page(text)
    assert len(page.scripts) == 2
    assert embedded(report) == report.to_json()
    assert [v["kernel"] for v in embedded(report)["runs"][0]["variants"]] == [name.strip() for name in pages.HOSTILE]
    assert not [attrs for _, attrs in page.elements if any(name.startswith("on") for name in attrs)]
    assert [name for name, _ in page.elements if name in ("img", "b")].count("img") == 0
    assert html.escape(pages.HOSTILE[1], quote=False) in text.replace("&#34;", '"').replace("&#39;", "'")
    assert "<!--" not in text.split("</style>")[1]


def test_a_comparison_has_the_numbers_of_compare() -> None:
    report = pages.pair()
    expected = api.compare(pages.subject(LONG, MODEL, "14b:@3254").attribution, pages.subject(ENGINE).attribution)
    assert report.to_json()["comparison"] == expected.to_json()
    gap = float(expected.gap.ns) / 1e6
    assert report.verdict.headline.startswith(f"A step of B takes {abs(gap):.3f} ms {'longer' if gap > 0 else 'less'}")
    largest = max(expected.parts, key=lambda part: abs(part.delta.ns))
    assert largest.name in report.verdict.detail
    assert [run["label"] for run in report.to_json()["runs"]] == [f"{LONG}.sqlite", f"{ENGINE}.sqlite"]


def test_a_comparison_refuses_what_compare_refuses(tmp_path: Path) -> None:
    a, b = pages.subject(DECODE), pages.subject("llama.cpp-7b-pp512-tg16-h200", "qwen2.5-7b:q4_k_m")
    with pytest.raises(RefusedError, match="differ in model"):
        pair_report(a, b)
    forced = pair_report(a, b, force=True)
    assert "Forced: not the same model" in forced.to_html()
    same = pair_report(a, a)
    assert (same.verdict.level, same.verdict.headline) == ("clear", "A step of B takes as long as a step of A")


def test_the_api_writes_a_page(tmp_path: Path) -> None:
    trace = package.open(data.trace(DECODE))
    report = package.report(trace, model=MODEL, label="mine")
    report.write(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == report.to_html()
    assert repr(report) == f"<Report of mine: {report.verdict.headline}>"
    pair = package.report(data.trace(DECODE), data.trace(LONG), model=MODEL)
    assert pair.comparison is not None
    with pytest.raises(RefusedError, match=r"ends in \.html"):
        report.write(tmp_path / "page.pdf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html"]


def test_the_command_writes_pages(attrib: Attrib, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    done = attrib("report", data.trace(DECODE), "--model", MODEL, "-o", out)
    assert done.code == 0, done.err
    said = f"{out} ({out.stat().st_size / 1e3:,.0f} kB): {pages.recorded(DECODE).verdict.headline}"
    assert " ".join(done.out.split()) == said
    document = attrib("report", data.trace(DECODE), data.trace(LONG), "--model", MODEL, "-o", out, "--json").json()
    assert [Path(one["file"]).name for one in document["results"]] == ["r-1.html", "r-2.html"]
    manifest = data.DATA / f"{ENGINE}.manifest.json"
    one = attrib(
        "report", data.trace(LONG), "--model", MODEL, "--anchor", "@3254", "--against", data.trace(ENGINE),
        "--against-manifest", manifest, "-o", out, "--json",
    ).json()  # fmt: skip
    assert one["verdict"]["headline"] == pages.pair().verdict.headline
    assert one["bytes"] == out.stat().st_size


def test_the_command_refuses(attrib: Attrib, tmp_path: Path) -> None:
    trace = data.trace(DECODE)
    assert "name its B with --against" in attrib("report", trace, "--force").refusal()
    assert "--against-model" not in attrib("report", "missing.sqlite").refusal()
    two = attrib("report", trace, trace, "--against", trace, "-o", tmp_path / "r.html").refusal()
    assert "give one run before it" in two
    page = tmp_path / "r.html"
    page.write_bytes(trace.read_bytes())
    assert "is an input and would be overwritten" in attrib("report", page, "-o", page).refusal()
    assert "ends in .html" in attrib("report", trace, "-o", tmp_path / "r.png").refusal()
