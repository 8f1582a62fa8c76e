"""The commands that need a GPU or prepare a trace for others: record, doctor, roofline, scrub."""
# ruff: noqa: PLC0415 - heavy imports wait until a command needs them

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from attrib.cli_guard import guarded, print_json, say
from attrib.words import counted

if TYPE_CHECKING:
    from rich.table import Table

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
RunsOption = Annotated[Path, typer.Option("--out", help="Folder of the run directories and runs.db.")]
RUNS = Path("runs")


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (record, doctor, roofline, scrub):
        app.command()(guarded(command))


def record(
    anchor: Annotated[
        str,
        typer.Argument(help="MODEL:ANCHOR, such as 14b:tg128, 14b:@3254, 7b:pp512, FILE.gguf:tg128.", metavar="ANCHOR"),
    ],
    build: Annotated[str, typer.Option("--build", help="Build of the engine.")] = "reference",
    out: RunsOption = RUNS,
    steps: Annotated[int, typer.Option("--steps", min=3, max=4096, help="Decode steps to trace.")] = 16,
    windows: Annotated[int, typer.Option("--windows", min=1, max=100, help="Untraced windows to time.")] = 3,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds one program may take.")] = 900,
    as_json: JsonOption = False,
) -> None:
    """Record the engine at an anchor under nsys, check the recording, store it and print where the time goes.

    Example: attrib record 14b:tg128 --build reference
    """
    from attrib import tables
    from attrib.record import parse_target
    from attrib.record import record as make

    def progress(text: str) -> None:
        typer.echo(f"{text} …", err=True)

    found = make(parse_target(anchor), build, out, steps, windows, timeout, progress)
    if as_json:
        print_json(found.to_json())
        return
    console = tables.console()
    tables.print_census(console, found.census, found.folder.name)
    if found.stragglers is not None:
        tables.print_stragglers(console, found.stragglers, found.folder.name)
    tables.print_anatomy(console, [(found.folder.name, found.anatomy)])
    rates = ", ".join(f"{window['tok_per_s']:.2f}" for window in found.bench["windows"])
    say(f"{found.bench['tok_per_s']:.2f} tok/s untraced (windows {rates})")
    say(found.inflation.describe())
    if found.complete is not None:
        complete = found.complete
        say(
            f"complete: {counted(complete.replays_recorded, 'replay')}, {complete.launches_joined} of "
            f"{counted(complete.launches_per_replay, 'launch')} joined to the manifest"
        )
    typer.echo(f"stored in {found.folder}")


def doctor(out: RunsOption = RUNS, as_json: JsonOption = False) -> None:
    """What this machine has for reading and for recording traces, and how to get what it lacks.

    Exit code 0 when traces can be read, 1 when not. Example: attrib doctor
    """
    from attrib import tables
    from attrib.doctor import MISSING, READING, RECORDING, diagnose

    found = diagnose(out)
    if as_json:
        print_json(found.to_json())
    else:
        table = _table(("what", "left"), ("needed for", "left"), ("", "left"), ("found, and what to do", "left"))
        for check in found.checks:
            lines = check.detail + (f"\n→ {check.remedy}" if check.remedy else "")
            _add(table, check.name, check.needed_for, check.status, lines)
        tables.console().print(table)
        lacking = [c.name for c in found.checks if c.status == MISSING and c.needed_for == RECORDING]
        typer.echo("reading traces: " + ("ready" if found.can(READING) else "not possible"))
        say("recording: " + (f"lacks {', '.join(lacking)}" if lacking else "ready"))
    if not found.can(READING):
        raise typer.Exit(1)


def roofline(
    gpu: Annotated[int, typer.Option("--gpu", min=0, help="Number of the GPU.")] = 0,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds the measurement may take.")] = 600,
    as_json: JsonOption = False,
) -> None:
    """Measure what this GPU streams from 1 MB to 1 GB and keep the fit as the class source `measured`.

    Example: attrib roofline
    """
    from attrib.roofline_run import measure

    found = measure(gpu, timeout)
    if as_json:
        print_json(found.to_json())
        return
    typer.echo(f"{found.device}: t0 {found.t0 * 1e6:.2f} µs, BW {found.bandwidth / 1e9:.0f} GB/s")
    typer.echo(f"{'MB':>10} {'µs':>10} {'GB/s':>8} {'fit':>8}")
    for nbytes, seconds in found.points:
        fitted = nbytes / (found.t0 + nbytes / found.bandwidth)
        typer.echo(f"{nbytes / 1e6:>10.1f} {seconds * 1e6:>10.2f} {nbytes / seconds / 1e9:>8.0f} {fitted / 1e9:>8.0f}")
    typer.echo(f"stored in {found.file}; `--class measured` uses it")


def scrub(
    source: Annotated[Path, typer.Argument(help="nsys SQLite export.", metavar="IN")],
    target: Annotated[Path, typer.Argument(help="The copy to write: .sqlite, or .sqlite.xz.", metavar="OUT")],
    drop_nvtx: Annotated[bool, typer.Option("--drop-nvtx", help="Remove the texts of NVTX ranges too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing OUT.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy an export without environment, command lines, names of people and machines, and paths.

    GPU work, timings, ids, API and kernel names stay, so a census gives the same numbers on both.
    Example: attrib scrub trace.sqlite shareable.sqlite
    """
    from attrib import tables
    from attrib.scrub import CONSTANTS
    from attrib.scrub import scrub as make

    report = make(source, target, drop_nvtx=drop_nvtx, force=force)
    if as_json:
        print_json(report.to_json())
        return
    table = _table(("table", "left"), ("rows", "right"), ("values", "right"), ("removed", "left"))
    constants = [removal for removal in report.removed if removal.reason == CONSTANTS]
    if constants:
        _add(table, counted(len(constants), "ENUM_ table"), str(sum(r.rows for r in constants)), "0", CONSTANTS)
    for removal in report.removed:
        if removal.reason == CONSTANTS:
            continue
        columns = f" ({', '.join(removal.columns)})" if removal.columns else ""
        _add(table, removal.table, str(removal.rows), str(removal.values), removal.reason + columns)
    tables.console().print(table)
    kept = sum(report.kept.values())
    sizes = f"{report.size_before / 1e6:.1f} MB → {report.size_after / 1e6:.1f} MB"
    say(f"{counted(kept, 'row')} kept in {counted(len(report.kept), 'table')}; {sizes} in {target}")
    if not drop_nvtx and report.kept.get("NVTX_EVENTS"):
        typer.echo("NVTX texts are kept without paths; --drop-nvtx removes them")


def _table(*columns: tuple[str, Literal["left", "right"]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 0, 0, 1))
    for name, justify in columns:
        table.add_column(name, justify=justify, overflow="fold")
    return table


def _add(table: Table, *cells: str) -> None:
    """A row of plain text: names in brackets are not markup."""
    from rich.text import Text

    table.add_row(*(Text(cell) for cell in cells))
