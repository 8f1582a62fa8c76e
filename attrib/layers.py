"""Rates of whole layers, which no overlap of launches can flatter."""

from __future__ import annotations

import numpy as np

from attrib.attribution import Attribution
from attrib.ledger import NS


def layer_rates(attribution: Attribution) -> tuple[float, ...]:
    """Weight bytes of each layer but the last over the time from its first weight launch to the next layer's.

    Bytes per second, medians over steps; empty with fewer than two layers. No overlap inside a layer can flatter it.
    """
    traffic = attribution.traffic
    streams = np.isfinite(traffic.weight_bytes) & (traffic.layer >= 0)
    layers = np.unique(traffic.layer[streams])
    if len(layers) < 2:
        return ()
    first = [int(np.flatnonzero(streams & (traffic.layer == layer))[0]) for layer in layers]
    begins = attribution.starts(first)
    spans = np.median(np.diff(begins, axis=1), axis=0) * NS
    nbytes = [float(traffic.weight_bytes[streams & (traffic.layer == layer)].sum()) for layer in layers[:-1]]
    return tuple(b / float(s) if s > 0 else np.nan for b, s in zip(nbytes, spans, strict=True))
