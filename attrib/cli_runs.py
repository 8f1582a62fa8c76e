"""The commands that look back: attrib runs list, show, trend, export."""
# ruff: noqa: PLC0415 - heavy imports wait until a command needs them

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attrib.cli_guard import guarded, print_json
from attrib.cli_options import JsonOption
from attrib.files import require_distinct
from attrib.words import counted

RunsOption = Annotated[Path, typer.Option("--runs", help="Folder of runs.db.", metavar="DIR")]
RUNS = Path("runs")
LIMIT = 20
MOST_RUNS = 1_000_000
AnchorOption = Annotated[str | None, typer.Option("--anchor", help="Only this anchor, such as 14b:tg128.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="Only this GPU, by the name the driver gives.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands to the program."""
    group = typer.Typer(
        name="runs", help="What was recorded before: runs.db.", no_args_is_help=True, rich_markup_mode=None
    )
    for name, command in (("list", list_), ("show", show), ("trend", trend), ("export", export)):
        group.command(name)(guarded(command))
    app.add_typer(group)


def list_(
    runs: RunsOption = RUNS,
    anchor: AnchorOption = None,
    build: Annotated[str | None, typer.Option("--build", help="Only this build: its name, or how its hash starts.")] = (
        None
    ),
    device: DeviceOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_RUNS, help="The newest so many.")] = LIMIT,
    as_json: JsonOption = False,
) -> None:
    """Recordings, the newest first.

    Example: attrib runs list --anchor 14b:tg128
    """
    from attrib import runs_history, runs_tables, tables
    from attrib.jsonout import document

    found = runs_history.list_runs(runs, anchor, build, device, limit)
    if as_json:
        print_json(document({"schema": runs_history.RUNS_SCHEMA, "runs": found}))
        return
    if not found:
        typer.echo("no run matches")
        return
    runs_tables.print_runs(tables.console(), found)


def show(
    run: Annotated[str, typer.Argument(help="A run's name, the start of one, or latest.", metavar="RUN")] = "latest",
    runs: RunsOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """One recording with its sites, as stored.

    Example: attrib runs show latest
    """
    from attrib import runs_history, runs_tables, tables
    from attrib.jsonout import document

    found, sites = runs_history.find_run(runs, run)
    if as_json:
        print_json(document({"schema": runs_history.RUN_SCHEMA, **found, "sites": sites}))
        return
    runs_tables.print_run(tables.console(), found, sites)


def trend(
    site: Annotated[str, typer.Argument(help="A site as in the census, or step for the whole.", metavar="SITE")],
    runs: RunsOption = RUNS,
    anchor: AnchorOption = None,
    device: DeviceOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write the chart to a .png, .svg or .pdf file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """A site over builds: GB/s of every build that was recorded, with the change from one to the next.

    Example: attrib runs trend attn_v/q6_K --anchor 14b:tg128 --plot attn_v.png
    """
    from attrib import runs_history

    found = runs_history.trend(runs, site, anchor, device)
    if plot is not None:
        from attrib.runs_plots import plot_trend
        from attrib.store import DATABASE

        require_distinct((plot,), [runs / DATABASE])
        plot_trend(found, str(plot))
    if as_json:
        print_json(found.to_json())
        return
    from attrib import runs_tables, tables

    runs_tables.print_trend(tables.console(), found)


def export(
    out: Annotated[Path, typer.Argument(help="The file to write: .parquet or .csv.", metavar="OUT")],
    runs: RunsOption = RUNS,
    table: Annotated[
        str, typer.Option("--table", help="Table or view: runs, sites, site_history, site_by_build, latest_runs, …")
    ] = "site_history",
    as_json: JsonOption = False,
) -> None:
    """Write a table or view of runs.db to a Parquet or CSV file.

    Example: attrib runs export history.parquet
    """
    from attrib import runs_history
    from attrib.store import DATABASE

    require_distinct((out,), [runs / DATABASE])
    rows = runs_history.export(runs, out, table)
    if as_json:
        print_json({"schema": runs_history.EXPORT_SCHEMA, "out": str(out), "table": table, "rows": rows})
        return
    typer.echo(f"{counted(rows, 'row')} of {table} in {out}")
