"""Write docs/commands.md from the help of `attrib` and `engine`: `python docs/generate_commands.py`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import typer

from attrib.cli import app
from engine.cli import app as engine_app

PROGRAMS = {"attrib": app, "engine": engine_app}
PATH = Path(__file__).with_name("commands.md")
HEAD = """# Commands

Written by `python docs/generate_commands.py` from the programs' own help.
Bad input gives one sentence and exit code 2; a failed gate gives exit code 1.
"""


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """(`attrib census`, command) of every command that does something, groups expanded, in the order of the help."""
    if hasattr(command, "commands"):
        for name, part in command.commands.items():
            if not part.hidden:
                yield from commands(part, (*path, name))
    else:
        yield " ".join(path), command


def render() -> str:
    """The whole page."""
    sections = [HEAD]
    programs = [commands(typer.main.get_command(program), (name,)) for name, program in PROGRAMS.items()]
    for name, command in chain.from_iterable(programs):
        parameters = [p for p in command.params if not getattr(p, "hidden", False)]
        usage = [_spelled(p) for p in parameters if p.param_type_name == "argument"]
        usage += ["[OPTIONS]"] * any(p.param_type_name == "option" for p in parameters)
        text, _, example = (command.help or "").partition("Example:")
        lines = [f"## {name}", "", " ".join(text.split())]
        lines += ["", f"    {name} {' '.join(usage)}"]
        if example:
            lines += ["", "Example:", "", f"    {' '.join(example.split())}"]
        if parameters:
            lines += ["", "| option | meaning |", "|---|---|", *map(_row, parameters)]
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def _row(parameter: Any) -> str:
    """A table row: spellings, meaning and default of an option or argument."""
    meaning = " ".join((parameter.help or "").split())
    default = parameter.default
    if not (default is None or isinstance(default, bool) or default in ("", ()) or callable(default)):
        meaning += f" Default: {default}."
    escaped = meaning.replace("|", "\\|")
    return f"| `{_spelled(parameter)}` | {escaped} |"


def _spelled(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return ", ".join((*parameter.opts, *parameter.secondary_opts))


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
