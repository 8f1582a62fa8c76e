"""Recording with nsys: find it, run a command under it, export SQLite, check that nothing was lost.

Every program runs in a process group of its own, which is ended when the caller is interrupted or a time limit passes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attrib import schema as sch
from attrib.errors import AttribError, JoinError, NoDataError
from attrib.words import counted

if TYPE_CHECKING:
    from attrib.attribution import Attribution
    from attrib.manifest import Manifest
    from attrib.trace import Trace

MINIMUM = (2024, 1)
"""Older versions lose graph nodes under the drivers that the engine's CUDA needs."""
PROVEN = "2025.3"
PROFILE_OPTIONS = (
    "--trace=cuda,nvtx",
    "--cuda-graph-trace=node",
    "--sample=none",
    "--cpuctxsw=none",
    "--force-overwrite=true",
)
ENV_NSYS = "ATTRIB_NSYS"
EXPORT_LIMIT_S = 600.0
VERSION_LIMIT_S = 60.0
GRACE_S = 10.0
_PLACES = (
    "/usr/local/cuda/bin/nsys",
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
)
_INSTALL = (
    f"install NVIDIA Nsight Systems {MINIMUM[0]}.{MINIMUM[1]} or newer ({PROVEN} is proven; the package is "
    f"nsight-systems-cli, or https://developer.nvidia.com/nsight-systems), or set {ENV_NSYS} to its path"
)
_REFUSED = re.compile(
    r"insufficient.?privilege|ERR_NVGPUCTRPERM|permission denied|operation not permitted|not have permission", re.I
)


class CaptureError(AttribError):
    """A program that a recording needs is missing, too old, was refused or failed; the message says what to do."""


@dataclass(frozen=True)
class Nsys:
    """An nsys that can record graph nodes."""

    path: Path
    version: str


@dataclass(frozen=True)
class Finished:
    """What a program that ended by itself left: exit status (negative for a signal) and its output."""

    status: int
    out: str
    err: str

    def last_line(self) -> str:
        """The last line of its errors, or of its output where there are none; for a sentence about a failure."""
        for text in (self.err, self.out):
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                return lines[-1][:300]
        return "it printed nothing"

    def describe_status(self) -> str:
        """`exit code 3`, or the signal that ended it."""
        if self.status >= 0:
            return f"exit code {self.status}"
        with suppress(ValueError):
            return f"signal {signal.Signals(-self.status).name}"
        return f"signal {-self.status}"


def run_program(command: Sequence[str], limit_s: float) -> Finished:
    """Run to its end with no input; raises CaptureError when it cannot start or passes the limit."""
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise CaptureError(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        _end(process)
        raise CaptureError(f"{name} did not end within {limit_s:g} s and was stopped; raise --timeout") from error
    except BaseException:
        _end(process)
        raise
    return Finished(process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    """End the program and all it started, and wait; the pipes are closed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=GRACE_S)
            break
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def nsys_candidates() -> Iterable[Path]:
    """Paths nsys may be at, best first: the environment's, the one on PATH, the usual folders from new to old."""
    if given := os.environ.get(ENV_NSYS):
        yield Path(given)
        return
    if found := shutil.which("nsys"):
        yield Path(found)
    for pattern in _PLACES:
        yield from sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)


def find_nsys() -> Nsys:
    """The first nsys that is new enough; raises CaptureError with how to get one."""
    old: list[str] = []
    for path in nsys_candidates():
        try:
            finished = run_program([str(path), "--version"], VERSION_LIMIT_S)
        except CaptureError as error:
            old.append(str(error))
            continue
        match = re.search(r"version\s+(\d+)\.(\d+)(?:\.\d+)*", finished.out)
        if match is None or finished.status:
            old.append(f"{path} does not tell its version ({finished.last_line()})")
        elif (int(match[1]), int(match[2])) < MINIMUM:
            old.append(f"nsys {match[1]}.{match[2]} at {path} is too old to record graph nodes")
        else:
            return Nsys(path, match[0].split()[-1])
    raise CaptureError(f"{old[0] if old else 'nsys is not installed'}; {_INSTALL}")


def profile(nsys: Nsys, command: Sequence[str], folder: Path, limit_s: float) -> Path:
    """Run a command under nsys; returns the report in `folder`.

    Raises CaptureError with the command's own sentence when it failed, and with the remedy when nsys was refused.
    """
    report = folder / "report.nsys-rep"
    stem = str(report.with_suffix(""))
    finished = run_program([str(nsys.path), "profile", *PROFILE_OPTIONS, f"--output={stem}", *command], limit_s)
    if finished.status == 0 and report.exists():
        return report
    said = f"{finished.err}\n{finished.out}"
    if own := engine_sentence(said):
        raise CaptureError(own)
    if refusal := _refusal(said):
        raise CaptureError(f"nsys was refused ({refusal}); {_permission_remedy()}")
    if finished.status:
        raise CaptureError(
            f"nsys profile ended with {finished.describe_status()} and no usable report: {finished.last_line()}"
        )
    raise CaptureError(f"nsys profile ended without writing a report: {finished.last_line()}")


def export(nsys: Nsys, report: Path, target: Path) -> Path:
    """Export a report to SQLite; raises CaptureError when nsys cannot."""
    command = [str(nsys.path), "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", str(report)]
    finished = run_program(command, EXPORT_LIMIT_S)
    if finished.status or not target.exists():
        raise CaptureError(
            f"nsys export of the recording ended with {finished.describe_status()}: {finished.last_line()}"
        )
    return target


def engine_command(*arguments: str) -> list[str]:
    """The command line of the embedded engine; `-P` keeps a folder `engine` of the user's out of its way."""
    return [sys.executable, "-P", "-m", "engine", *arguments]


def engine_sentence(text: str) -> str | None:
    """The sentence the engine printed before it gave up, None when it printed none."""
    found = re.findall(r"^engine: (.+)$", text, re.MULTILINE)
    return f"the engine cannot run: {found[-1]}" if found else None


def engine_json(finished: Finished, schema: str) -> dict[str, Any]:
    """The JSON object an engine command printed; raises CaptureError with its own sentence when it failed."""
    if finished.status:
        own = engine_sentence(finished.err)
        raise CaptureError(
            own or f"the engine ended with {finished.describe_status()}: {finished.last_line()}; run `attrib doctor`"
        )
    for line in reversed(finished.out.splitlines()):
        if line.startswith("{"):
            try:
                found: dict[str, Any] = json.loads(line)
            except ValueError:
                break
            if found.get("schema") == schema:
                return found
            raise CaptureError(f"the engine printed {found.get('schema')!r} where this version reads {schema!r}")
    raise CaptureError(f"the engine printed no JSON object: {finished.last_line()}")


def _refusal(text: str) -> str | None:
    """The line of an output that says a right is missing."""
    return next((line.strip()[:200] for line in text.splitlines() if _REFUSED.search(line)), None)


def _permission_remedy() -> str:
    return (
        "let users profile (driver option NVreg_RestrictProfilingToAdminUsers=0), record as root, "
        "or start the container with --cap-add=SYS_ADMIN"
    )


@dataclass(frozen=True)
class Completeness:
    """What was recorded against what ran; a recording with a loss never gets this far."""

    replays_asked: int
    replays_recorded: int
    launches_per_replay: int
    launches_joined: int

    def to_json(self) -> dict[str, Any]:
        """Fields by name."""
        return asdict(self)


def require_kernels(trace: Trace) -> None:
    """Raise when the recording holds no kernel, with what nsys itself noted about it."""
    if trace.count(sch.KERNEL):
        return
    if trace.schema.has("DIAGNOSTIC_EVENT", "text"):
        notes = "\n".join(str(row[0]) for row in trace.query("SELECT text FROM DIAGNOSTIC_EVENT"))
        if refusal := _refusal(notes):
            raise CaptureError(f"nsys recorded no kernel because it was refused ({refusal}); {_permission_remedy()}")
        about = [line.strip() for line in notes.splitlines() if re.search(r"CUDA|CUPTI", line)]
        if about:
            raise NoDataError(f"nsys recorded no kernel and noted: {about[-1][:200]}")
    raise sch.without_kernels(trace.schema, trace.count(sch.GRAPH_TRACE), trace.path)


def check_decode(attribution: Attribution, manifest: Manifest, steps: int) -> Completeness:
    """Check that every graph launch was recorded with all its nodes.

    Names and grids were compared when `attribution` was joined to the manifest. Raises JoinError with the loss.
    """
    attribution = attribution.by_launch or attribution
    trace, found = attribution.trace, attribution.steps
    for reason in ("step cut short", "step with other launches"):
        if number := found.excluded.get(reason, 0):
            raise JoinError(f"the recording lost launches: {number} × {reason}; record again")
    nodes = len(manifest.graph().nodes)
    if found.source != "graph replays" or found.launches != nodes:
        raise JoinError(
            f"the recording has steps of {counted(found.launches, 'launch')} from {found.source} and the manifest "
            f"a graph of {nodes}; record again with --cuda-graph-trace=node"
        )
    kernels = trace.kernels
    seen = set(np.unique(kernels.correlation[kernels.node >= 0]).tolist())
    launched = _graph_launches(trace)
    if lost := launched - seen:
        raise JoinError(f"the recording lost {len(lost)} of {counted(len(launched), 'graph replay')}; record again")
    if len(seen) < steps:
        there = counted(len(seen), "graph replay")
        raise JoinError(f"the recording has {there} and {steps} were asked for; record again")
    return Completeness(steps, len(seen), nodes, found.launches)


def _graph_launches(trace: Trace) -> set[int]:
    """Correlation ids of the graph launch calls."""
    if not trace.schema.has(sch.RUNTIME, "nameId", "correlationId") or not trace.schema.has("StringIds", "value"):
        return set()
    rows = trace.query(
        f"SELECT DISTINCT correlationId FROM {sch.RUNTIME} WHERE nameId IN "
        "(SELECT id FROM StringIds WHERE value LIKE 'cuGraphLaunch%' OR value LIKE 'cudaGraphLaunch%')"
    )
    return {int(row[0]) for row in rows}
