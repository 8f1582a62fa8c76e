"""The documentation against the program: every command and option is written down, and what is written exists."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from attrib.cli import app
from engine.cli import app as engine_app
from tests.conftest import Attrib

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {"attrib": app, "engine": engine_app}
README, COMMANDS = ROOT / "README.md", ROOT / "docs" / "commands.md"
TEXT = README.read_text(encoding="utf-8") + (COMMANDS.read_text(encoding="utf-8") if COMMANDS.exists() else "")


def get_command(called: str) -> Any:
    """A program by its name on the command line."""
    return typer.main.get_command(PROGRAMS[called])


def leaves(command: Any, path: str = "attrib") -> Iterator[tuple[str, set[str]]]:
    """(`attrib census`, spellings of its visible options) of every command that is not hidden."""
    for name, part in getattr(command, "commands", {}).items():
        if part.hidden:
            continue
        if hasattr(part, "commands"):
            yield from leaves(part, f"{path} {name}")
        else:
            options = [p for p in part.params if p.param_type_name == "option" and not p.hidden]
            yield f"{path} {name}", {spelling for p in options for spelling in p.opts}


def sections(text: str) -> dict[str, str]:
    """Everything said under a heading that names a command, by that name."""
    parts = re.split(r"^## ((?:attrib|engine) .+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def undocumented(program: typer.Typer, text: str, called: str = "attrib") -> list[str]:
    """Commands of the program that no heading names, and options that the text below it lacks."""
    said = sections(text)
    missing = []
    for name, options in leaves(typer.main.get_command(program), called):
        if name not in said:
            missing.append(name)
        else:
            words = set(re.findall(r"(?<![\w-])--?[\w-]+", said[name]))
            missing += [f"{name} {option}" for option in sorted(options - words)]
    return missing


def test_the_check_finds_a_command_and_an_option_that_are_not_written_down() -> None:
    program, group = typer.Typer(), typer.Typer()

    @program.command()
    def known(shown: int = 1, new: int = 2) -> None: ...

    @group.command()
    def fresh() -> None: ...

    program.add_typer(group, name="group")
    assert undocumented(program, "") == ["attrib known", "attrib group fresh"]
    text = "## attrib known\n`--shown`, `--newer`\n## attrib group fresh\n"
    assert undocumented(program, text) == ["attrib known --new"]
    assert undocumented(program, text.replace("--newer", "--new")) == []


@pytest.mark.parametrize("called", PROGRAMS)
def test_every_command_and_option_is_written_down(called: str) -> None:
    assert undocumented(PROGRAMS[called], TEXT, called) == [], "run `python docs/generate_commands.py`"


def test_the_page_of_commands_is_current() -> None:
    render = runpy.run_path(str(ROOT / "docs" / "generate_commands.py"))["render"]
    assert COMMANDS.read_text(encoding="utf-8") == render(), "run `python docs/generate_commands.py`"


def invocations() -> list[str]:
    """Lines of the README, of the docs and of every analysis that start with `attrib ` or `engine `, continued lines
    joined; usage lines of docs/commands.md hold placeholders and are made from the programs themselves."""
    pages = [README, *ROOT.glob("docs/*.md"), *ROOT.glob("analyses/**/*.md")]
    texts = [page.read_text(encoding="utf-8").replace("\\\n", " ") for page in pages]
    found = {m for text in texts for m in re.findall(r"^\s*(?:\$ )?((?:attrib|engine) [a-z].*)$", text, re.MULTILINE)}
    return sorted(line.strip() for line in found if "[OPTIONS]" not in line)


def unparsed(line: str) -> str:
    """Why a documented command line does not parse; empty where it does. Nothing is run."""
    words = shlex.split(re.split(r"\s[;|]\s|`", line)[0], comments=True)
    command, path = get_command(words[0]), words[0]
    rest = words[1:]
    while hasattr(command, "commands"):
        if not rest or rest[0] not in command.commands:
            return f"{path} has no command {rest[:1]}"
        path, command, rest = f"{path} {rest[0]}", command.commands[rest[0]], rest[1:]
    if rest == ["--help"]:
        return ""
    try:
        command.make_context(path, rest)
    except Exception as error:  # typer brings a click of its own, or uses the installed one, by its version
        if not hasattr(error, "format_message"):
            raise
        return str(error.format_message())
    return ""


@pytest.mark.parametrize("line", invocations())
def test_every_documented_command_line_parses(line: str) -> None:
    assert unparsed(line) == ""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("attrib censor x", "attrib has no command"),
        ("attrib runs", "attrib runs has no command"),
        ("attrib census", "Missing argument"),
        ("attrib census x --modle y", "No such option: --modle"),
        ("attrib census x --kv many", "Invalid value for '--kv'"),
        ("engine generate -m x -k 1", "No such option: -k"),
    ],
)
def test_the_check_finds_lines_that_do_not_parse(line: str, why: str) -> None:
    assert unparsed(line).startswith(why)


def test_lines_of_every_kind_of_page_are_checked() -> None:
    found = invocations()
    assert len(found) > 60
    for line in ("attrib doctor", "attrib roofline", "attrib info out/ours", "attrib lever run 1b"):
        assert line in found
    assert any(line.startswith("attrib compare attrib/demo_data/") and "--" in line for line in found)


def test_the_readme_shows_what_the_demo_prints(attrib: Attrib, tmp_path: Path) -> None:
    printed = attrib("demo", "--recorded", "--out", str(tmp_path / "out")).out.split("\n\n")[0]
    text = README.read_text(encoding="utf-8")
    shown = text.split("<!-- demo:")[1].split("-->\n", 1)[1].split("<!-- /demo -->")[0]
    assert [line.strip() for line in shown.splitlines()] == [line.strip() for line in printed.splitlines()]
