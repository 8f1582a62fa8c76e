"""NVRTC, the compiler of the kernels; works without a GPU and with cuda-python 12.6 and newer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from engine.errors import BuildError


@cache
def _library() -> ModuleType:
    try:
        nvrtc = import_module("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    # cuda.bindings reports an absent library with exceptions of its own that differ by version
    except (RuntimeError, OSError, ImportError) as error:
        raise BuildError(
            "NVRTC cannot be loaded, so no kernel can be compiled; pip install nvidia-cuda-nvrtc"
        ) from error
    return nvrtc


def version() -> str:
    """The compiler's version, for example `13.0`; raises BuildError when it is not installed."""
    _, major, minor = _library().nvrtcVersion()
    return f"{major}.{minor}"


def compile_cubin(name: str, source: str, headers: dict[str, str], options: Sequence[str]) -> tuple[bytes, str]:
    """(cubin, log) of one source whose includes are all in `headers`; needs no GPU.

    Raises BuildError with the compiler's log.
    """
    nvrtc = _library()

    def step(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            text = nvrtc.nvrtcGetErrorString(result[0])[1].decode()
            raise BuildError(f"{name} did not compile: {text}\n{log()}")
        return result[1] if len(result) > 1 else None

    def log() -> str:
        if program is None:
            return ""
        text = b" " * int(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, text)
        return text.rstrip(b"\0 \n").decode(errors="replace")

    program = None
    texts, names = [h.encode() for h in headers.values()], [n.encode() for n in headers]
    program = step(nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), len(texts), texts, names))
    try:
        flags = [option.encode() for option in options]
        step(nvrtc.nvrtcCompileProgram(program, len(flags), flags))
        cubin = b" " * int(step(nvrtc.nvrtcGetCUBINSize(program)))
        step(nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin, log()
    finally:
        nvrtc.nvrtcDestroyProgram(program)
