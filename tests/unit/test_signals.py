"""Ctrl-C, `kill` and a closed terminal in the middle of a write: no temporary file stays and no old one is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from attrib import runs
from tests.helpers import data, small_step
from tests.helpers.faults.case import state
from tests.helpers.runs_writer import run_row, site_row

POLITE = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
INTERRUPTED = 130
# the whole file is written and has its temporary name still
AT_THE_END = """
import os, sys, time
from pathlib import Path
number = int(sys.argv.pop(1))
def stop(path, target):
    assert path.stat().st_size > 0, path
    print(path, file=sys.stderr, flush=True)
    os.kill(os.getpid(), number)
    time.sleep(30)
Path.replace = stop
from attrib.cli import main
main()
"""
WRITE = """
import sys, time
from pathlib import Path
from attrib.files import write_whole
def write(path):
    path.write_text("half")
    try:
        print(path, flush=True)
        time.sleep(30)
    finally:
        print("unwinding", flush=True)
        time.sleep(0.5)
write_whole(Path(sys.argv[1]), write)
"""
Arguments = list[object]
COMMANDS: dict[str, Callable[[Path, Path], Arguments]] = {
    "csv": lambda trace, out: ["census", trace, "--csv", out / "t.csv"],
    "chart": lambda trace, out: ["anatomy", trace, "--plot", out / "t.svg"],
    "comparison": lambda trace, out: ["compare", trace, trace, "--csv", out / "t.csv"],
    "junit": lambda trace, out: ["gate", trace, "--against", trace, "--junit", out / "t.xml"],
    "page": lambda trace, out: ["report", trace, "-o", out / "t.html"],
    "perfetto": lambda trace, out: ["perfetto", trace, out / "t.pftrace"],
    "scrub": lambda trace, out: ["scrub", trace, out / "t.sqlite", "--force"],
    "packed scrub": lambda trace, out: ["scrub", trace, out / "t.sqlite.xz", "--force"],
    "history": lambda trace, out: ["runs", "export", out / "t.parquet", "--runs", trace.parent / "runs"],
    "packed trace": lambda trace, out: ["census", data.trace("trimmed-2026.1"), "--csv", out / "t.csv"],
}


def content(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file below a folder as it is; a folder's own time tells of the temporary file it had."""
    return {name: facts for name, facts in state(folder).items() if (folder / name).is_file()}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with an old file of every name."""
    folder = tmp_path / "out"
    folder.mkdir()
    for suffix in ("csv", "svg", "xml", "html", "pftrace", "sqlite", "sqlite.xz", "parquet"):
        (folder / f"t.{suffix}").write_text("old")
    return folder


@pytest.mark.parametrize("number", POLITE, ids=lambda number: number.name)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_leaves_a_temporary_file(tmp_path: Path, out: Path, command: str, number: signal.Signals) -> None:
    trace, _ = small_step.write(tmp_path)
    runs.append(tmp_path / "runs", run_row("one"), [site_row("attn_v/q6_K")])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before = content(tmp_path)
    arguments = [str(part) for part in COMMANDS[command](trace, out)]
    ended = subprocess.run(
        [sys.executable, "-c", AT_THE_END, str(int(number)), *arguments], capture_output=True, text=True, check=False,
        timeout=60, env={**os.environ, "TMPDIR": str(scratch), "MPLCONFIGDIR": str(tmp_path.parent / "mpl")},
    )  # fmt: skip
    assert f"{out}{os.sep}.t" in ended.stderr, ended.stderr
    assert ended.returncode == INTERRUPTED, ended.stderr
    assert "Traceback" not in ended.stderr
    assert content(tmp_path) == before


@pytest.mark.parametrize("twice", [False, True], ids=["once", "again while it unwinds"])
@pytest.mark.parametrize("number", POLITE, ids=lambda number: number.name)
def test_a_writer_of_the_library_unwinds(out: Path, number: signal.Signals, twice: bool) -> None:
    before = state(out)
    command = [sys.executable, "-c", WRITE, str(out / "t.csv")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert Path(process.stdout.readline().strip()).is_file()
        os.kill(process.pid, number)
        assert process.stdout.readline() == "unwinding\n"
        if twice:
            time.sleep(0.1)
            os.kill(process.pid, number)
        process.wait(timeout=30)
    assert process.returncode != 0
    assert state(out) == before


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_that_is_ignored_stays_so(out: Path, number: signal.Signals) -> None:
    """As under nohup, or in the background of a script."""
    script = WRITE.replace("time.sleep(30)", "time.sleep(0.5)")
    ignoring = f"import signal; signal.signal({int(number)}, signal.SIG_IGN)\n{script}"
    command = [sys.executable, "-c", ignoring, str(out / "t.csv")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, number)
        process.wait(timeout=30)
    assert process.returncode == 0
    assert (out / "t.csv").read_text() == "half"


def test_handlers_are_those_of_before(tmp_path: Path) -> None:
    from attrib.files import write_whole

    before = [signal.getsignal(number) for number in POLITE]
    during: list[object] = []
    write_whole(tmp_path / "a", lambda path: during.extend(signal.getsignal(number) for number in POLITE))
    assert [signal.getsignal(number) for number in POLITE] == before
    assert during[1] is not before[1]
