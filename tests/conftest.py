"""Shared fixtures: the command line in process, and the update switch of golden files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


@dataclass(frozen=True)
class Outcome:
    """Exit code, stdout and stderr of one command."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """Stdout as JSON, after checking that the command succeeded; NaN and infinities are errors."""
        assert self.code == 0, self.err or self.out
        document: dict[str, Any] = json.loads(self.out, parse_constant=_no_constant)
        return document

    def refusal(self) -> str:
        """The one sentence of a refused input; checks exit code 2, nothing else on stdout and no traceback."""
        assert self.code == 2, (self.code, self.out[-500:], self.err[-500:])
        assert self.out == "" or json.loads(self.out)["schema"] == "attrib.error/1"  # with --json
        assert "Traceback" not in self.err
        return " ".join(self.err.split())


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} in JSON output")


Attrib = Callable[..., Outcome]


@pytest.fixture
def attrib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Attrib:
    """Run `attrib ARGS` in process; terminal tables are 120 columns wide and without colour."""
    from attrib import cli

    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["attrib", *map(str, arguments)])
        capsys.readouterr()
        code: object = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
        text = capsys.readouterr()
        return Outcome(code if isinstance(code, int) else 0, text.out, text.err)

    return run
