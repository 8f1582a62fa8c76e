"""Command line: parse, one library call, render, exit code. Exit 2 for bad input, 1 for a failed gate, 0 otherwise."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import attrib
from attrib import cli_ab, cli_compare, cli_fleet, cli_perfetto, cli_record, cli_report, cli_rules, cli_runs
from attrib.cli_guard import entry, guarded, print_json
from attrib.cli_options import (
    ByOption,
    ClassOption,
    JsonOption,
    Output,
    ReaderOption,
    Selection,
    Source,
    Traces,
    analysis_options,
    spelled,
)
from attrib.files import numbered, require_distinct, write_csv

if TYPE_CHECKING:
    from rich.progress import TaskID

    from attrib.attribution import Attribution

app = typer.Typer(
    name="attrib",
    help="Which matrices of an LLM decode step stream below the rate the device can reach, and what it costs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"attrib {attrib.__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command()
@guarded
@spelled
def census(
    traces: Traces,
    source: Source,
    selection: Selection,
    output: Output,
    rate_class: ClassOption = None,
    by: ByOption = "site",
    reader: ReaderOption = "auto",
) -> None:
    """Effective GB/s of every site of a decode step.

    Example: attrib census trace.sqlite --model qwen2.5-14b:q4_k_m
    """
    from attrib import api

    require_distinct([*_each(output.csv, traces), *_each(output.plot, traces)], [*traces, *source.files()])
    found = _attributions(traces, reader, source, selection)
    results = [(path, api.census(a, rate_class, by)) for path, a in found]
    _outputs(results, output.csv, output.plot)
    if output.json:
        _print_all([result.to_json() for _, result in results])
        return
    from attrib import tables

    for path, result in results:
        tables.print_census(tables.console(), result, path.name)


@app.command()
@guarded
@spelled
def stragglers(
    traces: Traces,
    source: Source,
    selection: Selection,
    output: Output,
    rate_class: ClassOption = None,
    by: ByOption = "site",
    reader: ReaderOption = "auto",
) -> None:
    """Sites under the class, ranked by the ms per step that class rate would give back.

    Example: attrib stragglers trace.sqlite --model qwen2.5-14b:q4_k_m --class 220:225
    """
    from attrib import api

    require_distinct([*_each(output.csv, traces), *_each(output.plot, traces)], [*traces, *source.files()])
    found = _attributions(traces, reader, source, selection)
    results = [(path, api.stragglers(api.census(a, rate_class, by))) for path, a in found]
    _outputs(results, output.csv, output.plot)
    if output.json:
        _print_all([result.to_json() for _, result in results])
        return
    from attrib import tables

    for path, result in results:
        tables.print_stragglers(tables.console(), result, path.name)


@app.command()
@guarded
@spelled
def anatomy(
    traces: Traces,
    source: Source,
    selection: Selection,
    output: Output,
    reader: ReaderOption = "auto",
) -> None:
    """The step by category: weight streaming, attention, norm, quantize, … and idle.

    Two traces of one build at two KV lengths make a KV-growth pair.
    Example: attrib anatomy tg16.sqlite d3254.sqlite --plot growth.png
    """
    from attrib import api
    from attrib.anatomy import growth

    require_distinct([*_each(output.csv, traces), output.plot], [*traces, *source.files()])
    results = [(path, api.anatomy(a)) for path, a in _attributions(traces, reader, source, selection)]
    if output.plot is not None:
        from attrib.plots import plot_anatomy

        anchors = [result.anchor for _, result in results]
        distinct = all(anchors) and len(set(anchors)) == len(anchors)
        labels = anchors if distinct else [path.name for path, _ in results]
        plot_anatomy([r for _, r in results], str(output.plot), labels)
    _outputs(results, output.csv, None)
    pair = growth(*(result for _, result in results)) if len(results) == 2 else None
    if output.json:
        _print_all([result.to_json() for _, result in results], **{"growth": pair.to_json()} if pair else {})
        return
    from attrib import tables

    tables.print_anatomy(tables.console(), [(path.name, result) for path, result in results])
    if pair is not None:
        tables.print_growth(tables.console(), pair)


@app.command()
@guarded
def info(
    trace: Annotated[Path, typer.Argument(help="nsys report, export or run directory.", metavar="TRACE")],
    as_json: JsonOption = False,
) -> None:
    """What an export holds, and what can and cannot be attributed from it.

    Example: attrib info trace.sqlite
    """
    from attrib import api, tables
    from attrib.info import describe

    found = describe(api.open(trace))
    if as_json:
        _print_all([found.to_json()])
        return
    tables.print_info(tables.console(), found)


@app.command()
@guarded
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the charts.")] = Path("out"),
    recorded: Annotated[bool, typer.Option("--recorded", help="Read the bundled trace even where a GPU is.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Census, stragglers and anatomy of a 14B decode on an H200, with charts: live here or as recorded.

    Where an NVIDIA GPU, nsys and the engine are, it records; elsewhere it reads the bundled trace.
    Example: attrib demo --out out
    """
    from attrib import demo as demonstration
    from attrib import tables

    found = demonstration.bundled(out) if recorded else demonstration.run(out, lambda text: typer.echo(text, err=True))
    if as_json:
        _print_all([found.census.to_json(), found.stragglers.to_json(), *(a.to_json() for _, a in found.anatomies)])
        return
    console = tables.console()
    tables.print_census(console, found.census, found.title)
    tables.print_stragglers(console, found.stragglers, found.title)
    tables.print_anatomy(console, found.anatomies)
    console.print(f"charts: {', '.join(str(path) for path in found.charts)}", soft_wrap=True)


def _attributions(
    traces: list[Path], reader: str, source: Source, selection: Selection
) -> list[tuple[Path, Attribution]]:
    """Read every trace, with a progress bar on a terminal."""
    from attrib import api

    options = vars(analysis_options(source, selection))
    if not sys.stderr.isatty():
        return [(path, api.attribution(path, reader, **options)) for path in traces]
    from rich.console import Console
    from rich.progress import Progress

    found = []
    with Progress(console=Console(stderr=True), transient=True) as shown:
        for path in traces:
            task = shown.add_task(f"reading {path.name}", total=1.0)

            def update(part: float, task: TaskID = task) -> None:
                shown.update(task, completed=part)

            found.append((path, api.attribution(path, reader, update, **options)))
    return found


def _outputs(results: list[tuple[Path, Any]], csv: Path | None, plot: Path | None) -> None:
    for target, (_, result) in zip(_each(csv, results), results, strict=False):
        write_csv(result.to_pandas(), target)
    for target, (_, result) in zip(_each(plot, results), results, strict=False):
        result.plot(str(target))


def _each(path: Path | None, results: Sequence[object]) -> list[Path]:
    """The file of each result; none where no path is given."""
    return [] if path is None else [numbered(path, place, len(results)) for place in range(len(results))]


def _print_all(documents: list[dict[str, Any]], **more: Any) -> None:
    """One object; several traces give one object with a list, and `more` of them together."""
    body = documents[0] if len(documents) == 1 else {"schema": "attrib.list/1", "results": documents, **more}
    print_json(body)


cli_record.register(app)
cli_compare.register(app)
cli_perfetto.register(app)
cli_fleet.register(app)
cli_runs.register(app)
cli_ab.register(app)
cli_rules.register(app)
cli_report.register(app)


def main() -> None:
    """Entry point."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for µ; it is no reason to fail
    entry(app)
