"""Half-precision matrix products through cuBLAS, by nvmath-python's bindings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from engine.errors import CudaError

_NO_TRANSPOSE, _TRANSPOSE = 0, 1
_R_32F, _R_16F = 0, 2
_COMPUTE_32F = 68
_DEFAULT_ALGORITHM = -1
WORKSPACE_BYTES = 64 << 20


class Blas:
    """A cuBLAS handle bound to one stream and one workspace, so that results repeat bit for bit."""

    def __init__(self, binding: Any, handle: int) -> None:
        self._binding = binding
        self._handle = handle
        self._one = np.ones(1, np.float32)
        self._zero = np.zeros(1, np.float32)

    def matmul(
        self, weights: int, x: int, out: int, *, rows: int, cols: int, tokens: int, stride: int, add: bool
    ) -> None:
        """out f32 [tokens][stride], its first `rows` columns = x f16 [tokens][cols] · Wᵀ, W f16 [rows][cols].

        add: add to `out` instead. Accumulates in f32. Raises CudaError when cuBLAS refuses.
        """
        beta = self._one if add else self._zero
        try:
            self._binding.gemm_ex(
                self._handle,
                _TRANSPOSE,
                _NO_TRANSPOSE,
                rows,
                tokens,
                cols,
                self._one.ctypes.data,
                weights,
                _R_16F,
                cols,
                x,
                _R_16F,
                cols,
                beta.ctypes.data,
                out,
                _R_32F,
                stride,
                _COMPUTE_32F,
                _DEFAULT_ALGORITHM,
            )
        except self._binding.cuBLASError as error:
            raise CudaError(f"cuBLAS refused a {tokens} × {cols} by {cols} × {rows} product: {error}") from error


@contextmanager
def open_blas(stream: Any, workspace: int) -> Iterator[Blas]:
    """A cuBLAS handle on a stream with `WORKSPACE_BYTES` of device memory at `workspace`.

    Raises CudaError when the binding or the library is not installed.
    """
    try:
        binding = import_module("nvmath.bindings.cublas")
        handle = binding.create()
    # nvmath reports an absent library with exceptions of its own that differ by version
    except (ImportError, RuntimeError, OSError) as error:
        raise CudaError(
            f"prefill needs cuBLAS: pip install nvmath-python nvidia-cublas ({str(error).splitlines()[0]})"
        ) from error
    try:
        binding.set_stream(handle, int(stream))
        binding.set_workspace(handle, workspace, WORKSPACE_BYTES)
        yield Blas(binding, handle)
    finally:
        binding.destroy(handle)
