"""Options that several commands share, each spelled once; groups of them are dataclasses that `spelled` unfolds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from attrib.files import STAGES

if TYPE_CHECKING:
    from attrib.attribution import Options

Traces = Annotated[
    list[Path],
    typer.Argument(
        help="nsys reports (.nsys-rep), exports (.sqlite, .sqlite.xz, Parquet directories) or run directories.",
        metavar="TRACE…",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Bytes from a built-in model (qwen2.5-14b:q4_k_m) or a GGUF file."),
]
RulesOption = Annotated[
    Path | None, typer.Option("--rules", help="Rule file: which kernels are what (see `attrib rules`).")
]
BytesOption = Annotated[
    Path | None,
    typer.Option("--bytes", help="CSV with columns kernel (regex), bytes, and optionally grid, site, quant."),
]
ManifestOption = Annotated[Path | None, typer.Option("--manifest", help="manifest.json the engine wrote.")]
ClassOption = Annotated[
    str | None, typer.Option("--class", help="LO:HI in GB/s, or table, measured, fit.", metavar="CLASS")
]
ByOption = Annotated[str, typer.Option("--by", help="Group launches by site, kernel or layer.")]
KvOption = Annotated[int | None, typer.Option("--kv", min=1, help="KV length of the steps, for the cache's bytes.")]
StepNvtxOption = Annotated[
    str | None, typer.Option("--step-nvtx", "--nvtx", help="Steps are NVTX ranges whose text matches this regex.")
]
GraphOption = Annotated[int | None, typer.Option("--graph", help="Steps are replays of this exec graph.")]
StepsOption = Annotated[str, typer.Option("--steps", help="auto, graph, pattern or whole.")]
DeviceOption = Annotated[int | None, typer.Option("--device", help="CUDA device to analyse; the busiest otherwise.")]
ProcessOption = Annotated[int | None, typer.Option("--process", help="Process id to analyse; the busiest otherwise.")]
RangeOption = Annotated[
    str | None,
    typer.Option(
        "--range", metavar="T0:T1", help="Only launches within these times of the trace, such as 1200ms:1.5s (ns else)."
    ),
]
RangeNvtxOption = Annotated[
    str | None,
    typer.Option("--range-nvtx", help="Only launches issued inside NVTX ranges whose text matches this regex."),
]
AnchorOption = Annotated[str, typer.Option("--anchor", help="Label of the run in titles, such as 14b:@3254.")]
BuildOption = Annotated[str, typer.Option("--build", help="Label of the build in titles.")]
ReaderOption = Annotated[str, typer.Option("--reader", help="auto, pages or sqlite.", hidden=True)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", help="Write the table to a CSV file; several traces get -1, -2, …")
]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", help="Write the chart to a .png, .svg or .pdf file; several traces get -1, -2, …"),
]


@dataclass(frozen=True)
class Selection:
    """Which launches of a trace are analysed and how they are cut into steps."""

    kv: KvOption = None
    step_nvtx: StepNvtxOption = None
    graph: GraphOption = None
    steps: StepsOption = "auto"
    device: DeviceOption = None
    process: ProcessOption = None
    range: RangeOption = None
    range_nvtx: RangeNvtxOption = None


@dataclass(frozen=True)
class Source:
    """Where the bytes of a trace's launches come from, and what the run is called."""

    model: ModelOption = None
    rules: RulesOption = None
    table: BytesOption = None
    manifest: ManifestOption = None
    anchor: AnchorOption = ""
    build: BuildOption = ""

    def files(self) -> list[Path]:
        """The files that are read for them, which no output may replace."""
        from attrib.models import gguf_files  # noqa: PLC0415 - as below

        found = [path for path in (self.rules, self.table, self.manifest) if path is not None]
        found += gguf_files(self.model) if self.model is not None else ()
        return found + ([self.manifest.with_name(STAGES)] if self.manifest is not None else [])


@dataclass(frozen=True)
class Output:
    """Where results go besides the terminal."""

    json: JsonOption = False
    csv: CsvOption = None
    plot: PlotOption = None


def analysis_options(source: Source, selection: Selection) -> Options:
    """The two groups as the options of an attribution."""
    from attrib.attribution import Options  # noqa: PLC0415 - numpy waits until a command needs it

    return Options(
        model=source.model, rules=source.rules, table=source.table, manifest=source.manifest,
        kv_length=selection.kv, nvtx=selection.step_nvtx, graph=selection.graph, device=selection.device,
        process=selection.process, steps=selection.steps, range=selection.range, range_nvtx=selection.range_nvtx,
        anchor=source.anchor, build=source.build,
    )  # fmt: skip


def spelled(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are groups of options become, for the command line, the options themselves."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if not (isinstance(kind, type) and is_dataclass(kind)):
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = kind
        of_field = get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=of_field[f.name])
            for f in fields(kind)
        ]

    @wraps(command)
    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
        command(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return run
