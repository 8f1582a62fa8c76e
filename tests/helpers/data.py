"""The recorded traces of tests/data, unpacked once per test run and read-only."""

from __future__ import annotations

import atexit
import hashlib
import lzma
import shutil
import tempfile
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
DATA = TESTS / "data"
DEMO = TESTS.parent / "attrib" / "demo_data"  # the bundled traces are test data too
SUFFIX = ".sqlite.xz"
_PACKED = {p.name.removesuffix(SUFFIX): p for folder in (DATA, DEMO) for p in folder.glob(f"*{SUFFIX}")}
NAMES = tuple(sorted(_PACKED))


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="attrib-traces-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def trace(name: str) -> Path:
    """Path of the unpacked export `name` (without suffix), mode 0444; KeyError names the known ones."""
    if name not in NAMES:
        raise KeyError(f"no trace {name!r}; there are {', '.join(NAMES)}")
    path = _folder() / f"{name}.sqlite"
    path.write_bytes(lzma.decompress(packed(name).read_bytes()))
    path.chmod(0o444)
    return path


def packed(name: str) -> Path:
    """Path of the xz file of a recorded trace."""
    return _PACKED[name]


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
