"""`attrib record`: time the engine untraced, record it under nsys, check the recording, store it with its analysis.

The engine runs as a process of its own each time, so the toolkit needs no CUDA and a crash takes nothing along.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from attrib import api, capture, runs
from attrib import manifest as manifests
from attrib.anatomy import Anatomy
from attrib.attribution import Attribution
from attrib.capture import Completeness
from attrib.census import Census
from attrib.errors import JoinError, NoDataError, RefusedError
from attrib.files import BENCH, MANIFEST, STAGES, TRACE, interruptible, write_csv
from attrib.jsonout import document
from attrib.manifest import Manifest
from attrib.models import builtin, shapes
from attrib.stragglers import Stragglers
from attrib.words import counted

SCHEMA = "attrib.record/1"
BENCH_SCHEMA = "engine.bench/1"
DEFAULT_STEPS = 16
DEFAULT_LIMIT_S = 900.0
SHORT_FAMILY = "qwen2.5-"
STEP_RANGE, PREFILL_RANGE = "step", "prefill"
"""NVTX ranges of the engine's traced run."""
_TARGET = re.compile(r"(?P<model>.+?)(?::(?P<colon>tg\d+|pp\d+|@\d+)|@(?P<at>tg\d+|pp\d+|\d+))")


@dataclass(frozen=True)
class Target:
    """What to record: `model` as the engine takes it, `anchor` as the engine names it, `label` for people."""

    model: str
    anchor: str
    label: str

    @property
    def decodes(self) -> bool:
        """Whether the anchor is a run of decode steps; a prompt otherwise."""
        return not self.anchor.startswith("pp")


def parse_target(text: str) -> Target:
    """`14b:tg128`, `7b:@1641`, `qwen2.5-7b:q4_k_m:pp512`, `FILE.gguf:tg128`, `FILE.gguf@3254`.

    A short name such as `14b` means the qwen2.5 model of that size. Raises RefusedError for another form or a missing
    file, AttribError for a model that is not built in.
    """
    found = _TARGET.fullmatch(text)
    if found is None:
        raise RefusedError(
            f"{text!r} is not MODEL:ANCHOR with an anchor tgN, @N or ppN, for example 14b:tg128, 14b:@3254, 7b:pp512 "
            "or FILE.gguf:tg128"
        )
    model, anchor = found["model"], found["colon"] or found["at"]
    if anchor.isdigit():
        anchor = f"@{anchor}"
    if model.lower().endswith(".gguf"):
        if not Path(model).is_file():
            raise RefusedError(f"model file {model} does not exist")
        return Target(model, anchor, f"{Path(model).stem}:{anchor}")
    name, _, recipe = model.lower().partition(":")
    full = SHORT_FAMILY + name
    chosen = builtin(":".join(filter(None, (full if full in shapes() else name, recipe))))
    return Target(f"{chosen.shape.name}:{chosen.recipe}", anchor, f"{name}:{anchor}")


@dataclass(frozen=True)
class Inflation:
    """The same step untraced and traced, in seconds; NaN where one was not measured.

    `untraced_step` and `traced_step` are on the host's clock, from the launch to the token read back;
    `untraced_device` and `traced_span` are the device's time for it.
    """

    untraced_step: float
    untraced_device: float
    traced_step: float
    traced_span: float

    def to_json(self) -> dict[str, Any]:
        """Times in ms, inflations in percent of the untraced time."""
        return document(
            {
                "untraced_step_ms": self.untraced_step * 1e3,
                "untraced_device_ms": self.untraced_device * 1e3,
                "traced_step_ms": self.traced_step * 1e3,
                "traced_span_ms": self.traced_span * 1e3,
                "step_inflation_pct": 100 * (self.traced_step / self.untraced_step - 1),
                "device_inflation_pct": 100 * (self.traced_span / self.untraced_device - 1),
                "span_of_untraced_step_pct": 100 * self.traced_span / self.untraced_step,
            }
        )

    def describe(self) -> str:
        """One line for people."""
        parts = [f"untraced step {self.untraced_step * 1e3:.3f} ms, traced span {self.traced_span * 1e3:.3f} ms"]
        for what, traced, untraced in (
            ("tracing inflates the step by", self.traced_step, self.untraced_step),
            ("the device's time by", self.traced_span, self.untraced_device),
        ):
            if np.isfinite(traced) and np.isfinite(untraced):
                parts.append(
                    f"{what} {100 * (traced / untraced - 1):+.1f} % ({untraced * 1e3:.3f} → {traced * 1e3:.3f} ms)"
                )
        return "; ".join(parts)


@dataclass(frozen=True)
class Recording:
    """A stored run with its analysis."""

    folder: Path
    target: Target
    nsys: str
    bench: dict[str, Any]
    manifest: Manifest
    complete: Completeness | None
    inflation: Inflation
    census: Census
    stragglers: Stragglers | None
    """None for a prompt, whose launches multiply matrices and stream none at a rate of its own"""
    anatomy: Anatomy

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object."""
        return document(
            {
                "schema": SCHEMA,
                "run": self.folder.name,
                "folder": str(self.folder),
                "anchor": self.target.label,
                "model": self.bench["model"],
                "build": {"name": self.manifest.build.name, "hash": self.manifest.build.hash},
                "device": self.bench["device"],
                "nsys": self.nsys,
                "tok_per_s": self.bench["tok_per_s"],
                "windows_tok_per_s": [window["tok_per_s"] for window in self.bench["windows"]],
                "inflation": self.inflation.to_json(),
                "complete": self.complete.to_json() if self.complete else None,
                "census": self.census.to_json(),
                "stragglers": self.stragglers.to_json() if self.stragglers else None,
                "anatomy": self.anatomy.to_json(),
            }
        )

    def row(self) -> dict[str, Any]:
        """The run's row in runs.db; columns are the JSON's names."""
        census = self.census.to_json()
        return {
            "id": self.folder.name,
            "recorded_utc": self.folder.name.split("-")[0],
            "anchor": self.target.label,
            "model": self.bench["model"],
            "source": self.manifest.model.source,
            "build": self.manifest.build.name,
            "build_hash": self.manifest.build.hash,
            "device": self.bench["device"],
            "nsys": self.nsys,
            "tok_per_s": self.bench["tok_per_s"],
            **self.inflation.to_json(),
            "steps": census["steps"]["count"],
            "launches": census["steps"]["launches"],
            "idle_ms": census["steps"]["idle_ms"],
            "closure_ns": census["ledger"]["closure_ns"],
            "matched_time_pct": census["matched"]["time_pct"],
            "step_bytes": census["matched"]["bytes"],
            "step_gbps": census["rates"]["step_gbps"],
            "recoverable_ms": self.stragglers.recoverable * 1e3 if self.stragglers else None,
        }


def record(
    target: Target,
    build: str,
    out: Path,
    steps: int = DEFAULT_STEPS,
    windows: int = 3,
    limit_s: float = DEFAULT_LIMIT_S,
    progress: Callable[[str], None] = lambda _: None,
) -> Recording:
    """Record a target with a build of the engine into a new run directory in `out`.

    `steps` decode steps are traced; `windows` untraced windows are timed first. `limit_s` ends a program that hangs.
    Raises CaptureError when a tool is missing, refused or fails, JoinError when the recording is incomplete; then,
    and when interrupted, nothing is left in `out`.
    """
    nsys = capture.find_nsys()
    try:
        out.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".recording-", dir=out))
    except OSError as error:
        raise RefusedError(f"{out} cannot hold recordings: {error.strerror}; choose another with --out") from error
    try:
        with interruptible():
            progress(f"timing {counted(windows, 'untraced window')} of {target.label}")
            bench = _untraced(target, build, windows, limit_s)
            what = counted(steps, "step") if target.decodes else "a prompt"
            progress(f"recording {what} under nsys {nsys.version}")
            command = engine_bench(target, build, "--steps", str(steps), "--traced", "--manifest", str(work / MANIFEST))
            report = capture.profile(nsys, command, work, limit_s)
            progress("exporting and checking")
            capture.export(nsys, report, work / TRACE)
            report.unlink()
            manifest = _manifest(work / MANIFEST, bench)
            recording = _analyse(work, target, nsys.version, bench, manifest, steps)
            _store(work, recording)
            name = runs.run_name(datetime.now(UTC), target.label, manifest.build.name)
            folder = runs.free_folder(out, name)
            api.report(work, label=folder.name).write(work / "report.html")
            work.chmod(0o755)
            work.rename(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    recording = replace(recording, folder=folder)
    runs.append(out, recording.row(), recording.census.to_json()["sites"])
    return recording


def engine_bench(target: Target, build: str, *options: str) -> list[str]:
    """The command line of `engine bench` for a target."""
    where = ("--anchor", target.anchor, "--build", build)
    return capture.engine_command("bench", target.model, *where, *options, "--json")


def _untraced(target: Target, build: str, windows: int, limit_s: float) -> dict[str, Any]:
    finished = capture.run_program(engine_bench(target, build, "--windows", str(windows)), limit_s)
    return capture.engine_json(finished, BENCH_SCHEMA)


def _manifest(path: Path, bench: dict[str, Any]) -> Manifest:
    """The traced run's manifest with the untraced step times, once both runs are seen to be of one build."""
    traced = manifests.load(path)
    if traced.build.hash != bench["build_hash"]:
        raise JoinError(
            f"the untraced windows ran build {bench['build_hash']} and the recording build {traced.build.hash}; "
            "record again without changing the engine in between"
        )
    wall = tuple(int(ns) for window in bench["windows"] for ns in window["step_ns"])
    whole = replace(traced, wall_step_ns=wall)
    manifests.dump(whole, path)
    return whole


def _analyse(work: Path, target: Target, nsys: str, bench: dict[str, Any], manifest: Manifest, steps: int) -> Recording:
    trace = api.open(work / TRACE)
    capture.require_kernels(trace)
    if target.decodes:
        stamps = work / STAGES
        attribution = api.attribution(trace, manifest=manifest, stages=stamps, anchor=target.label, steps="graph")
        complete = capture.check_decode(attribution, manifest, steps)
    else:
        label = f"{manifest.build.name} {manifest.build.hash[:8]}"
        attribution = api.attribution(trace, nvtx=f"^{PREFILL_RANGE}$", anchor=target.label, build=label)
        complete = None
    census = api.census(attribution)
    return Recording(
        folder=work,
        target=target,
        nsys=nsys,
        bench=bench,
        manifest=manifest,
        complete=complete,
        inflation=_inflation(attribution, bench, target, steps),
        census=census,
        stragglers=api.stragglers(census) if target.decodes else None,
        anatomy=api.anatomy(attribution),
    )


def _inflation(attribution: Attribution, bench: dict[str, Any], target: Target, steps: int) -> Inflation:
    """Compare like with like: the first `steps` steps of every window have the KV positions of the traced ones."""
    first = [ns for window in bench["windows"] for ns in window["step_ns"][:steps]]
    if not first:
        raise NoDataError("the engine's untraced windows hold no step time")
    wanted = STEP_RANGE if target.decodes else PREFILL_RANGE
    ranges = attribution.trace.ranges()
    traced = [
        int(end - start)
        for start, end, text in zip(ranges.start, ranges.end, ranges.text, strict=True)
        if text == wanted and end > start
    ]
    return Inflation(
        untraced_step=statistics.median(first) * 1e-9,
        untraced_device=float(bench.get("replay_ns") or np.nan) * 1e-9,
        traced_step=statistics.median(traced) * 1e-9 if traced else np.nan,
        traced_span=float(np.median(attribution.ledger.span)) * 1e-9,
    )


def _store(work: Path, recording: Recording) -> None:
    """Write everything a run directory holds beside trace and manifest."""
    write_csv(recording.census.to_pandas(), work / "census.csv")
    write_csv(recording.anatomy.to_pandas(), work / "anatomy.csv")
    if recording.stragglers is not None:
        recording.census.plot(str(work / "census.png"))
    if recording.stragglers is not None and recording.stragglers.rows:
        recording.stragglers.plot(str(work / "stragglers.png"))
    recording.anatomy.plot(str(work / "anatomy.png"))
    text = json.dumps(document(recording.bench), indent=1, allow_nan=False)
    (work / BENCH).write_text(text, encoding="utf-8")
