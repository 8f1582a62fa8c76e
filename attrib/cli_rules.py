"""The commands about rule files: `attrib rules list` and `attrib rules check`."""
# ruff: noqa: PLC0415 - heavy imports wait until a command needs them

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attrib.cli_guard import guarded, print_json
from attrib.cli_options import JsonOption, RulesOption

SCHEMA = "attrib.rules.list/1"

app = typer.Typer(
    name="rules",
    help="Rule files: which kernels are what, and which of them stream weights.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def register(program: typer.Typer) -> None:
    """Add the group to the program."""
    program.add_typer(app)


@app.command("list")
@guarded
def list_rules(as_json: JsonOption = False) -> None:
    """Rule files shipped with the package, in the order they are tried.

    Example: attrib rules list
    """
    from attrib.rules import builtin_rules

    books = builtin_rules()
    if as_json:
        rows = [
            {
                "name": b.name,
                "about": b.about,
                "kernels": len(b.kernels),
                "streams": len(b.streams),
                "orders": len(b.layers),
            }
            for b in books
        ]
        print_json({"schema": SCHEMA, "rules": rows})
        return
    from attrib import rule_tables, tables

    rule_tables.print_rules(tables.console(), books)


@app.command()
@guarded
def check(
    trace: Annotated[Path, typer.Argument(help="nsys report, export or run directory.", metavar="TRACE")],
    rules: RulesOption = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many unknown kernels to propose rules for.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """How much of a trace's kernel time the rules know, and rules for the largest kernels they do not.

    Example: attrib rules check trace.sqlite --rules mine.toml
    """
    from attrib import api
    from attrib.rulecheck import check as take
    from attrib.rules import load

    found = take(api.open(trace), load(rules) if rules is not None else None, top)
    if as_json:
        print_json(found.to_json())
        return
    from attrib import rule_tables, tables

    rule_tables.print_check(tables.console(), found)
