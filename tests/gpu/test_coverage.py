"""The coverage probe on the device: a unit of 32 weights adds exactly 1, so outputs count computed units."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from attrib.models import LAYER_ROLES, shapes
from engine import dispatch
from engine.kernels import KernelSpec, Shape
from engine.kernels_matvec import matvec_float, matvec_padded_f32, mmvq
from engine.probe import probe_activations, probe_rows
from engine.quant import quantize_q8
from engine.repack import to_gpu
from tests.gpu.support import Bench, bench

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> Iterator[Bench]:
    with bench() as opened:
        yield opened


def count(device: Bench, spec: KernelSpec, quant: str, rows: int, x: np.ndarray) -> np.ndarray:
    """out [tokens][rows] of the probe matrix times x f32 [tokens][cols], poisoned before the launch."""
    tokens, cols = x.shape
    weights = np.ascontiguousarray(to_gpu(quant, probe_rows(quant, rows, cols), cols))
    out = np.full((tokens, rows), np.nan, np.float32)
    acts = quantize_q8(x) if spec.name.startswith("mmvq") else x
    acts = np.ascontiguousarray(acts).view(np.uint8)
    shape = Shape(rows=rows, cols=cols, tokens=tokens)
    device.run(spec, shape, weights, acts, None, None, out, rows, cols)
    return out


SPECS = [
    *((mmvq(quant), quant) for quant in ("q4_K", "q6_K", "q8_0")),
    *((matvec_padded_f32(quant), quant) for quant in ("q4_K", "q6_K")),
    *((matvec_float(quant), quant) for quant in ("f16", "f32")),
]


@pytest.mark.parametrize(("spec", "quant"), SPECS, ids=[spec.name for spec, _ in SPECS])
@pytest.mark.parametrize(("rows", "cols"), [(1, 256), (7, 5120), (130, 18944), (1024, 13824)])
def test_every_unit_counts_once(device: Bench, spec: KernelSpec, quant: str, rows: int, cols: int) -> None:
    out = count(device, spec, quant, rows, probe_activations(2, cols))
    assert (out == cols // 32).all()


@pytest.mark.parametrize("quant", ["q4_K", "q6_K"])
def test_prefetch_covers_what_its_gate_admits(device: Bench, quant: str) -> None:
    for cols in (8448, 13824, 16384):
        out = count(device, mmvq(quant, prefetch=True), quant, 33, probe_activations(1, cols))
        assert (out == cols // 32).all(), cols


@pytest.mark.parametrize("quant", ["q4_K", "q6_K"])
def test_an_unbounded_gate_drops_eighty_units_of_7b_ffn_down(device: Bench, quant: str) -> None:
    cols = shapes()["qwen2.5-7b"].matrix("ffn_down")[1]
    units = cols // 32
    # token u carries unit u alone, so out[u] is 1 exactly where the compiled kernel computes unit u
    alone = np.where(np.eye(units, dtype=bool)[:, :, None], probe_activations(1, cols).reshape(units, 32), 0)
    out = count(device, mmvq(quant, prefetch=True), quant, 1, alone.reshape(units, cols).astype(np.float32))
    missing = np.flatnonzero(out[:, 0] == 0)
    assert units == 592
    assert missing.tolist() == list(range(512, 592))
    assert (out[:512, 0] == 1).all()


@pytest.mark.parametrize("model", ["qwen2.5-7b", "qwen2.5-14b"])
def test_the_reference_table_computes_every_unit_on_the_device(device: Bench, model: str) -> None:
    build, shape = dispatch.load("reference"), shapes()[model]
    for role in LAYER_ROLES:
        rows, cols = shape.matrix(role)
        for quant in ("q4_K", "q6_K"):
            spec = build.select(quant, rows, cols).spec(quant)
            out = count(device, spec, quant, rows, probe_activations(1, cols))
            assert (out == cols // 32).all(), (role, quant)
