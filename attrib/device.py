"""Frozen device specs from `devices.toml`: DRAM peak, class, SMs and thread slots. A leaf."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

GIGA = 1e9
MICRO = 1e-6
_NUMBERS = ("peak_gbps", "sms", "threads_per_sm", "blocks_per_sm", "registers_per_sm", "shared_per_sm_kb")


@dataclass(frozen=True)
class Band:
    """A class given as a rate band, in bytes/s."""

    lo: float
    hi: float


@dataclass(frozen=True)
class Roofline:
    """A class given as t(bytes) = t0 + bytes/bandwidth; seconds and bytes/s."""

    t0: float
    bandwidth: float


@dataclass(frozen=True)
class Device:
    """What is known of a GPU. NaN where it is not; bandwidths in bytes/s, shared memory in bytes."""

    name: str
    peak: float
    sms: float
    threads_per_sm: float
    blocks_per_sm: float
    registers_per_sm: float
    shared_per_sm: float
    rate: Band | Roofline | None
    source: str


@cache
def table() -> tuple[tuple[re.Pattern[str], Device], ...]:
    """Every known device with the pattern that recognizes its reported name."""
    rows = tomllib.loads(files("attrib").joinpath("devices.toml").read_text(encoding="utf-8"))["device"]
    return tuple((re.compile(row["match"], re.IGNORECASE), _device(row)) for row in rows)


def lookup(name: str) -> Device | None:
    """The known device whose pattern matches the name the driver reports, or None."""
    return next((device for pattern, device in table() if pattern.search(name)), None)


def _device(row: dict[str, object]) -> Device:
    given = row.get("class")
    rate: Band | Roofline | None = None
    if isinstance(given, dict):
        if "t0_us" in given:
            rate = Roofline(float(given["t0_us"]) * MICRO, float(given["bw_gbps"]) * GIGA)
        else:
            rate = Band(float(given["lo_gbps"]) * GIGA, float(given["hi_gbps"]) * GIGA)
    numbers = {key: float(str(row[key])) for key in _NUMBERS}
    return Device(
        name=str(row["name"]),
        peak=numbers["peak_gbps"] * GIGA,
        sms=numbers["sms"],
        threads_per_sm=numbers["threads_per_sm"],
        blocks_per_sm=numbers["blocks_per_sm"],
        registers_per_sm=numbers["registers_per_sm"],
        shared_per_sm=numbers["shared_per_sm_kb"] * 1024,
        rate=rate,
        source=str(row["source"]),
    )
