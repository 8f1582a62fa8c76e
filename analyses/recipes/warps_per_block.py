"""1a(b): one warp a block instead of two in the padded kernel that attn_v takes, decided by re-read bytes."""

from __future__ import annotations

import math

from page import Page

from attrib.mechanism import find_device, matrix_bytes, occupancy, reread, streaming
from attrib.models import builtin

STRIDE = 224
REGISTERS = {"GB10": (62, 77), "H200": (56, 64)}
"""Of matvec_padded_f32_q6_K a thread with 2 warps a block and with 1, by NVRTC for sm_121 and sm_90."""


def main() -> None:
    """Print the page."""
    rows, cols = builtin("qwen2.5-14b").shape.matrix("attn_v")
    nbytes = matrix_bytes(rows, cols, "q6_K", STRIDE)
    verdicts: list[str] = []
    lines = [f"attn_v: {rows} rows × {cols // 256} super-blocks × {STRIDE} B = {nbytes / 1e6:.2f} MB"]
    for name, rate in (("GB10", 134.8e9), ("H200", float("nan"))):
        device = find_device(name)
        found = streaming(nbytes, device, measured=rate)
        used = REGISTERS[name]
        resident = [occupancy(device, 32 * warps, each) for warps, each in zip((2, 1), used, strict=True)]
        launched = [rows // (2 * warps) / device.sms for warps in (2, 1)]
        fit = ", ".join(f"{blocks:.1f} of {has.blocks} blocks" for blocks, has in zip(launched, resident, strict=True))
        wide, narrow = (warps * math.ceil(blocks) for warps, blocks in zip((2, 1), launched, strict=True))
        lines.append(
            f"{name}: {found.at_class * 1e6:.1f} µs at class; an SM gets {fit} that fit (2 warps, 1 warp), the fullest "
            f"one {wide} and {narrow} warps"
        )
        verdicts.append(f"{name} {'not vetoed, measure it' if narrow < wide else 'VETOED'}")
    two, one = (reread(rows, cols, "q6_K", per_warp, stride=STRIDE) for per_warp in (2, 1))
    lines += [
        f"2 rows a warp make {two.warps} warps however they are grouped: one warp a block changes no byte and no warp",
        f"were the warps doubled (1 row each): {two.total / 1e6:.1f} → {one.total / 1e6:.1f} MB of activations read, "
        f"{two.ratio:.1f} → {one.ratio:.1f} a weight byte",
    ]
    Page(
        title="1a(b) · warps a block, 2 → 1, in the padded kernel",
        question="Does a finer grid rescue attn_v from the padded kernel's low rate, byte for byte the same?",
        arithmetic=tuple(lines),
        command=f"attrib mechanism reread --rows {rows} --cols {cols} --quant q6_K --stride {STRIDE} --from 2 --to 1",
        result=(
            "bytes, sums and their order stay, so only a fullest SM with fewer warps could gain; more warps would each "
            "read the whole input once more",
        ),
        verdict=f"at attn_v, the site it names: {', '.join(verdicts)}",
        here="the build also changes attn_k and the q4_K half of attn_v, and the compiler gives the narrow block other "
        "code (its registers differ): neither is in this arithmetic, results/h200/warps-per-block.md has what windows "
        "said",
        gb10="bitwise green and slower: 36.4 → 39.9 µs a launch (+9.6 %), tg128 -0.74 %; REVERTED",
    ).show()


if __name__ == "__main__":
    main()
