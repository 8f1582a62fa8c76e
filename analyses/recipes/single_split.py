"""D3b-2: one split instead of partial + combine at short KV, decided by float arithmetic and by what it could save."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from page import BAR, BUNDLED, Page

from attrib import api

HEAD_DIM, CHUNK = 128, 64
F32 = NDArray[np.float32]


def partial(scores: F32, values: F32) -> tuple[np.float32, np.float32, F32]:
    """(running maximum, sum, weighted values) of the serial online softmax, all in float32."""
    top, total, acc = np.float32(-np.inf), np.float32(0), np.zeros(HEAD_DIM, np.float32)
    for score, value in zip(scores, values, strict=True):
        higher = max(top, score)
        scale, weight = np.exp(top - higher), np.exp(score - higher)
        top, total, acc = higher, total * scale + weight, acc * scale + weight * value
    return top, total, acc


def attention(scores: F32, values: F32, chunk: int) -> F32:
    """Attention output when the KV range is cut into chunks whose partials are combined in order."""
    parts = [partial(scores[i : i + chunk], values[i : i + chunk]) for i in range(0, len(scores), chunk)]
    top = max(part[0] for part in parts)
    total = np.float32(0)
    acc = np.zeros(HEAD_DIM, np.float32)
    for mine, weight, value in parts:
        scale = np.exp(mine - top)
        total, acc = total + weight * scale, acc + value * scale
    return acc / total


def main() -> None:
    """Print the page."""
    rng = np.random.default_rng(0)
    lines, equal = [], []
    for kv in (1, 2 * CHUNK, 1641):
        scores = rng.normal(0, 1, kv).astype(np.float32)
        values = rng.normal(0, 1, (kv, HEAD_DIM)).astype(np.float32)
        one, many = attention(scores, values, kv), attention(scores, values, CHUNK)
        differ, largest = 100 * (one != many).mean(), np.abs(one - many).max()
        lines.append(
            f"KV {kv} in chunks of {CHUNK}: {differ:.0f} % of outputs differ in bits, by at most {largest:.0e}"
        )
        equal += [str(kv)] if not differ else []
    manifest = BUNDLED / "engine-14b-tg128-h200.manifest.json"
    census = api.census(BUNDLED / "engine-14b-tg128-h200.sqlite.xz", manifest=manifest).to_json()
    combine = next(row for row in census["sites"] if row["site"].startswith("attn_combine"))
    span = census["steps"]["span_ms"]
    over = combine["ms_per_step"] > BAR * span
    Page(
        title="D3b-2 · single-split attention at short KV",
        question="Can partial + combine be one pass where the KV is short, byte for byte the same?",
        arithmetic=(*lines, "rescaling by exp(max - global max) reorders the float sum as soon as two splits are live"),
        command="python analyses/recipes/single_split.py",
        result=(
            f"combine: {combine['launches']} launches, {combine['ms_per_step'] * 1e3:.0f} µs a step, "
            f"{100 * combine['ms_per_step'] / span:.2f} % of the span; the bar of {100 * BAR:g} % is "
            f"{BAR * span * 1e3:.0f} µs",
            "the captured graph also freezes the split grid for the whole session: a branch at capture time would fix "
            "one KV length's shape",
        ),
        verdict=f"VETOED as a bitwise change: equal bits only at KV {', '.join(equal)}",
        here=f"what combine costs is {'over' if over else 'under'} the bar, so it is "
        f"{'worth a tolerance gate' if over else 'worth nothing'}, and never passes a dump gate",
        gb10="what stays bitwise (an early exit on empty splits) is worth at most 15 µs of 43.84 ms, under a bar of "
        "175 µs; the prize of 166 µs needs tolerance gates",
    ).show()


if __name__ == "__main__":
    main()
