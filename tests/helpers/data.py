"""The recorded traces of tests/data, unpacked once per test run and read-only."""

from __future__ import annotations

import atexit
import hashlib
import lzma
import shutil
import tempfile
from functools import cache
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data"
SUFFIX = ".sqlite.xz"
NAMES = tuple(sorted(p.name.removesuffix(SUFFIX) for p in DATA.glob(f"*{SUFFIX}")))


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="attrib-traces-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def trace(name: str) -> Path:
    """Path of the unpacked export `name` (without suffix), mode 0444; KeyError names the known ones."""
    if name not in NAMES:
        raise KeyError(f"no trace {name!r} in {DATA}; there are {', '.join(NAMES)}")
    path = _folder() / f"{name}.sqlite"
    path.write_bytes(lzma.decompress(packed(name).read_bytes()))
    path.chmod(0o444)
    return path


def packed(name: str) -> Path:
    """Path of the xz file of a recorded trace."""
    return DATA / f"{name}{SUFFIX}"


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
