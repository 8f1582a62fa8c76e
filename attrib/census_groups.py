"""Launches of a step grouped by site, kernel variant or layer, and each group's times and bytes added up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attrib.attribution import Attribution
from attrib.ledger import BLOCK_LAUNCHES, NS
from attrib.steps import step_variants

BY = ("site", "kernel", "layer")
NOUNS = {"site": ("site", "sites"), "kernel": ("kernel", "kernels"), "layer": ("site of a layer", "sites of layers")}
"""One row and several, by what a census is grouped by."""


def grouping(attribution: Attribution, by: str) -> tuple[list[tuple[str, str, str]], NDArray[np.int64]]:
    """(label, quant, category) of each group, and the group of each position."""
    traffic = attribution.traffic
    names, variants = attribution.trace.names, attribution.trace.variants
    first = step_variants(attribution.trace, attribution.steps)

    def of_kernel(p: int) -> str:
        x, y, z = (int(g) for g in variants.grid[first[p]])
        grid = f"{x}×{y}×{z}" if z != 1 else f"{x}×{y}" if y != 1 else str(x)
        return f"{names.label[first[p]]} [{grid}]"

    def of_layer(p: int) -> str:
        layer = int(traffic.layer[p])
        key = traffic.sites[traffic.site[p]].key
        return f"blk.{layer}.{key}" if layer >= 0 else key

    label: Callable[[int], str] = {
        "site": lambda p: traffic.sites[traffic.site[p]].key,
        "kernel": of_kernel,
        "layer": of_layer,
    }[by]
    found: dict[tuple[str, str, str], int] = {}
    group = np.empty(len(traffic.site), np.int64)
    for p, site in enumerate(traffic.site):
        key = (label(p), traffic.sites[site].quant, traffic.sites[site].category)
        group[p] = found.setdefault(key, len(found))
    return list(found), group


@dataclass(frozen=True)
class Sums:
    """Per group: launches, and per step the sums of times in seconds, of shape (steps, groups)."""

    group: NDArray[np.int64]
    launches: NDArray[np.int64]
    duration: NDArray[np.float64]
    exclusive: NDArray[np.float64]
    wait: NDArray[np.float64]
    """waiting at dependencies; NaN for a group without stages"""
    weight: NDArray[np.float64]

    @classmethod
    def of(cls, attribution: Attribution, group: NDArray[np.int64], groups: int) -> Sums:
        found = attribution.ledger
        member = np.zeros((len(group), groups))
        member[np.arange(len(group)), group] = 1.0

        def summed(values: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
            # ns below 2**53 are exact in float64, so a matrix product adds them without rounding
            each = max(BLOCK_LAUNCHES // len(member), 1)
            blocks = [values[at : at + each] @ member for at in range(0, len(values), each)]
            return np.concatenate(blocks) * NS

        return cls(
            group,
            np.bincount(group, minlength=groups),
            summed(found.duration),
            summed(found.exclusive),
            np.where(attribution.staged @ member > 0, summed(attribution.waiting), np.nan)
            if attribution.staged.any()
            else np.full((len(found.span), groups), np.nan),
            attribution.traffic.weight_bytes,
        )

    def points(self) -> list[tuple[float, float, int]]:
        """(bytes, median exclusive seconds, launches) of the groups with known weight bytes."""
        points = []
        for i, number in enumerate(self.launches):
            nbytes = self.weight[self.group == i].mean()
            if np.isfinite(nbytes):
                points.append((float(nbytes), float(np.median(self.exclusive[:, i])) / int(number), int(number)))
        return points
