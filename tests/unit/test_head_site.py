"""The output matrix is site `output` with its bytes, whether it has a tensor of its own or is the embedding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from attrib.manifest import DeviceInfo, Launch, Manifest, Stage
from attrib.models import BLOCKS, Tensor
from engine import dispatch, plan, program
from engine.config import ModelConfig
from engine.ggufwrite import from_host, write
from engine.prefill import Gemm
from tests.conftest import Attrib
from tests.helpers import small_step
from tests.helpers.fast_plans import CAPACITY, KV_LEN, SHARED, SMS, made
from tests.helpers.nsysgen import H200, Kernel, Node, Trace

BUILDS = ("reference", "loop", "fast", "phases")
TYPES = ("q4_K", "q6_K", "q8_0")  # that tiles take
DEVICE = DeviceInfo("NVIDIA H200", SMS, 4.814e12, 2048, "9.0")


def model(quant: str, *, tied: bool) -> ModelConfig:
    """Two layers, embedding and output matrix of one type."""
    return made({"token_embd": quant, "output": quant}, tied=tied)


def manifest(config: ModelConfig, build: str) -> Manifest:
    found, geo = dispatch.load(build), plan.geometry(config, CAPACITY, SMS, SHARED)
    return plan.manifest(config, found, DEVICE, "m:tg128", program.decode(config, found, geo, KV_LEN))


def parts_of(manifest: Manifest) -> list[Launch | Stage]:
    """The launches of a step, persistent ones as their stages."""
    return [part for node in manifest.graph().nodes for part in (node.stages or (node,))]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("quant", TYPES)
@pytest.mark.parametrize("build", BUILDS)
def test_the_head_is_a_site_with_the_bytes_of_its_matrix(build: str, quant: str, tied: bool) -> None:
    config = model(quant, tied=tied)
    parts = parts_of(manifest(config, build))
    sites = {part.site.partition("/")[0] for part in parts}
    assert "token_embd" not in sites
    assert [part.site for part in parts if part.site.startswith("embed")] == [f"embed/{quant}"]
    head = [part for part in parts if part.site.startswith("output/")]
    assert {part.site for part in head} == {f"output/{quant}"}
    assert all(part.layer is None and part.units == part.units_covered for part in head)
    stored = config.model.head().nbytes  # the kernels' own layouts pad by less than a tenth
    assert stored == 640 * 512 // BLOCKS[quant][0] * BLOCKS[quant][1]
    assert stored <= sum(part.weight_bytes for part in head) < 1.1 * stored
    assert sum(part.units for part in head) == 640 * 512 // 32


@pytest.mark.parametrize("quant", TYPES)
@pytest.mark.parametrize("build", BUILDS)
def test_a_tied_model_runs_the_launches_of_an_untied_one(build: str, quant: str) -> None:
    tied, apart = (manifest(model(quant, tied=tied), build).graph() for tied in (True, False))
    assert tied == apart


@pytest.mark.parametrize("build", ["reference", "fast"])
def test_prefill_ends_with_the_same_site(build: str) -> None:
    found, config = dispatch.load(build), model("q8_0", tied=True)
    geo = plan.geometry(config, CAPACITY, SMS, SHARED)
    work = program.prefill(config, found, geo, 7, sample=True)
    launches = [item.site for item in work if not isinstance(item, Gemm) and item.layer is None]
    assert "output/q8_0" in launches
    assert not any(site.startswith("token_embd") for site in launches)


@pytest.mark.parametrize("tied", [False, True])
def test_a_census_shows_the_head_with_its_rate_and_the_lookup_without(
    attrib: Attrib, tied: bool, tmp_path: Path
) -> None:
    nodes = manifest(model("q8_0", tied=tied), "reference").graph().nodes
    parts = [
        small_step.Part(Node(Kernel(n.kernel, grid=n.grid, block=n.block), 2000), n.site, n.layer, n.weight_bytes)
        for n in nodes
    ]
    trace, described = small_step.write(tmp_path, parts, gpu=H200)
    rows = {row["site"]: row for row in attrib("census", trace, "--manifest", described, "--json").json()["sites"]}
    (head,) = [node for node in nodes if node.site == "output/q8_0"]
    assert rows["output/q8_0"]["bytes"] == head.weight_bytes
    assert rows["output/q8_0"]["gbps"] == pytest.approx(head.weight_bytes / 2000)
    assert rows["output/q8_0"]["category"] == "weight streaming"
    assert (rows["embed/q8_0"]["bytes"], rows["embed/q8_0"]["gbps"]) == (None, None)
    assert not [site for site in rows if site.startswith("token_embd")]


ORDER = ("attn_q", "attn_v", "attn_k", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def llama_cpp(config: ModelConfig) -> Sequence[Node]:
    """A decode step as llama.cpp launches it: a lookup of the embedding, then its matrices in order."""

    def matrix(tensor: Tensor | None) -> Node:
        assert tensor is not None
        name = f"void mul_mat_vec_q<(ggml_type){BLOCKS[tensor.quant][2]}, (int)1, (bool)0>(const void *)"
        return Node(Kernel("mul_mat_vec_q", name, grid=(tensor.rows, 1, 1)), 2000)

    layers = range(config.model.shape.layers)
    lookup = Node(Kernel("k_get_rows", "void k_get_rows<(int)32>(const void *)"), 1500)
    return [
        lookup,
        *(matrix(config.model.find(role, i)) for i in layers for role in ORDER),
        matrix(config.model.head()),
    ]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("quant", TYPES)
def test_another_engine_s_trace_with_a_model_file(attrib: Attrib, quant: str, tied: bool, tmp_path: Path) -> None:
    config = model(quant, tied=tied)
    write(config, tmp_path / "model.gguf", from_host(config), lambda done: None)
    recorded = Trace("2025.3")
    process = recorded.process()
    process.device(recorded.gpu(H200))
    graph, at = process.graph(llama_cpp(config)), 1_000_000
    for _ in range(3):
        at = process.replay(graph, at) + 20_000
    path = recorded.write(tmp_path / "trace.sqlite")
    census: dict[str, Any] = attrib("census", path, "--model", tmp_path / "model.gguf", "--json").json()
    rows = {row["site"]: row for row in census["sites"]}
    stored = config.model.head().nbytes
    assert (rows[f"output/{quant}"]["launches"], rows[f"output/{quant}"]["bytes"]) == (1, stored)
    assert rows[f"output/{quant}"]["gbps"] == pytest.approx(stored / 2000)
    (lookup,) = [row for site, row in rows.items() if "get_rows" in site]
    assert lookup["bytes"] is None
    assert not [site for site in rows if site.startswith("token_embd")]
