"""Options that commands share: groups become options of the command line and come back as groups."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from attrib.attribution import Options
from attrib.cli_options import Output, Selection, Source, analysis_options, spelled

FIELDS = {"kv": "kv_length", "step_nvtx": "nvtx"}
NOT_ON_THE_COMMAND_LINE = {"stages"}


@dataclass(frozen=True)
class Group:
    """Two options of a test."""

    size: Annotated[int, typer.Option("--size")] = 3
    name: Annotated[str | None, typer.Option("--name", "-n")] = None


def program(seen: list[Any]) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @spelled
    def show(what: Annotated[str, typer.Argument()], group: Group, loud: bool = False) -> None:
        """Say it."""
        seen.append((what, group, loud))

    return app


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["x"], ("x", Group(3, None), False)),
        (["--size", "7", "x", "--loud"], ("x", Group(7, None), True)),
        (["-n", "y", "x"], ("x", Group(3, "y"), False)),
    ],
)
def test_a_group_is_filled_from_its_options(arguments: list[str], expected: tuple[object, ...]) -> None:
    seen: list[Any] = []
    assert CliRunner().invoke(program(seen), arguments).exit_code == 0
    assert seen == [expected]


def test_help_and_name_are_those_of_the_command() -> None:
    app = program([])
    (command,) = app.registered_commands
    assert command.callback is not None
    assert (command.callback.__name__, command.callback.__doc__) == ("show", "Say it.")
    assert list(inspect.signature(command.callback).parameters) == ["what", "size", "name", "loud"]
    assert "--size" in CliRunner().invoke(app, ["--help"]).output


def test_every_option_of_an_attribution_is_on_the_command_line() -> None:
    given = {f.name: FIELDS.get(f.name, f.name) for group in (Source, Selection) for f in fields(group)}
    assert set(given.values()) | NOT_ON_THE_COMMAND_LINE == {f.name for f in fields(Options)}
    paths = {"rules", "table", "manifest"}
    source = Source(**{f.name: Path(f.name) if f.name in paths else f.name for f in fields(Source)})
    selection = Selection(**{f.name: f.name for f in fields(Selection)})
    found = analysis_options(source, selection)
    for name, target in given.items():
        assert str(getattr(found, target)) == name
    assert source.files() == [Path("rules"), Path("table"), Path("manifest"), Path("stages.json")]
    assert Source(model="m.gguf").files() == [Path("m.gguf")]
    assert Source().files() == []
    assert Output() == Output(False, None, None)
