"""The command that reads many traces at once."""
# ruff: noqa: PLC0415 - heavy imports wait until a command needs them

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from attrib.cli_guard import guarded, print_json
from attrib.cli_options import ClassOption, JsonOption, Selection, Source, analysis_options, spelled
from attrib.files import require_distinct, write_csv

MOST_RANKS = 100_000  # as fleet_files has it, which a command line without a fleet does not load


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(guarded(spelled(fleet)))


def fleet(
    traces: Annotated[
        list[str], typer.Argument(help="Folders (searched at any depth), globs, or traces.", metavar="DIR|GLOB…")
    ],
    source: Source,
    selection: Selection,
    rate_class: ClassOption = None,
    rank_pattern: Annotated[
        str, typer.Option("--rank-pattern", help="Regex whose group is the rank in a path.", metavar="REGEX")
    ] = r"rank[-_.]?(\d+)",
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks", min=1, max=MOST_RANKS, help="Ranks there should be; the highest one says so otherwise."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Local processes; as many as cores otherwise.")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", help="A running Dask scheduler, such as tcp://host:8786.", metavar="ADDRESS"),
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write a row per trace to a CSV file.")] = None,
    as_json: JsonOption = False,
) -> None:
    r"""Census of many traces (ranks, machines, nights) with outlier ranks and missing ranks named.

    Traces of one folder, device and anchor are compared with each other. A file that cannot be read is a row that
    says why. Needs `pip install 'attrib[fleet]'`.
    Example: attrib fleet night1/ night2/ --model qwen2.5-14b:q4_k_m --ranks 8
    """
    from attrib.fleet import fleet as read
    from attrib.fleet_files import find

    if csv is not None:
        require_distinct((csv,), [*(one.path for one in find(traces, rank_pattern)), *source.files()])
    options = analysis_options(source, selection)
    count = workers or os.cpu_count() or 1
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as shown:
            task = shown.add_task("reading", total=None)
            found = read(
                traces, options, rate_class, rank_pattern, ranks, count, scheduler,
                lambda done, of: shown.update(task, completed=done, total=of),
            )  # fmt: skip
    else:
        found = read(traces, options, rate_class, rank_pattern, ranks, count, scheduler)
    if csv is not None:
        write_csv(found.to_pandas(), csv)
    if as_json:
        print_json(found.to_json())
        return
    from attrib import fleet_tables, tables

    fleet_tables.print_fleet(tables.console(), found)
