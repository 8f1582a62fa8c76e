"""An engine that times nothing, a GPU that is only described, for experiments on machines without either.

The engine reads `engine.json` in its folder: per build its rate in tokens/s and hash. Every run adds a line to
`calls.txt` there, and its rate wobbles by a fixed pattern with the number of the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

RATES = {"reference": (100.0, "aaaaaaaaaaaaaaaa"), "better": (102.0, "bbbbbbbbbbbbbbbb"), "same": (100.0, "a" * 16)}
DEVICE = "NVIDIA H200"

_MAIN = """import json, os, pathlib, shutil, sys, time
here = pathlib.Path(__file__).parent
config = json.loads((here / "engine.json").read_text())
a = sys.argv[1:]
value = lambda name, other=None: a[a.index(name) + 1] if name in a else other
with (here / "calls.txt").open("a") as calls:
    calls.write(" ".join(a) + "\\n")
number = len((here / "calls.txt").read_text().splitlines())
if config.get("fails_at") == number:
    print("engine: no NVIDIA GPU: the driver finds no device", file=sys.stderr)
    sys.exit(2)
build = value("--build")
rate, hash_ = config["builds"][build]
if "--traced" in a:
    shutil.copyfile(config["manifest"], value("--manifest"))
rate *= 1 + config["wobble"] * [0.3, -0.7, 0.9, -0.2, -0.9, 0.6, 0.1][number % 7]
if value("--anchor").startswith("pp"):
    rate *= config.get("prompt_factor", {}).get(build, 1.0) * 50
time.sleep(config.get("seconds", 0))
repeats = [{"step_ns": [1e9 / rate], "tok_per_s": rate} for _ in range(int(value("--windows", "1")))]
print(json.dumps({"schema": "engine.bench/1", "device": config["device"], "model": a[1], "anchor": value("--anchor"),
                  "build": build, "build_hash": config.get("runs_hash", hash_), "tok_per_s": rate,
                  "step_ns": 1e9 / rate, "windows": repeats}))
"""
_DISPATCH = """import json, pathlib
from attrib.errors import AttribError
BUILDS = json.loads((pathlib.Path(__file__).parent / "engine.json").read_text())["builds"]
class Info:
    def __init__(self, name): self.hash = BUILDS[name][1]
class Build:
    def __init__(self, name): self.name = name
    def sources(self): return ()
    def info(self, sources): return Info(self.name)
def load(name):
    if name not in BUILDS:
        raise AttribError(f"build {name!r} does not exist; there are {', '.join(BUILDS)}")
    return Build(name)
"""
_VERIFY = """import json, pathlib
from dataclasses import dataclass
import numpy as np
from attrib.errors import AttribError
HERE = pathlib.Path(__file__).parent
@dataclass
class Run:
    dump: dict
    tokens: list
    logits: np.ndarray
@dataclass
class Verdict:
    gate: str
    passed: bool
    notes: tuple
    def as_json(self):
        return {"gate": self.gate, "passed": self.passed, "notes": self.notes, "numbers": {}}
def run(config, build, gates, ordinal=0):
    with (HERE / "calls.txt").open("a") as calls:
        calls.write(f"verify {config} {build.name} {','.join(gates)} {ordinal}\\n")
    body = json.loads((HERE / "engine.json").read_text())
    if body.get("verify_fails"):
        raise AttribError("no NVIDIA GPU: the driver finds no device")
    found = np.array(body.get("computes", {}).get(build.name, [1.0, 2.0]), np.float32)
    return Run({"logits_decode": found, "kv_decode/k.0": found}, [1, 2] if "greedy" in gates else [], found[None])
def judge(first, second, gates):
    same = {
        "dump": all((first.dump[n] == second.dump[n]).all() for n in first.dump | second.dump),
        "greedy": first.tokens == second.tokens == [1, 2],
        "tolerance": abs(first.logits - second.logits).max() < 0.5,
    }
    return [Verdict(g, bool(same[g]), () if same[g] else (f"{g} differs",)) for g in gates]
"""


def install(folder: Path, **config: Any) -> Path:
    """Put a fake `engine` package into a folder, which must be on PYTHONPATH; returns the folder.

    `config` overrides fields of engine.json. `computes` there gives the numbers that gates compare, by build.
    """
    engine = folder / "engine"
    engine.mkdir(parents=True)
    (engine / "__init__.py").touch()
    (engine / "__main__.py").write_text(_MAIN)
    (engine / "dispatch.py").write_text(_DISPATCH)
    (engine / "module.py").write_text("def source_hash(names): return ''\n")
    (engine / "verify.py").write_text(_VERIFY)
    (engine / "config.py").write_text("def resolve(model, seed): return f'{model} {seed}'\n")
    (engine / "dump.py").write_text("import numpy\ndef save(dump, path): numpy.savez(path, **dump)\n")
    configure(folder, **config)
    return folder


def configure(folder: Path, **config: Any) -> None:
    """Set what the fake engine of a folder does."""
    body = {"builds": RATES, "device": DEVICE, "wobble": 0.001} | config
    (folder / "engine" / "engine.json").write_text(json.dumps(body))


def calls(folder: Path) -> list[str]:
    """The engine's command lines so far."""
    path = folder / "engine" / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


class NVMLError(Exception):
    """What NVML raises."""


@dataclass
class Nvml:
    """A GPU's state as NVML tells it; tests change the fields between or during windows."""

    sm_mhz: int = 1980
    reasons: int = 0
    others: int = 0
    used: int = 600 << 20
    fails: bool = False
    asked: list[object] = field(default_factory=list)

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.fails:
            raise NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        self.asked.append(index)
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.asked.append(uuid)
        return "handle"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        if self.used < 0:
            raise NVMLError("Not Supported")
        return type("Memory", (), {"used": self.used})

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        return self.sm_mhz if kind == self.NVML_CLOCK_SM else 3201

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:  # noqa: N802
        return 41

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return 350_000

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        return type("Rates", (), {"gpu": 95})

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[int]:  # noqa: N802
        return list(range(self.others))


def quiet_gpu(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """Make a fake NVML importable; windows are short, so it is read often."""
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr("attrib.environment.PERIOD_S", 0.005)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return nvml


def engine_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the fake engine, make it the one that runs, and work in its folder."""
    install(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.chdir(folder)
    return folder


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder as nobody in particular."""
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, tag: str) -> None:
    """Make the folder a repository whose only commit, with a tag, has the fake engine as it is."""
    git(folder, "init", "-q")
    git(folder, "add", "engine")
    git(folder, "commit", "-q", "-m", tag)
    git(folder, "tag", tag)
