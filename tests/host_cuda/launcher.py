"""Builds the kernels with g++ and runs them on NumPy arrays: the same .cu files, no GPU.

A library holds one source with one set of build parameters, cached by content in a directory under the
system's temporary directory, so that a second test run compiles nothing.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from attrib.manifest import Dim3
from engine.kernels import KernelSpec, Shape

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "cuda_src"
# No contraction: the kernels name every fused operation, so both builds round alike. Bsymbolic: libc exports
# a function named `advance`, and a kernel must not be replaced by it.
FLAGS = "-O2 -std=c++17 -fPIC -shared -Wl,-Bsymbolic -ffp-contract=off -fno-strict-aliasing -mfma"
WARNINGS = "-U_FORTIFY_SOURCE -Wall -Werror -Wno-unknown-pragmas -Wno-unused-function -Wno-sign-compare"
STATUS = {
    1: "a barrier that not all of its threads reach",
    2: "a block of more than 1024 threads or part of a warp",
}


class HostLaunchError(AssertionError):
    """The emulated launch did something a GPU would hang or fault on."""


def flags() -> tuple[str, ...]:
    """Compiler flags for this machine; FMA instructions only where the processor is x86 and has them."""
    info = Path("/proc/cpuinfo")
    has_fma = info.exists() and " fma " in info.read_text(encoding="utf-8")
    return tuple(f for f in (FLAGS + " " + WARNINGS).split() if f != "-mfma" or has_fma)


@functools.cache
def library(source: str, symbols: tuple[str, ...], defines: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    """The shared library of a source file (in cuda_src, or a whole path), built unless it is cached."""
    stub = f'#include "{SOURCES / source}"\n' + "".join(f"HOST_KERNEL({name})\n" for name in symbols)
    options = (*flags(), *(f"-D{name}={value}" for name, value in defines))
    inputs = [*sorted(SOURCES.glob("*.cuh")), SOURCES / source, *sorted(HERE.glob("*.h"))]
    digest = hashlib.sha256("\0".join((stub, *options)).encode())
    for path in inputs:
        digest.update(path.read_bytes())
    cache = Path(tempfile.gettempdir()) / f"host-cuda-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    built = cache / f"{Path(source).stem}-{digest.hexdigest()[:16]}.so"
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=cache) as work:
            text, made = Path(work) / "stub.cpp", Path(work) / "made.so"
            text.write_text(stub, encoding="utf-8")
            command = ["g++", *options, f"-I{HERE}", f"-I{SOURCES}", str(text), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            made.replace(built)
    return ctypes.CDLL(str(built))


@functools.cache
def symbols_of(source: str) -> tuple[str, ...]:
    """Names of the kernels in a source file, as the catalog lists them."""
    from engine.kernels_catalog import catalog

    return tuple(spec.name for spec in catalog() if spec.source == source)


def _load(spec: KernelSpec) -> ctypes.CDLL:
    return library(spec.source, symbols_of(spec.source), spec.defines)


def signature(spec: KernelSpec) -> str:
    """Kinds of the compiled kernel's parameters: p, i or f each."""
    function = _load(spec)[f"host_signature_{spec.name}"]
    function.restype = ctypes.c_char_p
    return function().decode()


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy of the array whose data starts on a 256-byte boundary, as device allocations do."""
    raw = np.zeros(array.nbytes + 256, np.uint8)
    offset = -raw.ctypes.data % 256
    out = raw[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def zeros(shape: int | tuple[int, ...], dtype: object = np.float32) -> np.ndarray:
    """An aligned array of zeros."""
    return aligned(np.zeros(shape, dtype))


def launch(spec: KernelSpec, shape: Shape, *args: object, grid: Dim3 | None = None) -> None:
    """Run a kernel on its own grid or another: arrays (None: null) for pointers, numbers for the rest."""
    assert len(args) == len(spec.params), f"{spec.name} takes {len(spec.params)} arguments"
    spec.check(shape)
    values: list[ctypes._SimpleCData] = []
    for (name, kind), arg in zip(spec.params, args, strict=True):
        if kind == "ptr":
            assert arg is None or (isinstance(arg, np.ndarray) and arg.flags.c_contiguous), f"{spec.name}: {name}"
            values.append(ctypes.c_void_p(0 if arg is None else arg.ctypes.data))
        else:
            values.append(ctypes.c_int(arg) if kind == "i32" else ctypes.c_float(arg))
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    run(_load(spec), spec.name, grid or spec.grid(shape), spec.block(shape), pointers)


def run(built: ctypes.CDLL, name: str, grid: Dim3, block: Dim3, pointers: ctypes.Array[ctypes.c_void_p]) -> None:
    """Run a kernel of a library; raises HostLaunchError where a GPU would hang or refuse."""
    triple = ctypes.c_uint * 3
    status = built[f"host_launch_{name}"](triple(*grid), triple(*block), pointers)
    if status:
        raise HostLaunchError(f"{name}: {STATUS[status]}")
