"""What a launch of a kernel needs and moves: parameters, grid, bytes, the work it covers. Pure arithmetic.

A kernel's work is a box of units: one axis per thing its launch divides (rows, tokens, 32-weight units, …). A
grid and a block reach each index of an axis some number of times; the launch is right when that number is 1
everywhere. `Coverage` keeps the axes apart, so a proof for 152,064 rows × 160 units is 152,224 numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attrib.manifest import Dim3
from engine.errors import EngineError

Kind = Literal["ptr", "i32", "f32"]
Counts = NDArray[np.int64]


class KernelError(EngineError):
    """A kernel was asked for a shape it cannot compute."""


@dataclass(frozen=True)
class Shape:
    """The sizes a launch depends on; a kernel reads the fields it needs.

    rows, cols: outputs and inputs of a matrix, or cols alone for a vector. tokens: rows of activations.
    heads, kv_heads, head_dim: attention. capacity: positions a KV cache holds. kv_len: positions attended to
    (bytes only; the grid never depends on it, so that a captured graph serves every position). splits: pieces
    the KV range is cut into. parts: partial results of a two-stage reduction.
    """

    rows: int = 1
    cols: int = 1
    tokens: int = 1
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 1
    capacity: int = 0
    kv_len: int = 1
    splits: int = 1
    parts: int = 1


@dataclass(frozen=True)
class Coverage:
    """How often a launch computes each unit: the count of unit (i, j, …) is the product over its axes."""

    axes: tuple[tuple[str, Counts], ...]

    @property
    def units(self) -> int:
        """Units the shape asks for."""
        return math.prod(len(counts) for _, counts in self.axes)

    @property
    def covered(self) -> int:
        """Units computed at least once."""
        return math.prod(int((counts > 0).sum()) for _, counts in self.axes)

    @property
    def once(self) -> int:
        """Units computed exactly once."""
        return math.prod(int((counts == 1).sum()) for _, counts in self.axes)

    @property
    def exact(self) -> bool:
        """Whether every unit is computed exactly once."""
        return self.once == self.units

    def gaps(self) -> str:
        """What is wrong, per axis, as `unit: 80 of 592 never computed (512..591)`; empty when exact."""
        faults = []
        for name, counts in self.axes:
            for found, what in ((counts == 0, "never computed"), (counts > 1, "computed more than once")):
                where = np.flatnonzero(found)
                if where.size:
                    faults.append(f"{name}: {where.size} of {len(counts)} {what} ({where[0]}..{where[-1]})")
        return "; ".join(faults)


@dataclass(frozen=True)
class Traffic:
    """Bytes a launch must move, each counted once: weights as stored on the GPU, KV cache, activations."""

    weight_bytes: int = 0
    kv_bytes: int = 0
    act_bytes: int = 0


@dataclass(frozen=True)
class KernelSpec:
    """One compiled kernel.

    name: the `extern "C"` symbol. source: the file in cuda_src. params: ordered (name, kind); a `ptr` may be
    0 where the kernel's comment says optional. defines: build parameters, passed as -DNAME=VALUE. check
    raises KernelError for a shape the kernel cannot compute at all; `coverage(shape, grid, block)` answers
    for any grid. cooperative: its blocks wait for each other, so all must be resident. early: it may start while
    the launch before it still runs, and waits for it itself. capability: the least compute capability it runs on.
    """

    name: str
    source: str
    params: tuple[tuple[str, Kind], ...]
    block: Callable[[Shape], Dim3]
    grid: Callable[[Shape], Dim3]
    coverage: Callable[[Shape, Dim3, Dim3], Coverage]
    traffic: Callable[[Shape], Traffic]
    check: Callable[[Shape], None]
    defines: tuple[tuple[str, int], ...] = ()
    shared_bytes: int = 0
    cooperative: bool = False
    early: bool = False
    capability: tuple[int, int] = (0, 0)

    def units(self, shape: Shape) -> int:
        """Units of work in the shape."""
        return self.coverage(shape, self.grid(shape), self.block(shape)).units

    def units_covered(self, shape: Shape, grid: Dim3, block: Dim3) -> int:
        """Units the launch computes exactly once."""
        return self.coverage(shape, grid, block).once


def ceil_div(a: int, b: int) -> int:
    """The least integer n with n × b >= a."""
    return -(-a // b)


def one_each(size: int, launched: int) -> Counts:
    """Counts of an axis whose index is a block (or thread) index with a bounds check: 1 below `launched`."""
    return (np.arange(size) < launched).astype(np.int64)


def strided(size: int, step: int) -> Counts:
    """Counts of `for (u = tid; u < size; u += step)` over `step` threads: every index once."""
    return np.ones(size, np.int64) if step > 0 else np.zeros(size, np.int64)


def fixed_passes(size: int, step: int, passes: int) -> Counts:
    """Counts of `passes` units a thread, tid + k × step, without a loop: the rest is never computed."""
    return one_each(size, passes * step)


def require(condition: bool, kernel: str, what: str) -> None:
    """Raise KernelError naming the kernel and the rule it needs."""
    if not condition:
        raise KernelError(f"{kernel} needs {what}; choose another kernel for this shape in the dispatch table")
