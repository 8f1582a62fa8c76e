"""The command that writes a page about a run or a comparison."""
# ruff: noqa: PLC0415 - heavy imports wait until a command needs them

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attrib.cli_guard import guarded, print_json, say
from attrib.cli_options import (
    ClassOption,
    JsonOption,
    ReaderOption,
    Selection,
    Source,
    Traces,
    analysis_options,
    spelled,
)

if TYPE_CHECKING:
    from attrib.report.page import Report

WRITTEN = "attrib.report.written/1"
DEFAULT = Path("report.html")


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(guarded(spelled(report)))


def report(
    traces: Traces,
    source: Source,
    selection: Selection,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The page to write; several traces get -1, -2, …", metavar="FILE")
    ] = DEFAULT,
    against: Annotated[
        Path | None, typer.Option("--against", help="Compare with this run directory or trace, as B.", metavar="B")
    ] = None,
    against_model: Annotated[str | None, typer.Option("--against-model", help="Bytes of B alone.")] = None,
    against_bytes: Annotated[Path | None, typer.Option("--against-bytes", help="CSV of bytes for B.")] = None,
    against_manifest: Annotated[Path | None, typer.Option("--against-manifest", help="manifest.json of B.")] = None,
    against_anchor: Annotated[str, typer.Option("--against-anchor", help="Anchor of B.")] = "",
    against_build: Annotated[str, typer.Option("--against-build", help="Label of B's build.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Compare unlike devices, models or anchors, labelled as such.")
    ] = False,
    rate_class: ClassOption = None,
    reader: ReaderOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Write a page about a run: verdict, timeline, census, stragglers, anatomy, layers. It needs no network.

    With --against, a page about where a step of B takes longer or less, with the numbers of `attrib compare`.
    Example: attrib report trace.sqlite --model qwen2.5-14b:q4_k_m -o report.html
    """
    from attrib.errors import RefusedError
    from attrib.files import numbered, require_distinct
    from attrib.report.page import pair_report, run_report
    from attrib.report.subject import load

    other = Source(against_model, source.rules, against_bytes, against_manifest, against_anchor, against_build)
    if against is None:
        if other != Source(rules=source.rules) or force:
            raise RefusedError("--force and the --against-… options are about a comparison; name its B with --against")
        paths = [numbered(out, place, len(traces)) for place in range(len(traces))]
        require_distinct(paths, [*traces, *source.files()])
        found: list[tuple[Path, Report]] = []
        for path, target in _shown(list(zip(traces, paths, strict=True))):
            made = run_report(load(path, analysis_options(source, selection), reader), rate_class)
            made.write(target)
            found.append((target, made))
    else:
        if len(traces) > 1:
            raise RefusedError("--against compares one run with another; give one run before it")
        require_distinct((out,), [*traces, against, *source.files(), *other.files()])
        # as in a comparison: the shared model is for traces, a run directory has its bytes from its manifest
        if not (other.model or other.table or other.manifest):
            other = replace(other, model=source.model)
        sides = (traces[0], source), (against, other)
        a, b = (load(path, analysis_options(_for(path, said), selection), reader) for path, said in _shown(list(sides)))
        made = pair_report(a, b, force, rate_class)
        made.write(out)
        found = [(out, made)]
    if as_json:
        documents = [_written(path, made) for path, made in found]
        print_json(documents[0] if len(documents) == 1 else {"schema": "attrib.list/1", "results": documents})
        return
    for path, made in found:
        say(f"{path} ({path.stat().st_size / 1e3:,.0f} kB): {made.verdict.headline}")


def _for(path: Path, source: Source) -> Source:
    """The source of one side: a manifest says what every launch is, and a run directory brings its own."""
    from attrib.report.subject import is_run

    if is_run(path):
        return replace(source, model=None, rules=None)
    return replace(source, rules=None) if source.manifest else source


def _shown(work: list[Any]) -> Iterable[Any]:
    """The work itself, with a progress bar on a terminal."""
    if not sys.stderr.isatty():
        return work
    from rich.console import Console
    from rich.progress import track

    return track(work, description="reading", console=Console(stderr=True), transient=True)


def _written(path: Path, made: Report) -> dict[str, Any]:
    from attrib.jsonout import document

    verdict = made.verdict
    return document(
        {
            "schema": WRITTEN,
            "file": str(path),
            "bytes": path.stat().st_size,
            "title": made.title,
            "verdict": {"level": verdict.level, "headline": verdict.headline, "detail": verdict.detail},
            "warnings": list(made.warnings),
        }
    )
