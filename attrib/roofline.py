"""The class: the rate a device streams at, where it comes from, and the time it allows a matrix.

A band says lo..hi GB/s whatever the size. A roofline says t(bytes) = t0 + bytes/BW, so that a 4 MB matrix is not
asked for the rate of a 600 MB one. Sources in order: given, device table, measured on the device, fit to the trace.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attrib.device import GIGA, Band, Device, Roofline
from attrib.errors import RefusedError
from attrib.measured import load_roofline

ROOFLINE_TOLERANCE = 0.03
"""A roofline's band is its rate ± this share: repeated measurements of one matrix differ by less."""
MOST_GBPS = 1e9
KEYWORDS = ("table", "measured", "fit")


@dataclass(frozen=True)
class RateClass:
    """A class with its source. Times in seconds, rates in bytes/s."""

    source: str
    rate: Band | Roofline

    def seconds(self, nbytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Time the class allows for this many bytes, at the middle of its band."""
        if isinstance(self.rate, Band):
            return nbytes / ((self.rate.lo + self.rate.hi) / 2)
        return self.rate.t0 + nbytes / self.rate.bandwidth

    def expected(self, nbytes: float) -> float:
        """Rate at the middle of the band for a matrix of this size."""
        return float(nbytes / self.seconds(np.array([nbytes]))[0])

    def band(self, nbytes: float) -> tuple[float, float]:
        """(lo, hi) for a matrix of this size; a rate under lo makes a straggler."""
        if isinstance(self.rate, Band):
            return self.rate.lo, self.rate.hi
        middle = self.expected(nbytes)
        return middle * (1 - ROOFLINE_TOLERANCE), middle * (1 + ROOFLINE_TOLERANCE)

    def describe(self) -> str:
        """One phrase for a table's footer."""
        if isinstance(self.rate, Band):
            return f"{self.rate.lo / GIGA:.4g}–{self.rate.hi / GIGA:.4g} GB/s ({self.source})"
        return f"{self.rate.t0 * 1e6:.2f} µs + bytes / {self.rate.bandwidth / GIGA:.0f} GB/s ({self.source})"


def choose(
    given: str | None,
    device: Device | None,
    device_name: str,
    points: Sequence[tuple[float, float, int]],
) -> RateClass | None:
    """The class from the first source that has one; None when nothing is known and nothing can be fitted.

    `given` is `LO:HI` in GB/s or one of table, measured, fit. `points` are (bytes, seconds, launches) per site.
    Raises RefusedError when the source asked for does not exist.
    """
    if given is not None and given not in KEYWORDS:
        return RateClass("given", parse_band(given))
    if given in (None, "table"):
        if device is not None and device.rate is not None:
            return RateClass(f"device table, {device.name}", device.rate)
        if given == "table":
            raise RefusedError(f"the device table has no class for {device_name!r}; use --class LO:HI, measured or fit")
    if given in (None, "measured"):
        stored = load_roofline(device_name)
        if stored is not None:
            t0, bandwidth, when = stored
            return RateClass(f"measured on the device, {when[:10]}", Roofline(t0, bandwidth))
        if given == "measured":
            raise RefusedError(f"no roofline of {device_name!r} is stored; run `attrib roofline` on it first")
    fitted = fit(points)
    if fitted is None and given == "fit":
        raise RefusedError(
            "no site of the trace has known bytes, so no class can be fitted; pass --model, --bytes or --manifest"
        )
    return RateClass("fit to this trace", fitted) if fitted is not None else None


def parse_band(text: str) -> Band:
    """`220:225` as a band in GB/s; raises RefusedError for anything else."""
    match = re.fullmatch(r"\s*([0-9.]+)\s*:\s*([0-9.]+)\s*", text)
    try:
        lo, hi = (float(v) for v in match.groups()) if match else (0.0, 0.0)
    except ValueError:
        lo, hi = 0.0, 0.0
    if not 0 < lo <= hi < MOST_GBPS:
        raise RefusedError(
            f"class {text!r} is not LO:HI in GB/s with 0 < LO <= HI, for example 220:225, "
            f"nor one of {', '.join(KEYWORDS)}"
        )
    return Band(lo * GIGA, hi * GIGA)


def fit(points: Sequence[tuple[float, float, int]]) -> Roofline | None:
    """The tightest line t0 + bytes/BW that no site beats: the best this trace shows at every size.

    Among lines through two neighbours of the lower convex hull of (bytes, seconds) and the line from the origin
    through the fastest site, it is the one closest to all launches from below, with t0 >= 0.
    """
    best_time: dict[float, float] = {}
    for nbytes, seconds, _ in points:
        if nbytes > 0 and seconds > 0:
            best_time[nbytes] = min(seconds, best_time.get(nbytes, np.inf))
    if not best_time:
        return None
    fastest = min(seconds / nbytes for nbytes, seconds in best_time.items())
    lines = [(0.0, fastest)]
    hull = _lower_hull(sorted(best_time.items()))
    for (x0, y0), (x1, y1) in pairwise(hull):
        slope = (y1 - y0) / (x1 - x0)
        if slope > 0 and y0 - slope * x0 >= 0:
            lines.append((y0 - slope * x0, slope))

    def covered(line: tuple[float, float]) -> float:
        return sum(launches * (line[0] + line[1] * nbytes) for nbytes, _, launches in points)

    t0, slope = max(lines, key=covered)
    return Roofline(t0, 1 / slope)


def _lower_hull(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    hull: list[tuple[float, float]] = []
    for point in points:
        while len(hull) >= 2 and _turn(hull[-2], hull[-1], point) <= 0:
            hull.pop()
        hull.append(point)
    return hull


def _turn(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
