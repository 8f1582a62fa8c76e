"""Arithmetic that allows or vetoes a kernel change before it is written: occupancy, bytes at class, re-read bytes.

Occupancy follows the rules of NVIDIA's occupancy calculator for compute capability 8.0 and newer: a block takes whole
warps; registers are given to a warp in units of 256 within one of the SM's four partitions; a block's shared memory
has 1 KB added that the system keeps, and is rounded up to 128 bytes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from attrib.device import Device, lookup, table
from attrib.errors import RefusedError
from attrib.models import BLOCKS
from attrib.roofline import RateClass, parse_band
from attrib.words import counted

WARP = 32
MAX_BLOCK = 1024
MAX_REGISTERS = 255
PARTITIONS = 4
REGISTER_UNIT = 256
SHARED_UNIT = 128
SHARED_RESERVED = 1024
ACTIVATION_BYTES = {"f32": 4.0, "f16": 2.0, "q8": 1.5}
"""Bytes an activation takes; q8 is a block of 32 values in 48 bytes."""
_SIZES = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True)
class Occupancy:
    """Blocks of one kernel that fit on an SM at a time.

    `limits` gives the blocks each resource would allow: threads, blocks (the cap), registers, shared memory; those
    not asked about are absent. `resident` counts threads that hold a slot, `live` those of them with work.
    """

    device: str
    slots: int
    block: int
    blocks: int
    limits: dict[str, int]
    live: int

    @property
    def resident(self) -> int:
        """Threads that hold a slot."""
        return self.blocks * -(-self.block // WARP) * WARP

    @property
    def limiter(self) -> str:
        """The resource that allows the fewest blocks; several are joined with `and`."""
        return " and ".join(name for name, blocks in self.limits.items() if blocks == self.blocks)

    def describe(self) -> str:
        """One line: `6 × 256 threads on GB10: 1536 of 1536 slots, 960 live, limited by threads`."""
        return (
            f"{self.blocks} × {self.block} threads an SM on {self.device}: {self.resident} of {self.slots} slots, "
            f"{self.live} live, limited by {self.limiter}"
        )


def find_device(name: str) -> Device:
    """A device of the table by its name or the name its driver reports; raises RefusedError naming the known ones."""
    known = [device for _, device in table()]
    found = next((device for device in known if device.name.lower() == name.lower()), None) or lookup(name)
    if found is None:
        raise RefusedError(f"device {name!r} is not in the table; there are {', '.join(d.name for d in known)}")
    return found


def occupancy(device: Device, block: int, registers: int = 0, shared: int = 0, units: int | None = None) -> Occupancy:
    """Blocks of `block` threads that fit on an SM; pure arithmetic.

    `registers` a thread and `shared` bytes a block (static and dynamic) are left out of the limits when 0. `units` is
    the work items of a block: threads beyond them hold a slot and idle. Raises RefusedError for a block that no SM
    can take.
    """
    for what, value, most in (("threads", block, MAX_BLOCK), ("registers", max(1, registers), MAX_REGISTERS)):
        if not 1 <= value <= most:
            raise RefusedError(f"{value} {what} are outside 1 to {most}, which is what a kernel can have")
    warps = -(-block // WARP)
    limits = {"threads": int(device.threads_per_sm) // (warps * WARP), "the block cap": int(device.blocks_per_sm)}
    if registers:
        limits["registers"] = _by_registers(int(device.registers_per_sm), registers, warps)
    if shared:
        limits["shared memory"] = int(device.shared_per_sm) // _ceil_to(shared + SHARED_RESERVED, SHARED_UNIT)
    blocks = min(limits.values())
    if not blocks:
        lacking = ", ".join(name for name, fit in limits.items() if not fit)
        raise RefusedError(f"no block of {block} threads fits on an SM of {device.name}: it lacks {lacking}")
    live = blocks * min(block, block if units is None else units)
    return Occupancy(device.name, int(device.threads_per_sm), block, blocks, limits, live)


def _by_registers(file: int, registers: int, warps: int) -> int:
    of_warp = _ceil_to(registers * WARP, REGISTER_UNIT)
    if of_warp * _ceil_to(warps, PARTITIONS) > file:
        return 0
    return file // PARTITIONS // of_warp * PARTITIONS // warps


def _ceil_to(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@dataclass(frozen=True)
class Streaming:
    """What streaming a matrix once takes. Bytes; seconds, NaN where no rate is known.

    `at_class` at the middle of the class, `fastest` and `slowest` at its ends, `measured` at the rate given.
    """

    nbytes: int
    source: str
    fastest: float
    at_class: float
    slowest: float
    measured: float

    @property
    def recoverable(self) -> float:
        """Seconds a launch would give back at class; NaN without a measured rate."""
        return self.measured - self.at_class


def parse_bytes(text: str) -> int:
    """`4587520`, `4.59MB`, `64MiB` as bytes; raises RefusedError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?i?b?)\s*", text.lower())
    scale = _SIZES.get(match[2]) if match else None
    if match is None or scale is None or not float(match[1]):
        raise RefusedError(f"{text!r} is not a size; write bytes, or a number with KB, MB, GB, KiB, MiB or GiB")
    return round(float(match[1]) * scale)


def matrix_bytes(rows: int, cols: int, quant: str, stride: int | None = None) -> int:
    """Stored bytes of a matrix: rows × blocks a row × bytes a block; `stride` is a padded block's size.

    Raises RefusedError for a type that is not known or a row that is no whole number of blocks.
    """
    block = next((spec for name, spec in BLOCKS.items() if name.lower() == quant.lower()), None)
    if block is None:
        raise RefusedError(f"quant type {quant!r} is not known; there are {', '.join(BLOCKS)}")
    weights, nbytes, _ = block
    if rows < 1 or cols < 1 or cols % weights:
        given = f"{counted(rows, 'row')} of {counted(cols, 'weight')}"
        raise RefusedError(f"{given} cannot be cut into blocks of {weights}, which {quant} has")
    if stride is not None and stride < nbytes:
        raise RefusedError(f"a stride of {counted(stride, 'byte')} is less than a {quant} block of {nbytes}")
    return rows * (cols // weights) * (stride or nbytes)


def streaming(nbytes: int, device: Device | None, rate: str | None = None, measured: float = math.nan) -> Streaming:
    """Time for `nbytes` at the class of a device or at `rate` (`LO:HI` in GB/s); `measured` is a rate in bytes/s.

    Raises RefusedError when neither gives a class.
    """
    if rate is not None:
        chosen = RateClass("given", parse_band(rate))
    elif device is not None and device.rate is not None:
        chosen = RateClass(f"device table, {device.name}", device.rate)
    else:
        where = f"the device table has no class for {device.name}" if device else "no device is named"
        raise RefusedError(f"{where}; give the rate it streams at with --class LO:HI")
    low, high = chosen.band(nbytes)
    at_class = float(chosen.seconds(np.array([float(nbytes)]))[0])
    return Streaming(nbytes, chosen.describe(), nbytes / high, at_class, nbytes / low, nbytes / measured)


@dataclass(frozen=True)
class Reread:
    """Activation bytes a matrix-vector launch reads beside its weights, when every warp reads the whole input."""

    warps: int
    act_bytes: int
    weight_bytes: int

    @property
    def total(self) -> int:
        """Activation bytes over all warps; all but the first read come from L2 or L1."""
        return self.warps * self.act_bytes

    @property
    def ratio(self) -> float:
        """Activation bytes read a weight byte."""
        return self.total / self.weight_bytes


def reread(rows: int, cols: int, quant: str, rows_per_warp: int, act: str = "f32", stride: int | None = None) -> Reread:
    """Re-read bytes of a mapping of rows to warps. Raises RefusedError as `matrix_bytes` does."""
    if act not in ACTIVATION_BYTES:
        raise RefusedError(f"activations {act!r} are not known; there are {', '.join(ACTIVATION_BYTES)}")
    if rows_per_warp < 1:
        raise RefusedError(f"{counted(rows_per_warp, 'row')} a warp is not a mapping; give 1 or more")
    weights = matrix_bytes(rows, cols, quant, stride)
    return Reread(-(-rows // rows_per_warp), round(cols * ACTIVATION_BYTES[act]), weights)
