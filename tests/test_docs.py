"""The documentation against the program: every command and option is written down, and what is written exists."""

from __future__ import annotations

import re
import runpy
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
    """Lines of the README and of every analysis that start with `attrib ` or `engine `."""
    texts = [
        README.read_text(encoding="utf-8"),
        *(p.read_text(encoding="utf-8") for p in ROOT.glob("analyses/**/*.md")),
    ]
    return sorted(
        {
            m.strip()
            for text in texts
            for m in re.findall(r"^\s*(?:\$ )?((?:attrib|engine) [a-z].*)$", text, re.MULTILINE)
        }
    )


@pytest.mark.parametrize("line", invocations())
def test_every_command_line_in_the_readme_exists(line: str) -> None:
    known = {name: options for called in PROGRAMS for name, options in leaves(get_command(called), called)}
    words = re.split(r"\s#|[;|`]", line)[0].split()
    name = next((n for n in (" ".join(words[:3]), " ".join(words[:2])) if n in known), None)
    assert name is not None, line
    used = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert used <= known[name] | {"--help"}, line


def test_the_readme_has_examples_to_check() -> None:
    assert len(invocations()) >= 4


def test_the_readme_shows_what_the_demo_prints(attrib: Attrib, tmp_path: Path) -> None:
    printed = attrib("demo", "--recorded", "--out", str(tmp_path / "out")).out.split("\n\n")[0]
    text = README.read_text(encoding="utf-8")
    shown = text.split("<!-- demo:")[1].split("-->\n", 1)[1].split("<!-- /demo -->")[0]
    assert [line.strip() for line in shown.splitlines()] == [line.strip() for line in printed.splitlines()]
