"""Weights of the fast build on the device: filled in the row layout a group at a time, then packed into tiles there."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from attrib.models import Tensor
from engine import driver, module
from engine.buffers import layout
from engine.config import ModelConfig
from engine.fast_model import Matrix, Part, matrices, places, resident
from engine.fast_tables import piece_of
from engine.kernels import KernelSpec, Shape
from engine.kernels_fast import tile_pack
from engine.repack import gpu_bytes
from engine.tiles import ROWS
from engine.weights import Fill, Weights


def pack_specs(config: ModelConfig) -> list[KernelSpec]:
    """The packing kernels a model needs."""
    return [tile_pack(quant) for quant in sorted({matrix.quant for matrix in matrices(config).values()})]


def groups(config: ModelConfig) -> list[tuple[Tensor, ...]]:
    """Tensors that are staged together: those of a layer, and the rest one by one."""
    layers: dict[int, list[Tensor]] = {}
    alone = []
    for tensor in config.model.tensors:
        if tensor.layer is None:
            alone.append((tensor,))
        else:
            layers.setdefault(tensor.layer, []).append(tensor)
    return [*alone, *(tuple(tensors) for tensors in layers.values())]


def staged(config: ModelConfig, group: tuple[Tensor, ...]) -> dict[str, int]:
    """Bytes in the row layout of a group's tensors that end in tiles."""
    packed = {part.tensor.name for matrix in matrices(config).values() for part in matrix.parts}
    return {t.name: gpu_bytes(t.quant, t.rows, t.cols) for t in group if t.name in packed}


@contextmanager
def load(config: ModelConfig, kernels: module.Kernels, blocks: int, on: Any, fill: Fill) -> Iterator[Weights]:
    """Allocate and fill the weights of a model for launches of `blocks` blocks; freed on exit.

    fill(config, addresses, stream) writes tensors in the row layout, as for `weights.load`; staging memory is one
    layer's, or the largest single tensor's. Raises DeviceMemoryError with the bytes needed and free.
    """
    name = config.model.shape.name
    offsets, total = layout(places(config))
    work = groups(config)
    largest = max(layout(staged(config, group))[1] for group in work)
    direct = {tensor.name for tensor in resident(config)}
    found = matrices(config)
    with driver.allocation(total, f"the weights of {name}") as base:
        addresses = {key: base + offset for key, offset in offsets.items()}
        started = time.perf_counter()
        driver.fill(base, 0, total, on)
        with driver.allocation(largest, f"staging for the weights of {name}") as staging:
            for group in work:
                places_of, _ = layout(staged(config, group))
                rows = {key: staging + offset for key, offset in places_of.items()}
                where = {t.name: addresses[t.name] for t in group if t.name in direct}
                fill(_only(config, group), where | rows, on)
                for matrix in found.values():
                    for part in matrix.parts:
                        if part.tensor.name in rows:
                            _pack(kernels, matrix, part, blocks, rows[part.tensor.name], addresses[matrix.name], on)
                for key in set(where) & set(rows):  # an embedding that is the output matrix too is wanted both ways
                    driver.copy(where[key], rows[key], staged(config, group)[key], on)
            driver.synchronize(on)
        yield Weights(addresses, total, time.perf_counter() - started)


def _only(config: ModelConfig, group: tuple[Tensor, ...]) -> ModelConfig:
    return replace(config, model=replace(config.model, tensors=group))


def _pack(kernels: module.Kernels, matrix: Matrix, part: Part, blocks: int, rows: int, tiles: int, on: Any) -> None:
    tensor = part.tensor
    spec, shape = tile_pack(tensor.quant), Shape(rows=tensor.rows, cols=tensor.cols)
    matrix_of = (matrix.rows // ROWS, piece_of(matrix, blocks), blocks)
    numbers = (tensor.cols, part.base, part.stride, part.half, *matrix_of)
    packed = driver.Arguments([*map(ctypes.c_void_p, (rows, tiles)), *map(ctypes.c_int32, numbers)])
    driver.launch(kernels[module.key(spec)], spec.grid(shape), spec.block(shape), packed, on=on)
