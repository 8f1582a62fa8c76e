"""Recorded traces, damaged one way after another: the right answer or one sentence, no traceback, no byte changed.

Damage that needs no recorded trace is in the fault matrix (test_faults.py).
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.conftest import Attrib, Outcome
from tests.helpers import data
from tests.helpers import nsysgen_oracle as oracle

SMALL = "cuda-python-graph-h200"
COMMANDS = ("info", "census", "stragglers", "anatomy")
EXPORTS = [name for name in data.NAMES if name != "not-an-export"]


@contextmanager
def untouched(path: Path) -> Iterator[None]:
    """Check that a block changes no byte of `path` and leaves nothing in its folder."""
    beside, digest = sorted(path.parent.iterdir()), data.sha256(path)
    modified = path.stat().st_mtime_ns
    yield
    assert data.sha256(path) == digest
    assert path.stat().st_mtime_ns == modified
    assert sorted(path.parent.iterdir()) == beside


def copy(name: str, folder: Path, suffix: str = ".sqlite") -> Path:
    source = data.trace(name) if suffix == ".sqlite" else data.packed(name)
    target = folder / f"{name}{suffix}"
    shutil.copyfile(source, target)
    return target


def is_sentence(text: str, path: Path) -> None:
    """One sentence that names the file and stays under 400 characters."""
    assert path.name in text, text
    assert len(text) < 400 + len(str(path)), text


@pytest.mark.parametrize("name", EXPORTS)
def test_every_recorded_trace_is_described(attrib: Attrib, name: str) -> None:
    path = data.trace(name)
    with untouched(path):
        document = attrib("info", path, "--json").json()
        assert attrib("info", path).code == 0
    assert document["counts"]["kernels"] == len(kernel_rows(path))
    assert sum(document["launches_by_device"].values()) == len(kernel_rows(path))


def kernel_rows(path: Path) -> list[tuple[int]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute("SELECT 1 FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()


@pytest.mark.parametrize("name", EXPORTS)
def test_a_packed_trace_reads_like_the_unpacked_one(attrib: Attrib, name: str, tmp_path: Path) -> None:
    packed = copy(name, tmp_path, data.SUFFIX)
    with untouched(packed):
        from_xz = attrib("census", packed, "--json")
    plain = attrib("census", data.trace(name), "--json")
    assert from_xz.code == plain.code
    if plain.code == 0:
        assert from_xz.json()["steps"] == plain.json()["steps"]
    else:
        assert from_xz.err.split(name, 1)[1].removeprefix(".sqlite.xz") == plain.err.split(name, 1)[1].removeprefix(
            ".sqlite"
        )


def flip(raw: bytes) -> bytes:
    middle = len(raw) // 2
    return raw[:middle] + bytes(b ^ 0xFF for b in raw[middle : middle + 8]) + raw[middle + 8 :]


XZ_DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped": flip,
    "cut in half": lambda raw: raw[: len(raw) // 2],
    "only its header": lambda raw: raw[:12],
    "without its index": lambda raw: raw[:-4],
}


@pytest.mark.parametrize("damage", XZ_DAMAGE)
@pytest.mark.parametrize("name", data.NAMES)
def test_damaged_xz(attrib: Attrib, name: str, damage: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.sqlite.xz"
    path.write_bytes(XZ_DAMAGE[damage](data.packed(name).read_bytes()))
    with untouched(path):
        text = attrib("census", path).refusal()
    is_sentence(text, path)
    assert "xz" in text


@pytest.mark.parametrize("size", [0, 1, 50, 99, 100, 4096, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", data.NAMES)
def test_truncated(attrib: Attrib, name: str, size: float, tmp_path: Path) -> None:
    raw = data.trace(name).read_bytes()
    path = tmp_path / f"{name}.sqlite"
    path.write_bytes(raw[: int(size if size >= 1 else size * len(raw))])
    with untouched(path):
        is_sentence(attrib("census", path).refusal(), path)


@pytest.mark.parametrize("command", COMMANDS)
def test_not_an_export_is_refused_by_name(attrib: Attrib, command: str) -> None:
    path = data.trace("not-an-export")
    with untouched(path):
        text = attrib(command, path).refusal()
    is_sentence(text, path)
    assert "nsys" in text


@pytest.mark.parametrize("name", data.NAMES)
def test_overwritten_pages(attrib: Attrib, name: str, tmp_path: Path) -> None:
    """Every second page after the schema overwritten: an answer, or a refusal, whatever was hit."""
    raw = bytearray(data.trace(name).read_bytes())
    for at in range(8192, len(raw), 8192):
        raw[at : at + 2048] = bytes(range(256)) * 8
    path = tmp_path / f"{name}.sqlite"
    path.write_bytes(raw)
    with untouched(path):
        outcome = attrib("census", path, "--json")
    if outcome.code:
        is_sentence(outcome.refusal(), path)
    else:
        outcome.json()


def wal_copy(name: str, folder: Path) -> Path:
    path = copy(name, folder)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    return path


@pytest.mark.parametrize("name", EXPORTS)
def test_wal_mode_copy(attrib: Attrib, name: str, tmp_path: Path) -> None:
    path = wal_copy(name, tmp_path)
    with untouched(path):
        outcome = attrib("info", path, "--json")
    plain = attrib("info", data.trace(name), "--json")
    assert same_but_path(outcome, plain)


def same_but_path(one: Outcome, other: Outcome) -> bool:
    documents = [{k: v for k, v in o.json().items() if k not in ("trace", "path", "file")} for o in (one, other)]
    return documents[0] == documents[1]


def test_read_only_directory(attrib: Attrib, tmp_path: Path) -> None:
    path = copy("llama.cpp-14b-tg16-h200", tmp_path)
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        with untouched(path):
            steps = attrib("census", path, "--json").json()["steps"]
    finally:
        tmp_path.chmod(0o755)
    assert steps["count"] == len(oracle.replays(path)) == 16
