"""Synthetic weights of any shape: filled on the GPU from a seed, or made on the host, byte for byte alike."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

from attrib.models import Tensor
from engine import driver, module
from engine.config import ModelConfig
from engine.kernels import KernelSpec, Shape
from engine.kernels_weights import synth_fill
from engine.quant_blocks import Bytes
from engine.synthetic import WORDS, key_halves, scale_bits, synth_floats, synth_rows, tensor_key
from engine.weights import Fill, load

# Deviations that keep a random model's activations near 1, so that no layer drowns the others.
EMBEDDING_STD = 0.5
MATRIX_GAIN = 0.7
NORM_SPREAD = 0.25
BIAS_SPREAD = 0.25


def deviation(tensor: Tensor) -> float:
    """Standard deviation of a matrix's weights: a product with inputs near 1 gives outputs near 0.7."""
    return EMBEDDING_STD if tensor.role == "token_embd" else MATRIX_GAIN / tensor.cols**0.5


def parameters(tensor: Tensor) -> tuple[float, float]:
    """The last two arguments of the tensor's fill: f16 patterns of the block scales, or offset and scale."""
    if tensor.quant in WORDS:
        return scale_bits(tensor.quant, deviation(tensor))
    if tensor.role.endswith("_norm"):
        return 1.0, NORM_SPREAD
    if tensor.role.endswith("_bias"):
        return 0.0, BIAS_SPREAD
    return 0.0, deviation(tensor) * 3**0.5


def host_rows(config: ModelConfig, tensor: Tensor, first: int, rows: int) -> Bytes:
    """Rows of a synthetic tensor as stored, uint8 [rows][row bytes]."""
    key, (a, b) = tensor_key(config.seed, tensor.name), parameters(tensor)
    if tensor.quant in WORDS:
        return synth_rows(tensor.quant, rows, tensor.cols, key, d_bits=int(a), dmin_bits=int(b), first_row=first)
    return synth_floats(tensor.quant, rows, tensor.cols, key, offset=a, scale=b, first_row=first)


def specs_for(config: ModelConfig) -> list[KernelSpec]:
    """The fill kernels a model needs."""
    return [synth_fill(quant) for quant in sorted({t.quant for t in config.model.tensors})]


def filler(kernels: module.Kernels) -> Fill:
    """What fills every tensor of a model on the GPU, given the loaded kernels of `specs_for`."""

    def fill(config: ModelConfig, addresses: dict[str, int], on: Any) -> None:
        for tensor in config.model.tensors:
            fill_tensor(kernels, config, tensor, addresses[tensor.name], on)

    return fill


def fill_tensor(kernels: module.Kernels, config: ModelConfig, tensor: Tensor, address: int, on: Any) -> None:
    """Fill one tensor on the GPU, in the kernels' layout."""
    spec, shape = synth_fill(tensor.quant), Shape(rows=tensor.rows, cols=tensor.cols)
    spec.check(shape)
    low, high = key_halves(tensor_key(config.seed, tensor.name))
    a, b = parameters(tensor)
    tail: list[Any] = (
        [ctypes.c_int32(int(a)), ctypes.c_int32(int(b))]
        if tensor.quant in WORDS
        else [ctypes.c_float(a), ctypes.c_float(b)]
    )
    head = [ctypes.c_void_p(address), *(ctypes.c_int32(value) for value in (tensor.cols, low, high))]
    packed = driver.Arguments([*head, *tail])
    driver.launch(kernels[module.key(spec)], spec.grid(shape), spec.block(shape), packed, on=on)


def fill_once(config: ModelConfig, ordinal: int = 0) -> tuple[int, str]:
    """Fill a model's weights on a GPU and free them; (bytes filled, the GPU's name)."""
    with ExitStack() as stack:
        gpu = stack.enter_context(driver.open_gpu(ordinal))
        on = stack.enter_context(driver.stream())
        kernels = stack.enter_context(module.load(specs_for(config), gpu.arch))
        return stack.enter_context(load(config, on, filler(kernels))).nbytes, gpu.name
