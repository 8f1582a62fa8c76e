"""The judging commands: ab, lever new|run|show, mechanism occupancy|bytes|reread."""
# ruff: noqa: PLC0415 - heavy imports wait until a command needs them

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attrib.cli_guard import guarded, print_json, say
from attrib.words import counted

if TYPE_CHECKING:
    from attrib.ab import Comparison, Leg
    from attrib.mechanism import Reread

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
OutOption = Annotated[Path, typer.Option("--out", help="Folder of runs.db and the journals.")]
PairsOption = Annotated[int, typer.Option("--pairs", help="Pairs to measure; fewer than 5 give no verdict.")]
ProcessesOption = Annotated[int, typer.Option("--processes", help="Processes a side in each pair, a window each.")]
GpuOption = Annotated[int, typer.Option("--gpu", min=0, help="Number of the GPU.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=1, help="Seconds one program may take.")]
BarOption = Annotated[str, typer.Option("--bar", help="Gain that counts, in percent.")]
GuardOption = Annotated[list[str] | None, typer.Option("--guard", help="Anchor that must not become slower.")]
DeviceOption = Annotated[str, typer.Option("--device", help="A GPU of the device table, such as GB10 or H200.")]
QuantOption = Annotated[str, typer.Option("--quant", help="Storage type of the weights.")]
StrideOption = Annotated[int | None, typer.Option("--stride", min=1, help="Bytes of a padded block.")]
RUNS = Path("runs")
BUILDS = "a name in engine/builds, git:REV or git:REV:NAME"

lever_app = typer.Typer(name="lever", no_args_is_help=True, help="Changes with a bar written before measuring.")
mechanism_app = typer.Typer(
    name="mechanism", no_args_is_help=True, help="Arithmetic that allows or vetoes a change before it is written."
)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(guarded(ab))
    commands: tuple[tuple[typer.Typer, str, Callable[..., None]], ...] = (
        (lever_app, "new", lever_new),
        (lever_app, "run", lever_run),
        (lever_app, "show", lever_show),
        (mechanism_app, "occupancy", occupancy),
        (mechanism_app, "bytes", streamed_bytes),
        (mechanism_app, "reread", reread),
    )
    for group, name, command in commands:
        group.command(name)(guarded(command))
    app.add_typer(lever_app)
    app.add_typer(mechanism_app)


def ab(
    anchor: Annotated[str, typer.Option("--anchor", help="MODEL:ANCHOR, such as 14b:tg128 or 14b:@3254.")],
    base: Annotated[str, typer.Option("--base", help=f"The build to beat: {BUILDS}.")],
    new: Annotated[str | None, typer.Option("--new", help="The build that claims to be faster.")] = None,
    site: Annotated[str | None, typer.Option("--site", help="Trace both builds and compare this site.")] = None,
    bar: BarOption = "0.4%",
    guard: GuardOption = None,
    pairs: PairsOption = 10,
    processes: ProcessesOption = 3,
    repeats: Annotated[int, typer.Option("--repeats", min=1, max=100, help="Timed repetitions a window.")] = 3,
    aa: Annotated[bool, typer.Option("--aa", help="Run BASE against itself: the machine's noise floor.")] = False,
    gpu: GpuOption = 0,
    out: OutOption = RUNS,
    timeout: TimeoutOption = 900,
    as_json: JsonOption = False,
) -> None:
    """Is build NEW really faster than BASE: untraced windows in turn, judged against a bar.

    An interrupted run continues when it is repeated. Exit code 1 when a guard became slower.
    Example: attrib ab --anchor 14b:tg128 --base loop --new reference --guard 14b:pp512
    """
    from attrib.ab import Plan, parse_bar, run
    from attrib.errors import RefusedError

    if aa == (new is not None):
        raise RefusedError("give either --new BUILD, or --aa to run the base against itself")
    guards = tuple(guard or ())
    plan = Plan(anchor, base, new, parse_bar(bar), guards, site, pairs, processes, repeats, gpu, timeout)
    found = run(plan, out, lambda text: typer.echo(text, err=True))
    if as_json:
        print_json(found.to_json())
    else:
        _print_comparison(found)
    if found.broken:
        raise typer.Exit(1)


def _print_comparison(found: Comparison) -> None:
    from attrib import stats

    windows = found.journal.windows
    say(f"{found.base.given} {found.base.hash[:8]} → {found.new.given} {found.new.hash[:8]}, {windows[0].device}")
    for leg in found.legs:
        _print_leg(leg)
    if found.site is not None:
        site = found.site
        rates = [f"{row['gbps']:.0f} GB/s" if row["gbps"] else "unknown GB/s" for row in (site.base, site.new)]
        say(f"\nsite {site.site}: {rates[0]} → {rates[1]}, {site.base['exclusive_us']:.2f} → "
                   f"{site.new['exclusive_us']:.2f} µs a launch, {100 * site.change:+.2f} %")  # fmt: skip
        say(f"  {site.to_json()['note']}")
    if found.noise is not None:
        noise, bar, processes = found.noise, found.plan.bar, found.plan.processes
        say(
            f"\nnoise: {100 * noise.sd:.3f} % between two processes; {counted(noise.pairs, 'pair')} of "
            f"{processes} a side find a gain of {100 * stats.noise_floor(noise.sd, noise.pairs, processes):.2f} %, "
            f"a bar of {100 * bar:g} % needs {counted(stats.pairs_needed(noise.sd, bar, processes), 'pair')}"
        )
    for note in found.notes:
        say(f"note: {note}")
    disturbed = sum(bool(window.disturbed) for window in windows)
    say(f"{counted(len(windows), 'window')} ({disturbed} disturbed) in {found.journal.path}")


def _print_leg(leg: Leg) -> None:
    j = leg.judgement
    sep = {1: "yes", -1: "yes, slower", 0: "no"}[j.sep]
    say(f"\n{'guard ' if leg.guard else ''}{leg.anchor}: {j.verdict or 'no verdict'}")
    say(f"  {j.why}")
    each = f" of {j.processes} a side" if j.processes > 1 else ""
    say(
        f"  {j.base_median:.2f} → {j.new_median:.2f} tok/s, median of {counted(j.pairs, 'pair')}{each} "
        f"{100 * j.change:+.2f} % [{100 * j.low:+.2f}, {100 * j.high:+.2f}], bar {100 * j.bar:g} %"
    )
    say(f"  SEP {sep}; permutation p = {j.p_pairs:.2g}; Mann–Whitney p = {j.p_ranks:.2g}")


def lever_new(
    name: Annotated[str, typer.Argument(help="Short name of the lever.", metavar="NAME")],
    question: Annotated[str, typer.Option("--question", help="What is asked, in one sentence.")],
    mechanism: Annotated[str, typer.Option("--mechanism", help="The arithmetic that lets the gain exist.")],
    anchor: Annotated[list[str], typer.Option("--anchor", help="The bar holds at the first; others must not lose.")],
    base: Annotated[str, typer.Option("--base", help=f"The build to beat: {BUILDS}.")],
    new: Annotated[str, typer.Option("--new", help="The build with the change.")],
    bar: BarOption = "0.4%",
    guard: GuardOption = None,
    site: Annotated[str, typer.Option("--site", help="The site that should gain.")] = "",
    gate: Annotated[
        list[str] | None, typer.Option("--gate", help="dump, greedy, tolerance or none; dump and greedy by default.")
    ] = None,
    veto: Annotated[str, typer.Option("--veto", help="Why the arithmetic forbids it: decided without a kernel.")] = "",
    out: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Write a lever down before it is measured; with --veto, close it by arithmetic.

    Example: attrib lever new 1b --question "…" --mechanism "…" --anchor 14b:tg128 --base loop --new reference
    """
    from attrib.ab import parse_bar
    from attrib.lever import Lever, page, write

    gates = Lever.gates if gate is None else tuple(g for g in gate if g != "none")
    written = Lever(
        name, question, mechanism, parse_bar(bar), tuple(anchor), base, new, tuple(guard or ()), site, gates
    )  # fmt: skip
    lever = write(out, written, veto)
    print_json(lever.to_json()) if as_json else typer.echo(page(lever))


def lever_run(
    name: Annotated[str, typer.Argument(help="A lever of the ledger.", metavar="NAME")],
    pairs: PairsOption = 10,
    processes: ProcessesOption = 3,
    gpu: GpuOption = 0,
    out: OutOption = RUNS,
    timeout: TimeoutOption = 900,
    as_json: JsonOption = False,
) -> None:
    """Gates, windows and verdict of a lever; an interrupted run continues when it is repeated.

    Example: attrib lever run 1b
    """
    from attrib.lever import page, run

    lever = run(out, name, pairs, processes, gpu, timeout, lambda text: typer.echo(text, err=True))
    print_json(lever.to_json()) if as_json else typer.echo(page(lever))


def lever_show(
    name: Annotated[str | None, typer.Argument(help="A lever; all in short without one.", metavar="[NAME]")] = None,
    out: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """A lever on one page, or the list of all.

    Example: attrib lever show 1b
    """
    from attrib.lever import load, load_all, page

    if name is not None:
        lever = load(out, name)
        print_json(lever.to_json()) if as_json else typer.echo(page(lever))
        return
    levers = load_all(out)
    if as_json:
        print_json({"schema": "attrib.levers/1", "levers": [lever.to_json() for lever in levers]})
        return
    if not levers:
        typer.echo("no lever is written yet; `attrib lever new` writes one")
    for lever in levers:
        say(f"{lever.verdict or 'open':<9} {lever.name}: {lever.question}")


def occupancy(
    block: Annotated[int, typer.Option("--block", help="Threads a block.")],
    device: DeviceOption,
    units: Annotated[int | None, typer.Option("--units", min=1, help="Work items a block; more threads idle.")] = None,
    registers: Annotated[int, typer.Option("--registers", min=0, help="Registers a thread.")] = 0,
    shared: Annotated[str, typer.Option("--shared", help="Shared memory a block: bytes, or 16KiB.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Blocks and live threads that fit on an SM.

    Example: attrib mechanism occupancy --device GB10 --block 256 --units 160
    """
    from attrib.mechanism import find_device, occupancy as count, parse_bytes  # noqa: I001

    nbytes = parse_bytes(shared) if shared else 0
    found = count(find_device(device), block, registers, nbytes, units)
    if as_json:
        print_json(
            {
                "schema": "attrib.occupancy/1", "device": found.device, "block": block, "units": units,
                "registers": registers or None, "shared_bytes": nbytes or None, "blocks_per_sm": found.blocks,
                "limits": found.limits, "limited_by": found.limiter, "slots_per_sm": found.slots,
                "resident_threads": found.resident, "live_threads": found.live,
            }
        )  # fmt: skip
        return
    say(found.describe())
    say("  " + ", ".join(f"{name} {counted(blocks, 'block')}" for name, blocks in found.limits.items()))


def streamed_bytes(
    size: Annotated[str, typer.Option("--size", help="Bytes, or 4.59MB, 64MiB.")] = "",
    rows: Annotated[int, typer.Option("--rows", min=0, help="Rows (outputs) of the matrix.")] = 0,
    cols: Annotated[int, typer.Option("--cols", min=0, help="Columns (inputs) of the matrix.")] = 0,
    quant: QuantOption = "q4_K",
    stride: StrideOption = None,
    device: Annotated[str, typer.Option("--device", help="A GPU of the device table.")] = "",
    rate: Annotated[str | None, typer.Option("--class", help="LO:HI in GB/s instead of the table's.")] = None,
    measured: Annotated[float, typer.Option("--gbps", help="Rate measured, for what class would give back.")] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Microseconds a matrix takes at the device's class.

    Example: attrib mechanism bytes --rows 1024 --cols 5120 --quant q6_K --stride 224 --device GB10 --gbps 134.8
    """
    from attrib.errors import RefusedError
    from attrib.jsonout import document
    from attrib.mechanism import find_device, matrix_bytes, parse_bytes, streaming

    if bool(size) == bool(rows or cols):
        raise RefusedError("give either --size, or --rows and --cols")
    nbytes = parse_bytes(size) if size else matrix_bytes(rows, cols, quant, stride)
    known = find_device(device) if device else None
    found = streaming(nbytes, known, rate, measured * 1e9 if measured > 0 else math.nan)
    if as_json:
        print_json(
            document(
                {
                    "schema": "attrib.bytes/1", "bytes": nbytes, "class": found.source,
                    "fastest_us": found.fastest * 1e6, "class_us": found.at_class * 1e6,
                    "slowest_us": found.slowest * 1e6, "measured_us": found.measured * 1e6,
                    "recoverable_us": found.recoverable * 1e6,
                }
            )
        )  # fmt: skip
        return
    typer.echo(f"{nbytes / 1e6:.3f} MB: {found.at_class * 1e6:.2f} µs at class "
               f"[{found.fastest * 1e6:.2f}, {found.slowest * 1e6:.2f}], {found.source}")  # fmt: skip
    if not math.isnan(found.measured):
        typer.echo(f"  {found.measured * 1e6:.2f} µs at {measured:g} GB/s: class would give back "
                   f"{found.recoverable * 1e6:.2f} µs a launch")  # fmt: skip


def reread(
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows (outputs) of the matrix.")],
    cols: Annotated[int, typer.Option("--cols", min=1, help="Columns (inputs) of the matrix.")],
    before: Annotated[int, typer.Option("--from", min=1, help="Rows a warp now.")],
    after: Annotated[int, typer.Option("--to", min=1, help="Rows a warp after the remap.")],
    quant: QuantOption = "q4_K",
    act: Annotated[str, typer.Option("--act", help="Activations: f32, f16 or q8.")] = "f32",
    stride: StrideOption = None,
    as_json: JsonOption = False,
) -> None:
    """Activation bytes that warps read again when rows are mapped to warps in another way.

    Example: attrib mechanism reread --rows 1024 --cols 5120 --quant q6_K --stride 224 --from 2 --to 1
    """
    from attrib.mechanism import reread as count

    sides = [count(rows, cols, quant, per_warp, act, stride) for per_warp in (before, after)]
    if as_json:
        print_json({"schema": "attrib.reread/1", "from": _reread_json(sides[0]), "to": _reread_json(sides[1])})
        return
    for per_warp, found in zip((before, after), sides, strict=True):
        typer.echo(
            f"{counted(per_warp, 'row')} a warp: {counted(found.warps, 'warp')} × {found.act_bytes / 1e3:.1f} KB = "
            f"{found.total / 1e6:.2f} MB of activations, {found.ratio:.2f} a weight byte"
        )


def _reread_json(found: Reread) -> dict[str, Any]:
    return {
        "warps": found.warps, "act_bytes": found.act_bytes, "total_bytes": found.total,
        "weight_bytes": found.weight_bytes, "per_weight_byte": found.ratio,
    }  # fmt: skip
