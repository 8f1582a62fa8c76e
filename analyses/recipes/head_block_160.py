"""1c: 160-thread blocks on the output head, decided by occupancy arithmetic before any kernel is written."""

from __future__ import annotations

from page import Page

from attrib.mechanism import find_device, occupancy, streaming
from attrib.models import builtin

REGISTERS = 40
"""Of mmvq_v2_q6_K a thread, by NVRTC for sm_90 and sm_121 alike; they limit an SM's blocks as much as its slots do."""
LATENCY_S = 800e-9
"""An assumption, on the high side for a loaded DRAM; a lower latency makes the veto stronger."""
MARGIN = 2.0
"""With twice the bytes in flight that the rate needs, more live threads cannot raise it."""


def main() -> None:
    """Print the page."""
    shape = builtin("qwen2.5-14b").shape
    units, unit_bytes = shape.hidden // 32, 210 / 8
    head = shape.vocab * (shape.hidden // 256) * 210
    lines, verdicts, rates, margins = [], [], [], []
    for name in ("GB10", "H200"):
        device = find_device(name)
        wide, narrow = (occupancy(device, block, REGISTERS, units=units) for block in (256, 160))
        rate = head / streaming(head, device).at_class / device.sms
        needed, flying = rate * LATENCY_S, wide.live * unit_bytes
        lines += [wide.describe(), narrow.describe()]
        lines.append(
            f"{name}: {rate / 1e9:.1f} GB/s an SM × {LATENCY_S * 1e9:.0f} ns = {needed / 1e3:.1f} KB must be in "
            f"flight; {wide.live} live threads × {unit_bytes:g} B = {flying / 1e3:.1f} KB are, {flying / needed:.2f} "
            "times that"
        )
        rates.append(rate)
        margins.append(flying / needed)
        verdicts.append("VETOED" if flying >= MARGIN * needed else "not vetoed, measure it")
    Page(
        title="1c · narrow blocks on the output head",
        question=f"{shape.hidden} inputs are {units} units, so 96 of 256 threads idle; do 160-thread blocks gain?",
        arithmetic=tuple(lines),
        command=f"attrib mechanism occupancy --device GB10 --block 256 --units 160 --registers {REGISTERS} (and "
        "--block 160, --device H200)",
        result=(
            "with its registers the kernel has the same blocks on an SM of both GPUs; narrow blocks have half as many "
            "live threads again, which helps only where live threads limit the bytes in flight",
        ),
        verdict=f"GB10 {verdicts[0]}; H200 {verdicts[1]}",
        here=f"an SM must stream {rates[1] / rates[0]:.1f} times GB10's bytes, and what is in flight at 256 threads is "
        f"{margins[1]:.2f} times what that takes, by an assumed latency; arithmetic decides nothing so near to 1, "
        "results/h200/head-block-160.md has what windows said",
        gb10="measured after it was written: +0.04 % / +0.09 % on 14B, noise; REVERTED (6 × 256 = 960 live of 1536, "
        "9 × 160 = 1440)",
    ).show()


if __name__ == "__main__":
    main()
