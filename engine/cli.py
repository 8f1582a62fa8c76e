"""The command line: parse, one call, render, exit code. Heavy imports wait until a command needs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import attrib
from engine import cli_text
from engine.cli_common import BuildOpt, GpuOpt, JsonOpt, ModelArg, SeedOpt, emit, run, show, without_nan, write_text
from engine.errors import EngineError, GateFailedError

if TYPE_CHECKING:
    from engine.bench import Anchor
    from engine.config import ModelConfig
    from engine.dispatch import Build

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Decode engine: Qwen2 and Llama models from GGUF files or synthetic weights, one CUDA graph a step.",
)
cli_text.register(app)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"engine {attrib.__version__}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command()
def bench(
    model: ModelArg,
    anchor: Annotated[
        list[str] | None,
        typer.Option(help="tg128, @N (steps after N tokens) or pp512; tg128 by default, several with --output."),
    ] = None,
    build: BuildOpt = "reference",
    windows: Annotated[int, typer.Option(min=1, help="Timed windows.")] = 3,
    steps: Annotated[int | None, typer.Option(help="Decode steps a window.")] = None,
    capacity: Annotated[int | None, typer.Option(help="KV positions; by default what the anchor needs.")] = None,
    traced: Annotated[bool, typer.Option(help="Run for a profiler: NVTX ranges, no timing.")] = False,
    manifest: Annotated[Path | None, typer.Option(help="Write the manifest of the decode graph here.")] = None,
    unproven: Annotated[
        bool, typer.Option("--unproven", help="--build is a .toml file that may skip work; its output may be wrong.")
    ] = False,
    seed: SeedOpt = 1,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="A table in llama-bench's shape: md, json or csv; pp512 and tg128 by default."
        ),
    ] = None,
    gpu: GpuOpt = 0,
    as_json: JsonOpt = False,
) -> None:
    """Time a model at an anchor, untraced; or run it once for a profiler with --traced; or print a table of anchors."""
    from dataclasses import replace

    from attrib.manifest import dump
    from engine import bench as timing
    from engine import dispatch, stamps
    from engine.config import resolve
    from engine.session import open_session

    if output is not None:
        beside = {"--json": as_json, "--traced": traced, "--manifest": manifest, "--unproven": unproven}
        if wrong := [name for name, value in beside.items() if value]:
            raise EngineError(f"{wrong[0]} does not go with --output; leave one of them out")
        anchors = [timing.anchor(name, steps) for name in anchor or ("pp512", "tg128")]
        show(_table(resolve(model, seed), dispatch.load(build), anchors, windows, capacity, gpu, output) + "\n")
        return
    if len(anchor or ()) > 1:
        raise EngineError(f"{len(anchor or ())} anchors need --output md, json or csv; without it give one")
    at = timing.anchor(anchor[0] if anchor else "tg128", timing.TRACED_STEPS if traced and steps is None else steps)
    config = resolve(model, seed)
    chosen = dispatch.unproven(Path(build)) if unproven else dispatch.load(build)
    stamped = traced and chosen.persistent and at.phase == "decode" and manifest is not None
    replays: list[stamps.Replay] | None = [] if stamped else None
    with open_session(config, chosen, capacity or at.capacity, gpu, stamps=stamped) as session:
        found = timing.traced(session, at, replays) if traced else timing.measure(session, at, windows)
        made = timing.plan_manifest(session, at)
    if manifest is not None:
        if replays:
            stamps.write(manifest.with_name("stages.json"), stamps.document(made.graph(), replays))
        wall = () if traced else tuple(ns for window in found["windows"] for ns in window["step_ns"])
        dump(replace(made, wall_step_ns=wall), manifest)
    lines = [f"{found['model']} {at.name}, build {found['build']} {found['build_hash']}, {found['device']}"]
    if found["units_missing"]:
        lines.append(f"NOT PROVEN: {found['units_missing']} of {found['units']} units of a step are not computed")
    if not traced:
        rates = ", ".join(f"{window['tok_per_s']:.2f}" for window in found["windows"])
        lines += [f"{found['tok_per_s']:.2f} tok/s, {found['step_ns'] / 1e6:.3f} ms (median; windows {rates} tok/s)"]
    if "host_share" in found:
        lines.append(f"replay {found['replay_ns'] / 1e6:.3f} ms, host {100 * found['host_share']:.1f} % of a step")
    lines.append(f"weights {found['weight_bytes'] / 1e9:.3f} GB at {found['load_gbps']:.2f} GB/s")
    emit(found, as_json, lines)


def _table(
    config: ModelConfig, build: Build, anchors: list[Anchor], windows: int, capacity: int | None, gpu: int, form: str
) -> str:
    from engine import benchtable
    from engine.bench import measure
    from engine.session import open_session

    if form not in benchtable.FORMATS:
        raise EngineError(f"--output {form!r} is not one of {', '.join(benchtable.FORMATS)}")
    room = capacity or max(at.capacity for at in anchors)
    with open_session(config, build, room, gpu) as session:
        rows = [benchtable.row(config, at, measure(session, at, windows)) for at in anchors]
    return benchtable.render(rows, form)


@app.command()
def synth(
    model: Annotated[str, typer.Argument(help="A built-in model, for example qwen2.5-14b:q4_k_m.")],
    out: Annotated[Path | None, typer.Option(help="Write a GGUF file; without it, fill the GPU and time it.")] = None,
    seed: SeedOpt = 1,
    gpu: GpuOpt = 0,
    as_json: JsonOpt = False,
) -> None:
    """Synthetic weights of a model's shapes and quant types: filled on the GPU, or written as a GGUF file."""
    import time

    from engine.config import synthetic

    config = synthetic(model, seed)
    started = time.perf_counter()
    if out is not None:
        from engine.ggufwrite import best_source, write
        from engine.weights import progress

        total = sum(t.nbytes for t in config.model.tensors)
        with best_source(config, gpu) as (source, maker), progress(total, "writing weights") as done:
            nbytes = write(config, out, source, done)
        where = str(out)
    else:
        from engine.synth import fill_once

        nbytes, maker = fill_once(config, gpu)
        where = "GPU memory"
    seconds = time.perf_counter() - started
    document = {
        "schema": "engine.synth/1",
        "model": config.model.shape.name,
        "seed": seed,
        "made_by": maker,
        "bytes": nbytes,
        "seconds": seconds,
        "file": str(out) if out else None,
    }
    emit(document, as_json, [f"{nbytes} bytes in {where}, made by {maker} in {seconds:.1f} s"])


@app.command()
def verify(
    model: ModelArg,
    base: Annotated[str, typer.Option(help="Build that is trusted.")] = "reference",
    build: BuildOpt = "reference",
    gate: Annotated[list[str] | None, typer.Option(help="dump, greedy, tolerance; all by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Keep both dumps as .npz files in this folder.")] = None,
    seed: SeedOpt = 1,
    gpu: GpuOpt = 0,
    as_json: JsonOpt = False,
) -> None:
    """Compare two builds: equal dumps, equal greedy tokens, close logits. Exit code 1 on a failed gate."""
    from engine import verify as gates
    from engine.config import resolve
    from engine.dispatch import load
    from engine.dump import save

    chosen = tuple(gate or gates.GATES)
    if unknown := set(chosen) - set(gates.GATES):
        raise EngineError(f"gate {sorted(unknown)[0]!r} does not exist; there are {', '.join(gates.GATES)}")
    if out is not None and not out.is_dir():
        raise EngineError(f"--out {out} is not a folder")
    config, builds = resolve(model, seed), (load(base), load(build))
    first, second = (gates.run(config, each, chosen, gpu) for each in builds)
    verdicts = gates.judge(first, second, chosen)
    if out is not None:
        save(first.dump, out / "base.npz")
        save(second.dump, out / "build.npz")
    document = {
        "schema": "engine.verify/1",
        "model": config.model.shape.name,
        "base": base,
        "build": build,
        "gates": [verdict.as_json() for verdict in verdicts],
    }
    lines = []
    for verdict in verdicts:
        numbers = ", ".join(f"{name} {value:.6g}" for name, value in verdict.numbers.items())
        lines.append(f"{verdict.gate}: {'passed' if verdict.passed else 'FAILED'} ({numbers})")
        lines += [f"  {note}" for note in verdict.notes]
    emit(document, as_json, lines)
    if failed := [verdict.gate for verdict in verdicts if not verdict.passed]:
        raise GateFailedError(f"build {build} against {base}: gate {', '.join(failed)} failed")


@app.command()
def roofline(
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
    gpu: GpuOpt = 0,
    as_json: JsonOpt = False,
) -> None:
    """Measure what the GPU streams from 1 MB to 1 GB, and fit t(bytes) = t0 + bytes / rate."""
    from engine.roofline import measure

    found = measure(gpu)
    if out is not None:
        write_text(out, json.dumps(without_nan(found), indent=1, allow_nan=False))
    lines = [f"{found['device']}: t0 {found['t0_ns'] / 1e3:.2f} µs, rate {found['rate_gbps']:.0f} GB/s"]
    lines += [f"{p['nbytes']:>12} B {p['ns'] / 1e3:10.2f} µs {p['gbps']:8.0f} GB/s" for p in found["points"]]
    emit(found, as_json, lines)


def main() -> None:
    """Entry point."""
    run(app)
