"""Everything but JSON fits 100 columns, and an error is wrapped where a person reads it and one line elsewhere."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from attrib.words import WIDTH, wrapped
from tests.conftest import Attrib
from tests.helpers import data, small_step
from tests.helpers import persistent_step as ps

MODEL = ("--model", "qwen2.5-14b:q4_k_m")
TRACES = [name for name in data.NAMES if name != "not-an-export"]
COMMANDS = [
    ("census",), ("census", "--by", "kernel"), ("census", "--by", "layer"), ("stragglers",), ("anatomy",), ("info",),
    ("rules", "check"),
]  # fmt: skip


def assert_fits(text: str, width: int = WIDTH, *unbroken: str) -> None:
    """No line is wider, unless a name in it, which is never cut, is."""
    for line in text.splitlines():
        assert cell_len(line) <= width or any(name in line for name in unbroken), (cell_len(line), line)


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_tables_and_notes_of_one_trace(attrib: Attrib, name: str, command: tuple[str, ...]) -> None:
    found = attrib(*command, data.trace(name))
    assert found.code in (0, 2)
    assert_fits(found.out)


@pytest.mark.parametrize("name", TRACES)
def test_perfetto_wraps_its_notes(attrib: Attrib, tmp_path: Path, name: str) -> None:
    out = tmp_path / "t.pftrace"
    found = attrib("perfetto", data.trace(name), out, "--max-steps", 2)
    assert_fits(found.out, WIDTH, str(out))
    if found.code == 0:
        said = attrib("perfetto", data.trace(name), out, "--max-steps", 2, "--json").json()["warnings"]
        text = " ".join(found.out.split())
        assert all(f"note: {' '.join(note.split())}" in text for note in said)


@pytest.mark.parametrize("name", ["a" * 200, "rank0 " * 30, "x-" * 90])
def test_a_fleet_with_long_names_and_bad_files(attrib: Attrib, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    small_step.write(tmp_path)
    for place in range(4):
        shutil.copyfile(tmp_path / "trace.sqlite", folder / f"{name}{place}.sqlite")
    shutil.copyfile(data.packed("not-an-export"), folder / "rank9.sqlite.xz")
    (folder / f"{name}.sqlite").write_text("no database")
    found = attrib("fleet", folder, "--workers", "1")
    assert found.code == 0
    assert "no census of rank9.sqlite.xz: " in found.out
    assert "outlier: |x - median| / max(" in found.out
    assert_fits(found.out)


@pytest.fixture
def engines(tmp_path: Path) -> tuple[Path, Path]:
    """A run of the engine, and the trace of another program in which most sites have other names."""
    own = tmp_path / "own"
    own.mkdir()
    shutil.copyfile(data.trace("engine-14b-d3254-h200"), own / "trace.sqlite")
    shutil.copyfile(data.DATA / "engine-14b-d3254-h200.manifest.json", own / "manifest.json")
    return own, data.trace("llama.cpp-14b-d3254-tg16-h200")


@pytest.mark.parametrize("turned", [False, True], ids=["against the engine", "of the engine"])
def test_a_gate_across_engines_names_a_site_once(attrib: Attrib, engines: tuple[Path, Path], turned: bool) -> None:
    base, run = engines[::-1] if turned else engines
    found = attrib("gate", run, "--against", base, *MODEL)
    assert_fits(found.out)
    head = next(line for line in found.out.splitlines() if line.startswith("judged"))
    assert head.split() == ["judged", "base", "ms", "run", "ms", "Δ", "ms", "Δ", "%", "spread", "verdict"]
    cases = attrib("gate", run, "--against", base, *MODEL, "--json")
    assert cases.code == found.code
    missing = [line.split()[0] for line in found.out.splitlines() if line.rstrip().endswith("cannot judge")]
    assert len(missing) > 5
    assert all(found.out.count(f"{name} ") + found.out.count(f"{name},") == 1 for name in missing)
    assert f"{len(missing)} cannot be judged: the run has no such site" in found.out


def test_a_comparison_across_engines_fits(attrib: Attrib, engines: tuple[Path, Path]) -> None:
    own, other = engines
    assert_fits(attrib("compare", own, other, *MODEL, "--anchor-b", "14b:@3254", "--force").out)
    assert_fits(attrib("compare", own, other, "--devices").out)


def test_a_persistent_kernel_fits(attrib: Attrib, tmp_path: Path) -> None:
    ps.write(tmp_path)
    for command in (("census",), ("anatomy",), ("stragglers", "--class", "2000:3000"), ("info",)):
        assert_fits(attrib(*command, tmp_path).out)


LONG = "a" * 60 + "/missing trace with a name of many words that goes on and on.sqlite"


def on_a_terminal(columns: int, *arguments: str) -> tuple[int, str]:
    """(exit code, stderr) of a command whose stderr is a terminal of so many columns."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "attrib", *arguments], stdout=subprocess.PIPE, stderr=follower,
        env={**os.environ, "COLUMNS": str(columns), "TERM": "dumb"},
    ) as process:  # fmt: skip
        os.close(follower)
        said = b""
        while True:
            try:
                part = os.read(leader, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said += part
        process.wait(timeout=60)
    os.close(leader)
    return process.returncode, said.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize(
    "arguments",
    [
        ("census", LONG),
        ("census", str(data.trace("not-an-export"))),
        ("fleet", LONG, "--workers", "1"),
        ("runs", "list", "--runs", LONG),
    ],
    ids=lambda arguments: " ".join(arguments)[:12],
)
def test_an_error_is_wrapped_on_a_terminal_and_one_line_in_a_pipe(arguments: tuple[str, ...], columns: int) -> None:
    code, said = on_a_terminal(columns, *arguments)
    words = [word for word in said.split() if cell_len(word) > columns]
    assert code == 2
    assert said.split()[0] == "attrib:"  # after an empty line where a bar of progress was
    assert_fits(said, min(columns, WIDTH), *words)
    piped = subprocess.run(
        [sys.executable, "-m", "attrib", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert piped.stderr.count("\n") == 1
    assert piped.stderr.split() == said.split()


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("", 10, [""]),
        ("one two three", 10, ["one two", "three"]),
        ("  in two three", 8, ["  in two", "  three"]),
        ("\na b\n", 10, ["", "a b", ""]),
        ("see /a/very-long/path here", 10, ["see", "/a/very-long/path", "here"]),
    ],
)
def test_lines_are_wrapped_at_words(text: str, width: int, lines: list[str]) -> None:
    assert wrapped(text, width).split("\n") == lines
