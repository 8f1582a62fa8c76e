"""One side of a comparison: a run directory, a trace, or an attribution, as integer ns per step and site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attrib.anatomy import SHORT_NS, copied_ns
from attrib.attribution import Attribution, Options, attribute
from attrib.errors import NoDataError
from attrib.files import MANIFEST, STAGES, TRACE
from attrib.manifest import Manifest
from attrib.manifest import load as load_manifest
from attrib.parquet import is_export
from attrib.trace import open_trace
from attrib.traffic import Site
from attrib.words import counted

PREFILL = "pp"
PREFILL_RANGE = "^prefill$"
"""NVTX range of the engine's traced prompt, which is no decode graph."""


@dataclass(frozen=True)
class SiteTimes:
    """One site in every step of a side."""

    site: Site
    launches: int
    """or stages of a persistent kernel"""
    short_launches: int
    """launches under 2 µs, median over steps"""
    weight_bytes: float
    """per step; NaN where any launch's bytes are unknown"""
    exclusive: NDArray[np.int64]
    """(steps,) ns"""


@dataclass(frozen=True)
class Side:
    """Times in ns, arrays of shape (steps,). Exclusive of all sites + copied + idle = span, in every step."""

    label: str
    device: str
    model: str
    build: str
    anchor: str
    source: str
    launches: int
    sites: tuple[SiteTimes, ...]
    span: NDArray[np.int64]
    idle: NDArray[np.int64]
    """time in which neither a launch nor a copy ran"""
    copied: NDArray[np.int64]
    """time in which only a memory copy or set ran"""
    warnings: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.span)

    @classmethod
    def of(cls, attribution: Attribution, label: str) -> Side:
        """Group the ledger of an attribution by site."""
        found, traffic = attribution.ledger, attribution.traffic
        short = (found.duration < SHORT_NS) & ~attribution.staged
        sites = []
        for number, site in enumerate(traffic.sites):
            mine = np.flatnonzero(traffic.site == number)
            sites.append(
                SiteTimes(
                    site=site,
                    launches=len(mine),
                    short_launches=int(np.median(short[:, mine].sum(axis=1))),
                    weight_bytes=float(traffic.weight_bytes[mine].sum()),
                    exclusive=found.exclusive[:, mine].sum(axis=1),
                )
            )
        copied = copied_ns(attribution)
        return cls(
            label=label,
            device=attribution.device_name,
            model=attribution.model,
            build=attribution.build,
            anchor=attribution.anchor,
            source=attribution.steps.source,
            launches=attribution.launches,
            sites=tuple(sites),
            span=found.span,
            idle=found.idle - copied,
            copied=copied,
            warnings=attribution.warnings,
        )


@dataclass(frozen=True)
class Loaded:
    """A side as read from disk; `manifest` is that of a run directory."""

    attribution: Attribution
    manifest: Manifest | None
    label: str


def load(path: Path, options: Options, reader: str = "auto") -> Loaded:
    """Read a run directory (its trace joined to its manifest) or a trace with the given options.

    Raises NoDataError for a folder that is no run directory, and what reading and joining raise.
    """
    if not path.is_dir() or is_export(path):
        return Loaded(attribute(open_trace(path, reader), options), None, path.name)
    missing = [name for name in (TRACE, MANIFEST) if not (path / name).exists()]
    if missing:
        raise NoDataError(
            f"{path} is no run directory: it has no {' and no '.join(missing)}; give a trace, or a folder that "
            "`attrib record` wrote"
        )
    manifest = load_manifest(path / MANIFEST)
    trace, label = open_trace(path / TRACE, reader), path.resolve().name
    if not manifest.anchor.rpartition(":")[2].startswith(PREFILL):
        return Loaded(attribute(trace, replace(options, manifest=manifest, stages=path / STAGES)), manifest, label)
    found = attribute(
        trace,
        replace(
            options,
            nvtx=options.nvtx or PREFILL_RANGE,
            anchor=options.anchor or manifest.anchor,
            build=options.build or f"{manifest.build.name} {manifest.build.hash[:8]}",
        ),
    )
    return Loaded(replace(found, model=found.model or manifest.model.name), manifest, label)


def unlike(a: Side, b: Side) -> str:
    """What sets two steps apart whose models are not both known; empty where nothing does, or both are.

    Of one model, other launches and sites are what two builds differ in, and what a comparison is for.
    """
    if a.model and b.model:
        return ""
    names = [{site.site.key for site in side.sites} for side in (a, b)]
    alone = [len(names[0] - names[1]), len(names[1] - names[0])]
    found = []
    if a.launches != b.launches:
        found.append(f"a step has {counted(a.launches, 'launch')} in A and {b.launches:,} in B")
    if any(alone):
        found.append(f"{counted(alone[0], 'site')} only in A and {alone[1]:,} only in B")
    return ", ".join(found)


def total(sites: Sequence[SiteTimes], steps: int) -> NDArray[np.int64]:
    """(steps,) ns of several sites together; zeros for none, which is what an absent launch costs."""
    return sum((site.exclusive for site in sites), np.zeros(steps, np.int64))
