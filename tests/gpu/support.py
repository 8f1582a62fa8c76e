"""Small models, builds and launches for tests on a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attrib.models import Model, ModelShape, Tensor, recipe_tensors
from engine import driver, module
from engine.config import ModelConfig, of_model
from engine.dispatch import Build, parse
from engine.kernels import KernelSpec, Shape
from engine.plan import Buf
from engine.quant import dequantize
from engine.session import Session
from engine.synth import host_rows
from tests.helpers.reference import Decoder, Rounding

_C_TYPES: dict[str, Any] = {"ptr": ctypes.c_void_p, "i32": ctypes.c_int32, "f32": ctypes.c_float}
_EVERY = "weights = [1, 8_589_934_592]\ncols = [32, 1_048_576]\n"


def small(ffn: int = 512, arch: str = "qwen2", head_dim: int = 64, heads: int = 4) -> ModelConfig:
    """Two layers with grouped queries (biases for qwen2, head norms for qwen3): layer 0 all q4_K, layer 1 with q6_K."""
    shape = ModelShape(
        name=f"small-{arch}",
        arch=arch,
        layers=2,
        hidden=256,
        ffn=ffn,
        heads=heads,
        kv_heads=2,
        head_dim=head_dim,
        vocab=512,
        tied=False,
        bias=arch == "qwen2",
        rope_theta=1e4,
        norm_eps=1e-6,
    )
    return of_model(Model(shape, "q4_k_m", tuple(recipe_tensors(shape))))


def only(kernel: str) -> Build:
    """A build that sends every quantized matrix to one kernel."""
    return parse(kernel, f'[[rule]]\nkernel = "{kernel}"\nquants = ["q4_K", "q6_K"]\n{_EVERY}')


def dense(config: ModelConfig, tensor: Tensor) -> NDArray[np.float32]:
    """A synthetic tensor as numbers: [rows][cols], or [cols] for a vector."""
    values = dequantize(tensor.quant, host_rows(config, tensor, 0, tensor.rows), tensor.cols)
    return values[0] if tensor.rows == 1 else values


def decoder(config: ModelConfig, rounding: Rounding, *, half_weights: bool = False) -> Decoder:
    """The float64 reference of a synthetic model; half_weights: layer matrices as f16, as in prefill."""
    weights: dict[str, Any] = {}
    for tensor in config.model.tensors:
        values = dense(config, tensor)
        if half_weights and values.ndim == 2 and tensor.layer is not None:
            values = values.astype(np.float16).astype(np.float32)
        weights[tensor.name] = values
    return Decoder(config.model.shape, weights, rounding)


def cache(session: Session, positions: int) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """The session's KV cache, (K, V) [kv_heads][positions][head_dim] a layer."""
    s, capacity = session.config.model.shape, session.geometry.capacity
    found = []
    for layer in range(s.layers):
        both = []
        for name in (f"k.{layer}", f"v.{layer}"):
            raw = session.read(Buf(name), session.size(name)).view(np.float16)
            both.append(raw.reshape(s.kv_heads, capacity, s.head_dim)[:, :positions].astype(np.float64))
        found.append((both[0], both[1]))
    return found


def arguments(spec: KernelSpec, values: Sequence[Any]) -> driver.Arguments:
    """A launch's arguments: addresses (None: null) for pointers, numbers for the rest."""
    return driver.Arguments([_C_TYPES[kind](value) for (_, kind), value in zip(spec.params, values, strict=True)])


class Bench:
    """An open GPU on which single kernels can be launched with arrays."""

    def __init__(self, gpu: driver.Gpu, on: Any) -> None:
        self.gpu = gpu
        self.on = on

    def run(self, spec: KernelSpec, shape: Shape, *args: Any) -> None:
        """Launch on the kernel's own grid; arrays travel both ways."""
        with ExitStack() as stack:
            kernel = stack.enter_context(module.load([spec], self.gpu.arch))[module.key(spec)]
            values, arrays = [], []
            for (_, kind), arg in zip(spec.params, args, strict=True):
                if isinstance(arg, np.ndarray):
                    address = stack.enter_context(driver.allocation(arg.nbytes))
                    driver.upload(address, arg, self.on)
                    arrays.append((arg, address))
                    values.append(ctypes.c_void_p(address))
                else:
                    values.append(_C_TYPES[kind](arg))
            packed, smem = driver.Arguments(values), spec.shared_bytes
            grid, block = spec.grid(shape), spec.block(shape)
            driver.launch(kernel, grid, block, packed, on=self.on, smem=smem)
            for array, address in arrays:
                driver.download(array, address, self.on)
            driver.synchronize(self.on)


@contextmanager
def bench() -> Iterator[Bench]:
    """A GPU and a stream for single launches."""
    with driver.open_gpu() as gpu, driver.stream() as on:
        yield Bench(gpu, on)
