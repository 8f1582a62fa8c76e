"""Programs run, ended and understood; nsys found; recordings checked against what ran."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from attrib import api, capture
from attrib.capture import CaptureError, Finished, run_program
from attrib.errors import JoinError
from tests.helpers import fake_tools as fake


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_program_and_its_output() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert run_program(python(code), 30) == Finished(3, "out\n", "err\n")


def test_a_program_reads_no_input() -> None:
    assert run_program(python("import sys; print(repr(sys.stdin.read()))"), 30).out == "''\n"


def test_output_that_is_not_text() -> None:
    code = "import sys; sys.stdout.buffer.write(b'a\\xffb')"
    assert run_program(python(code), 30).out == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize(
    ("status", "text"), [(0, "exit code 0"), (7, "exit code 7"), (-9, "signal SIGKILL"), (-199, "signal 199")]
)
def test_a_status_in_words(status: int, text: str) -> None:
    assert Finished(status, "", "").describe_status() == text


@pytest.mark.parametrize(
    ("out", "err", "line"),
    [("a\nb\n", "", "b"), ("a", "x\n\n  y \n\n", "y"), ("", " \n", "it printed nothing"), ("", "z" * 999, "z" * 300)],
)
def test_the_last_line(out: str, err: str, line: str) -> None:
    assert Finished(1, out, err).last_line() == line


def test_what_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"nothing cannot be started: No such file"):
        run_program([str(tmp_path / "nothing")], 1)
    (tmp_path / "plain").write_text("x")
    with pytest.raises(CaptureError, match="cannot be started: Permission denied"):
        run_program([str(tmp_path / "plain")], 1)


def test_the_limit_ends_children_too(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.call([sys.executable, '-c', {child!r}])"
    with pytest.raises(CaptureError, match=r"did not end within 2 s"):
        run_program(python(parent), 2)
    deadline = time.monotonic() + 10
    while running(int(pid.read_text())):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.02)


def running(pid: int) -> bool:
    """Whether the process runs; one that ended and waits for its parent does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_program_that_ignores_the_polite_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "GRACE_S", 0.3)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    started = time.monotonic()
    with pytest.raises(CaptureError, match="did not end"):
        run_program(python(code), 1)
    assert time.monotonic() - started < 20


# ---------------------------------------------------------------- nsys


def nsys_at(folder: Path, text: str, status: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nsys"
    path.write_text(f"#!/bin/sh\necho '{text}'\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No nsys anywhere but where a test puts one: `first` is on PATH, `opt/*` are the usual folders."""
    monkeypatch.delenv("ATTRIB_NSYS", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'first'}:/usr/bin:/bin")
    monkeypatch.setattr(capture, "_PLACES", (str(tmp_path / "opt" / "*" / "nsys"),))
    return tmp_path


@pytest.mark.parametrize("version", ["2024.1.1.59", "2024.2.0.1", "2025.3.2.474", "2026.2.1.210"])
def test_versions_that_do(bare: Path, version: str) -> None:
    path = nsys_at(bare / "first", f"NVIDIA Nsight Systems version {version}-243236389321v0")
    assert capture.find_nsys() == capture.Nsys(path, version)


@pytest.mark.parametrize("version", ["2019.5.2", "2022.4.1.21", "2023.4.4.54"])
def test_versions_that_are_too_old(bare: Path, version: str) -> None:
    nsys_at(bare / "first", f"NVIDIA Nsight Systems version {version}-0")
    with pytest.raises(CaptureError, match=r"too old.*2024\.1 or newer \(2025\.3 is proven"):
        capture.find_nsys()


def test_a_newer_one_elsewhere_is_found(bare: Path) -> None:
    nsys_at(bare / "first", "NVIDIA Nsight Systems version 2022.4.1.21-0")
    nsys_at(bare / "opt" / "2024.5", "NVIDIA Nsight Systems version 2024.5.1.1-0")
    newest = nsys_at(bare / "opt" / "2025.3", "NVIDIA Nsight Systems version 2025.3.2.1-0")
    assert capture.find_nsys().path == newest


def test_one_that_is_broken(bare: Path) -> None:
    nsys_at(bare / "first", "cannot load libfoo", 127)
    with pytest.raises(CaptureError, match="does not tell its version"):
        capture.find_nsys()


def test_the_environment_decides_alone(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nsys_at(bare / "first", "NVIDIA Nsight Systems version 2025.3.2.1-0")
    given = nsys_at(bare / "mine", "NVIDIA Nsight Systems version 2024.6.1.1-0")
    monkeypatch.setenv("ATTRIB_NSYS", str(given))
    assert capture.find_nsys().path == given


# ---------------------------------------------------------------- the engine's output


def test_the_object_among_other_lines() -> None:
    out = 'loading\n{"schema": "x/1", "a": 1}\nGenerating report\n'
    assert capture.engine_json(Finished(0, out, ""), "x/1") == {"schema": "x/1", "a": 1}


@pytest.mark.parametrize(
    ("finished", "said"),
    [
        (Finished(0, "", ""), "printed no JSON object: it printed nothing"),
        (Finished(0, "{broken\n", ""), "printed no JSON object"),
        (Finished(0, '{"schema": "x/2"}\n', ""), "'x/2' where this version reads 'x/1'"),
        (Finished(2, "", "warning\nengine: no NVIDIA driver\n"), "the engine cannot run: no NVIDIA driver"),
        (Finished(-11, "", "boom\n"), "signal SIGSEGV: boom"),
    ],
)
def test_what_is_no_result(finished: Finished, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        capture.engine_json(finished, "x/1")


# ---------------------------------------------------------------- completeness


def check(tmp_path: Path, trace: fake.gen.Trace, steps: int = fake.TRACED) -> capture.Completeness:
    attribution = api.attribution(trace.write(tmp_path / "t.sqlite"), manifest=fake.manifest(), steps="graph")
    return capture.check_decode(attribution, fake.manifest(), steps)


def test_a_whole_recording(tmp_path: Path) -> None:
    assert check(tmp_path, fake.decode_trace()) == capture.Completeness(6, 10, 3, 3)


@pytest.mark.parametrize("lost", [1, 4])
def test_lost_replays(tmp_path: Path, lost: int) -> None:
    with pytest.raises(JoinError, match=f"lost {lost} of 10 graph replays"):
        check(tmp_path, fake.decode_trace(lost=lost), steps=1)


def test_a_replay_cut_short(tmp_path: Path) -> None:
    with pytest.raises(JoinError, match="1 × step cut short"):
        check(tmp_path, fake.decode_trace(cut=True), steps=1)


def test_fewer_replays_than_asked(tmp_path: Path) -> None:
    with pytest.raises(JoinError, match="has 10 graph replays and 11 were asked for"):
        check(tmp_path, fake.decode_trace(), steps=11)
