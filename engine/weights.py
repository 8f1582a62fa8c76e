"""Weights on the device, in the kernels' layout: allocation, and upload of a GGUF file in chunks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attrib.models import Tensor
from engine import driver
from engine.buffers import layout
from engine.config import ModelConfig
from engine.gguf import Reader
from engine.repack import gpu_bytes, gpu_row_bytes, to_gpu

Fill = Callable[[ModelConfig, dict[str, int], Any], None]
CHUNK_BYTES = 16 << 20
MOST_WORKERS = 8


@dataclass(frozen=True)
class Weights:
    """Device address of every tensor by GGUF name; `seconds` is how long filling them took."""

    addresses: dict[str, int]
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Chunk:
    """Rows first..first+rows of one tensor, `nbytes` on the device: what one staging buffer holds."""

    tensor: Tensor
    first: int
    rows: int
    nbytes: int


def places(config: ModelConfig) -> tuple[dict[str, int], int]:
    """(offset of every tensor, total bytes) in the kernels' layout; tied tensors are there once."""
    return layout({t.name: gpu_bytes(t.quant, t.rows, t.cols) for t in config.model.tensors})


def chunks(tensors: tuple[Tensor, ...], limit: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Every row of every tensor once, in pieces of at most `limit` bytes, or one row where that is more."""
    for tensor in tensors:
        width = gpu_row_bytes(tensor.quant, tensor.cols)
        most = max(1, limit // width)
        for first in range(0, tensor.rows, most):
            rows = min(most, tensor.rows - first)
            yield Chunk(tensor, first, rows, rows * width)


@contextmanager
def load(config: ModelConfig, on: Any, fill: Callable[[ModelConfig, dict[str, int], Any], None]) -> Iterator[Weights]:
    """Allocate and fill the weights of a model; freed on exit.

    fill(config, addresses, stream) writes them: `upload`, or a synthetic filler. Raises DeviceMemoryError
    with the bytes needed and free.
    """
    offsets, total = places(config)
    with driver.allocation(total, f"the weights of {config.model.shape.name}") as base:
        addresses = {name: base + offset for name, offset in offsets.items()}
        started = time.perf_counter()
        fill(config, addresses, on)
        driver.synchronize(on)
        yield Weights(addresses, total, time.perf_counter() - started)


def upload(config: ModelConfig, addresses: dict[str, int], on: Any) -> None:
    """Copy a GGUF file's tensors to the device through pinned buffers, repacking on the way.

    Worker threads read and repack while earlier chunks travel. Raises ModelError for a scale that is not finite.
    """
    if config.path is None:
        raise ValueError("only a model from a file can be uploaded")
    reader = Reader(config.path)
    work = list(chunks(config.model.tensors))
    workers = max(1, min(MOST_WORKERS, os.cpu_count() or 1))
    largest = max(chunk.nbytes for chunk in work)
    with ExitStack() as stack:
        slots = [stack.enter_context(driver.pinned(largest)) for _ in range(2 * workers)]
        marks = [stack.enter_context(driver.event()) for _ in slots]
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        advance = stack.enter_context(progress(sum(chunk.nbytes for chunk in work)))
        filling: list[Future[None]] = []

        def send(i: int) -> None:
            chunk, slot = work[i], i % len(slots)
            filling[i].result()
            width = chunk.nbytes // chunk.rows
            address = addresses[chunk.tensor.name] + chunk.first * width
            driver.upload(address, slots[slot][: chunk.nbytes], on)
            driver.record(marks[slot], on)
            advance(chunk.nbytes)

        for i, chunk in enumerate(work):
            if i >= workers:
                send(i - workers)
            if i >= len(slots):
                driver.wait(marks[i % len(slots)])
            filling.append(pool.submit(_stage, reader, chunk, slots[i % len(slots)]))
        for i in range(max(0, len(work) - workers), len(work)):
            send(i)
        driver.synchronize(on)


def _stage(reader: Reader, chunk: Chunk, slot: NDArray[np.uint8]) -> None:
    tensor = chunk.tensor
    rows = reader.rows(tensor, chunk.first, chunk.rows)
    slot[: chunk.nbytes].reshape(chunk.rows, -1)[:] = to_gpu(tensor.quant, rows, tensor.cols)


def rope_factors(config: ModelConfig) -> NDArray[np.float32] | None:
    """Divisors of the rotary frequencies, f32 [head_dim/2], where the model's file has them."""
    if config.path is None or config.model.find("rope_freqs") is None:
        return None
    return Reader(config.path).stored("rope_freqs.weight").view(np.float32)


@contextmanager
def progress(total: int, what: str = "loading weights") -> Iterator[Callable[[int], None]]:
    """A bar of bytes on a terminal's standard error, else silent; yields what to call with bytes done."""
    from rich.console import Console  # noqa: PLC0415 - keeps a start without a load quick
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(what, *columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.advance(task, done)
