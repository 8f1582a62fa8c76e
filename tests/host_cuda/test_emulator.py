"""The host build itself: lockstep, and the mistakes a GPU would hang or fault on."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.kernels_catalog import catalog
from tests.host_cuda.launcher import HostLaunchError, library, run, signature

KERNELS = """
#include "reduce.cuh"
extern "C" __global__ void neighbours(int* out) {
    __shared__ int seen[64];
    const int lane = threadIdx.x, warps_apart = lane ^ 32;
    seen[lane] = shuffle_xor(lane, 1) * 1000 + shuffle_xor(lane, 2);
    __syncthreads();
    out[blockIdx.x * 64 + lane] = seen[warps_apart] + warp_sum<4>(1);
}
extern "C" __global__ void missing_lane(int* out) {
    if (threadIdx.x == 7) return;
    out[threadIdx.x] = shuffle_xor((int)threadIdx.x, 1);
}
extern "C" __global__ void split_barrier(int* out) {
    if (threadIdx.x < 32) __syncthreads();
    else out[threadIdx.x] = shuffle_xor(threadIdx.x < 40 ? 1 : (__syncthreads(), 2), 1);
}
extern "C" __global__ void misaligned(const u8* in, int* out) { out[0] = load16(in + 4).x; }
extern "C" __global__ void widened(const u16* in, float* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = half_to_float(in[i]);
}
extern "C" __global__ void narrowed(const float* in, u16* out) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = float_to_half(in[i]);
}
"""
MISALIGNED_CALL = """
import ctypes, sys
one, warp = (ctypes.c_uint * 3)(1, 1, 1), (ctypes.c_uint * 3)(32, 1, 1)
data = (ctypes.c_char * 64)()
at = ctypes.c_void_p(ctypes.addressof(data) // 16 * 16 + 16)
args = (ctypes.c_void_p * 2)(*[ctypes.addressof(at)] * 2)
ctypes.CDLL(sys.argv[1]).host_launch_misaligned(one, warp, args)
"""
NAMES = ("neighbours", "missing_lane", "split_barrier", "misaligned", "widened", "narrowed")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = tmp_path_factory.mktemp("emulator") / "own.cu"
    source.write_text(KERNELS)
    return library(str(source), NAMES, ())


def call(built: ctypes.CDLL, name: str, threads: int, *arrays: np.ndarray, grid: int = 1) -> None:
    values = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    run(built, name, (grid, 1, 1), (threads, 1, 1), pointers)


def test_shuffles_and_barriers_run_in_lockstep(kernels: ctypes.CDLL) -> None:
    out = np.zeros(3 * 64, np.int32)
    call(kernels, "neighbours", 64, out, grid=3)
    lane = np.arange(64) ^ 32
    np.testing.assert_array_equal(out, np.tile((lane ^ 1) * 1000 + (lane ^ 2) + 4, 3))


@pytest.mark.parametrize(("name", "threads"), [("missing_lane", 32), ("split_barrier", 64)])
def test_a_barrier_that_cannot_be_met_is_an_error(kernels: ctypes.CDLL, name: str, threads: int) -> None:
    with pytest.raises(HostLaunchError, match="not all of its threads reach"):
        call(kernels, name, threads, np.zeros(64, np.int32))
    test_shuffles_and_barriers_run_in_lockstep(kernels)  # the next launch starts clean


@pytest.mark.parametrize("threads", [33, 2048])
def test_blocks_a_gpu_would_refuse(kernels: ctypes.CDLL, threads: int) -> None:
    with pytest.raises(HostLaunchError, match="more than 1024 threads or part of a warp"):
        call(kernels, "neighbours", threads, np.zeros(4096, np.int32))


def test_a_misaligned_wide_load_ends_the_process(kernels: ctypes.CDLL) -> None:
    command = [sys.executable, "-c", MISALIGNED_CALL, kernels._name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "misaligned 16-byte load" in done.stderr


@pytest.mark.parametrize("spec", catalog(), ids=lambda spec: spec.name)
def test_declared_parameters_are_the_compiled_ones(spec) -> None:
    letters = {"ptr": "p", "i32": "i", "f32": "f"}
    assert signature(spec) == "".join(letters[kind] for _, kind in spec.params)


@pytest.mark.parametrize("spec", catalog(), ids=lambda spec: spec.name)
def test_declared_parameter_names_follow_the_source(spec) -> None:
    text = (Path(__file__).parents[2] / "cuda_src" / spec.source).read_text()
    named = f" {spec.name}("
    if named not in text:  # made by a macro: the names stand in its body
        named = " name("
    start = text.index(named) + len(named)
    declared = text[start : text.index(")", start)].split(",")
    assert [entry.split()[-1].lstrip("*") for entry in declared] == [name for name, _ in spec.params]


def test_conversions_round_to_nearest_even_over_the_whole_range(kernels: ctypes.CDLL) -> None:
    every = np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16)
    wide = np.zeros(65536, np.float32)
    call(kernels, "widened", 32, every, wide, grid=2048)
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    large, small = (65504.0, 65519.0, 65520.0, 1e9, 2049.0, 2051.0, 1.0), (2.0**-24, 2.0**-25, 2.0**-25 * 1.01, 6.1e-5)
    edges = [sign * v for v in (*large, *small, 0.0, np.inf) for sign in (1, -1)]
    values, narrow = np.resize(np.array(edges, np.float32), 32), np.zeros(32, np.float16)
    call(kernels, "narrowed", 32, values, narrow)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(narrow.view(np.uint16), values.astype(np.float16).view(np.uint16))
