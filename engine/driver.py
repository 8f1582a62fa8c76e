"""The CUDA driver API: with `nvrtc`, the only modules that import `cuda.bindings`.

Works with cuda-python 12.6 and newer, 13.x included: the calls used here have one signature in all of them
(the primary context is retained, because `cuCtxCreate` gained an argument in 13; graph edges are never read).
Every resource is a context manager that frees what it made, in reverse order, whatever happened inside.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import CudaError, DeviceMemoryError

Dim3 = tuple[int, int, int]
_OUT_OF_MEMORY = 2
_NO_DEVICE = 100
_HOST_ALLOC_PORTABLE = 1


@dataclass(frozen=True)
class Gpu:
    """One opened device: `peak_bytes_per_s` is 2 × memory clock × bus width, as the driver reports them.

    shared_bytes: the most shared memory a block may have.
    """

    ordinal: int
    name: str
    sms: int
    threads_per_sm: int
    peak_bytes_per_s: float
    l2_bytes: int
    shared_bytes: int
    compute_capability: tuple[int, int]

    @property
    def arch(self) -> str:
        """The NVRTC architecture for native code, for example `sm_90`."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}"


@dataclass(frozen=True)
class Kernel:
    """A loaded device function; `registers` and `spill_bytes` are per thread."""

    name: str
    handle: Any
    registers: int
    spill_bytes: int


@cache
def _driver() -> ModuleType:
    try:
        driver = import_module("cuda.bindings.driver")
    except ImportError as error:
        raise CudaError(
            "cuda.bindings cannot be imported; install what the engine needs: pip install 'attrib[engine]'"
        ) from error
    try:
        status = driver.cuInit(0)[0]
    # cuda.bindings reports an absent libcuda with exceptions of its own that differ by version
    except (RuntimeError, OSError, ImportError) as error:
        raise CudaError(
            "no NVIDIA driver: libcuda cannot be loaded; install the driver, or run on a machine that has one"
        ) from error
    if int(status) == _NO_DEVICE:
        raise CudaError("no NVIDIA GPU: the driver finds no device; check nvidia-smi and CUDA_VISIBLE_DEVICES", 100)
    if int(status):
        raise CudaError(f"the NVIDIA driver cannot start: {_describe(driver, status)}", int(status))
    return driver


def _describe(driver: ModuleType, status: Any) -> str:
    code, name = driver.cuGetErrorName(status)
    text_code, text = driver.cuGetErrorString(status)
    if int(code) or int(text_code):
        return f"CUDA status {int(status)}: not known to this driver"
    return f"{name.decode()}: {text.decode()}"


def check(result: tuple[Any, ...]) -> Any:
    """The value of a driver call, `None` when it has none.

    Raises CudaError with `NAME: meaning` when the call's status is not success.
    """
    status, *values = result
    if int(status):
        raise CudaError(_describe(_driver(), status), int(status))
    return values[0] if len(values) == 1 else (tuple(values) or None)


@contextmanager
def open_gpu(ordinal: int = 0) -> Iterator[Gpu]:
    """Retain the primary context of a GPU and make it current; released on exit.

    Raises CudaError in one sentence when there is no driver, no GPU, or no GPU of this number.
    """
    cu = _driver()
    count = check(cu.cuDeviceGetCount())
    if not 0 <= ordinal < count:
        raise CudaError(f"GPU {ordinal} does not exist; this machine has {count}")
    device = check(cu.cuDeviceGet(ordinal))
    context = check(cu.cuDevicePrimaryCtxRetain(device))
    try:
        check(cu.cuCtxSetCurrent(context))
        yield _describe_gpu(cu, device, ordinal)
    finally:
        check(cu.cuDevicePrimaryCtxRelease(device))


def _describe_gpu(cu: ModuleType, device: Any, ordinal: int) -> Gpu:
    attribute = cu.CUdevice_attribute

    def read(name: str) -> int:
        return int(check(cu.cuDeviceGetAttribute(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device)))

    clock_khz, bus_bits = read("MEMORY_CLOCK_RATE"), read("GLOBAL_MEMORY_BUS_WIDTH")
    name = check(cu.cuDeviceGetName(128, device))
    return Gpu(
        ordinal=ordinal,
        name=name.split(b"\0")[0].decode(),
        sms=read("MULTIPROCESSOR_COUNT"),
        threads_per_sm=read("MAX_THREADS_PER_MULTIPROCESSOR"),
        peak_bytes_per_s=2.0 * clock_khz * 1e3 * bus_bits / 8,
        l2_bytes=read("L2_CACHE_SIZE"),
        shared_bytes=read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        compute_capability=(read("COMPUTE_CAPABILITY_MAJOR"), read("COMPUTE_CAPABILITY_MINOR")),
    )


def memory_info() -> tuple[int, int]:
    """(free, total) device memory in bytes."""
    free, total = check(_driver().cuMemGetInfo())
    return int(free), int(total)


def require_memory(nbytes: int, what: str) -> None:
    """Raise DeviceMemoryError naming bytes needed and free when `nbytes` more do not fit now."""
    free, _ = memory_info()
    if nbytes > free:
        raise DeviceMemoryError(f"{what} needs {nbytes} bytes of device memory and {free} are free", _OUT_OF_MEMORY)


@contextmanager
def stream() -> Iterator[Any]:
    """A stream that does not wait for the default stream."""
    cu = _driver()
    handle = check(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING.value))
    try:
        yield handle
    finally:
        check(cu.cuStreamDestroy(handle))


@contextmanager
def event() -> Iterator[Any]:
    """An event that keeps time."""
    cu = _driver()
    handle = check(cu.cuEventCreate(cu.CUevent_flags.CU_EVENT_DEFAULT.value))
    try:
        yield handle
    finally:
        check(cu.cuEventDestroy(handle))


def record(mark: Any, on: Any) -> None:
    """Record an event on a stream."""
    check(_driver().cuEventRecord(mark, on))


def wait(mark: Any) -> None:
    """Block until an event has happened."""
    check(_driver().cuEventSynchronize(mark))


def elapsed_ns(start: Any, end: Any) -> int:
    """Nanoseconds between two recorded events (resolution about half a microsecond)."""
    return round(float(check(_driver().cuEventElapsedTime(start, end))) * 1e6)


def synchronize(on: Any) -> None:
    """Block until a stream is idle; errors of earlier launches surface here."""
    check(_driver().cuStreamSynchronize(on))


@contextmanager
def allocation(nbytes: int, what: str = "a buffer") -> Iterator[int]:
    """Device memory of at least one byte, as an address.

    Raises DeviceMemoryError naming `what`, the bytes needed and the bytes free.
    """
    cu = _driver()
    status, pointer = cu.cuMemAlloc(max(nbytes, 1))
    if int(status) == _OUT_OF_MEMORY:
        require_memory(nbytes, what)
        raise DeviceMemoryError(f"{what} needs {nbytes} bytes in one piece; free memory is fragmented", _OUT_OF_MEMORY)
    check((status,))
    try:
        yield int(pointer)
    finally:
        check(cu.cuMemFree(pointer))


@contextmanager
def pinned(nbytes: int) -> Iterator[NDArray[np.uint8]]:
    """Page-locked host memory as a byte array; it must not be used after the block ends."""
    cu = _driver()
    pointer = int(check(cu.cuMemHostAlloc(max(nbytes, 1), _HOST_ALLOC_PORTABLE)))
    try:
        yield np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(pointer))
    finally:
        check(cu.cuMemFreeHost(pointer))


def upload(address: int, data: NDArray[Any], on: Any) -> None:
    """Copy a contiguous array to the device in stream order; pageable memory may be reused on return."""
    if not data.flags.c_contiguous:
        raise ValueError("only a contiguous array can be uploaded")
    check(_driver().cuMemcpyHtoDAsync(address, data.ctypes.data, data.nbytes, on))


def download(data: NDArray[Any], address: int, on: Any) -> None:
    """Copy device memory into a contiguous array in stream order; pinned memory needs `synchronize` after."""
    if not data.flags.c_contiguous:
        raise ValueError("only a contiguous array can be downloaded into")
    check(_driver().cuMemcpyDtoHAsync(data.ctypes.data, address, data.nbytes, on))


def copy(to: int, source: int, nbytes: int, on: Any) -> None:
    """Copy within the device in stream order."""
    check(_driver().cuMemcpyDtoDAsync(to, source, nbytes, on))


def fill(address: int, byte: int, nbytes: int, on: Any) -> None:
    """Set every byte of a device range in stream order."""
    check(_driver().cuMemsetD8Async(address, byte, nbytes, on))


@contextmanager
def module(cubin: bytes) -> Iterator[Any]:
    """A loaded cubin."""
    cu = _driver()
    handle = check(cu.cuModuleLoadData(np.frombuffer(cubin, np.uint8).ctypes.data))
    try:
        yield handle
    finally:
        check(cu.cuModuleUnload(handle))


def kernel(loaded: Any, name: str) -> Kernel:
    """A function of a loaded module by its C name; raises CudaError naming it when absent."""
    cu = _driver()
    status, handle = cu.cuModuleGetFunction(loaded, name.encode())
    if int(status):
        raise CudaError(f"kernel {name} is not in its module: {_describe(cu, status)}", int(status))
    attribute = cu.CUfunction_attribute
    registers = check(cu.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, handle))
    local = check(cu.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, handle))
    return Kernel(name, handle, int(registers), int(local))


def allow_shared(function: Kernel, nbytes: int) -> None:
    """Let a kernel use this much dynamic shared memory; more than 48 KB needs this call."""
    cu = _driver()
    name = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check(cu.cuFuncSetAttribute(function.handle, name, nbytes))


class Arguments:
    """Kernel arguments packed once for any number of launches: ctypes scalars of the parameters' types."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = tuple(values)
        self._table = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(v) for v in self._values))
        self.address = ctypes.addressof(self._table)


def launch(
    function: Kernel,
    grid: Dim3,
    block: Dim3,
    arguments: Arguments,
    *,
    on: Any,
    smem: int = 0,
    cooperative: bool = False,
    early: bool = False,
) -> None:
    """Launch a kernel; the driver copies the arguments now. Raises CudaError naming the kernel.

    cooperative: all blocks are resident at once, or the launch fails. early: the kernel may start before the launch
    before it in the stream is done (programmatic dependent launch).
    """
    cu = _driver()
    if cooperative or early:
        config = _launch_config(cu, grid, block, smem, on, cooperative=cooperative, early=early)
        status = cu.cuLaunchKernelEx(config, function.handle, arguments.address, 0)[0]
    else:
        status = cu.cuLaunchKernel(function.handle, *grid, *block, smem, on, arguments.address, 0)[0]
    if int(status):
        where = f"launch of {function.name} with grid {grid}, block {block}, {smem} bytes of shared memory"
        raise CudaError(f"{where} failed: {_describe(cu, status)}", int(status))


def _launch_config(
    cu: ModuleType, grid: Dim3, block: Dim3, smem: int, on: Any, *, cooperative: bool, early: bool
) -> Any:
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes, config.hStream = smem, on
    attributes = []
    for wanted, name, field in (
        (cooperative, "COOPERATIVE", "cooperative"),
        (early, "PROGRAMMATIC_STREAM_SERIALIZATION", "programmaticStreamSerializationAllowed"),
    ):
        if wanted:
            attribute, value = cu.CUlaunchAttribute(), cu.CUlaunchAttributeValue()
            attribute.id = getattr(cu.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
            setattr(value, field, 1)
            attribute.value = value
            attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


class CapturedGraph:
    """An instantiated graph; `nodes` counts the nodes it was captured with."""

    def __init__(self, executable: Any, nodes: int) -> None:
        self._executable = executable
        self.nodes = nodes

    def launch(self, on: Any) -> None:
        """Enqueue one replay."""
        check(_driver().cuGraphLaunch(self._executable, on))


@contextmanager
def capture(on: Any, record_launches: Callable[[], None]) -> Iterator[CapturedGraph]:
    """Capture the launches a function enqueues on a stream, instantiate and upload them; freed on exit.

    The function runs once, in capture: nothing executes until the graph is launched.
    """
    cu = _driver()
    check(cu.cuStreamBeginCapture(on, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    try:
        record_launches()
    except BaseException:
        _, half = cu.cuStreamEndCapture(on)
        if half is not None and int(half):
            cu.cuGraphDestroy(half)
        raise
    graph = check(cu.cuStreamEndCapture(on))
    try:
        nodes = check(cu.cuGraphGetNodes(graph))[1]
        executable = check(cu.cuGraphInstantiate(graph, 0))
    finally:
        check(cu.cuGraphDestroy(graph))
    try:
        check(cu.cuGraphUpload(executable, on))
        yield CapturedGraph(executable, int(nodes))
    finally:
        check(cu.cuGraphExecDestroy(executable))
