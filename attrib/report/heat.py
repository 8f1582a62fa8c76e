"""Effective GB/s by layer and role: the cells of a heat map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from attrib.attribution import Attribution
from attrib.census import Census
from attrib.device import GIGA


def heat(attribution: Attribution, by_layer: Census) -> dict[str, Any] | None:
    """Layers, roles in the order they first stream, and one cell for each (layer, site) with known bytes.

    A role that two sites of one layer share is divided into its sites, so that a row has one cell a layer.

    `by_layer` is the census grouped by layer, whose numbers the cells repeat. None where no launch in a layer has known
    weight bytes.
    """
    places = dict(_places(attribution))
    rates = {row.site: row for row in by_layer.rows if row.site in places and np.isfinite(row.rate)}
    if not rates:
        return None
    shared = Counter((layer, role) for layer, role, _ in (places[name] for name in rates))
    divided = {role for (_, role), sites in shared.items() if sites > 1}
    places = {n: (layer, site if role in divided else role, site) for n, (layer, role, site) in places.items()}
    layers = sorted({places[name][0] for name in rates})
    roles = list(dict.fromkeys(role for name, (_, role, _) in places.items() if name in rates))
    cells: list[dict[str, Any]] = []
    for name, row in rates.items():
        layer, role, site = places[name]
        cells.append(
            {
                "layer": layer,
                "role": role,
                "site": site,
                "gbps": row.rate / GIGA,
                "gbps_duration": row.rate_duration / GIGA,
                "us": row.step_seconds * 1e6,
                "bytes": row.bytes * row.launches,
                "class_gbps": row.class_rate / GIGA,
                "straggler": row.straggler,
                "overlapped": row.overlapped,
                "impossible": row.impossible,
            }
        )
    cells.sort(key=lambda cell: (roles.index(cell["role"]), cell["layer"], cell["site"]))
    return {
        "layers": layers,
        "roles": roles,
        "cells": cells,
        "layer_gbps": [rate / GIGA for rate in by_layer.layer_rates],
    }


def _places(attribution: Attribution) -> Iterable[tuple[str, tuple[int, str, str]]]:
    """(name in a census by layer, (layer, role, site)) of every launch in a layer, in the order of the step."""
    traffic = attribution.traffic
    for layer, number in zip(traffic.layer.tolist(), traffic.site.tolist(), strict=True):
        if layer >= 0:
            site = traffic.sites[number]
            yield f"blk.{layer}.{site.key}", (layer, site.role, site.key)
