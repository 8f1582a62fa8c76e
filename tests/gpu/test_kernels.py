"""Single kernels on the device: what they promise bit for bit, to each other and to the host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from attrib.models import BLOCKS
from engine import kernels_ops as ops
from engine.kernels import KernelSpec, Shape
from engine.kernels_matvec import matvec_float, mmvq, quantize_q8
from engine.kernels_weights import dequantize_f16, synth_fill
from engine.probe import probe_activations, probe_rows
from engine.quant import FLOATS, Q8_DTYPE, QUANTS, dequantize
from engine.quant import quantize_q8 as quantize_on_host
from engine.repack import gpu_row_bytes, to_gpu
from engine.synthetic import key_halves, random_rows, scale_bits, synth_floats, synth_rows, tensor_key
from tests.gpu.support import Bench, bench
from tests.helpers.reference import nmse

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> Iterator[Bench]:
    with bench() as opened:
        yield opened


@pytest.mark.parametrize("quant", ["q4_K", "q6_K"])
@pytest.mark.parametrize("cols", [256, 8192, 8448, 13824, 16384])
def test_prefetch_is_the_loop_bit_for_bit(device: Bench, quant: str, cols: int) -> None:
    rng = np.random.default_rng(cols)
    rows = 97
    stored = random_rows(quant, rows, cols, rng)
    x = rng.standard_normal((1, cols)).astype(np.float32)
    acts = quantize_on_host(x).view(np.uint8)
    weights = np.ascontiguousarray(to_gpu(quant, stored, cols))
    results = []
    for spec in (mmvq(quant), mmvq(quant, prefetch=True)):
        out = np.full(rows, np.nan, np.float32)
        device.run(spec, Shape(rows=rows, cols=cols), weights, acts, None, None, out, rows, cols)
        results.append(out)
    assert results[0].tobytes() == results[1].tobytes()
    exact = dequantize(quant, stored, cols).astype(np.float64) @ _values(acts)
    assert nmse(results[0], exact) < 1e-10


EVERY = [*((mmvq(quant), quant) for quant in QUANTS if quant not in FLOATS), *((matvec_float(q), q) for q in QUANTS)]


@pytest.mark.parametrize(("spec", "quant"), EVERY, ids=[spec.name for spec, _ in EVERY])
@pytest.mark.parametrize(("rows", "cols"), [(33, 5120), (7, 13824), (64, 256)])
def test_every_type_is_float64_on_the_same_activations(
    device: Bench, spec: KernelSpec, quant: str, rows: int, cols: int
) -> None:
    rng = np.random.default_rng(cols)
    stored, x = random_rows(quant, rows, cols, rng), rng.standard_normal((1, cols)).astype(np.float32)
    weights, out = np.ascontiguousarray(to_gpu(quant, stored, cols)), np.full(rows, np.nan, np.float32)
    quantized = spec.params[1][0] == "acts"
    acts = quantize_on_host(x).view(np.uint8) if quantized else x
    device.run(spec, Shape(rows=rows, cols=cols), weights, acts, None, None, out, rows, cols)
    values = _values(acts) if quantized else x[0].astype(np.float64)
    assert nmse(out, dequantize(quant, stored, cols).astype(np.float64) @ values) < 1e-10


@pytest.mark.parametrize(("spec", "quant"), EVERY, ids=[spec.name for spec, _ in EVERY])
@pytest.mark.parametrize("cols", [576, 5120])
def test_every_type_computes_every_unit_once(device: Bench, spec: KernelSpec, quant: str, cols: int) -> None:
    if cols % BLOCKS[quant][0]:
        cols = 768
    x, rows = probe_activations(1, cols), 17
    weights, out = np.ascontiguousarray(to_gpu(quant, probe_rows(quant, rows, cols), cols)), np.zeros(rows, np.float32)
    acts = quantize_on_host(x).view(np.uint8) if spec.params[1][0] == "acts" else x
    device.run(spec, Shape(rows=rows, cols=cols), weights, acts, None, None, out, rows, cols)
    assert (out == cols // 32).all()


@pytest.mark.parametrize("quant", QUANTS)
def test_rows_of_every_type_become_the_numbers_of_numpy(device: Bench, quant: str) -> None:
    rows, cols = 9, 1280
    stored = random_rows(quant, rows, cols, np.random.default_rng(3))
    weights, want = np.ascontiguousarray(to_gpu(quant, stored, cols)), dequantize(quant, stored, cols)
    tokens, out = np.array([8, 0, 5], np.int32), np.zeros((3, cols), np.float32)
    device.run(ops.embed(quant), Shape(rows=rows, cols=cols, tokens=3), weights, tokens, out, cols)
    np.testing.assert_array_equal(out, want[tokens])
    if quant != "f16":
        halves = np.zeros((rows, cols), np.float16)
        device.run(dequantize_f16(quant), Shape(rows=rows, cols=cols), weights, halves, cols)
        np.testing.assert_array_equal(halves, want.astype(np.float16))


@pytest.mark.parametrize("quant", QUANTS)
def test_the_device_makes_the_synthetic_bytes_of_the_host(device: Bench, quant: str) -> None:
    rows, cols, key = 5, 2816, tensor_key(3, quant)
    out = np.full((rows, gpu_row_bytes(quant, cols)), 0xEE, np.uint8)
    if quant in FLOATS:
        tail: tuple[float, float] = (0.125, 0.5)
        stored = synth_floats(quant, rows, cols, key, offset=tail[0], scale=tail[1])
    else:
        tail = scale_bits(quant, 0.02)
        stored = synth_rows(quant, rows, cols, key, d_bits=int(tail[0]), dmin_bits=int(tail[1]))
    device.run(synth_fill(quant), Shape(rows=rows, cols=cols), out, cols, *key_halves(key), *tail)
    np.testing.assert_array_equal(out, to_gpu(quant, stored, cols))


def _values(acts: np.ndarray) -> np.ndarray:
    blocks = acts.reshape(-1).view(Q8_DTYPE)
    return (blocks["d"].astype(np.float64)[:, None] * blocks["q"]).reshape(-1)


def test_quantize_on_the_device_is_the_host_bit_for_bit(device: Bench) -> None:
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((3, 5120)) * 10.0 ** rng.integers(-6, 6, (3, 1))).astype(np.float32)
    x[1, 64:96] = 0
    out = np.zeros((3, 5120 // 32), Q8_DTYPE).view(np.uint8)
    device.run(quantize_q8(), Shape(cols=5120, tokens=3), x, out, 5120)
    assert out.tobytes() == quantize_on_host(x).tobytes()
