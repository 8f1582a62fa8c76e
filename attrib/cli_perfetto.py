"""The command that draws a trace for the Perfetto viewer."""
# ruff: noqa: PLC0415 - heavy imports wait until a command needs them

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from attrib.cli_guard import guarded, print_json, say
from attrib.cli_options import JsonOption, Selection, Source, analysis_options, spelled
from attrib.files import require_distinct
from attrib.words import counted


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(guarded(spelled(perfetto)))


def perfetto(
    trace: Annotated[Path, typer.Argument(help="nsys report or export, or run directory.", metavar="TRACE")],
    out: Annotated[Path, typer.Argument(help="The file to write, by habit .pftrace.", metavar="OUT")],
    source: Source,
    selection: Selection,
    max_steps: Annotated[
        int | None,
        typer.Option("--max-steps", min=1, help="Draw the first so many steps; without it, a million launches."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw steps, layers, launches by site, idle and GB/s counters for the Perfetto viewer (ui.perfetto.dev).

    Launches that overlap lie on lanes of their own.
    Example: attrib perfetto trace.sqlite trace.pftrace --model qwen2.5-14b:q4_k_m
    """
    from attrib import api
    from attrib.perfetto import write_perfetto

    require_distinct((out,), [trace, *source.files()])
    attribution = api.attribution(trace, **vars(analysis_options(source, selection)))
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as shown:
            task = shown.add_task("drawing")
            written = write_perfetto(
                attribution, out, max_steps, lambda done, of: shown.update(task, completed=done, total=of)
            )
    else:
        written = write_perfetto(attribution, out, max_steps)
    if as_json:
        print_json(written.to_json())
        return
    say(
        f"{counted(written.launches, 'launch')} of {counted(written.steps, 'step')}, "
        f"{counted(written.lanes, 'lane')}, {counted(written.counters, 'counter')}"
    )
    say(f"{out} ({written.size / 1e6:.1f} MB); open it in ui.perfetto.dev")
    for note in written.warnings:
        say(f"note: {note}")
