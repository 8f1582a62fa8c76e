"""D4-2: a dispatch rule without an upper bound, caught by the coverage proof before a kernel runs."""

from __future__ import annotations

from importlib.resources import files

from page import Page

from engine.config import synthetic
from engine.dispatch import load, parse
from engine.errors import PlanError
from engine.plan import decode, geometry

BOUNDED = "cols = [8193, 16384]"
LOOP_ABOVE = """[[rule]]
kernel = "mmvq_v2"
quants = ["q4_K", "q6_K"]
weights = [24_000_000, 8_589_934_592]
cols = [16385, 1_048_576]
"""


def main() -> None:
    """Print the page."""
    config = synthetic("7b")
    geo = geometry(config, 256, 132)
    text = (files("engine") / "builds" / "reference.toml").read_text(encoding="utf-8")
    unbounded = text.replace(BOUNDED, "cols = [8193, 1_048_576]").replace(LOOP_ABOVE, "")
    try:
        decode(config, parse("unbounded", unbounded), geo, 128)
        said = "NOT refused: the proof is broken"
    except PlanError as error:
        said = str(error)
    launches = decode(config, load("reference"), geo, 128)
    traffic = [(launch.site, launch.spec.traffic(launch.shape).weight_bytes) for launch in launches]
    total = sum(nbytes for _, nbytes in traffic)
    down = {q: sum(n for site, n in traffic if site.endswith(f"ffn_down/{q}")) for q in ("q4_K", "q6_K")}
    units, covered = config.model.shape.ffn // 32, 2 * 256
    dropped = 1 - covered / units
    shares = ", ".join(f"{q} {100 * dropped * nbytes / total:.1f} %" for q, nbytes in down.items())
    Page(
        title="D4-2 · the unbounded gate",
        question="mmvq_v2_pf takes two units a thread; what happens when its rule has no upper bound on the columns?",
        arithmetic=(
            f"7B ffn_down has {config.model.shape.ffn} inputs = {units} units a row; 256 threads × 2 = {covered}; "
            f"{units - covered} of {units} ({100 * dropped:.1f} %) are never computed",
            f"share of a step's weight bytes dropped at ffn_down: {shares}; at an unchanged rate that looks like as "
            "much of a gain",
        ),
        command="python analyses/recipes/unbounded_gate.py",
        result=(said,),
        verdict="REFUSED before it runs; both bounds are needed, and bitwise gates between two such builds see nothing",
        here="on the device the coverage probe (weights that make each unit add 1) proves it of the compiled kernel: "
        "pytest -m gpu tests/gpu/test_coverage.py",
        gb10="two days of +3.0 % / +2.7 % on 7B, voided: 80 of 592 units of down-q6_K were dropped",
    ).show()


if __name__ == "__main__":
    main()
