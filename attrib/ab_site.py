"""One traced run of a side, to see where in the step a difference arises. One capture a side proves nothing alone."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attrib import api, capture
from attrib import manifest as manifests
from attrib.builds import Side
from attrib.errors import RefusedError
from attrib.files import MANIFEST, STAGES, TRACE
from attrib.jsonout import document
from attrib.record import DEFAULT_STEPS, Target

CAPTURES = "one capture each: replays inside it are not independent, so the site says where, and the windows whether"


@dataclass(frozen=True)
class SiteChange:
    """A site in both builds' captures. Seconds per step and a launch, bytes/s; NaN where bytes are not known."""

    site: str
    base: dict[str, Any]
    new: dict[str, Any]

    @property
    def change(self) -> float:
        """Fraction of the base's time per step that the site gained (positive: less time)."""
        return float(self.base["ms_per_step"] / self.new["ms_per_step"] - 1)

    def to_json(self) -> dict[str, Any]:
        """Rates and times of both sides as the census gives them."""
        kept = ("launches", "bytes", "exclusive_us", "ms_per_step", "spread_pct", "gbps", "gbps_duration")
        sides = {name: {key: row[key] for key in kept} for name, row in (("base", self.base), ("new", self.new))}
        delta = self.new["ms_per_step"] - self.base["ms_per_step"]
        return document(
            {"site": self.site, **sides, "delta_ms": delta, "change_pct": 100 * self.change, "note": CAPTURES}
        )


def site_change(target: Target, site: str, base: Side, new: Side, gpu: int, limit_s: float) -> SiteChange:
    """Trace both sides and compare one site.

    Raises CaptureError and JoinError as a recording does, RefusedError when a side has no such site.
    """
    nsys = capture.find_nsys()
    return SiteChange(site, *(_row(nsys, target, site, side, gpu, limit_s) for side in (base, new)))


def _row(nsys: capture.Nsys, target: Target, site: str, side: Side, gpu: int, limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="attrib-site-") as name:
        folder = Path(name)
        path = folder / MANIFEST
        options = ("--steps", str(DEFAULT_STEPS), "--traced", "--manifest", str(path), "--gpu", str(gpu))
        report = capture.profile(nsys, side.command(target, *options), folder, limit_s)
        trace = api.open(capture.export(nsys, report, folder / TRACE))
        capture.require_kernels(trace)
        manifest = manifests.load(path)
        stamps = folder / STAGES
        attribution = api.attribution(trace, manifest=manifest, stages=stamps, anchor=target.label, steps="graph")
        capture.check_decode(attribution, manifest, DEFAULT_STEPS)
        rows: list[dict[str, Any]] = api.census(attribution).to_json()["sites"]
    found = next((row for row in rows if row["site"] == site), None)
    if found is None:
        names = ", ".join(str(row["site"]) for row in rows)
        raise RefusedError(f"build {side.given} has no site {site!r} at {target.label}; there are {names}")
    return found
