"""A model on a GPU: buffers at fixed addresses, prefill, and a decode step captured once and replayed.

Position, token and produced count live on the device (`state`), so one captured graph serves every step; the
attention grid is sized for the KV capacity when the graph is captured.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attrib.manifest import DeviceInfo
from engine import buffers, driver, fast_load, fast_plan, module, program, weights
from engine import kernels_ops as ops
from engine import stamps as stamp_times
from engine.blas import WORKSPACE_BYTES, Blas, open_blas
from engine.config import ModelConfig
from engine.dispatch import Build
from engine.errors import PlanError
from engine.fast_model import blocks_of
from engine.kernels import KernelSpec
from engine.kernels_fast import STEP_CAPABILITY
from engine.plan import Arg, Buf, Geometry, PlannedLaunch, Weight, geometry
from engine.prefill import BATCH, Gemm, Work
from engine.rope import rope_table
from engine.synth import filler, specs_for

_C_TYPES: dict[str, Any] = {"ptr": ctypes.c_void_p, "i32": ctypes.c_int32, "f32": ctypes.c_float}
Observer = Callable[[int, PlannedLaunch], None]


@dataclass(frozen=True)
class State:
    """What the device knows of the sequence: the next position, the last token, tokens produced so far."""

    position: int
    token: int
    produced: int


@dataclass(frozen=True)
class _Bound:
    kernel: driver.Kernel
    launch: PlannedLaunch
    arguments: driver.Arguments

    def run(self, on: Any) -> None:
        driver.launch(
            self.kernel,
            self.launch.grid,
            self.launch.block,
            self.arguments,
            on=on,
            smem=self.launch.spec.shared_bytes,
            cooperative=self.launch.spec.cooperative,
            early=self.launch.spec.early,
        )


@contextmanager
def span(name: str) -> Iterator[None]:
    """An NVTX range, or nothing where the `nvtx` package is not installed."""
    annotate = _annotate()
    if annotate is None:
        yield
        return
    with annotate(name):
        yield


@cache
def _annotate() -> Any:
    try:
        return import_module("nvtx").annotate
    except ImportError:
        return None


class Session:
    """An open model; made by `open_session`."""

    def __init__(self, config: ModelConfig, build: Build, gpu: driver.Gpu, geo: Geometry) -> None:
        _check_capability(build, gpu)
        self.config = config
        self.build = build
        self.gpu = gpu
        self.geometry = geo
        self.batch = min(BATCH, geo.capacity)
        self.launches = program.decode(config, build, geo, 1)
        self.load_seconds = float("nan")
        self.weight_bytes = 0
        self._position = 0
        self._passes: dict[tuple[int, bool], list[_Bound | Gemm]] = {}

    def device(self) -> DeviceInfo:
        """The GPU, as the manifest describes it."""
        major, minor = self.gpu.compute_capability
        gpu = self.gpu
        return DeviceInfo(gpu.name, gpu.sms, gpu.peak_bytes_per_s, gpu.threads_per_sm, f"{major}.{minor}")

    def start(self, stack: ExitStack) -> None:
        """Allocate, compile, load weights and capture the step; everything is freed when the stack closes."""
        self._stack = stack
        self.stream = stack.enter_context(driver.stream())
        sizes = program.buffer_sizes(self.config, self.build, self.geometry, self.batch)
        self._sizes = sizes | {"workspace": WORKSPACE_BYTES}
        offsets, total = buffers.layout(self._sizes)
        name = self.config.model.shape.name
        what = f"{name} with a KV cache of {self.geometry.capacity} positions"
        needed = buffers.layout(program.weight_sizes(self.config, self.build))[1]
        driver.require_memory(total + needed, what)
        self._kernels = stack.enter_context(module.load(self._specs(), self.gpu.arch, self.build.flags))
        base = stack.enter_context(driver.allocation(total, f"the KV cache and activations of {name}"))
        self._addresses = {buffer: base + offset for buffer, offset in offsets.items()}
        driver.fill(base, 0, total, self.stream)
        fill = weights.upload if self.config.path else filler(self._kernels)
        loaded = stack.enter_context(
            weights.load(self.config, self.stream, fill)
            if self.build.step is None
            else fast_load.load(self.config, self._kernels, blocks_of(self.config, self.gpu.sms), self.stream, fill)
        )
        self._weights, self.load_seconds, self.weight_bytes = loaded.addresses, loaded.seconds, loaded.nbytes
        shape = self.config.model.shape
        table = rope_table(shape.rope_theta, shape.head_dim, self.geometry.capacity, weights.rope_factors(self.config))
        driver.upload(self._addresses["rope"], table, self.stream)
        if self.build.step is not None:
            self._upload_tables()
        self._readback = stack.enter_context(driver.pinned(4 * ops.STATE_INTS)).view(np.int32)
        slots = stack.enter_context(driver.pinned(2 * 4 * ops.STATE_INTS)).view(np.int32)
        self._slots = slots.reshape(2, ops.STATE_INTS)
        self._arrivals = [stack.enter_context(driver.event()) for _ in self._slots]
        self._steps = [self._bind(launch) for launch in self.launches]
        self.graph = stack.enter_context(driver.capture(self.stream, self._enqueue_step))
        self._blas: Blas | None = None
        driver.synchronize(self.stream)

    def _upload_tables(self) -> None:
        every = fast_plan.step_tables(self.config, blocks_of(self.config, self.gpu.sms))
        for name, table in every.arrays(self._addresses.__getitem__, self._weights.__getitem__).items():
            driver.upload(self._addresses[name], table, self.stream)

    def _specs(self) -> list[KernelSpec]:
        one_pass = program.prefill(self.config, self.build, self.geometry, 1, sample=True)
        specs = [w.spec for w in one_pass if isinstance(w, PlannedLaunch)]
        synthetic = [] if self.config.path else specs_for(self.config)
        packing = [] if self.build.step is None else fast_load.pack_specs(self.config)
        return [*(launch.spec for launch in self.launches), *specs, *synthetic, *packing]

    def address(self, arg: Buf | Weight) -> int:
        """Where a named buffer or tensor is on the device."""
        table = self._addresses if isinstance(arg, Buf) else self._weights
        return table[arg.name] + arg.offset

    def size(self, name: str) -> int:
        """Bytes of a named buffer."""
        return self._sizes[name]

    def _bind(self, launch: PlannedLaunch) -> _Bound:
        def value(arg: Arg) -> int | float | None:
            return self.address(arg) if isinstance(arg, Buf | Weight) else arg

        params = zip(launch.spec.params, launch.args, strict=True)
        packed = driver.Arguments([_C_TYPES[kind](value(arg)) for (_, kind), arg in params])
        return _Bound(self._kernels[module.key(launch.spec)], launch, packed)

    def _enqueue_step(self) -> None:
        for bound in self._steps:
            bound.run(self.stream)

    def set_state(self, position: int, token: int, produced: int = 0) -> None:
        """Put the sequence at a position with a last token; KV before it must be valid.

        Raises PlanError for a position outside the KV capacity or a token outside the vocabulary.
        """
        if not 0 <= position < self.geometry.capacity:
            raise PlanError(f"position {position} is outside the KV capacity {self.geometry.capacity}")
        self._check_tokens([token])
        values = np.array([position, token, produced], np.int32)
        driver.upload(self._addresses["state"], values, self.stream)
        self._position = position

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        vocab = self.config.model.shape.vocab
        if wrong := [t for t in tokens if not 0 <= t < vocab]:
            raise PlanError(f"token {wrong[0]} is outside the vocabulary of {vocab}")

    def state(self) -> State:
        """Read the state back; waits for everything enqueued before."""
        driver.download(self._readback, self._addresses["state"], self.stream)
        driver.synchronize(self.stream)
        position, token, produced = (int(v) for v in self._readback)
        return State(position, token, produced)

    def send_state(self, slot: int) -> None:
        """Enqueue a copy of the state to the host, into slot 0 or 1; `arrived` waits for it."""
        driver.download(self._slots[slot], self._addresses["state"], self.stream)
        driver.record(self._arrivals[slot], self.stream)

    def arrived(self, slot: int) -> State:
        """The state that `send_state` copied into a slot; later work may still be running."""
        driver.wait(self._arrivals[slot])
        position, token, produced = (int(v) for v in self._slots[slot])
        return State(position, token, produced)

    def prefill(self, tokens: Sequence[int], start: int = 0) -> None:
        """Run a prompt from position `start`: KV, logits and arg max of its last token, `state` after it.

        Enqueued, not awaited. Raises PlanError for a prompt that is empty or too long, or a wrong token.
        """
        if not tokens or start + len(tokens) >= self.geometry.capacity:
            capacity = self.geometry.capacity
            raise PlanError(f"a prompt of {len(tokens)} tokens at {start} does not fit a capacity of {capacity}")
        self._check_tokens(tokens)
        ids = np.asarray(tokens, np.int32)
        for first in range(0, len(ids), self.batch):
            some = np.ascontiguousarray(ids[first : first + self.batch])
            driver.upload(self._addresses["tokens"], some, self.stream)
            self.set_state(start + first, int(some[0]))
            for work in self._pass(len(some), sample=first + len(some) == len(ids)):
                self._run(work)
        self._position = start + len(ids)

    def _pass(self, tokens: int, *, sample: bool) -> list[_Bound | Gemm]:
        if self._blas is None:
            self._blas = self._stack.enter_context(open_blas(self.stream, self._addresses["workspace"]))
        key = (tokens, sample)
        if key not in self._passes:
            planned: tuple[Work, ...] = program.prefill(self.config, self.build, self.geometry, tokens, sample=sample)
            self._passes[key] = [self._bind(w) if isinstance(w, PlannedLaunch) else w for w in planned]
        return self._passes[key]

    def _run(self, work: _Bound | Gemm) -> None:
        if isinstance(work, _Bound):
            work.run(self.stream)
            return
        if self._blas is None:
            raise PlanError("a matrix product was planned before cuBLAS was opened")
        self._blas.matmul(
            self.address(work.weights),
            self.address(work.x),
            self.address(work.out),
            rows=work.rows,
            cols=work.cols,
            tokens=work.tokens,
            stride=work.stride,
            add=work.add,
        )

    def step(self) -> None:
        """Enqueue one replay of the captured step. Raises PlanError when the KV cache is full."""
        self._advance()
        self.graph.launch(self.stream)

    def step_eager(self, observe: Observer | None = None) -> None:
        """One step launch by launch; `observe(i, launch)` is called after each, with its work done."""
        self._advance()
        for i, bound in enumerate(self._steps):
            bound.run(self.stream)
            if observe is not None:
                driver.synchronize(self.stream)
                observe(i, bound.launch)

    def _advance(self) -> None:
        if self._position >= self.geometry.capacity:
            raise PlanError(f"the KV cache of {self.geometry.capacity} positions is full")
        self._position += 1

    def wait(self) -> None:
        """Wait for everything enqueued; errors of launches surface here as CudaError."""
        driver.synchronize(self.stream)

    def read(self, arg: Buf | Weight, nbytes: int) -> NDArray[np.uint8]:
        """Bytes of a buffer or tensor, after everything enqueued before."""
        out = np.empty(nbytes, np.uint8)
        driver.download(out, self.address(arg), self.stream)
        driver.synchronize(self.stream)
        return out

    def write(self, arg: Buf | Weight, data: NDArray[Any]) -> None:
        """Overwrite a buffer or tensor from its start; the data is copied before this returns."""
        driver.upload(self.address(arg), np.ascontiguousarray(data), self.stream)
        driver.synchronize(self.stream)

    def logits(self) -> NDArray[np.float32]:
        """f32 [vocab] of the last token."""
        return self.read(Buf("logits"), self._sizes["logits"]).view(np.float32)

    def stamps(self) -> stamp_times.Replay:
        """When the last step's stages began and ended; raises PlanError unless the session was opened for it."""
        staged = next((launch for launch in self.launches if launch.stages), None)
        if staged is None or not self.geometry.stamps:
            raise PlanError("this session has no persistent kernel that writes stamps")
        raw = self.read(Buf("stamps"), self._sizes["stamps"]).view(np.uint64).reshape(-1, staged.grid[0], 2)
        return stamp_times.reduce(raw[: len(staged.stages)])

    def produced(self, count: int) -> list[int]:
        """The last `count` tokens produced, oldest first."""
        total = self.state().produced
        ring = self.read(Buf("ring"), self._sizes["ring"]).view(np.int32)
        return [int(ring[i % ring.size]) for i in range(max(0, total - count), total)]


def _check_capability(build: Build, gpu: driver.Gpu) -> None:
    least, found = (".".join(map(str, version)) for version in (STEP_CAPABILITY, gpu.compute_capability))
    if build.step is not None and gpu.compute_capability < STEP_CAPABILITY:
        raise PlanError(
            f"build {build.name} needs a GPU of compute capability {least} or later, and {gpu.name} has {found}; "
            "use the reference build"
        )


@contextmanager
def open_session(
    config: ModelConfig, build: Build, capacity: int, ordinal: int = 0, *, stamps: bool = False
) -> Iterator[Session]:
    """Put a model on a GPU with room for `capacity` positions; everything is freed on exit.

    stamps: a persistent kernel writes the times of its stages into the buffer `stamps`.

    Raises CudaError (no driver, no GPU, too little memory with bytes needed and free), BuildError, PlanError
    or ModelError.
    """
    with ExitStack() as stack:
        gpu = stack.enter_context(driver.open_gpu(ordinal))
        geo = geometry(config, capacity, gpu.sms, gpu.shared_bytes, stamps=stamps)
        session = Session(config, build, gpu, geo)
        session.start(stack)
        yield session
