"""The anatomy: a ledger by category that adds up to the span, and categories decided by the function name."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from attrib import api
from attrib.categories import category_of, order, patterns
from tests.conftest import Attrib
from tests.helpers import data, small_step
from tests.helpers.nsysgen import GB10, Kernel, Node, Trace
from tests.helpers.small_step import Part

NS = 1e-9
SHORT = Part(Node(Kernel("quantize_q8_1"), 1999), "quantize_q8_1")
LONG = Part(Node(Kernel("quantize_q8_1", grid=(2, 1, 1)), 2000, gap=1), "quantize_q8_1")


def test_a_step_by_hand(tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path)
    found = api.anatomy(trace, manifest=manifest)
    rows = {row.category: row for row in found.rows}
    assert list(rows) == ["weight streaming", "norm", "idle"]
    streaming, norm, idle = rows.values()
    assert (streaming.launches, norm.launches, idle.launches) == (3, 1, 0)
    # totals of the steps, × 1.2, 1, 0.9: 33100, 27500, 24700 of spans 36000, 30000, 27000
    assert streaming.seconds == pytest.approx(27_500 * NS)
    assert streaming.duration == pytest.approx(28_000 * NS)
    assert streaming.share_of_span == pytest.approx(27_500 / 30_000)
    assert streaming.share_of_kernel_time == pytest.approx(27_500 / 29_500)
    assert (norm.seconds, norm.share_of_span) == pytest.approx((2000 * NS, 2000 / 30_000))
    assert idle.seconds == pytest.approx(500 * NS)
    assert idle.share_of_span == pytest.approx(500 / 30_000)
    assert math.isnan(idle.duration)
    assert math.isnan(idle.share_of_kernel_time)
    assert (found.step_count, found.launches, found.closure_ns) == (3, 4, 0)
    document = found.to_json()
    assert document["categories"][2]["duration_ms"] is None
    assert sum(row["ms"] for row in document["categories"]) == pytest.approx(0.03)


def test_launches_under_two_microseconds(tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path, (SHORT, LONG, SHORT), scales=(1, 1, 1))
    found = api.anatomy(trace)
    (quantize, _) = found.rows
    assert (quantize.launches, quantize.short_launches, found.short_launches) == (3, 2, 2)


def test_idle_time_under_copies_is_copies(tmp_path: Path) -> None:
    """A gap of 3000 ns, of which a copy covers 1000 and a copy of another process none that counts."""
    trace = Trace("2025.3")
    process, other = trace.process(11), trace.process(12)
    for owner in (process, other):
        owner.device(trace.gpu(GB10))
    graph = process.graph([Node(Kernel("rms_norm"), 2000), Node(Kernel("rope"), 1000, gap=3000)])
    for i in range(3):
        at = 1_000_000 * (i + 1)
        process.replay(graph, at)
        process.memcpy(at + 2500, 1000, 4096)
        other.memset(at + 3600, 500, 64)
    found = api.anatomy(trace.write(tmp_path / "trace.sqlite"))
    rows = {row.category: row for row in found.rows}
    assert rows["copies"].seconds == pytest.approx(1000 * NS)
    assert (rows["copies"].launches, rows["copies"].duration) == (0, 0)
    assert rows["copies"].share_of_kernel_time == 0
    assert rows["idle"].seconds == pytest.approx(2000 * NS)
    assert sum(row.share_of_span for row in found.rows) == pytest.approx(1)


@pytest.mark.parametrize("name", ["llama.cpp-14b-tg16-h200", "llama.cpp-7b-pp512-tg16-h200", "cuda-python-graph-h200"])
def test_categories_of_recorded_steps_add_up(name: str) -> None:
    found = api.anatomy(data.trace(name))
    assert sum(row.launches for row in found.rows) == found.launches
    assert sum(row.short_launches for row in found.rows) == pytest.approx(found.short_launches, abs=4)
    assert sum(row.seconds for row in found.rows) == pytest.approx(found.span, rel=5e-3)
    assert found.closure_ns == 0


FUNCTIONS = {
    "mul_mat_vec_q": "weight streaming",
    "q4_k_q8_mmvq": "weight streaming",
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8": "weight streaming",
    "nvjet_hsh_64x8_64x16": "weight streaming",
    "cutlass::Kernel2": "weight streaming",
    "flash_attn_ext_vec": "attention",
    "flash_fwd_splitkv_kernel": "attention",
    "vllm::paged_attention_v2_kernel": "attention",
    "soft_max_f32": "attention",
    "cunn_SoftMaxForward": "attention",
    "rms_norm_f32": "norm",
    "vectorized_layer_norm_kernel": "norm",
    "quantize_q8_1": "quantize",
    "rope_neox": "rope",
    "rotary_embedding_kernel": "rope",
    "argmax_f32_i32": "sampling",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": "communication",
    "k_set_rows": "copies",
    "reshape_and_cache_flash_kernel": "copies",
    "CatArrayBatchedCopy": "copies",
    "k_bin_bcast": "elementwise",
    "unary_gated_op_kernel": "elementwise",
    "at::native::vectorized_elementwise_kernel": "elementwise",
    "triton_red_fused_0": "other",
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_category_of_a_function(function: str) -> None:
    assert category_of(function) == FUNCTIONS[function]


def test_order_lists_every_category_once() -> None:
    names = [name for name, _ in patterns()]
    assert order() == [*names, "other", "idle"]
    assert len(set(order())) == len(order())


def test_template_arguments_decide_no_category(tmp_path: Path) -> None:
    """An elementwise kernel instantiated with a gemm functor and a norm among its parameters stays elementwise."""
    kernel = Kernel("vectorized_elementwise_kernel", "void vectorized_elementwise_kernel<gemm_op<4>>(rms_norm *)")
    trace, _ = small_step.write(tmp_path, [Part(Node(kernel, 5000), "")])
    assert [row.category for row in api.anatomy(trace).rows] == ["elementwise", "idle"]


def test_growth_of_a_pair(attrib: Attrib, tmp_path: Path) -> None:
    """5 µs become 7, a category that one side lacks is unknown there, and the table's numbers are the object's."""
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, parts in ((one, (("rms_norm", 5000),)), (other, (("rms_norm", 7000), ("rope_neox", 3000)))):
        folder.mkdir()
        small_step.write(folder, [Part(Node(Kernel(name), ns), "") for name, ns in parts])
    paths = one / "trace.sqlite", other / "trace.sqlite"
    document = attrib("anatomy", *paths, "--json").json()
    assert [result["schema"] for result in document["results"]] == ["attrib.anatomy/1"] * 2
    found = document["growth"]
    assert found["schema"] == "attrib.growth/1"
    rows = {row.pop("category"): row for row in found["categories"]}
    assert list(rows) == ["norm", "idle", "rope"]
    assert rows["norm"] == pytest.approx({"first_ms": 0.005, "second_ms": 0.007, "delta_ms": 0.002})
    assert rows["rope"] == {"first_ms": None, "second_ms": pytest.approx(0.003), "delta_ms": None}
    spans = [result["steps"]["span_ms"] for result in document["results"]]
    assert found["span"]["delta_ms"] == pytest.approx(spans[1] - spans[0])
    assert "+0.002" in attrib("anatomy", *paths).out
    assert "growth" not in attrib("anatomy", *paths, paths[0], "--json").json()


def test_growth_between_unlike_steps_says_so(attrib: Attrib) -> None:
    unlike = attrib("anatomy", *(data.trace(f"llama.cpp-{name}-tg16-h200") for name in ("7b-d1641", "14b-d3254")))
    assert "not one build at two KV lengths: launches a step 538 and 918" in " ".join(unlike.out.split())
