"""1a(a) and 1b as levers: arithmetic and bar go into the ledger now, `attrib lever run` measures them on a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from page import BAR

from attrib.lever import Lever, load_all, page, write
from attrib.mechanism import find_device, matrix_bytes, streaming
from attrib.models import builtin

THREADS = 256
LONG, GUARD = "14b:@3254", "14b:pp512"


def pipelining() -> Lever:
    """1b: both units of a thread are loaded before either is summed."""
    rows, cols = builtin("qwen2.5-14b").shape.matrix("ffn_down")
    units = cols // 32
    second, us = units - THREADS, 1e6 * streaming(matrix_bytes(rows, cols, "q6_K"), find_device("H200")).at_class
    return Lever(
        name="1b",
        question="Does issuing the loads of both units before either sum raise ffn_down's rate?",
        mechanism=f"{cols} inputs are {units} units on {THREADS} threads: threads 0..{second - 1} have a second unit "
        f"whose loads start only after the first sum. A launch is {us:.1f} µs at class on H200; the order of sums is "
        f"unchanged, so every bit is. Two units a thread reach {2 * THREADS} units, {64 * THREADS} inputs, no more.",
        bar=BAR,
        anchors=("14b:tg128", LONG),
        base="loop",
        new="reference",
        guards=(GUARD,),
        site="ffn_down/q6_K",
        gates=("dump", "greedy"),
    )


def routing() -> Lever:
    """1a(a): attn_v leaves the padded kernel for mmvq."""
    rows, cols = builtin("qwen2.5-14b").shape.matrix("attn_v")
    return Lever(
        name="1a-a",
        question="Is attn_v faster in mmvq than in the padded kernel that the 24 M gate sends it to?",
        mechanism=f"{rows} × {cols} = {rows * cols / 1e6:.2f} M weights, under 24 M and over 4 M; {cols // 32} units "
        f"on {THREADS} threads, one each, so scattered loads are exposed, against f32 inputs read again by every warp. "
        "Activations become q8, so the sums differ and only the tolerance gate can hold.",
        bar=BAR,
        anchors=("14b:tg128", LONG),
        base="reference",
        new="gate4m",
        guards=(GUARD,),
        site="attn_v/q6_K",
        gates=("tolerance",),
    )


def main() -> None:
    """Write what the ledger lacks, and print every page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of runs.db")
    out = parser.parse_args().out
    known = {lever.name: lever for lever in load_all(out)}
    for lever in (pipelining(), routing()):
        found = known.get(lever.name) or write(out, lever)
        print(page(found))
        if found.verdict is None:
            print(f"\nmeasure it: attrib lever run {found.name} --out {out}")
        print()


if __name__ == "__main__":
    main()
