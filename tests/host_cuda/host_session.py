"""Runs the engine's own plans on the host build: buffers as arrays, launches in order, GEMMs in NumPy."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attrib.models import Tensor
from engine import fast_plan, fast_tables, tiles
from engine import kernels_ops as ops
from engine.config import ModelConfig
from engine.dispatch import Build
from engine.fast_model import Matrix, blocks_of, matrices, resident
from engine.gguf import Reader
from engine.plan import Arg, Buf, Geometry, PlannedLaunch, Weight
from engine.prefill import Gemm
from engine.program import buffer_sizes, decode, prefill
from engine.quant import dequantize
from engine.repack import to_gpu
from engine.rope import rope_table
from engine.synth import host_rows
from engine.weights import rope_factors
from tests.helpers.reference import Decoder, Rounding
from tests.host_cuda.launcher import aligned, launch

Halves = NDArray[np.float16]


@cache
def _reader(path: Path) -> Reader:
    return Reader(path)


def stored(config: ModelConfig, tensor: Tensor) -> NDArray[np.uint8]:
    """A tensor's rows as stored, of a file or of a synthetic model."""
    if config.path is None:
        return host_rows(config, tensor, 0, tensor.rows)
    return _reader(config.path).rows(tensor, 0, tensor.rows)


def reference_of(config: ModelConfig, rounding: Rounding) -> Decoder:
    """The float64 decoder over the dequantized weights of a file or of a synthetic model."""
    weights = {t.name: dequantize(t.quant, stored(config, t), t.cols) for t in config.model.tensors}
    vectors = {name: values[0] if len(values) == 1 else values for name, values in weights.items()}
    return Decoder(config.model.shape, vectors, rounding)


class HostSession:
    """A model with the buffers a GPU session has."""

    def __init__(self, config: ModelConfig, build: Build, geometry: Geometry, batch: int) -> None:
        self.config, self.build, self.geometry = config, build, geometry
        wanted = buffer_sizes(config, build, geometry, batch)
        # Unwritten memory is NaN in every float format, so that reading it shows.
        self.buffers = {name: aligned(np.full(size, 0xFF, np.uint8)) for name, size in wanted.items()}
        rows = config.model.tensors if build.step is None else resident(config)
        self.weights = {tensor.name: self._rows(tensor) for tensor in rows}
        shape = config.model.shape
        table = rope_table(shape.rope_theta, shape.head_dim, geometry.capacity, rope_factors(config))
        self.floats("rope")[:] = table.reshape(-1)
        if build.step is not None:
            self.weights |= {
                name: tiled(config, matrix, blocks_of(config, geometry.sms))
                for name, matrix in matrices(config).items()
            }
            self._join_biases()
            self.buffers["counters"][:] = 0
            every = fast_plan.step_tables(config, blocks_of(config, geometry.sms))
            for name, array in every.arrays(self._buffer_address, self._weight_address).items():
                self.buffers[name][:] = array.view(np.uint8)

    def _rows(self, tensor: Tensor) -> NDArray[np.uint8]:
        return aligned(to_gpu(tensor.quant, stored(self.config, tensor), tensor.cols).reshape(-1))

    def _join_biases(self) -> None:
        for layer in range(self.config.model.shape.layers):
            names = [f"blk.{layer}.attn_{each}.bias" for each in "qkv"]
            if names[0] in self.weights:
                self.weights[names[0]] = aligned(np.concatenate([self.weights[name] for name in names]))

    def _buffer_address(self, name: str) -> int:
        return int(self.buffers[name].ctypes.data)

    def _weight_address(self, name: str) -> int:
        return int(self.weights[name].ctypes.data)

    def floats(self, name: str) -> NDArray[np.float32]:
        """A buffer as f32."""
        return self.buffers[name].view(np.float32)

    @property
    def state(self) -> NDArray[np.int32]:
        """Position, token, produced."""
        return self.buffers["state"].view(np.int32)

    def _bytes(self, arg: Buf | Weight) -> NDArray[np.uint8]:
        table = self.buffers if isinstance(arg, Buf) else self.weights
        return table[arg.name][arg.offset :]

    def _run(self, planned: PlannedLaunch) -> None:
        def value(arg: Arg) -> object:
            return self._bytes(arg) if isinstance(arg, Buf | Weight) else arg

        launch(planned.spec, planned.shape, *map(value, planned.args), grid=planned.grid)

    def _multiply(self, gemm: Gemm) -> None:
        def halves(arg: Buf | Weight, rows: int) -> NDArray[np.float64]:
            raw = self._bytes(arg)[: 2 * rows * gemm.cols]
            return raw.view(np.float16).reshape(rows, gemm.cols).astype(np.float64)

        product = halves(gemm.x, gemm.tokens) @ halves(gemm.weights, gemm.rows).T
        first = gemm.out.offset // 4
        whole = self.floats(gemm.out.name)[: gemm.tokens * gemm.stride].reshape(gemm.tokens, gemm.stride)
        part = whole[:, first : first + gemm.rows]
        part[:] = part + product if gemm.add else product

    def step(self) -> NDArray[np.float32]:
        """One decode step; its logits [vocab]."""
        for planned in decode(self.config, self.build, self.geometry, 1):
            self._run(planned)
        return self.floats("logits").copy()

    def prefill(self, tokens: list[int], start: int = 0) -> NDArray[np.float32]:
        """One prefill pass; the last token's logits [vocab]."""
        self.buffers["tokens"].view(np.int32)[: len(tokens)] = tokens
        self.state[:] = (start, 0, 0)
        for work in prefill(self.config, self.build, self.geometry, len(tokens), sample=True):
            if isinstance(work, Gemm):
                self._multiply(work)
            else:
                self._run(work)
        return self.floats("logits").copy()

    def cache(self, positions: int) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """(K, V) of every layer, [kv_heads][positions][head_dim]."""
        s = self.config.model.shape

        def half(name: str) -> NDArray[np.float64]:
            whole = self.buffers[name].view(np.float16).reshape(s.kv_heads, -1, s.head_dim)
            return whole[:, :positions].astype(np.float64)

        return [(half(f"k.{layer}"), half(f"v.{layer}")) for layer in range(s.layers)]

    def produced(self) -> list[int]:
        """Tokens in the ring, oldest first."""
        count = int(self.state[ops.STATE_PRODUCED])
        return self.buffers["ring"].view(np.int32)[:count].tolist()


def stored_order(config: ModelConfig, matrix: Matrix) -> NDArray[np.uint8]:
    """Stored rows of a fused matrix in packed order, by the description of its parts."""
    width = stored(config, matrix.parts[0].tensor).shape[1]
    out = np.empty((matrix.rows, width), np.uint8)
    for part in matrix.parts:
        rows = stored(config, part.tensor)
        if part.half:
            out[part.base : part.base + len(rows)] = rows[tiles.pair_order(len(rows), 2 * part.half)]
        else:
            out[part.base :: part.stride][: len(rows)] = rows
    return out


def tiled(config: ModelConfig, matrix: Matrix, blocks: int) -> NDArray[np.uint8]:
    """A fused matrix as it lies on a device of `blocks` multiprocessors."""
    records = tiles.pack(matrix.quant, stored_order(config, matrix), matrix.cols)
    return aligned(tiles.arrange(records, fast_tables.piece_of(matrix, blocks), blocks))
