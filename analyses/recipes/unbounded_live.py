"""D4-2 on a GPU: the unbounded rule with the proof off, its false gain, and the probe that finds the dropped units."""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page import ROOT, Page

from attrib import api, capture
from attrib import manifest as manifests
from attrib.errors import AttribError
from attrib.record import BENCH_SCHEMA

MODEL, ANCHOR, WINDOWS, LIMIT_S = "7b", "tg128", 3, 120.0
BOUNDED = ("--build", "reference")
UNBOUNDED = ("--build", str(Path(__file__).with_name("unbounded.toml")), "--unproven")
PROBE = ("-m", "gpu", "-k", "unbounded", "-q", "-p", "no:cacheprovider", str(ROOT / "tests/gpu/test_coverage.py"))


@dataclass(frozen=True)
class Traced:
    """ffn_down in one traced run: seconds a step, bytes a step as stored, bytes/s; and the census's warnings."""

    seconds: float
    nbytes: float
    warnings: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Stored bytes over time, whether or not they were read."""
        return self.nbytes / self.seconds


def bench(build: tuple[str, ...]) -> dict[str, Any]:
    """Untraced windows of a build, in a process of their own."""
    command = capture.engine_command("bench", MODEL, "--anchor", ANCHOR, *build, "--windows", str(WINDOWS), "--json")
    return capture.engine_json(capture.run_program(command, LIMIT_S), BENCH_SCHEMA)


def traced(build: tuple[str, ...]) -> Traced:
    """ffn_down of a build under the profiler."""
    nsys = capture.find_nsys()
    with tempfile.TemporaryDirectory(prefix="attrib-unbounded-") as name:
        folder = Path(name)
        manifest = folder / "manifest.json"
        options = ("--traced", "--manifest", str(manifest))
        command = capture.engine_command("bench", MODEL, "--anchor", ANCHOR, *build, *options)
        trace = api.open(capture.export(nsys, capture.profile(nsys, command, folder, LIMIT_S), folder / "t.sqlite"))
        found = api.attribution(trace, manifest=manifests.load(manifest), anchor=ANCHOR, steps="graph")
        rows = [row for row in api.census(found).to_json()["sites"] if row["site"].startswith("ffn_down")]
        seconds = sum(row["ms_per_step"] for row in rows) * 1e-3
        return Traced(seconds, sum(row["bytes"] * row["launches"] for row in rows), found.traffic.warnings)


def main() -> None:
    """Print the page."""
    first, second = bench(BOUNDED), bench(UNBOUNDED)
    slow, fast = (statistics.median(w["tok_per_s"] for w in found["windows"]) for found in (first, second))
    bounded, unbounded = traced(BOUNDED), traced(UNBOUNDED)
    probe = capture.run_program([sys.executable, "-m", "pytest", f"--rootdir={ROOT}", *PROBE], LIMIT_S)
    gain, missing = fast / slow - 1, second["units_missing"] / second["units"]
    computed = 512 / 592
    Page(
        title=f"D4-2 on {first['device']} · the unbounded gate with the proof off, {MODEL}:{ANCHOR}",
        question="What does the table without an upper bound measure like, and what gives it away?",
        arithmetic=(
            f"{second['units_missing']} of {second['units']} units of a step ({100 * missing:.1f} %) are not computed "
            "(attention's units, heads × KV positions, are counted in the middle of the steps: the census counts a "
            "shorter run and so fewer in all); "
            f"ffn_down computes {100 * computed:.1f} % of its own, so at an unchanged true rate its time falls by "
            f"{100 * (1 - computed):.1f} % and its apparent rate rises by {100 * (1 / computed - 1):.1f} %",
        ),
        command="python analyses/recipes/unbounded_live.py (engine bench --build unbounded.toml --unproven)",
        result=(
            f"builds {first['build_hash'][:8]} → {second['build_hash'][:8]}, {WINDOWS} windows each, one process each",
            f"{slow:.2f} → {fast:.2f} tok/s, {100 * gain:+.2f} %",
            f"ffn_down {bounded.seconds * 1e3:.3f} → {unbounded.seconds * 1e3:.3f} ms a step; stored bytes over time "
            f"{bounded.rate / 1e9:.0f} → {unbounded.rate / 1e9:.0f} GB/s, of which the units computed are at most "
            f"{computed * unbounded.rate / 1e9:.0f}",
            f"census says: {'; '.join(unbounded.warnings) or 'nothing'}",
            f"coverage probe of the compiled kernel (80 of 592 missing): "
            f"{'found' if probe.status == 0 else 'NOT SHOWN'}: {probe.last_line()}",
        ),
        verdict=f"{'FALSE GAIN' if gain > 0 else 'FALSE BUILD'}: {100 * gain:+.2f} % from a step that leaves out "
        f"{100 * missing:.1f} % of its units; void whatever its sign",
        here=f"ffn_down's time changed by {100 * (unbounded.seconds / bounded.seconds - 1):+.1f} % where dropping work "
        f"alone would give {100 * (computed - 1):+.1f} %; the kernel changed too, from mmvq_v2 to mmvq_v2_pf with "
        "half the blocks an SM, and its share of the difference is not separated",
        gb10="+3.0 % / +2.7 % on 7B for two days, voided: bitwise gates compared two builds with the same hole",
    ).show()


if __name__ == "__main__":
    try:
        main()
    except AttribError as error:
        print(f"unbounded_live: {error}", file=sys.stderr)
        sys.exit(2)
