"""One trace with everything the analyses share: steps, ledger, traffic and the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attrib import ggufmodel, ledger, rules, traffic
from attrib.device import Device, lookup
from attrib.errors import RefusedError
from attrib.ledger import Ledger
from attrib.manifest import Manifest
from attrib.manifest import load as load_manifest
from attrib.models import Model, builtin
from attrib.selection import select
from attrib.steps import Steps, find_steps
from attrib.trace import Gpu, Trace
from attrib.traffic import Traffic


@dataclass(frozen=True)
class Options:
    """How to cut a trace into steps and where bytes come from. At most one of model, table and manifest."""

    model: str | None = None
    rules: Path | None = None
    table: Path | None = None
    manifest: Path | Manifest | None = None
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
    """Steps of one device with their ledger and traffic."""

    trace: Trace
    steps: Steps
    ledger: Ledger
    traffic: Traffic
    gpu: Gpu
    known: Device | None
    model: str
    build: str
    anchor: str

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
        notes = [*self.trace.notes, *self.steps.warnings, *self.traffic.warnings]
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
    if options.rules is not None and options.model is None:
        raise RefusedError("--rules says how launches map to a model's matrices; give --model too")
    trace = select(trace, options.range, options.range_nvtx)
    steps = find_steps(trace, options.nvtx, options.graph, options.device, options.process, options.steps)
    kernels = trace.kernels
    closed = ledger.close_rows(kernels.start, kernels.end, steps.rows)
    model, build, anchor = "", options.build, options.anchor
    if options.manifest is not None:
        manifest = options.manifest if isinstance(options.manifest, Manifest) else load_manifest(options.manifest)
        found = traffic.from_manifest(trace, steps, manifest)
        model = manifest.model.name
        build = build or f"{manifest.build.name} {manifest.build.hash[:8]}"
        anchor = anchor or manifest.anchor
    elif options.model is not None:
        shape = load_model(options.model)
        chosen = rules.load(options.rules) if options.rules is not None else None
        found = traffic.from_model(trace, steps, shape, chosen, options.kv_length)
        model = f"{shape.shape.name}:{shape.recipe}"
    elif options.table is not None:
        found = traffic.from_table(trace, steps, options.table)
    else:
        found = traffic.from_names(trace, steps)
    gpu = trace.gpu(steps.device, steps.process)
    return Attribution(trace, steps, closed, found, gpu, lookup(gpu.name), model, build, anchor)


def load_model(spec: str) -> Model:
    """A built-in model (`qwen2.5-14b:q4_k_m`) or a GGUF file by its path."""
    if spec.lower().endswith(".gguf"):
        return ggufmodel.load(Path(spec))
    return builtin(spec)
