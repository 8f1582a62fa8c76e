"""Compiled kernels: sources to cubins with NVRTC, kept in a cache on disk that any process may share.

A cubin's key is the hash of its source, every header, the flags, the architecture and the compiler's version,
so a stale one cannot be found. Files appear whole or not at all: two processes may build one kernel at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from engine import driver, nvrtc
from engine.errors import BuildError
from engine.kernels import KernelSpec

Key = tuple[str, tuple[tuple[str, int], ...]]
Kernels = dict[Key, driver.Kernel]
STATIC_SHARED_LIMIT = 48 << 10
BASE_FLAGS = ("--std=c++17", "--ptxas-options=-v")
# grids, order and layouts: a change of these makes another build, like one of a kernel
PLANNERS = (
    "plan.py",
    "prefill.py",
    "kernels.py",
    "kernels_matvec.py",
    "kernels_ops.py",
    "kernels_weights.py",
    "kernels_fast.py",
    "repack.py",
    "tiles.py",
    "fast_model.py",
    "fast_tables.py",
    "fast_plan.py",
)
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Cubin:
    """Native code of one source; `log` has the registers and spills of each kernel."""

    source: str
    code: bytes
    log: str


@cache
def sources() -> dict[str, str]:
    """Text of every kernel source and header by file name."""
    folder = files("cuda_src")
    names = sorted(p.name for p in folder.iterdir() if p.name.endswith((".cu", ".cuh")))
    return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in names}


def headers() -> dict[str, str]:
    """The headers among the sources."""
    return {name: text for name, text in sources().items() if name.endswith(".cuh")}


def source_hash(names: Sequence[str]) -> str:
    """Hash of the named sources and of the headers they include, directly or not, in hexadecimal."""
    wanted, found = list(names), dict[str, str]()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = _source(name)
            wanted += [header for header in _INCLUDE.findall(found[name]) if header in sources()]
    return _hash(found)


def build_hash(names: Sequence[str]) -> str:
    """What tells one build's code from another's: its kernel sources, and the modules that decide its launches."""
    return source_hash(names) + _planners_hash()


@cache
def _planners_hash() -> str:
    folder = files("engine")
    return _hash({name: folder.joinpath(name).read_text(encoding="utf-8") for name in PLANNERS})


def _hash(texts: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for name, text in sorted(texts.items()):
        digest.update(f"{name}\0{len(text)}\0{text}".encode())
    return digest.hexdigest()


def _source(name: str) -> str:
    try:
        return sources()[name]
    except KeyError:
        raise BuildError(f"kernel source {name} does not exist; there are {', '.join(sources())}") from None


def cache_folder() -> Path:
    """Where cubins are kept: the user's cache folder, `XDG_CACHE_HOME` respected."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "attrib" / "cubin"


def build(name: str, arch: str, flags: Sequence[str] = (), folder: Path | None = None) -> Cubin:
    """Native code of one source for an architecture such as `sm_90`, compiled or cached; needs no GPU.

    Raises BuildError with the compiler's log.
    """
    options = (f"--gpu-architecture={arch}", *BASE_FLAGS, *flags)
    key = hashlib.sha256("\0".join((source_hash([name]), name, *options, nvrtc.version())).encode())
    store = (folder or cache_folder()) / key.hexdigest()[:40]
    code, log = store.with_suffix(".cubin"), store.with_suffix(".log")
    with suppress(OSError):
        return Cubin(name, code.read_bytes(), log.read_text(encoding="utf-8"))
    built = Cubin(name, *nvrtc.compile_cubin(name, _source(name), headers(), options))
    # a cache that cannot be written costs seconds at the next start and nothing else
    with suppress(OSError):
        store.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(log, built.log.encode())
        _write_whole(code, built.code)
    return built


def _write_whole(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def flags_of(spec: KernelSpec, flags: Sequence[str]) -> tuple[str, ...]:
    """Compile flags of a kernel: the build's, then its own parameters."""
    return (*flags, *(f"-D{name}={value}" for name, value in spec.defines))


@contextmanager
def load(specs: Iterable[KernelSpec], arch: str, flags: Sequence[str] = ()) -> Iterator[Kernels]:
    """Device functions of all these kernels, by `key`; unloaded on exit.

    Raises BuildError when a source does not compile, CudaError when it lacks the symbol.
    """
    wanted: dict[Key, KernelSpec] = {}
    shared: dict[Key, int] = {}
    for spec in specs:
        wanted[key(spec)] = spec
        shared[key(spec)] = max(spec.shared_bytes, shared.get(key(spec), 0))
    with ExitStack() as stack:
        modules: dict[tuple[str, tuple[str, ...]], Any] = {}
        loaded: Kernels = {}
        for name, spec in wanted.items():
            file = (spec.source, flags_of(spec, flags))
            if file not in modules:
                cubin = build(spec.source, arch, file[1])
                modules[file] = stack.enter_context(driver.module(cubin.code))
            loaded[name] = driver.kernel(modules[file], spec.name)
            if shared[name] > STATIC_SHARED_LIMIT:
                driver.allow_shared(loaded[name], shared[name])
        yield loaded


def key(spec: KernelSpec) -> Key:
    """What tells two compiled kernels apart: the symbol and its build parameters."""
    return spec.name, spec.defines
