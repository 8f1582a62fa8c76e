"""The command that draws a trace for the Perfetto viewer."""
# ruff: noqa: PLC0415 - heavy imports wait until a command needs them

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from attrib.cli_guard import guarded, print_json
from attrib.files import require_distinct


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(guarded(perfetto))


def perfetto(
    trace: Annotated[Path, typer.Argument(help="nsys SQLite export, or run directory.", metavar="TRACE")],
    out: Annotated[Path, typer.Argument(help="The file to write, by habit .pftrace.", metavar="OUT")],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Bytes from a built-in model (qwen2.5-14b:q4_k_m) or a GGUF file."),
    ] = None,
    rules: Annotated[Path | None, typer.Option("--rules", help="Rule file that maps launches to matrices.")] = None,
    table: Annotated[Path | None, typer.Option("--bytes", help="CSV of bytes (see census).")] = None,
    manifest: Annotated[Path | None, typer.Option("--manifest", help="manifest.json the engine wrote.")] = None,
    kv: Annotated[int | None, typer.Option("--kv", min=1, help="KV length of the steps.")] = None,
    nvtx: Annotated[
        str | None, typer.Option("--nvtx", help="Steps are NVTX ranges whose text matches this regex.")
    ] = None,
    graph: Annotated[int | None, typer.Option("--graph", help="Steps are replays of this exec graph.")] = None,
    device: Annotated[int | None, typer.Option("--device", help="CUDA device to draw; the busiest otherwise.")] = None,
    process: Annotated[int | None, typer.Option("--process", help="Process id to draw; the busiest otherwise.")] = None,
    steps: Annotated[str, typer.Option("--steps", help="auto, graph, pattern or whole.")] = "auto",
    max_steps: Annotated[
        int | None,
        typer.Option("--max-steps", min=1, help="Draw the first so many steps; without it, a million launches."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a sentence.")] = False,
) -> None:
    """Draw steps, layers, launches by site, idle and GB/s counters for the Perfetto viewer (ui.perfetto.dev).

    Launches that overlap lie on lanes of their own. Example: attrib perfetto trace.sqlite trace.pftrace -m
    qwen2.5-14b:q4_k_m
    """
    from attrib import api
    from attrib.perfetto import write_perfetto

    require_distinct((out,), [trace, *filter(None, (rules, table, manifest))])
    attribution = api.attribution(
        trace, model=model, rules=rules, table=table, manifest=manifest, kv_length=kv, nvtx=nvtx, graph=graph,
        device=device, process=process, steps=steps,
    )  # fmt: skip
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
    typer.echo(
        f"{written.launches:,} launches of {written.steps} steps on {written.lanes} lanes and {written.counters} "
        f"counters in {out} ({written.size / 1e6:.1f} MB); open it in ui.perfetto.dev"
    )
    for note in written.warnings:
        typer.echo(f"* {note}")
