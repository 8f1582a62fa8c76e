"""A pipe, socket, device or folder where a file is read: one sentence, and no waiting for what never comes."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Attrib
from tests.helpers import parquet
from tests.helpers import persistent_step as ps
from tests.helpers.faults.case import state


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path has 108 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": a_socket,
    "device": device,
    "folder": folder,
}
Arguments = list[object]
INPUTS: dict[str, tuple[str, Callable[[Path, Path], Arguments]]] = {
    "trace": ("t.sqlite", lambda run, path: ["census", path]),
    "trace for info": ("t.sqlite", lambda run, path: ["info", path]),
    "trace for rules": ("t.sqlite", lambda run, path: ["rules", "check", path]),
    "report of nsys": ("t.nsys-rep", lambda run, path: ["census", path]),
    "packed trace": ("t.sqlite.xz", lambda run, path: ["census", path]),
    "trace of a run": ("run/trace.sqlite", lambda run, path: ["census", run]),
    "trace of a side": ("run/trace.sqlite", lambda run, path: ["compare", run, run]),
    "trace of a report": ("run/trace.sqlite", lambda run, path: ["report", run, "-o", run.parent / "r.html"]),
    "trace of devices": ("run/trace.sqlite", lambda run, path: ["compare", run, run, "--devices"]),
    "manifest of a run": ("run/manifest.json", lambda run, path: ["census", run]),
    "manifest of a side": ("run/manifest.json", lambda run, path: ["compare", run, run]),
    "manifest of a report": ("run/manifest.json", lambda run, path: ["report", run, "-o", run.parent / "r.html"]),
    "windows of a run": ("run/bench.json", lambda run, path: ["gate", run, "--against", run]),
    "--manifest": ("m.json", lambda run, path: ["census", run / "trace.sqlite", "--manifest", path]),
    "--rules": ("r.toml", lambda run, path: ["census", run / "trace.sqlite", "--rules", path]),
    "--rules of a check": ("r.toml", lambda run, path: ["rules", "check", run / "trace.sqlite", "--rules", path]),
    "--bytes": ("b.csv", lambda run, path: ["census", run / "trace.sqlite", "--bytes", path]),
    "--model": ("m.gguf", lambda run, path: ["census", run / "trace.sqlite", "--model", path]),
    "runs.db": ("runs.db", lambda run, path: ["runs", "list", "--runs", path.parent]),
    "measured class": (
        "config/rooflines.json",
        lambda run, path: ["census", run, "--class", "measured"],
    ),
}


@pytest.fixture(autouse=True)
def soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that waits is interrupted."""
    monkeypatch.setenv("ATTRIB_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    before = signal.signal(signal.SIGALRM, _late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _late(number: int, frame: object) -> None:
    raise AssertionError("the command waits")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    ps.write(made)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", INPUTS)
def test_a_file_that_is_none_is_refused(attrib: Attrib, run: Path, given: str, kind: str) -> None:
    name, command = INPUTS[given]
    path = run.parent / name
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    before = state(run.parent)
    said = attrib(*command(run, path)).refusal()
    assert path.name in said
    if kind != "folder":
        assert "regular file" in said
    assert state(run.parent) == before


@pytest.mark.parametrize("kind", KINDS)
def test_stamps_that_are_no_file_leave_the_kernel_one_row(attrib: Attrib, run: Path, kind: str) -> None:
    path = run / "stages.json"
    path.unlink()
    KINDS[kind](path)
    (said,) = (text for text in attrib("census", run, "--json").json()["warnings"] if "stays one row" in text)
    assert f"{path} cannot be read: " in said
    assert kind == "folder" or said.endswith("it is a pipe, socket or device and not a regular file")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", ["StringIds", "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_a_table_that_is_no_file_is_refused(attrib: Attrib, run: Path, table: str, kind: str) -> None:
    export = parquet.from_sqlite(run / "trace.sqlite", run.parent / "t_pqtdir")
    path = export / f"{table}.parquet"
    path.unlink()
    KINDS[kind](path)
    assert str(path) in attrib("census", export).refusal()


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"folder"}))
def test_a_fleet_goes_on_without_it(attrib: Attrib, run: Path, kind: str) -> None:
    KINDS[kind](run.parent / "rank1.sqlite")
    ps.trace().write(run.parent / "rank0.sqlite")
    found = attrib("fleet", run.parent / "rank*.sqlite", "--workers", "1", "--json").json()
    reasons = [member["reason"] for member in found["members"]]
    assert reasons[0] is None
    assert "not a regular file" in reasons[1]
