"""Peer gap: the engine's reference build against llama.cpp's trace of the same 14B decode, part by part."""

from __future__ import annotations

from page import BUNDLED, MODEL, Page

from attrib.attribution import Options
from attrib.compare import compare
from attrib.compare_sides import Side, load

OURS, PEER = BUNDLED / "engine-14b-tg128-h200.sqlite.xz", BUNDLED / "llama.cpp-14b-tg16-h200.sqlite.xz"
MANIFEST = BUNDLED / "engine-14b-tg128-h200.manifest.json"


def main() -> None:
    """Print the page."""
    ours = load(OURS, Options(manifest=MANIFEST, anchor="tg128"))
    peer = load(PEER, Options(model=MODEL, anchor="tg128", build="llama.cpp"))
    found = compare(*(Side.of(side.attribution, side.label) for side in (ours, peer))).to_json()
    gap, parts = found["gap"], found["parts"]
    summed = sum(part["delta_ms"] for part in parts)
    ranked = sorted(parts, key=lambda part: -abs(part["delta_ms"]))
    ahead = gap["delta_ms"] > 0
    Page(
        title="Peer gap · 14B tg128, reference build against llama.cpp",
        question="Where does the step differ from llama.cpp's, in parts that add up?",
        arithmetic=(
            f"llama.cpp {found['span_b_ms']:.3f} ms, ours {found['span_a_ms']:.3f} ms: {gap['delta_ms']:+.3f} ms, "
            f"{gap['gap_pct']:+.1f} % of ours; the parts sum to {summed:+.3f} ms, {gap['closure_ns']} ns off",
            f"launches {found['b']['steps']['launches']} against {found['a']['steps']['launches']}",
        ),
        command=f"attrib compare {OURS.name} (with its manifest) {PEER.name} --model-b {MODEL}",
        result=tuple(f"{part['part']}: {part['delta_ms']:+.3f} ms" for part in ranked),
        verdict=f"the traced step is {'shorter' if ahead else 'longer'}; the largest part is {ranked[0]['part']}",
        here="one capture each: traced spans say where, only untraced windows say whether",
        gb10="43.84 against 41.14 ms: half three stragglers (attn_v, ffn_down, output; 1.2 ms), half the "
        "elementwise and launch chain; launch gaps already better",
    ).show()


if __name__ == "__main__":
    main()
