"""The occupancy arithmetic and the device table against the driver's own answers, for every kernel of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from attrib.device import Device, lookup
from attrib.mechanism import occupancy
from engine import driver, module
from engine.kernels_catalog import catalog

pytestmark = pytest.mark.gpu

BLOCKS = (32, 64, 96, 128, 160, 256, 320, 512, 640, 768, 1024)
DYNAMIC = (0, 8 << 10, 28 << 10, 40 << 10)


@pytest.fixture(scope="module")
def gpu() -> Iterator[driver.Gpu]:
    with driver.open_gpu() as opened:
        yield opened


def limits_of(gpu: driver.Gpu) -> Device:
    """The device as its driver describes it."""
    from cuda.bindings import driver as cu

    names = cu.CUdevice_attribute
    handle = driver.check(cu.cuCtxGetDevice())

    def ask(name: str) -> float:
        return float(driver.check(cu.cuDeviceGetAttribute(getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)))

    return Device(
        name=gpu.name,
        peak=0.0,
        sms=ask("MULTIPROCESSOR_COUNT"),
        threads_per_sm=ask("MAX_THREADS_PER_MULTIPROCESSOR"),
        blocks_per_sm=ask("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        registers_per_sm=ask("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        shared_per_sm=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        rate=None,
        source="driver",
    )


def test_the_table_agrees_with_the_driver(gpu: driver.Gpu) -> None:
    told, known = limits_of(gpu), lookup(gpu.name)
    assert known is not None, f"{gpu.name} is not in the device table"
    for field in ("sms", "threads_per_sm", "blocks_per_sm", "registers_per_sm", "shared_per_sm"):
        assert getattr(known, field) == getattr(told, field), field


def test_blocks_an_sm_are_those_the_driver_counts(gpu: driver.Gpu) -> None:
    from cuda.bindings import driver as cu

    device, compared = limits_of(gpu), 0
    different = []
    with module.load(catalog(), gpu.arch) as kernels:
        for kernel in kernels.values():
            most, static = (_attribute(cu, kernel, name) for name in ("MAX_THREADS_PER_BLOCK", "SHARED_SIZE_BYTES"))
            for block in (block for block in BLOCKS if block <= most):
                for dynamic in (size for size in DYNAMIC if size + static <= module.STATIC_SHARED_LIMIT):
                    asked = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel.handle, block, dynamic)
                    counted = int(driver.check(asked))
                    ours = occupancy(device, block, kernel.registers, static + dynamic).blocks
                    compared += 1
                    if ours != counted:
                        different.append((kernel.name, block, kernel.registers, static + dynamic, ours, counted))
    assert compared > 200
    assert not different, different[:20]


def _attribute(cu: Any, kernel: driver.Kernel, name: str) -> int:
    attribute = getattr(cu.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
    return int(driver.check(cu.cuFuncGetAttribute(attribute, kernel.handle)))
