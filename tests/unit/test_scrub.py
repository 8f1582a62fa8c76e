"""`attrib scrub`: a copy without the machine it was recorded on, in which every number is the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import Attrib
from tests.helpers import data
from tests.helpers import nsysgen_oracle as oracle
from tests.helpers.nsysgen import H200, Kernel, Node, Trace

EXPORTS = [name for name in data.NAMES if name != "not-an-export"]
SECRET = "zq7secret"


def kernel_rows(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0])


@pytest.mark.parametrize("name", EXPORTS)
def test_a_recorded_trace_keeps_its_numbers(attrib: Attrib, name: str, tmp_path: Path) -> None:
    path, out = data.trace(name), tmp_path / "scrubbed.sqlite"
    digest, beside = data.sha256(path), sorted(path.parent.iterdir())
    outcome = attrib("scrub", path, out)
    assert outcome.code == 0, outcome.err
    assert data.sha256(path) == digest
    assert sorted(path.parent.iterdir()) == beside
    assert sorted(tmp_path.iterdir()) == [out]
    assert kernel_rows(out) == kernel_rows(path)
    before, after = (attrib("census", p, "--json") for p in (path, out))
    assert after.json() == before.json()


def planted(path: Path) -> Path:
    """A trace with a secret in every place an export carries its machine."""
    trace = Trace("2025.3")
    process = trace.process(pid=4321, name=f"/home/{SECRET}/bin/serve --token={SECRET}")
    process.device(trace.gpu(H200))
    nodes = [Node(Kernel("norm"), 2000), Node(Kernel("gemv", grid=(64, 1, 1)), 9000, gap=100)]
    graph = process.graph(nodes)
    at = 1_000_000
    for _ in range(5):
        at = process.replay(graph, at) + 20_000
    env = {"globalVid": 1, "devStateName": "Local (CLI)", "nameEnum": 1}
    trace.add("TARGET_INFO_SYSTEM_ENV", **env, name="Hostname", value=f"{SECRET}.example.org")
    trace.add("TARGET_INFO_SYSTEM_ENV", **env, name="EnvironmentVariables", value=f"API_KEY={SECRET}")
    trace.add("ThreadNames", nameId=trace.string(f"worker {SECRET}"), priority=0, globalTid=process.global_tid)
    trace.add("DIAGNOSTIC_EVENT", text=f"Process was launched as /home/{SECRET}/run.sh", globalPid=process.global_pid)
    trace.string(f"Server listening as {SECRET}")  # program output kept as a string nothing refers to
    trace.string(f"/home/{SECRET}/libfoo.so")
    return trace.write(path)


def test_nothing_planted_is_left_anywhere_in_the_file(attrib: Attrib, tmp_path: Path) -> None:
    source, out = planted(tmp_path / "in.sqlite"), tmp_path / "out.sqlite"
    assert SECRET.encode() in source.read_bytes()
    outcome = attrib("scrub", source, out)
    assert outcome.code == 0, outcome.err
    assert SECRET.encode() not in out.read_bytes()
    assert oracle.replays(out) == oracle.replays(source)
    assert {row.short for row in oracle.rows(out)} == {"norm", "gemv"}
    assert SECRET.encode() in source.read_bytes()


def test_the_input_is_never_the_output(attrib: Attrib, tmp_path: Path) -> None:
    source = planted(tmp_path / "in.sqlite")
    digest = data.sha256(source)
    attrib("scrub", source, source).refusal()
    assert data.sha256(source) == digest


@pytest.mark.parametrize("broken", ["missing.sqlite", "empty.sqlite"])
def test_a_broken_input_leaves_no_output(attrib: Attrib, broken: str, tmp_path: Path) -> None:
    if broken == "empty.sqlite":
        (tmp_path / broken).touch()
    attrib("scrub", tmp_path / broken, tmp_path / "out.sqlite").refusal()
    assert not (tmp_path / "out.sqlite").exists()


def test_a_folder_that_is_not_there_is_refused(attrib: Attrib, tmp_path: Path) -> None:
    source = planted(tmp_path / "in.sqlite")
    attrib("scrub", source, tmp_path / "absent" / "out.sqlite").refusal()
    assert sorted(tmp_path.iterdir()) == [source]
