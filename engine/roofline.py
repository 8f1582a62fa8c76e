"""What a device streams: a read-only kernel over 1 MB to 1 GB in graph replays, and the line through it.

Launches rotate over a pool several times the L2 cache, so no launch finds its bytes there. The fit is
t(bytes) = t0 + bytes / rate: t0 is what a launch costs in a run of dependent launches.
"""

from __future__ import annotations

import ctypes
import statistics
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from engine import driver, module
from engine.kernels import Coverage, KernelSpec, Shape, Traffic, strided

SCHEMA = "engine.roofline/1"
SIZES = tuple(1 << power for power in range(20, 31))
THREADS, BLOCKS_PER_SM = 256, 8
WORD = 16
POOL_BYTES = 4 << 30
L2_MULTIPLE = 8
MOST_LAUNCHES, LEAST_LAUNCHES = 512, 8
REPLAYS = 7


@dataclass(frozen=True)
class Point:
    """Median time of one launch that reads `nbytes`, in nanoseconds."""

    nbytes: int
    ns: float

    @property
    def gbps(self) -> float:
        """Bytes over time, 1e9 a second."""
        return self.nbytes / self.ns


def read_kernel() -> KernelSpec:
    """cols: 16-byte words to read; the grid is rows blocks."""

    def coverage(shape: Shape, grid: tuple[int, int, int], block: tuple[int, int, int]) -> Coverage:
        return Coverage((("word", strided(shape.cols, grid[0] * block[0])),))

    return KernelSpec(
        name="read_bw",
        source="read_bw.cu",
        params=(("data", "ptr"), ("sink", "ptr"), ("n", "i32")),
        block=lambda shape: (THREADS, 1, 1),
        grid=lambda shape: (shape.rows, 1, 1),
        coverage=coverage,
        traffic=lambda shape: Traffic(act_bytes=WORD * shape.cols),
        check=lambda shape: None,
    )


def fit(points: list[Point]) -> tuple[float, float]:
    """(t0 in ns, rate in bytes/s) of the line that is nearest to the points in relative error."""
    sizes, times = np.array([p.nbytes for p in points], float), np.array([p.ns for p in points])
    design = np.stack([1 / times, sizes / times], axis=1)
    (t0, per_byte), *_ = np.linalg.lstsq(design, np.ones(len(points)), rcond=None)
    return float(t0), float(1e9 / per_byte)


def measure(ordinal: int = 0) -> dict[str, Any]:
    """Time every size and fit; the object `engine roofline --json` prints.

    Raises DeviceMemoryError when the pool does not fit.
    """
    with ExitStack() as stack:
        gpu = stack.enter_context(driver.open_gpu(ordinal))
        free, _ = driver.memory_info()
        pool = min(POOL_BYTES, free // 2 // max(SIZES) * max(SIZES))
        driver.require_memory(max(SIZES), "the roofline's pool")
        on = stack.enter_context(driver.stream())
        base = stack.enter_context(driver.allocation(pool + WORD, "the roofline's pool"))
        driver.fill(base, 0x5A, pool + WORD, on)
        spec = read_kernel()
        kernel = stack.enter_context(module.load([spec], gpu.arch))[module.key(spec)]
        points = [_time(kernel, gpu, (base, pool), size, on) for size in SIZES]
    t0, rate = fit(points)
    return {
        "schema": SCHEMA,
        "device": gpu.name,
        "compute_capability": ".".join(str(n) for n in gpu.compute_capability),
        "sms": gpu.sms,
        "l2_bytes": gpu.l2_bytes,
        "peak_gbps": gpu.peak_bytes_per_s / 1e9,
        "t0_ns": t0,
        "rate_gbps": rate / 1e9,
        "points": [{**asdict(p), "gbps": p.gbps} for p in points],
    }


def _time(kernel: driver.Kernel, gpu: driver.Gpu, memory: tuple[int, int], size: int, on: Any) -> Point:
    base, pool = memory
    wanted = max(LEAST_LAUNCHES, -(-L2_MULTIPLE * gpu.l2_bytes // size))
    launches = min(MOST_LAUNCHES, wanted)
    shape = Shape(cols=size // WORD, rows=min(gpu.sms * BLOCKS_PER_SM, -(-size // (WORD * THREADS))))
    spec = read_kernel()
    sink = base + pool
    packed = [
        driver.Arguments([ctypes.c_void_p(base + i * size % pool), ctypes.c_void_p(sink), ctypes.c_int32(shape.cols)])
        for i in range(launches)
    ]

    def enqueue() -> None:
        for arguments in packed:
            driver.launch(kernel, spec.grid(shape), spec.block(shape), arguments, on=on)

    with driver.capture(on, enqueue) as graph, driver.event() as first, driver.event() as last:
        times = []
        for _ in range(REPLAYS + 1):
            driver.record(first, on)
            graph.launch(on)
            driver.record(last, on)
            driver.wait(last)
            times.append(driver.elapsed_ns(first, last) / launches)
    return Point(size, statistics.median(times[1:]))
