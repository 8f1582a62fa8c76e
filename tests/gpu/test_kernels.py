"""Single kernels on the device: what they promise bit for bit, to each other and to the host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from engine.kernels import Shape
from engine.kernels_matvec import mmvq, quantize_q8
from engine.quant import Q8_DTYPE, dequantize
from engine.quant import quantize_q8 as quantize_on_host
from engine.repack import to_gpu
from engine.synthetic import random_rows
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
