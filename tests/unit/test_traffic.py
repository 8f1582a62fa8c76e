"""Bytes of launches from a model, a manifest, a table or nothing: exact, unknown, or refused by name; never 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attrib import api, models
from attrib import manifest as mf
from attrib.attribution import Attribution
from attrib.errors import JoinError, RefusedError
from tests.helpers import data, small_step
from tests.helpers.nsysgen import Kernel, Node
from tests.helpers.small_step import PARTS, Part

TRACE_14B, TRACE_7B = "llama.cpp-14b-tg16-h200", "llama.cpp-7b-pp512-tg16-h200"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return small_step.write(tmp_path)[0]


def from_table(trace: Path, text: str) -> Attribution:
    table = trace.parent / "table.csv"
    table.write_text(text)
    return api.attribution(trace, table=table)


def sites(attribution: Attribution) -> list[str]:
    return [attribution.traffic.sites[i].key for i in attribution.traffic.site]


def close_to(values: np.ndarray, expected: list[float]) -> bool:
    return bool(np.array_equal(values, np.array(expected), equal_nan=True))


NAN = float("nan")


def test_a_table_by_kernel_grid_site_and_quant(trace: Path) -> None:
    found = from_table(
        trace,
        "kernel,grid,bytes,site,quant\n"
        "gemv,5120x1,2e6,ffn_down,q4_K\n"
        "gemv,,2250000,,\n",
    )  # fmt: skip
    assert close_to(found.traffic.weight_bytes, [NAN, 2e6, 2e6, 2.25e6])
    assert sites(found) == ["rms_norm", "ffn_down/q4_K", "ffn_down/q4_K", "gemv_q6<14>"]
    assert [found.traffic.sites[i].category for i in found.traffic.site] == ["norm"] + ["weight streaming"] * 3
    assert (found.traffic.source, found.traffic.warnings) == ("table table.csv", ())
    assert np.isnan(found.traffic.kv_bytes).all()


def test_the_first_matching_row_counts_and_unused_rows_are_named(trace: Path) -> None:
    found = from_table(trace, "kernel,bytes\ngemv_q4,1000\n\nnothing,5\ngemv,2000\n^gemv_q4,3000\n")
    assert close_to(found.traffic.weight_bytes, [NAN, 1000, 1000, 2000])
    assert found.traffic.warnings == ("table.csv: no launch matches line 4 (nothing), line 6 (^gemv_q4)",)


@pytest.mark.parametrize("grid", ["5120", "5120x1", "5120x1x1", "5120×1", '"5120,1,1"', " 5120 "])
def test_ways_to_write_a_grid(trace: Path, grid: str) -> None:
    found = from_table(trace, f"kernel,bytes,grid\ngemv,7,{grid}\n")
    assert close_to(found.traffic.weight_bytes, [NAN, 7, 7, NAN])


def test_a_table_with_a_byte_order_mark(trace: Path) -> None:
    assert np.nansum(from_table(trace, "\ufeffkernel,bytes\ngemv,7\n").traffic.weight_bytes) == 21


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("kernel,bytes\ngemv,12\ngemv,x\n", 3, "could not convert string to float: 'x'"),
        ("kernel,bytes\n\n\ngemv,-5\n", 4, "bytes '-5' is not a positive number"),
        ('kernel,bytes\n"a\nb",3\ngemv,0\n', 4, "bytes '0' is not a positive number"),
        ("kernel,bytes\ngemv,nan\n", 2, "bytes 'nan' is not a positive number"),
        ("kernel,bytes\ngemv,inf\n", 2, "bytes 'inf' is not a positive number"),
        ("kernel,bytes\ngemv\n", 2, "could not convert string to float: ''"),
        ("kernel,bytes\n(,5\n", 2, "missing )"),
        ("kernel,bytes\n,5\n", 2, "kernel is empty"),
        ("kernel,bytes,grid\ngemv,5,axb\n", 2, "invalid literal for int"),
        ("kernel,bytes,grid\ngemv,5,1x2x3x4\n", 2, "grid '1x2x3x4' is not X, XxY or XxYxZ"),
        ("kernel,bytes,grid\ngemv,5,0\n", 2, "grid '0' is not X, XxY or XxYxZ"),
    ],
)
def test_a_wrong_row_is_named_by_its_line(trace: Path, text: str, line: int, said: str) -> None:
    with pytest.raises(JoinError) as error:
        from_table(trace, text)
    assert f"table.csv, line {line}: " in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no rows"),
        ("kernel,bytes\n", "has no rows"),
        ("name,bytes\ngemv,5\n", "has no column 'kernel'"),
        ("kernel,size\ngemv,5\n", "has no column 'bytes'"),
    ],
)
def test_a_table_without_rows_or_columns(trace: Path, text: str, said: str) -> None:
    with pytest.raises(JoinError, match=said):
        from_table(trace, text)


def test_a_table_that_cannot_be_read(trace: Path) -> None:
    with pytest.raises(JoinError, match=r"none\.csv cannot be read: No such file"):
        api.attribution(trace, table=trace.parent / "none.csv")
    latin = trace.parent / "latin.csv"
    latin.write_bytes(b"kernel,bytes\n\xe9,5\n")
    with pytest.raises(JoinError, match=r"latin\.csv is not CSV text"):
        api.attribution(trace, table=latin)


def test_no_bytes_are_unknown_and_said_so(trace: Path) -> None:
    found = api.attribution(trace)
    assert np.isnan(found.traffic.weight_bytes).all()
    assert found.traffic.source == "none"
    assert sites(found) == ["rms_norm", "gemv_q4<12>", "gemv_q4<12>", "gemv_q6<14>"]
    census = api.census(found)
    assert any("no bytes given" in note for note in census.warnings)
    assert not any("no bytes given" in note for note in api.anatomy(found).warnings)
    assert np.isnan(census.step_bytes)
    assert census.matched_share == 0
    assert all(np.isnan([row.bytes, row.rate, row.class_rate, row.recoverable]).all() for row in census.rows)


@pytest.mark.parametrize(
    "given",
    [
        {"model": "qwen2.5-7b", "table": Path("t.csv")},
        {"table": Path("t.csv"), "manifest": Path("m.json")},
        {"model": "qwen2.5-7b", "manifest": Path("m.json")},
        {"model": "qwen2.5-7b", "table": Path("t.csv"), "manifest": Path("m.json")},
    ],
)
def test_two_sources_of_bytes_are_refused(trace: Path, given: dict[str, object]) -> None:
    with pytest.raises(RefusedError, match=f"from one source only, and {' and '.join(given)} were given"):
        api.attribution(trace, **given)


# --- manifests

EMBED = Part(Node(Kernel("embed_row"), 1500), "token_embd/q4_K", None, 2880)
ATTENTION = Part(Node(Kernel("fattn_vec"), 3000), "fattn_vec", 0, 0, 4096)


def test_a_manifest_says_weights_kv_and_layers(tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path, (EMBED, *PARTS, ATTENTION))
    found = api.attribution(trace, manifest=manifest).traffic
    assert close_to(found.weight_bytes, [NAN, NAN, 2e6, 2e6, 2.25e6, NAN])
    assert close_to(found.kv_bytes, [NAN] * 5 + [4096])
    assert found.layer.tolist() == [-1, -1, 0, 1, -1, 0]
    assert [found.sites[i].category for i in found.site] == [
        "copies",
        "norm",
        "weight streaming",
        "weight streaming",
        "weight streaming",
        "attention",
    ]
    assert found.source == "manifest reference tiny:tg16"


def test_a_plan_that_skips_units_is_warned_of(tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    whole = small_step.manifest()
    first, *others = whole.graphs[0].nodes
    nodes = (replace(first, units=592, units_covered=512), *others)
    manifest = replace(whole, graphs=(replace(whole.graphs[0], nodes=nodes),))
    units = sum(node.units for node in nodes)
    found = api.attribution(trace, manifest=manifest)
    said = f"plan computes {units - 80} of {units} units: its rates count bytes that are not read"
    assert found.traffic.warnings == (said,)
    assert said in found.warnings
    assert not api.attribution(trace, manifest=whole).traffic.warnings


def test_a_manifest_of_another_run_names_the_first_node_that_differs(tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    right = small_step.manifest()
    nodes = right.graphs[0].nodes

    def joined(changed: dict[int, mf.Launch]) -> str:
        other = tuple(changed.get(node.i, node) for node in nodes)
        with pytest.raises(JoinError) as error:
            api.attribution(trace, manifest=replace(right, graphs=(mf.Graph("decode", other),)))
        return str(error.value)

    text = joined({2: replace(nodes[2], grid=(5121, 1, 1)), 3: replace(nodes[3], kernel="other")})
    assert "node 2 of graph 'decode' is gemv_q4 with grid (5121, 1, 1) (ffn_down/q4_K) in the manifest" in text
    assert "gemv_q4 with grid (5120, 1, 1) in trace.sqlite" in text
    assert "node 0 of graph 'decode' is softmax" in joined({0: replace(nodes[0], kernel="softmax")})
    with pytest.raises(JoinError, match=r"has 3 nodes and a step of trace\.sqlite has 4 launches"):
        api.attribution(trace, manifest=replace(right, graphs=(mf.Graph("decode", nodes[:3]),)))
    with pytest.raises(JoinError, match=r"no graph named 'decode'; it has \['prefill'\]"):
        api.attribution(trace, manifest=replace(right, graphs=(mf.Graph("prefill", nodes),)))


# --- models and rules on recorded traces


def test_a_trace_of_a_7b_is_refused_as_a_14b_at_its_first_matrix() -> None:
    with pytest.raises(JoinError) as error:
        api.attribution(data.trace(TRACE_7B), model="qwen2.5-14b:q4_k_m")
    text = str(error.value)
    assert "launch 2 (mul_mat_vec_q, grid 3584)" in text
    assert "blk.0.attn_q.weight with 5,120 rows of q4_K" in text


def test_kv_bytes_go_to_the_attention_kernels_alone() -> None:
    """7B: 28 layers × 2 × 4 KV heads × 128 × 2 B; at a length of 512, 1,048,576 B a layer."""
    options = {"model": "qwen2.5-7b:q4_k_m"}
    found = api.attribution(data.trace(TRACE_7B), kv_length=512, **options)
    has = np.isfinite(found.traffic.kv_bytes)
    assert {found.traffic.sites[i].role for i in found.traffic.site[has]} == {"flash_attn_ext_vec"}
    assert found.traffic.kv_bytes[has].tolist() == [2 * 4 * 128 * 2 * 512] * 28
    assert np.isnan(found.traffic.weight_bytes[has]).all()
    assert np.nansum(found.traffic.weight_bytes) == models.builtin("qwen2.5-7b").step_bytes()
    assert np.isnan(api.attribution(data.trace(TRACE_7B), **options).traffic.kv_bytes).all()
    with_kv, without = (api.census(data.trace(TRACE_7B), kv_length=n, **options) for n in (512, None))
    assert with_kv.step_rate - without.step_rate == pytest.approx(28 * 1_048_576 / with_kv.span)
    assert with_kv.step_bytes == without.step_bytes


def test_matched_share_is_the_exclusive_time_of_launches_with_bytes() -> None:
    found = api.attribution(data.trace(TRACE_14B), model="qwen2.5-14b:q4_k_m")
    census = api.census(found)
    first = found.trace.kernels.variant[found.steps.rows[0]]
    streams = np.array([found.trace.names.short[v] == "mul_mat_vec_q" for v in first])
    total = found.ledger.exclusive.sum()
    assert streams.sum() == 289
    assert census.matched_share == pytest.approx(found.ledger.exclusive[:, streams].sum() / total, abs=1e-12)


def test_a_trace_without_known_launches_is_refused(trace: Path) -> None:
    sentence = r"no launch of trace\.sqlite matches the rules \(llama\.cpp, vllm, pytorch\), so --model"
    with pytest.raises(JoinError, match=sentence):
        api.attribution(trace, model="qwen2.5-14b:q4_k_m")


def test_given_rules_replace_the_built_in_ones(tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(
        'name = "mine"\n[[stream]]\nfunction = "^gemv_q4$"\nquant = 0\n[[layer]]\nroles = ["ffn_down"]\n'
        '[[stream]]\nfunction = "^gemv_q6$"\n[tail]\nroles = ["output"]\n[[kv]]\nfunction = "fattn"\n'
    )
    # 14B has 5120 rows of ffn_down in each of 48 layers and 152064 rows of output
    down = [Part(Node(replace(small_step.DOWN, demangled=f"void gemv_q4<(int){q}>(int)"), 1000), "") for q in (12, 14)]
    head = Part(Node(replace(small_step.HEAD, grid=(152_064, 1, 1)), 1000), "")
    more = {*range(6), *range(8, 42, 3), *range(42, 48)}
    trace, _ = small_step.write(tmp_path, [*(down[i in more] for i in range(48)), ATTENTION, head])
    found = api.attribution(trace, model="qwen2.5-14b", rules=rules, kv_length=3).traffic
    assert found.source == "model qwen2.5-14b:q4_k_m, rules mine"
    assert found.weight_bytes[[0, 6, 49]].tolist() == [5120 * 54 * 210, 5120 * 54 * 144, 638_668_800]
    assert found.layer.tolist() == [*range(48), -1, -1]
    assert found.kv_bytes[48] == 2 * 8 * 128 * 2 * 3
    with pytest.raises(RefusedError, match="give --model too"):
        api.attribution(trace, rules=rules)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kernel,bytes\ngemv_q4,2,000,000\n", "more fields than columns"),
        ("kernel,bytes,bytes\ngemv_q4,2,3\n", "names a column twice"),
        ("kernel,bytes\ngemv_q4,1e300\n", "not a positive number"),
    ],
)
def test_a_table_that_could_be_misread_is_refused(trace: Path, tmp_path: Path, text: str, said: str) -> None:
    table = tmp_path / "bytes.csv"
    table.write_text(text)
    with pytest.raises(JoinError, match=said):
        api.attribution(trace, table=table)
