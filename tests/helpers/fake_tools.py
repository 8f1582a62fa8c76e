"""Programs that behave as nsys, nvidia-smi and the engine do, for machines that have none of them.

What they do is chosen by environment variables, so a test sets one and runs the real command:
FAKE_NSYS: ok, old, refused, killed, no-report, bad-export. FAKE_ENGINE: ok, no-gpu, crash, hang, not-json, other-build.
FAKE_TRACE, FAKE_MANIFEST, FAKE_STAGES: files that a recording yields.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from attrib.manifest import BuildInfo, DeviceInfo, Graph, Launch, Manifest, ModelInfo, dump
from tests.helpers import nsysgen as gen

STEP_NS = 60_000
REPLAY_NS = 50_000
WARM_UP, TRACED = 4, 6
NODES = (
    gen.Node(gen.Kernel("rms_norm", grid=(1, 1, 1)), 2_000),
    gen.Node(gen.Kernel("mmvq_v2", grid=(5120, 1, 1)), 30_000, gap=500),
    gen.Node(gen.Kernel("mmvq_v2", grid=(640, 1, 1)), 17_000, gap=500),
)
SPAN_NS = 50_000
SITES = ("attn_norm", "attn_q/q4_K", "output/q6_K")
WEIGHTS = (0, 90_000_000, 40_000_000)

_NSYS = """#!{python}
import itertools, os, pathlib, shutil, signal, subprocess, sys
mode = os.environ.get("FAKE_NSYS", "ok")
if sys.argv[1] == "--version":
    print("NVIDIA Nsight Systems version " + ("2023.4.4.54-0" if mode == "old" else "2025.3.2.474-0"))
    sys.exit(0)
options = list(itertools.takewhile(lambda a: a.startswith("--"), sys.argv[2:]))
output = [o.split("=", 1)[1] for o in options if o.startswith("--output=")][0]
if sys.argv[1] == "export":
    if mode == "bad-export":
        print("Failed to open the report file", file=sys.stderr)
        sys.exit(1)
    shutil.copyfile(os.environ["FAKE_TRACE"], output)
    sys.exit(0)
assert sys.argv[1] == "profile"
for wanted in ("--trace=cuda,nvtx", "--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none"):
    assert wanted in options, wanted
if mode == "refused":
    print("Error: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES: the user may not profile", file=sys.stderr)
    sys.exit(1)
command = sys.argv[2 + len(options):]
if mode == "killed":
    pathlib.Path(output + ".part").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
status = subprocess.call(command)
print("Generating " + output + ".nsys-rep")
if mode != "no-report":
    pathlib.Path(output + ".nsys-rep").write_text("report")
sys.exit(status)
"""

_ENGINE = """import json, os, pathlib, shutil, sys, time
mode = os.environ.get("FAKE_ENGINE", "ok")
a = sys.argv[1:]
value = lambda name, other=None: a[a.index(name) + 1] if name in a else other
traced = "--traced" in a
if mode == "no-gpu":
    print("engine: no NVIDIA GPU: the driver finds no device", file=sys.stderr)
    sys.exit(2)
if mode == "crash" or mode == "crash-traced" and traced:
    print("Segmentation fault", file=sys.stderr)
    os.abort()
if mode == "hang" or mode == "hang-traced" and traced:
    pathlib.Path(os.environ["FAKE_PID"]).write_text(str(os.getpid()))
    time.sleep(600)
if mode == "not-json":
    print("hello")
    sys.exit(0)
if a[0] == "roofline":
    sizes = [1 << p for p in range(20, 31)]
    points = [{{"nbytes": n, "ns": 3500 + n / 4.4, "gbps": n / (3500 + n / 4.4)}} for n in sizes]
    print(json.dumps({{"schema": "engine.roofline/1", "device": "NVIDIA H200", "t0_ns": 3500.0,
                      "rate_gbps": 4400.0, "points": points}}))
    sys.exit(0)
assert a[0] == "bench"
if traced:
    shutil.copyfile(os.environ["FAKE_MANIFEST"], value("--manifest"))
    if "FAKE_STAGES" in os.environ:
        shutil.copyfile(os.environ["FAKE_STAGES"], pathlib.Path(value("--manifest")).with_name("stages.json"))
body = {{"schema": "engine.bench/1", "device": "NVIDIA H200", "model": a[1].split(":")[0], "anchor": value("--anchor"),
        "build": value("--build"), "build_hash": "other" if mode == "other-build" else "abcdef0123456789"}}
if not traced:
    times = [{step}] * 8 + [2 * {step}] * 120
    body |= {{"tok_per_s": 1e9 / {step}, "step_ns": {step}, "replay_ns": {replay},
             "windows": [{{"step_ns": times, "tok_per_s": 1e9 / {step}}} for _ in range(int(value("--windows")))]}}
print(json.dumps(body))
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the fakes on PATH and a fake `engine` package first on the module path; returns the working folder."""
    programs, work, modules = folder / "bin", folder / "work", folder / "modules"
    for place in (programs, work, modules / "engine"):
        place.mkdir(parents=True)
    nsys = programs / "nsys"
    nsys.write_text(_NSYS.format(python=sys.executable))
    nsys.chmod(0o755)
    (modules / "engine" / "__init__.py").touch()
    (modules / "engine" / "__main__.py").write_text(_ENGINE.format(step=STEP_NS, replay=REPLAY_NS))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.delenv("ATTRIB_NSYS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(modules))
    monkeypatch.setenv("ATTRIB_CONFIG_DIR", str(folder / "config"))
    monkeypatch.chdir(work)
    return work


def nvidia_smi(programs: Path, body: str) -> None:
    """A fake nvidia-smi that runs a shell line."""
    program = programs / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def manifest(anchor: str = "tg128") -> Manifest:
    """The manifest of the fake engine's decode graph of three nodes."""
    launches = tuple(
        Launch(
            i, site, None if site.startswith("output") else 0, node.kernel.name, node.kernel.grid, (256, 1, 1), nbytes
        )
        for i, (site, node, nbytes) in enumerate(zip(SITES, NODES, WEIGHTS, strict=True))
    )
    return Manifest(
        DeviceInfo("NVIDIA H200", 132, 4.814e12, 2048, "9.0"),
        ModelInfo("qwen2.5-14b", "qwen2", "q4_k_m", "synthetic seed 1"),
        anchor,
        BuildInfo("reference", "abcdef0123456789"),
        (Graph("decode", launches),),
    )


def write_manifest(path: Path, anchor: str = "tg128") -> Path:
    """Write the manifest of the fake engine."""
    dump(manifest(anchor), path)
    return path


def decode_trace(
    *, nodes: tuple[gen.Node, ...] = NODES, lost: int = 0, cut: bool = False, steps: int = TRACED
) -> gen.Trace:
    """A recording of WARM_UP replays and `steps` steps in NVTX ranges of 66 µs.

    `lost` replays have their launch call and no kernel; `cut` ends the last replay after one node.
    """
    trace = gen.Trace("2025.3")
    process = trace.process(pid=100)
    process.device(trace.gpu(gen.H200))
    graph = process.graph(nodes)
    at = 1_000_000
    total = WARM_UP + steps
    for i in range(total):
        if total - 1 - lost < i:
            process.api("cuGraphLaunch", at - 9000, at - 4000)
        else:
            keep = 1 if cut and i == total - 1 else None
            process.replay(graph, at, call="cuGraphLaunch", keep=keep)
        if i >= WARM_UP:
            process.nvtx("step", at - 10_000, at + 56_000)
        at += 100_000
    return trace


def prefill_trace() -> gen.Trace:
    """A recording of an eager prompt, once to warm up and once in a range `prefill`."""
    trace = gen.Trace("2025.3")
    process = trace.process(pid=100)
    process.device(trace.gpu(gen.H200))
    at = 1_000_000
    for name in ("warm-up", "prefill"):
        begin = at
        for i in range(4):
            at = process.launch(gen.Kernel(f"gemm{i}", grid=(64, 1, 1)), at, 10_000)
        process.nvtx(name, begin - 8_000, at + 1_000)
        at += 50_000
    return trace
