"""What the matrix-vector kernel of each weight type streams at the shapes of a 14B feed-forward layer, on a GPU.

    python analyses/benchmarks/quant_rates.py --json > quant_rates.json
    python analyses/benchmarks/quant_rates.py --types q4_0 q5_K --threads 128 160 256

Weights are synthetic and rotate over copies of several times the L2 cache; launches run in a graph, as a decode step's
do. Kernels are those of the reference build, or the looping ones with given block sizes. GB/s are the matrix's bytes
on the GPU over the median time of a launch. The byte floor of a matrix is its bytes as stored over the rate that a
kernel reads at which does nothing else (`engine roofline`, or --rate).
"""

import argparse
import ctypes
import json
import statistics
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from attrib.errors import AttribError
from attrib.models import Tensor, matrix_bytes
from engine import dispatch, driver, module, roofline
from engine.config import DEFAULT_SEED, ModelConfig, synthetic
from engine.kernels import KernelSpec, Shape
from engine.kernels_matvec import matvec_float, mmvq
from engine.kernels_weights import synth_fill
from engine.quant import FLOATS, QUANTS, quantize_q8
from engine.repack import gpu_bytes
from engine.synth import fill_tensor

SHAPES = ((13824, 5120), (5120, 13824))  # ffn_gate or ffn_up, and ffn_down
COLD = 8  # a pool of so many L2 caches leaves nothing of a copy there
LEAST_COPIES, LAUNCHES, REPLAYS = 2, 32, 9
SCHEMA = "engine.quant_rates/1"


@dataclass(frozen=True)
class Rate:
    """One matrix: its kernel, its bytes as stored and on the GPU, a launch's median and the floor's share."""

    quant: str
    rows: int
    cols: int
    kernel: str
    threads: int
    stored_bytes: int
    gpu_bytes: int
    median_us: float
    gbps: float
    floor_us: float
    of_floor_pct: float


def kernel_of(quant: str, rows: int, cols: int, threads: int | None) -> KernelSpec:
    """The reference build's kernel of a matrix, or the looping kernel of its type with so many threads a block."""
    if threads is None:
        return dispatch.load("reference").select(quant, rows, cols).spec(quant)
    return matvec_float(quant, threads) if quant in FLOATS else mmvq(quant, threads=threads)


def measure(opened: "Opened", quant: str, rows: int, cols: int, threads: int | None, floor: float) -> Rate:
    """Time one type at one shape; floor: bytes a second of the byte floor."""
    spec, shape = kernel_of(quant, rows, cols, threads), Shape(rows=rows, cols=cols)
    nbytes = gpu_bytes(quant, rows, cols)
    copies = max(LEAST_COPIES, -(-COLD * opened.gpu.l2_bytes // nbytes))
    with ExitStack() as stack:
        base = stack.enter_context(driver.allocation(copies * nbytes, f"{copies} {quant} matrices"))
        for i in range(copies):
            tensor = Tensor(f"{quant}.{i}", "ffn_up", 0, rows, cols, quant)
            fill_tensor(opened.kernels, opened.config, tensor, base + i * nbytes, opened.on)
        x = np.random.default_rng(DEFAULT_SEED).standard_normal((1, cols)).astype(np.float32)
        acts = quantize_q8(x).view(np.uint8) if spec.params[1][0] == "acts" else x.view(np.uint8)
        source = stack.enter_context(driver.allocation(acts.nbytes))
        out = stack.enter_context(driver.allocation(4 * rows))
        driver.upload(source, acts, opened.on)
        launches = max(LAUNCHES, copies)
        seconds = _time(opened, spec, shape, [(base + i % copies * nbytes, source, out) for i in range(launches)])
    stored = matrix_bytes(quant, rows, cols)
    return Rate(
        quant=quant,
        rows=rows,
        cols=cols,
        kernel=spec.name,
        threads=spec.block(shape)[0],
        stored_bytes=stored,
        gpu_bytes=nbytes,
        median_us=seconds * 1e6,
        gbps=nbytes / seconds / 1e9,
        floor_us=stored / floor * 1e6,
        of_floor_pct=100 * stored / floor / seconds,
    )


def _time(opened: "Opened", spec: KernelSpec, shape: Shape, places: list[tuple[int, int, int]]) -> float:
    """Median seconds of a launch in replays of a graph of one launch for each (weights, activations, out)."""
    with ExitStack() as stack:
        kernel = stack.enter_context(module.load([spec], opened.gpu.arch))[module.key(spec)]
        packed = []
        for weights, acts, out in places:
            pointers = [ctypes.c_void_p(p) for p in (weights, acts, 0, 0, out)]
            packed.append(driver.Arguments([*pointers, ctypes.c_int32(shape.rows), ctypes.c_int32(shape.cols)]))

        def enqueue() -> None:
            for arguments in packed:
                driver.launch(kernel, spec.grid(shape), spec.block(shape), arguments, on=opened.on)

        graph = stack.enter_context(driver.capture(opened.on, enqueue))
        first, last = stack.enter_context(driver.event()), stack.enter_context(driver.event())
        times = []
        for _ in range(REPLAYS + 1):
            driver.record(first, opened.on)
            graph.launch(opened.on)
            driver.record(last, opened.on)
            driver.wait(last)
            times.append(driver.elapsed_ns(first, last) / len(packed) / 1e9)
    return statistics.median(times[1:])  # the first replay warms up


@dataclass(frozen=True)
class Opened:
    """A GPU with a stream and the kernels that fill matrices; the model gives the seed alone."""

    gpu: driver.Gpu
    on: Any
    kernels: module.Kernels
    config: ModelConfig


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Every type at every shape; the object that --json prints."""
    floor = options.rate * 1e9 if options.rate else roofline.measure(options.gpu)["rate_gbps"] * 1e9
    with ExitStack() as stack:
        gpu = stack.enter_context(driver.open_gpu(options.gpu))
        on = stack.enter_context(driver.stream())
        kernels = stack.enter_context(module.load([synth_fill(quant) for quant in options.types], gpu.arch))
        opened = Opened(gpu, on, kernels, synthetic("14b"))
        found = [
            measure(opened, quant, rows, cols, threads, floor)
            for quant in options.types
            for rows, cols in SHAPES
            for threads in options.threads
        ]
    return {"schema": SCHEMA, "device": gpu.name, "floor_gbps": floor / 1e9, "rates": [asdict(rate) for rate in found]}


def table(result: dict[str, Any]) -> str:
    """The rates for a reader."""
    lines = [
        f"{result['device']}, byte floor at {result['floor_gbps']:.0f} GB/s",
        f"{'type':8}{'rows × cols':>15}{'threads':>9}{'MB':>8}{'µs':>9}{'GB/s':>8}{'floor µs':>10}{'of floor':>10}",
    ]
    for rate in result["rates"]:
        shape = f"{rate['rows']} × {rate['cols']}"
        lines.append(
            f"{rate['quant']:8}{shape:>15}{rate['threads']:9}{rate['gpu_bytes'] / 1e6:8.1f}{rate['median_us']:9.1f}"
            f"{rate['gbps']:8.0f}{rate['floor_us']:10.1f}{rate['of_floor_pct']:9.1f}%"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", default=list(QUANTS), choices=QUANTS, metavar="TYPE")
    parser.add_argument("--threads", type=int, nargs="+", default=[None], help="threads a block, each timed")
    parser.add_argument("--rate", type=float, help="GB/s of the byte floor; measured where it is left out")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        result = run(options)
    except AttribError as error:
        print(f"quant_rates: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print(json.dumps(result, indent=1) if options.json else table(result))


if __name__ == "__main__":
    main()
