"""One case of the fault matrix: how it is run, what it must leave untouched, how its row in docs/faults.md reads."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from attrib.words import counted

SECRET = "a-host-that-nobody-may-see"
Make = Callable[[Path], list[object]]
"""Writes the input into a folder and returns the arguments after `attrib`."""


@dataclass(frozen=True)
class Refused:
    """Exit code 2 and one sentence that holds these words."""

    words: str


@dataclass(frozen=True)
class Right:
    """Exit code 0 and JSON with these facts: `steps.count` names a nested one, `warnings~` words of any warning."""

    facts: dict[str, Any] = field(default_factory=dict)
    shown: str = ""
    """what the row says; the steps of a census otherwise"""


@dataclass(frozen=True)
class Fault:
    """A case. `during` surrounds the command: a lock that another program holds, a user without rights."""

    key: str
    what: str
    make: Make
    expected: Refused | Right
    during: Callable[[Path], AbstractContextManager[object]] = lambda _: contextlib.nullcontext()
    output: str = ""
    """a file the command writes beside the input; it must not hold `SECRET`"""


@dataclass(frozen=True)
class Said:
    """Exit code, stdout and stderr."""

    code: int
    out: str
    err: str


def run(arguments: list[object]) -> Said:
    """The command line in this process."""
    from attrib import cli

    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    argv = ["attrib", *map(os.fspath, map(str, arguments))]
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
    return Said(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def judge(fault: Fault, folder: Path) -> str:
    """Run a case in an empty folder; returns its outcome as a row says it, and fails on anything unexpected."""
    arguments = fault.make(folder)
    before = state(folder)
    with fault.during(folder):
        said = run(arguments)
    after = state(folder)
    if fault.output:
        assert SECRET.encode() not in (folder / fault.output).read_bytes()
        del after[fault.output]
    assert after == before, "the input or its folder changed"
    assert "Traceback" not in said.err
    if isinstance(fault.expected, Refused):
        return _refused(fault.expected, said, folder)
    return _right(fault.expected, said)


def _refused(expected: Refused, said: Said, folder: Path) -> str:
    assert said.code == 2, (said.code, said.out[-500:], said.err[-500:])
    sentence = " ".join(said.err.split())
    document = json.loads(said.out, parse_constant=_no_constant)
    assert (document["schema"], document["exit"]) == ("attrib.error/1", 2)
    assert " ".join(document["error"].split()) == sentence.removeprefix("attrib: ")
    assert sentence.startswith("attrib: ")
    sentence = sentence.removeprefix("attrib: ").replace(f"{folder}{os.sep}", "").replace(str(folder), "FOLDER")
    assert expected.words in sentence, sentence
    assert len(sentence) < 500, sentence
    assert not re.search(r"[\x00-\x1f\x7f]", sentence)
    return f"refused: {_plain(sentence)}"


def _right(expected: Right, said: Said) -> str:
    assert said.code == 0, said.err
    document = json.loads(said.out, parse_constant=_no_constant)
    warned = ""
    for name, value in expected.facts.items():
        if name.endswith("~"):
            noticed = [text for text in document[name[:-1]] if value in text]
            assert noticed, (value, document[name[:-1]])
            warned = f"; warns: {noticed[0]}"
            continue
        found: Any = document
        for part in name.split("."):
            found = found[part]
        assert found == value or (isinstance(value, float) and abs(found - value) < 1e-9), (name, found, value)
    if expected.shown:
        return f"right answer: {expected.shown}"
    steps = document["steps"]
    left = (
        "; left out: " + ", ".join(f"{n} × {why}" for why, n in steps["excluded"].items()) if steps["excluded"] else ""
    )
    read = f"{counted(steps['count'], 'step')} of {counted(steps['launches'], 'launch')}"
    return f"right answer: {read}, {steps['span_ms']:.4f} ms{left}{warned}"


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} in JSON output")


def _plain(sentence: str) -> str:
    """Without what differs between machines: the words of SQLite, Python and other libraries, and lists that grow."""
    sentence = re.sub(r"is damaged \(.*?\);", "is damaged (…);", sentence)
    sentence = re.sub(r"damaged (Parquet|xz) file \(.*?\);", r"damaged \1 file (…);", sentence)
    sentence = re.sub(r"(is not JSON|is not CSV text|is damaged): .*", r"\1: …", sentence)
    sentence = re.sub(r"(r\.toml is not valid|line 2): (Invalid value|missing|invalid literal).*", r"\1: …", sentence)
    return re.sub(r"known are .*", "known are …", sentence)


def state(folder: Path) -> dict[str, tuple[str, int]]:
    """Kind or digest, and time of change, of everything below a folder; links are not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        if path.is_symlink():
            kind = f"link to {path.readlink()}"
        elif path.is_file():
            kind = _digest(path)
        else:
            kind = oct(facts.st_mode)
        found[str(path.relative_to(folder))] = (kind, facts.st_mtime_ns)
    return found


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except PermissionError:
        return "unreadable"


@contextmanager
def without_rights(_: Path) -> Iterator[None]:
    """As a user who may read only what everybody may, where this one is root."""
    if os.geteuid() != 0:
        yield
        return
    from attrib import api, tables  # noqa: F401 - loaded while their files can be read

    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def row(fault: Fault, outcome: str) -> str:
    """The Markdown row of a case."""
    return f"| {_cell(fault.what)} | {_cell(outcome)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
