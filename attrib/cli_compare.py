"""The commands that judge one run against another: compare and gate."""
# ruff: noqa: PLC0415 - heavy imports wait until a command needs them

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attrib.cli_guard import guarded, print_json
from attrib.cli_options import (
    JsonOption,
    ModelOption,
    ReaderOption,
    RulesOption,
    Selection,
    Source,
    analysis_options,
    spelled,
)
from attrib.files import TRACE, require_distinct, write_csv

if TYPE_CHECKING:
    from attrib.compare_sides import Loaded

First = Annotated[Path, typer.Argument(help="Run directory, or nsys SQLite export.", metavar="A")]
Second = Annotated[Path, typer.Argument(help="Run directory, or nsys SQLite export.", metavar="B")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (compare, gate):
        app.command()(guarded(spelled(command)))


@dataclass(frozen=True)
class _Cut:
    """What both sides share: how traces are cut into steps and where the bytes of a trace come from."""

    model: str | None
    rules: Path | None
    selection: Selection
    reader: str

    def load(self, path: Path, model: str | None, table: Path | None, anchor: str, build: str) -> Loaded:
        """Read one side; a run directory has its bytes from its manifest, so the shared model is for traces only."""
        from attrib.compare_sides import load

        shared = None if (path / TRACE).exists() or table is not None else self.model
        chosen = model or shared
        source = Source(chosen, self.rules if chosen else None, table, None, anchor, build)
        options = analysis_options(source, self.selection)
        return load(path, options, self.reader)


def compare(
    a: First,
    b: Second,
    selection: Selection,
    model: ModelOption = None,
    model_a: Annotated[str | None, typer.Option("--model-a", help="Bytes of A alone.")] = None,
    model_b: Annotated[str | None, typer.Option("--model-b", help="Bytes of B alone.")] = None,
    bytes_a: Annotated[Path | None, typer.Option("--bytes-a", help="CSV of bytes for A (see census).")] = None,
    bytes_b: Annotated[Path | None, typer.Option("--bytes-b", help="CSV of bytes for B.")] = None,
    rules: RulesOption = None,
    anchor_a: Annotated[str, typer.Option("--anchor-a", help="Anchor of A where its source does not say.")] = "",
    anchor_b: Annotated[str, typer.Option("--anchor-b", help="Anchor of B where its source does not say.")] = "",
    build_a: Annotated[str, typer.Option("--build-a", help="Label of A's build.")] = "",
    build_b: Annotated[str, typer.Option("--build-b", help="Label of B's build.")] = "",
    devices: Annotated[
        bool, typer.Option("--devices", help="Compare whole traces device by device: span, busy and idle time.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Compare unlike devices, models or anchors, labelled as such.")
    ] = False,
    reader: ReaderOption = "auto",
    as_json: JsonOption = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the sites to a CSV file.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write the chart to a .png, .svg or .pdf file.")] = None,
) -> None:
    """Where a step of B takes longer or less than a step of A: by cause, by category and by site.

    Two builds, or an engine against another one's trace. Example: attrib compare runs/OURS llama.sqlite --model
    qwen2.5-14b:q4_k_m --anchor-b @3254 --plot gap.png
    """
    from attrib import compare_tables, tables
    from attrib.compare import compare as take
    from attrib.compare_sides import Side

    sources = Source(model, rules), Source(model_a, table=bytes_a), Source(model_b, table=bytes_b)
    require_distinct((csv, plot), [a, b, *(file for source in sources for file in source.files())])
    if devices:
        _devices(a, b, reader, as_json, csv, plot)
        return
    cut = _Cut(model, rules, selection, reader)
    sides = cut.load(a, model_a, bytes_a, anchor_a, build_a), cut.load(b, model_b, bytes_b, anchor_b, build_b)
    one, other = (Side.of(side.attribution, side.label) for side in sides)
    found = take(one, other, force)
    if csv is not None:
        write_csv(found.to_pandas(), csv)
    if plot is not None:
        found.plot(str(plot))
    if as_json:
        print_json(found.to_json())
        return
    compare_tables.print_comparison(tables.console(), found)


def _devices(a: Path, b: Path, reader: str, as_json: bool, csv: Path | None, plot: Path | None) -> None:
    from attrib import compare_tables, tables
    from attrib.compare_devices import compare_devices
    from attrib.errors import RefusedError
    from attrib.trace import open_trace

    if plot is not None:
        raise RefusedError("--devices prints a table of whole traces and has no chart; leave out --plot")
    found = compare_devices(*(open_trace(path / TRACE if (path / TRACE).exists() else path, reader) for path in (a, b)))
    if csv is not None:
        write_csv(found.to_pandas(), csv)
    if as_json:
        print_json(found.to_json())
        return
    compare_tables.print_devices(tables.console(), found)


def gate(
    run: Annotated[Path, typer.Argument(help="Run directory or trace to judge.", metavar="RUN")],
    against: Annotated[Path, typer.Option("--against", help="Run directory or trace to judge it by.", metavar="BASE")],
    selection: Selection,
    bar: Annotated[str, typer.Option("--bar", help="Growth of a site or step that fails, such as 2%.")] = "2%",
    site: Annotated[
        list[str] | None,
        typer.Option("--site", help="Judge this site alone, or `step`, or `step untraced`; may be repeated."),
    ] = None,
    min_steps: Annotated[int, typer.Option("--min-steps", min=2, help="Steps a side needs to be judged.")] = 5,
    model: ModelOption = None,
    rules: RulesOption = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write the verdict as JUnit XML.")] = None,
    reader: ReaderOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Fail when RUN is slower than BASE beyond the bar and beyond the spread over steps.

    Exit code 1 with the sites that regressed, 2 when something cannot be judged (a missing site, an incomplete capture,
    too few steps or windows), 0 otherwise. Example: attrib gate runs/NEW --against runs/OLD --bar 2% --junit gate.xml
    """
    from attrib import compare_tables, tables
    from attrib import gate as gates
    from attrib.errors import AttribError

    require_distinct((junit,), [run, against, *Source(model, rules).files()])
    cut = _Cut(model, rules, selection, reader)
    try:
        wanted = gates.parse_bar(bar)
        base, new = (cut.load(path, None, None, "", "") for path in (against, run))
        windows = gates.read_windows(against), gates.read_windows(run)
        found = gates.judge(base, new, wanted, site or (), windows, min_steps)
    except AttribError as error:
        if junit is not None:
            gates.write_junit_error(error, junit)
        raise
    if junit is not None:
        gates.write_junit(found, junit)
    if as_json:
        print_json(found.to_json())
    else:
        compare_tables.print_gate(tables.console(), found)
    if found.exit_code:
        raise typer.Exit(found.exit_code)
