"""One trace with everything the analyses share: steps, ledger, traffic and the device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attrib import ggufmodel, ledger, rules, stages, streaming, traffic
from attrib.device import Device, lookup
from attrib.errors import JoinError, RefusedError
from attrib.files import STAGES
from attrib.ledger import NS, Ledger
from attrib.manifest import Launch, Manifest
from attrib.manifest import load as load_manifest
from attrib.models import GGUF, Model, builtin
from attrib.selection import select
from attrib.stages import Summary, Timeline
from attrib.steps import Steps, find_steps
from attrib.trace import PID_MASK, PID_SHIFT, Gpu, Trace
from attrib.traffic import Traffic
from attrib.words import counted


@dataclass(frozen=True)
class Options:
    """How to cut a trace into steps and where bytes come from. At most one of model, table and manifest."""

    model: str | None = None
    rules: Path | None = None
    table: Path | None = None
    manifest: Path | Manifest | None = None
    stages: Path | None = None
    """times of a persistent kernel's stages; the file beside a manifest given by its path otherwise"""
    kv_length: int | None = None
    nvtx: str | None = None
    graph: int | None = None
    device: int | None = None
    process: int | None = None
    steps: str = "auto"
    range: str | None = None
    """`T0:T1`: only launches within these times of the trace"""
    range_nvtx: str | None = None
    """only launches issued inside NVTX ranges whose text matches this regular expression"""
    anchor: str = ""
    """label of the run, for titles: `14b:@3254`; a manifest brings its own"""
    build: str = ""


@dataclass(frozen=True)
class Attribution:
    """Steps of one device with their ledger and traffic.

    A persistent kernel that timed its stages is divided: each stage is a kernel row of `trace` and a position of
    steps, ledger and traffic, as a launch is.
    """

    trace: Trace
    steps: Steps
    ledger: Ledger
    traffic: Traffic
    gpu: Gpu
    known: Device | None
    model: str
    build: str
    anchor: str
    timeline: Timeline | None = None
    """which positions are stages; None where all are launches"""
    stages: Summary | None = None
    by_launch: Attribution | None = None
    """the same steps with the divided kernel as one launch; None where all are launches"""
    notes: tuple[str, ...] = ()

    @property
    def launches(self) -> int:
        """Launches per step, however many stages one of them is divided into."""
        return self.by_launch.steps.launches if self.by_launch is not None else self.steps.launches

    @property
    def staged(self) -> NDArray[np.bool_]:
        """(positions,) which of them are stages."""
        return self.timeline.staged if self.timeline is not None else np.zeros(self.steps.launches, bool)

    @property
    def waiting(self) -> NDArray[np.float64]:
        """(steps, positions) ns that the blocks of a stage waited at the dependency in front of it; 0 for launches."""
        return self.timeline.wait if self.timeline is not None else np.zeros(self.steps.rows.shape)

    def starts(self, positions: Any, steps: slice = slice(None)) -> NDArray[np.int64]:
        """Start in ns of the launches at some positions, an index of any kind, in some steps or all."""
        offset = self.ledger.offset
        if offset is not None:
            return self.ledger.begin[steps, None] + offset[steps][:, positions]
        found: NDArray[np.int64] = self.trace.kernels.start[self.steps.rows[steps][:, positions]]
        return found

    @property
    def device_name(self) -> str:
        """The name the driver reported."""
        return self.gpu.name

    @property
    def peak(self) -> float:
        """DRAM peak in bytes/s: from the device table, else as the export says; NaN where neither knows."""
        return self.known.peak if self.known is not None else self.gpu.peak_bytes_per_s

    @property
    def warnings(self) -> tuple[str, ...]:
        """Everything noticed while reading; a table prints them below itself."""
        notes = [*self.trace.notes, *self.steps.warnings, *self.traffic.warnings, *self.notes]
        if self.steps.excluded:
            listed = ", ".join(f"{number} × {reason}" for reason, number in self.steps.excluded.items())
            notes.append(f"excluded: {listed}")
        if not np.isfinite(self.peak):
            notes.append(f"the DRAM peak of {self.device_name!r} is unknown: no % of peak, no impossible-rate check")
        return tuple(notes)


def attribute(trace: Trace, options: Options | None = None) -> Attribution:
    """Cut the trace into steps, close their ledger and give every launch its site and bytes."""
    options = options or Options()
    given = [n for n in ("model", "table", "manifest") if getattr(options, n) is not None]
    if len(given) > 1:
        raise RefusedError(f"bytes can come from one source only, and {' and '.join(given)} were given")
    if options.kv_length is not None and options.model is None:
        raise RefusedError("--kv gives a model's cache its length; give --model too (a manifest knows its own)")
    if options.nvtx is not None and (options.graph is not None or options.steps != "auto"):
        raise RefusedError("steps are either NVTX ranges (--step-nvtx) or found otherwise (--graph, --steps), not both")
    if options.rules is not None and options.manifest is not None:
        raise RefusedError("a manifest says what every launch is; leave out --rules")
    book = rules.load(options.rules) if options.rules is not None else None
    if book is not None and not book.kernels and options.model is None:
        raise RefusedError("--rules says how launches map to a model's matrices; give --model too")
    whole, trace = trace, select(trace, options.range, options.range_nvtx)
    manifest = options.manifest
    if manifest is not None and not isinstance(manifest, Manifest):
        manifest = load_manifest(manifest)
    divided = manifest is not None and any(node.stages for node in manifest.graph().nodes)
    steps, closed = _cut(trace, options, batches=trace is whole and not divided)
    model, build, anchor = "", options.build, options.anchor
    if manifest is not None:
        found = traffic.from_manifest(trace, steps, manifest)
        model = manifest.model.name
        build = build or f"{manifest.build.name} {manifest.build.hash[:8]}"
        anchor = anchor or manifest.anchor
    elif options.model is not None:
        shape = load_model(options.model)
        found = traffic.from_model(trace, steps, shape, book, options.kv_length)
        model = f"{shape.shape.name}:{shape.recipe}"
    elif options.table is not None:
        found = traffic.from_table(trace, steps, options.table, book)
    else:
        found = traffic.from_names(trace, steps, book)
    gpu = trace.gpu(steps.device, steps.process)
    attribution = Attribution(trace, steps, closed, found, gpu, lookup(gpu.name), model, build, anchor)
    if manifest is None:
        return attribution
    beside = options.manifest.parent / STAGES if isinstance(options.manifest, Path) else None
    return _with_stages(attribution, whole, options, manifest, options.stages or beside)


def _cut(trace: Trace, options: Options, batches: bool) -> tuple[Steps, Ledger]:
    """The steps with their ledger; with `batches`, as a large kernel table is read where they are graph replays."""
    plain = options.nvtx is None and options.device is None and options.process is None
    if batches and plain and options.steps in ("auto", "graph"):
        streamed = streaming.read(trace, options.graph)
        if streamed is not None:
            return streamed
    steps = find_steps(trace, options.nvtx, options.graph, options.device, options.process, options.steps)
    return steps, ledger.close_rows(trace.kernels.start, trace.kernels.end, steps.rows)


def _with_stages(
    found: Attribution, whole: Trace, options: Options, manifest: Manifest, path: Path | None
) -> Attribution:
    """Divide the persistent kernel that the stamps at `path` are of; `whole` is the trace nothing was selected from."""
    nodes = manifest.graph().nodes
    described = [node for node in nodes if node.stages]
    if not described:
        return found
    try:
        if path is None:
            raise JoinError(f"no {STAGES} was given with the manifest")
        stamps = stages.load(path)
    except JoinError as error:
        return replace(found, notes=tuple(_one_row(node, str(error)) for node in described))
    stages.check(stamps, nodes)
    place, of = _places(found, whole, options)
    replay = stages.replay_of(stamps, place, of)
    notes = [_one_row(node, f"{path} has none of them") for node in described if node.i != stamps.node]
    if of < len(stamps.end):
        notes.append(
            f"{path} has stamps of {counted(len(stamps.end), 'replay')}, the trace {of}: joined from the last backwards"
        )
    found = replace(_only(found, replay >= 0), notes=tuple(notes))
    rows, kernels = found.steps.rows, found.trace.kernels
    start, end = kernels.start[rows], kernels.end[rows]
    timeline = stages.divide(start, end, stamps, replay[replay >= 0])
    columns, positions = stages.columns(kernels, rows, timeline)
    closed = ledger.divide(found.ledger, end, timeline.launch, timeline.start, timeline.end)
    bytes_of = traffic.from_manifest(found.trace, found.steps, manifest, divided=stamps.node)
    kernel = nodes[stamps.node].kernel
    summary = Summary(
        kernel=kernel,
        sites=len(np.unique(bytes_of.site[timeline.staged])),
        stages=int(np.count_nonzero(timeline.staged)),
        seconds=float(np.median(closed.duration[:, timeline.staged].sum(axis=1))) * NS,
        waiting=float(np.median(timeline.wait.sum(axis=1))) * NS,
        tick=stamps.tick,
    )
    return replace(
        found,
        trace=found.trace.restricted(columns, summary.describe()),
        steps=replace(found.steps, rows=positions),
        ledger=closed,
        traffic=bytes_of,
        timeline=timeline,
        stages=summary,
        by_launch=found,
        notes=(*found.notes, *timeline.warnings(kernel)),
    )


def _one_row(node: Launch, reason: str) -> str:
    return f"{node.kernel} stays one row, for it has no times of {counted(len(node.stages), 'stage')}: {reason}"


def _places(found: Attribution, whole: Trace, options: Options) -> tuple[NDArray[np.int64], int]:
    """(steps,) place of each step among all in the trace, and their number, whatever part of it was selected."""
    steps = found.steps
    if found.trace is whole:
        return steps.place, steps.of
    pid = steps.process >> PID_SHIFT & PID_MASK if steps.process >= 0 else None
    every = find_steps(whole, options.nvtx, options.graph, steps.device, pid, options.steps)
    began, all_began = (t.kernels.start[s.rows[:, 0]] for t, s in ((found.trace, steps), (whole, every)))
    at = np.minimum(np.searchsorted(all_began, began), len(all_began) - 1)
    return np.where(all_began[at] == began, every.place[at], -1), every.of


def _only(found: Attribution, kept: NDArray[np.bool_]) -> Attribution:
    """The attribution with some of its steps; the others are counted as excluded."""
    left = int(np.count_nonzero(~kept))
    if not left:
        return found
    steps, kernels = found.steps, found.trace.kernels
    fewer = replace(
        steps,
        rows=steps.rows[kept],
        place=steps.place[kept],
        excluded={**steps.excluded, "step without stamps of its stages": left},
        outside=steps.outside + left * steps.launches,
    )
    return replace(found, steps=fewer, ledger=ledger.close_rows(kernels.start, kernels.end, fewer.rows))


def load_model(spec: str) -> Model:
    """A built-in model (`qwen2.5-14b:q4_k_m`) or a GGUF file by its path."""
    if spec.lower().endswith(GGUF):
        return ggufmodel.load(Path(spec))
    return builtin(spec)
