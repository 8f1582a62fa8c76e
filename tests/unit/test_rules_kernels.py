"""What the rule files say of kernels as traces name them: one file and one category each, whatever the order."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from attrib import api, rules
from attrib.categories import order
from attrib.models import builtin
from attrib.names import function_name
from tests.helpers import data
from tests.helpers.nsysgen import H200, Kernel, Node, Trace

with (data.DATA / "kernels.tsv").open(newline="", encoding="utf-8") as file:
    CASES = [tuple(row) for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][1:]
"""(rule file, category, demangled name) of kernels as nsys shows them."""


def matching(full: str) -> dict[str, str]:
    """The first rule of each file that matches a kernel."""
    function = function_name(full)
    found = {book.name: book.kernel(function, full) for book in rules.builtin_rules()}
    return {name: rule.category for name, rule in found.items() if rule is not None}


@pytest.mark.parametrize(("book", "category", "full"), CASES)
def test_a_known_kernel(book: str, category: str, full: str) -> None:
    found = rules.match(rules.builtin_rules(), function_name(full), full)
    assert found is not None
    assert (found[0].name, found[1].category) == (book, category)
    assert rules.category(rules.builtin_rules(), function_name(full), full) == category


@pytest.mark.parametrize(("book", "category", "full"), CASES)
def test_files_that_know_the_same_kernel_agree_or_have_an_order(book: str, category: str, full: str) -> None:
    ranks = {rules_.name: rules_.order for rules_ in rules.builtin_rules()}
    for other, said in matching(full).items():
        assert said == category or ranks[other] > ranks[book], (other, said)


def test_every_rule_is_used_by_a_known_kernel() -> None:
    used = set()
    for _, _, full in CASES:
        function = function_name(full)
        used |= {(book.name, book.kernel(function, full)) for book in rules.builtin_rules()}
    unused = [
        (book.name, place) for book in rules.builtin_rules() for place, rule in enumerate(book.kernels)
        if (book.name, rule) not in used
    ]  # fmt: skip
    assert unused == []


def test_categories_of_rules_are_categories() -> None:
    for book in rules.builtin_rules():
        assert {rule.category for rule in book.kernels} <= set(order()) - {"idle"}
        assert book.about


@pytest.mark.parametrize("name", [n for n in data.NAMES if n.startswith("llama.cpp")])
def test_a_recorded_llama_cpp_trace_is_known_whole(name: str) -> None:
    from attrib.trace import open_trace

    names = open_trace(data.trace(name)).names
    unknown = {
        function for function, full in zip(names.function, names.full, strict=True)
        if rules.match(rules.builtin_rules(), function, full) is None
    }  # fmt: skip
    assert unknown == set()


NVJET, FA3 = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "void cutlass::device_kernel<flash::FlashAttnFwdSm90<int>>(T1)"
LAYER = (
    ("rms_norm_kernel", "void vllm::rms_norm_kernel<c10::BFloat16>(T1 *)"),
    (NVJET, NVJET),
    ("rotary_embedding_kernel", "void vllm::rotary_embedding_kernel<c10::BFloat16, (bool)1>(T1 *)"),
    ("reshape_and_cache_flash_kernel", "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(T1 *)"),
    ("device_kernel", FA3),
    (NVJET, NVJET),
    ("fused_add_rms_norm_kernel", "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, (int)8>(T1 *)"),
    (NVJET, NVJET),
    ("act_and_mul_kernel", "void vllm::act_and_mul_kernel<c10::BFloat16>(T1 *)"),
    (NVJET, NVJET),
)


def test_a_decode_step_of_vllm_has_its_anatomy_and_its_bytes(tmp_path: Path) -> None:
    """24 layers of ten launches, the head and the sampler; each launch 1,000 ns."""
    model = builtin("qwen2.5-0.5b:bf16")
    step = [*LAYER * model.shape.layers, (NVJET, NVJET), ("argmax", "void argmax<float>(float *)")]
    trace = Trace("2025.3")
    process = trace.process()
    process.device(trace.gpu(H200))
    graph = process.graph([Node(Kernel(short, full, grid=(132, 1, 1)), 1000) for short, full in step])
    for i in range(4):
        process.replay(graph, 1_000_000 * (i + 1))
    found = api.attribution(trace.write(tmp_path / "t.sqlite"), model="qwen2.5-0.5b:bf16")
    rows = {row.category: row.launches for row in api.anatomy(found).rows}
    layers = model.shape.layers
    assert rows == {
        "weight streaming": 4 * layers + 1,
        "attention": layers,
        "norm": 2 * layers,
        "rope": layers,
        "copies": layers,
        "elementwise": layers,
        "sampling": 1,
        "idle": 0,
    }
    assert np.nansum(found.traffic.weight_bytes) == model.step_bytes()
    assert found.traffic.source == "model qwen2.5-0.5b:bf16, rules vllm"
    assert f"{4 * layers + 1} of {4 * layers + 1} weight-streaming launches by order alone" in found.warnings[0]
    head = next(site for site in api.census(found).rows if site.site == "output/bf16")
    assert head.bytes == 151_936 * 896 * 2
