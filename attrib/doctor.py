"""`attrib doctor`: what this machine has for reading and for recording, and how to get what it lacks.

CUDA is asked in processes of their own, so that a broken driver can neither crash nor hang the report.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attrib import capture
from attrib.capture import CaptureError
from attrib.words import counted

SCHEMA = "attrib.doctor/1"
OK, MISSING, NOTE = "ok", "missing", "note"
READING, RECORDING = "reading", "recording"
PROBE_LIMIT_S = 60.0
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_READERS = ("numpy", "pandas", "matplotlib", "rich", "typer", "sqlite-utils", "gguf")
_ENGINE = "pip install 'attrib[engine]'"
_FLEETS = "fleets"
# each prints what it found, or ends with one sentence: a class name helps nobody
_NVRTC_PROBE = """
import sys
try:
    from cuda.bindings import nvrtc
    status, *version = nvrtc.nvrtcVersion()
except Exception as error:
    sys.exit(str(error) or "the library raised " + type(error).__name__)
if int(status):
    sys.exit(f"nvrtcVersion gives status {int(status)}")
print(*version, sep=".")
"""
_DRIVER_PROBE = """
import sys
try:
    from cuda.bindings import driver
    (status,) = driver.cuInit(0)[:1]
except Exception as error:
    # the bindings tell an absent libcuda with exceptions of their own that differ by version
    found = "" if "NotFound" in type(error).__name__ else f": {error}"
    sys.exit(f"libcuda cannot be loaded{found}")
if int(status):
    sys.exit(f"cuInit gives CUDA status {int(status)}")
status, count = driver.cuDeviceGetCount()
if int(status) or not count:
    sys.exit("it finds no device")
status, version = driver.cuDriverGetVersion()
print(count, f"{version // 1000}.{version % 1000 // 10}")
"""


@dataclass(frozen=True)
class Check:
    """One line of the report: what was looked at, for which work it is needed, how it is and what helps."""

    name: str
    needed_for: str
    status: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All checks; `can(work)` tells whether nothing that the work needs is missing."""

    checks: tuple[Check, ...]

    def can(self, work: str) -> bool:
        """Whether every check that is needed for this work (reading or recording) is well."""
        return all(c.status != MISSING for c in self.checks if c.needed_for == work)

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object."""
        return {
            "schema": SCHEMA,
            "reading": self.can(READING),
            "recording": self.can(READING) and self.can(RECORDING),
            "checks": [
                {
                    "name": c.name,
                    "needed_for": c.needed_for,
                    "status": c.status,
                    "detail": c.detail,
                    "remedy": c.remedy or None,
                }
                for c in self.checks
            ],
        }


def diagnose(out: Path) -> Diagnosis:
    """Look at everything; `out` is where recordings would be stored. Never raises for something missing."""
    recording = [gpu(), cuda_python(), nvrtc(), engine(), optional("engine", RECORDING), nsys(), folder(out)]
    return Diagnosis((packages(), *recording, optional("fleet", _FLEETS), perf()))


def packages() -> Check:
    """The packages that reading needs."""
    found = {name: _version(name) for name in _READERS}
    if lost := [name for name, version in found.items() if version is None]:
        return Check("Python packages", READING, MISSING, f"not installed: {', '.join(lost)}", "pip install attrib")
    return Check("Python packages", READING, OK, ", ".join(f"{name} {version}" for name, version in found.items()))


def optional(extra: str, needed_for: str) -> Check:
    """The packages that an extra of this project brings; each that is absent takes away what it is for, not all."""
    found = {name: _version(name) for name in _brought_by(extra)}
    if not found:
        unknown = "unknown: this is a source tree, and attrib is not installed"
        return Check(f"extra [{extra}]", needed_for, NOTE, unknown, f"pip install '.[{extra}]' in it")
    detail = ", ".join(f"{name} {version or 'not found'}" for name, version in found.items())
    lost = not all(found.values())
    return Check(f"extra [{extra}]", needed_for, NOTE if lost else OK, detail, f"pip install 'attrib[{extra}]'" * lost)


def _brought_by(extra: str) -> list[str]:
    """Names of the packages that this project's own metadata gives to an extra; none where it is not installed."""
    ends = tuple(f"extra == {quote}{extra}{quote}" for quote in "'\"")
    try:
        required = metadata.requires("attrib") or ()
    except metadata.PackageNotFoundError:
        return []
    return [re.split(r"[^\w.-]", line)[0] for line in required if line.endswith(ends)]


def gpu() -> Check:
    """GPU and driver, as nvidia-smi names them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Check(
            "GPU and driver", RECORDING, MISSING, "nvidia-smi is not on PATH",
            "install the NVIDIA driver, or record on a machine with an NVIDIA GPU",
        )  # fmt: skip
    query = "--query-gpu=name,driver_version,memory.total"
    text, well = _run([program, query, "--format=csv,noheader"])
    if not well or not text:
        return Check(
            "GPU and driver", RECORDING, MISSING, text or "nvidia-smi names no GPU",
            "check that the driver is loaded and, in a container, that it was started with --gpus",
        )  # fmt: skip
    return Check("GPU and driver", RECORDING, OK, "; ".join(line.strip() for line in text.splitlines()))


def cuda_python() -> Check:
    """The CUDA driver bindings, and that they reach the driver."""
    version = _version("cuda-bindings") or _version("cuda-python")
    if version is None:
        return Check("cuda-python", RECORDING, MISSING, "not installed", _ENGINE)
    text, well = _run([sys.executable, "-P", "-c", _DRIVER_PROBE])
    if not well:
        return Check(
            "cuda-python", RECORDING, MISSING, f"{version} is installed and cannot use the driver: {text}",
            "see the line about the GPU; where that is well, install a cuda-python not newer than the driver",
        )  # fmt: skip
    number, driver = text.split()
    return Check("cuda-python", RECORDING, OK, f"{version}, {counted(int(number), 'GPU')}, driver API {driver}")


def nvrtc() -> Check:
    """The run-time compiler, loaded through the bindings."""
    if _version("cuda-bindings") is None and _version("cuda-python") is None:
        return Check("NVRTC", RECORDING, MISSING, "cannot be asked without cuda-python", _ENGINE)
    text, well = _run([sys.executable, "-P", "-c", _NVRTC_PROBE])
    if not well:
        return Check("NVRTC", RECORDING, MISSING, f"cannot be loaded: {text}", "pip install nvidia-cuda-nvrtc")
    return Check("NVRTC", RECORDING, OK, text)


def engine() -> Check:
    """The embedded engine's package; only looked for, never imported here."""
    if find_spec("engine") is None:
        return Check("engine", RECORDING, MISSING, "the engine package is not installed", _ENGINE)
    return Check("engine", RECORDING, OK, "installed")


def nsys() -> Check:
    """An nsys that records graph nodes."""
    try:
        found = capture.find_nsys()
    except CaptureError as error:
        detail, _, remedy = str(error).partition("; ")
        return Check("nsys", RECORDING, MISSING, detail, remedy)
    return Check("nsys", RECORDING, OK, f"{found.version} at {found.path}")


def folder(out: Path) -> Check:
    """Whether recordings can be written; nothing is left behind."""
    place = out
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Check(
            "run directory", RECORDING, MISSING, f"{place} cannot be written: {error.strerror}",
            "choose another with --out",
        )  # fmt: skip
    free = shutil.disk_usage(place).free
    return Check("run directory", RECORDING, OK, f"{out.absolute()}, {free / 1e9:.0f} GB free")


def perf() -> Check:
    """The kernel's setting for CPU sampling, which recordings leave off."""
    detail = "not a Linux kernel with perf events"
    if PARANOID.exists():
        level = PARANOID.read_text(encoding="utf-8").strip()
        root = ", running as root" if hasattr(os, "geteuid") and os.geteuid() == 0 else ""
        detail = f"perf_event_paranoid is {level}{root}; only CPU sampling needs it, and recordings take none"
    return Check("perf events", "CPU sampling", NOTE, detail)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _run(command: list[str]) -> tuple[str, bool]:
    """(output or the last line of the errors, whether the program succeeded)."""
    try:
        finished = capture.run_program(command, PROBE_LIMIT_S)
    except CaptureError as error:
        return str(error), False
    return (finished.out.strip(), True) if finished.status == 0 else (finished.last_line(), False)
