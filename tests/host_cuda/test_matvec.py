"""Matrix × vector kernels on the host build, against float64."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from attrib.mechanism import find_device, occupancy
from attrib.models import BLOCKS
from engine import module, quant
from engine.kernels import KernelSpec, Shape
from engine.kernels_matvec import matvec_float, matvec_padded_f32, mmvq, mmvq_reread, quantize_q8
from engine.probe import probe_activations, probe_rows
from engine.quant_blocks import DEQUANTIZERS
from engine.repack import to_gpu
from engine.synthetic import random_rows
from tests.helpers.reference import nmse
from tests.host_cuda.launcher import aligned, launch, zeros

K_QUANTS = ("q4_K", "q6_K")
BLOCK_QUANTS = tuple(DEQUANTIZERS)
NARROW = tuple(kind for kind in BLOCK_QUANTS if BLOCKS[kind][0] == 32)


def run(spec: KernelSpec, shape: Shape, stored: np.ndarray, kind: str, acts: np.ndarray) -> np.ndarray:
    """out f32 [tokens][rows] of a matrix of stored rows, without bias or residual."""
    out = zeros((shape.tokens, shape.rows))
    weights = aligned(to_gpu(kind, stored, shape.cols))
    launch(spec, shape, weights, aligned(acts), None, None, out, shape.rows, shape.cols)
    return out


@pytest.mark.parametrize(("cols", "tokens"), [(32, 1), (544, 3), (1056, 1)])
def test_quantizer_matches_numpy_bit_for_bit(cols: int, tokens: int) -> None:
    x = np.random.default_rng(cols).standard_normal((tokens, cols)).astype(np.float32)
    x[0, :8] *= np.float32(1e-20)
    if cols > 32:
        x[0, :32] *= np.float32(1e-38)  # subnormal: 127 / max overflows
        x[0, 32:64] = 0
    x[-1, -5] = np.nan
    out = zeros((tokens, cols // 32), quant.Q8_DTYPE)
    launch(quantize_q8(), Shape(cols=cols, tokens=tokens), aligned(x), out, cols)
    want = quant.quantize_q8(x)
    assert np.isnan(out["d"]).sum() == 1
    np.testing.assert_array_equal(out["d"], want["d"])
    for field in ("q", "sum_lo", "sum_hi", "zero"):
        np.testing.assert_array_equal(out[field], want[field])


@pytest.mark.parametrize(
    ("kind", "cols", "threads"),
    [
        *((kind, *size) for kind in BLOCK_QUANTS for size in ((256, 32), (5120, 160), (8448, 256), (16896, 256))),
        *((kind, *size) for kind in NARROW for size in ((32, 32), (576, 32), (8224, 256))),
    ],
)
def test_mmvq_matches_float64_on_the_same_activations(kind: str, cols: int, threads: int) -> None:
    rng = np.random.default_rng(cols)
    stored, rows, tokens = random_rows(kind, 3, cols, rng), 3, 2
    acts = quant.quantize_q8(rng.standard_normal((tokens, cols)).astype(np.float32))
    got = run(mmvq(kind, threads=threads), Shape(rows=rows, cols=cols, tokens=tokens), stored, kind, acts)
    weights = quant.dequantize(kind, stored, cols).astype(np.float64)
    want = quant.dequantize_q8(acts).astype(np.float64) @ weights.T
    assert nmse(got, want) < 1e-12


@pytest.mark.parametrize("kind", K_QUANTS)
@pytest.mark.parametrize(("cols", "threads"), [(256, 256), (8192, 256), (13824, 256), (16384, 256), (5120, 160)])
def test_prefetching_two_units_changes_no_bit(kind: str, cols: int, threads: int) -> None:
    rng = np.random.default_rng(cols)
    stored, shape = random_rows(kind, 2, cols, rng), Shape(rows=2, cols=cols)
    acts = quant.quantize_q8(rng.standard_normal((1, cols)).astype(np.float32))
    plain = run(mmvq(kind, threads=threads), shape, stored, kind, acts)
    ahead = run(mmvq(kind, prefetch=True, threads=threads), shape, stored, kind, acts)
    np.testing.assert_array_equal(plain.view(np.uint32), ahead.view(np.uint32))


@pytest.mark.parametrize("kind", K_QUANTS)
def test_narrow_blocks_change_no_bit_where_each_thread_has_one_unit(kind: str) -> None:
    rng = np.random.default_rng(5)
    stored, shape = random_rows(kind, 2, 5120, rng), Shape(rows=2, cols=5120)
    acts = quant.quantize_q8(rng.standard_normal((1, 5120)).astype(np.float32))
    wide, narrow = (run(mmvq(kind, threads=n), shape, stored, kind, acts) for n in (256, 160))
    np.testing.assert_array_equal(wide.view(np.uint32), narrow.view(np.uint32))


@pytest.mark.parametrize("kind", K_QUANTS)
@pytest.mark.parametrize(("cols", "every"), [(5120, 1), (13824, 2), (768, 100)])
def test_reading_rows_twice_changes_no_bit(kind: str, cols: int, every: int) -> None:
    rng = np.random.default_rng(cols)
    stored, shape = random_rows(kind, 3, cols, rng), Shape(rows=3, cols=cols, tokens=2)
    acts = quant.quantize_q8(rng.standard_normal((2, cols)).astype(np.float32))
    acts["d"][1, 0], acts["d"][1, 1], acts["d"][1, 2] = np.inf, 3e38, -np.inf  # sums that end in inf and NaN
    once, twice = (run(spec, shape, stored, kind, acts) for spec in (mmvq(kind), mmvq_reread(kind, every)))
    assert not np.isfinite(once[1]).any()
    np.testing.assert_array_equal(once.view(np.uint32), twice.view(np.uint32))


def test_rows_read_twice_are_stored_once() -> None:
    spec, shape = mmvq_reread("q4_K", 100), Shape(rows=250, cols=256)
    grid, block = spec.grid(shape), spec.block(shape)
    assert grid == (253, 1, 1)  # an extra block before rows 0, 100 and 200
    assert spec.coverage(shape, grid, block).exact
    assert spec.coverage(shape, (201, 1, 1), block).gaps() == "row: 51 of 250 never computed (199..249)"
    assert spec.coverage(shape, (203, 1, 1), block).gaps() == "row: 50 of 250 never computed (200..249)"
    assert spec.traffic(shape) == mmvq("q4_K").traffic(shape)


@pytest.mark.parametrize("kind", K_QUANTS)
def test_reading_rows_twice_costs_no_block_an_sm(kind: str, tmp_path: Path) -> None:
    """On an H200; otherwise the planted loss would be one of occupancy."""
    held = []
    for spec in (mmvq(kind), mmvq_reread(kind)):
        log = module.build(spec.source, "sm_90", module.flags_of(spec, ()), folder=tmp_path).log
        used = re.search(rf"function '{spec.name}'.*?Used (\d+) registers", log, re.DOTALL)
        assert used is not None
        held.append(occupancy(find_device("H200"), 256, int(used[1])).blocks)
    assert held[0] == held[1] == {"q4_K": 8, "q6_K": 6}[kind]


@pytest.mark.parametrize("kind", K_QUANTS)
def test_unbounded_prefetch_drops_80_of_592_units(kind: str) -> None:
    cols = 18944
    acts = quant.quantize_q8(probe_activations(1, cols))
    stored, shape = probe_rows(kind, 2, cols), Shape(rows=2, cols=cols)
    spec = mmvq(kind, prefetch=True)
    assert run(mmvq(kind), shape, stored, kind, acts).tolist() == [[592, 592]]
    assert run(spec, shape, stored, kind, acts).tolist() == [[512, 512]]
    coverage = spec.coverage(shape, spec.grid(shape), spec.block(shape))
    assert coverage.once == 2 * 512
    assert coverage.gaps() == "unit: 80 of 592 never computed (512..591)"


def every_matvec() -> list[tuple[KernelSpec, str]]:
    """Each kernel that multiplies a matrix, with its weight type."""
    return [
        *((mmvq(kind), kind) for kind in BLOCK_QUANTS),
        *((mmvq(kind, threads=160), kind) for kind in K_QUANTS),
        *((mmvq(kind, prefetch=True), kind) for kind in K_QUANTS),
        *((mmvq_reread(kind, every), kind) for kind in K_QUANTS for every in (2, 100)),
        *((matvec_padded_f32(kind, nr0, nsg), kind) for kind in K_QUANTS for nr0, nsg in ((2, 2), (2, 1), (1, 2))),
        *((matvec_float(kind), kind) for kind in quant.QUANTS),
    ]


@pytest.mark.parametrize(("spec", "kind"), every_matvec())
@pytest.mark.parametrize("cols", [256, 2560, 5120])
def test_every_kernel_computes_the_units_its_coverage_claims(spec: KernelSpec, kind: str, cols: int) -> None:
    shape = Shape(rows=7, cols=cols, tokens=2)
    x = probe_activations(2, cols)
    acts = quant.quantize_q8(x) if spec.params[1][0] == "acts" else x
    got = run(spec, shape, probe_rows(kind, 7, cols), kind, acts)
    coverage = spec.coverage(shape, spec.grid(shape), spec.block(shape))
    assert coverage.exact
    assert got.sum() == coverage.once == 2 * 7 * cols // 32
    assert (got == cols // 32).all()


@pytest.mark.parametrize("kind", K_QUANTS)
@pytest.mark.parametrize(("rows", "cols", "nr0", "nsg"), [(5, 256, 2, 2), (9, 1280, 2, 1), (6, 768, 1, 2)])
def test_padded_f32_matches_float64(kind: str, rows: int, cols: int, nr0: int, nsg: int) -> None:
    rng = np.random.default_rng(rows)
    stored, x = random_rows(kind, rows, cols, rng), rng.standard_normal((2, cols)).astype(np.float32)
    shape = Shape(rows=rows, cols=cols, tokens=2)
    got = run(matvec_padded_f32(kind, nr0, nsg), shape, stored, kind, x)
    want = x.astype(np.float64) @ quant.dequantize(kind, stored, cols).astype(np.float64).T
    assert nmse(got, want) < 1e-12


def test_warps_a_block_change_no_bit() -> None:
    rng = np.random.default_rng(2)
    stored, x = random_rows("q6_K", 10, 1280, rng), rng.standard_normal((1, 1280)).astype(np.float32)
    shape = Shape(rows=10, cols=1280)
    two, one = (run(matvec_padded_f32("q6_K", 2, nsg), shape, stored, "q6_K", x) for nsg in (2, 1))
    np.testing.assert_array_equal(two.view(np.uint32), one.view(np.uint32))


@pytest.mark.parametrize(
    ("kind", "cols"),
    [
        *((kind, cols) for kind in quant.QUANTS if BLOCKS[kind][0] <= 32 for cols in (32, 96, 576, 8224)),
        *((kind, cols) for kind in quant.QUANTS if BLOCKS[kind][0] == 256 for cols in (256, 768, 8448)),
    ],
)
def test_any_weights_with_float_activations_match_float64(kind: str, cols: int) -> None:
    rng = np.random.default_rng(cols)
    stored, x = random_rows(kind, 3, cols, rng), rng.standard_normal((2, cols)).astype(np.float32)
    got = run(matvec_float(kind), Shape(rows=3, cols=cols, tokens=2), stored, kind, x)
    want = x.astype(np.float64) @ quant.dequantize(kind, stored, cols).astype(np.float64).T
    assert nmse(got, want) < 1e-12


@pytest.mark.parametrize(("spec", "kind"), every_matvec())
def test_bias_and_residual_are_added_once_and_in_place(spec: KernelSpec, kind: str) -> None:
    rng = np.random.default_rng(4)
    shape = Shape(rows=5, cols=256, tokens=2)
    stored, x = random_rows(kind, 5, 256, rng), rng.standard_normal((2, 256)).astype(np.float32)
    acts = quant.quantize_q8(x) if spec.params[1][0] == "acts" else x
    bias, residual = (rng.standard_normal(size).astype(np.float32) for size in ((5,), (2, 5)))
    plain = run(spec, shape, stored, kind, acts)
    out = aligned(residual)
    weights = aligned(to_gpu(kind, stored, 256))
    launch(spec, shape, weights, aligned(acts), aligned(bias), out, out, 5, 256)
    np.testing.assert_array_equal(out, plain + bias + residual)
