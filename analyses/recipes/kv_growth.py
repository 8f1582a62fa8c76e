"""What grows with the KV length: llama.cpp's 14B decode step at an empty and at a 3254-token context."""

from __future__ import annotations

from page import BUNDLED, MODEL, RECORDED, Page

from attrib import api
from attrib.device import lookup
from attrib.models import builtin

SHORT, LONG = BUNDLED / "llama.cpp-14b-tg16-h200.sqlite.xz", RECORDED / "llama.cpp-14b-d3254-tg16-h200.sqlite.xz"
KV = 3254
"""Positions before the first step of the long trace; the short one starts at none."""


def main() -> None:
    """Print the page."""
    short, long = (api.anatomy(path, model=MODEL) for path in (SHORT, LONG))
    before, after = ({row.category: row.seconds for row in anatomy.rows} for anatomy in (short, long))
    grown = {name: after[name] - before[name] for name in before}
    most = max(grown, key=lambda name: grown[name])
    shape, device = builtin(MODEL).shape, lookup(short.device)
    kv_bytes = shape.layers * 2 * shape.kv_heads * shape.head_dim * 2 * KV
    peak = device.peak if device else float("nan")
    floor = kv_bytes / peak
    others = {name: seconds for name, seconds in grown.items() if name != most}
    next_most = max(others, key=lambda name: others[name])
    Page(
        title="KV growth · 14B, tg16 against @3254",
        question="Which part of a decode step grows with the context, and how near is it to the bytes' floor?",
        arithmetic=(
            f"{shape.layers} layers × K and V × {shape.kv_heads} heads × {shape.head_dim} × 2 B × {KV} positions = "
            f"{kv_bytes / 1e6:.0f} MB a step; {floor * 1e3:.3f} ms at the DRAM peak of {peak / 1e9:.0f} GB/s",
        ),
        command=f"attrib anatomy {SHORT.name} {LONG.name} --model {MODEL}",
        result=(
            f"span {short.span * 1e3:.3f} → {long.span * 1e3:.3f} ms ({(long.span - short.span) * 1e3:+.3f})",
            f"{most} {before[most] * 1e3:.3f} → {after[most] * 1e3:.3f} ms ({grown[most] * 1e3:+.3f}), all else "
            f"{sum(others.values()) * 1e3:+.3f} ms",
            f"the growth streams the cache at {kv_bytes / grown[most] / 1e9:.0f} GB/s, "
            f"{100 * floor / grown[most]:.0f} % of what the peak allows",
        ),
        verdict=f"{most} grows; the next largest growth is {next_most}'s {others[next_most] * 1e3:+.3f} ms",
        here=f"{100 * grown[most] / short.span:.1f} % of the short step; {kv_bytes / 1e6:.0f} MB of cache are over any "
        "L2, so the distance to the floor is the kernel's",
        gb10="+3.33 ms on 43.84 at the same position, 67 % of the DRAM byte floor: the same part, nearer its floor",
    ).show()


if __name__ == "__main__":
    main()
