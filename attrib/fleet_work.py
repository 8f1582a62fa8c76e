"""What a worker does: the census of one trace as a plain row, whatever the file is like."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from attrib import api
from attrib.attribution import Options
from attrib.fleet_files import host_of, printable, rank_in, reason
from attrib.jsonout import clean

SITE_KEYS = ("site", "quant", "category", "launches", "ms_per_step", "gbps", "class_gbps", "recoverable_ms")


def peak_bytes() -> int | None:
    """The most memory this process ever held, None where the system does not tell."""
    try:
        import resource  # noqa: PLC0415 - not on every system
    except ImportError:
        return None
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(held) if sys.platform == "darwin" else int(held) * 1024


def measure(given: str | bytes, options: Options, rate_class: str | None) -> dict[str, Any]:
    """Row of one trace, plain values only; a file that cannot be read gives a row with `reason`.

    The path comes as bytes where its name may be no text, which a message to a worker must be. Nothing of the trace
    outlives the call, so what a worker holds does not grow with the files it has read.
    """
    path = os.fsdecode(given)
    try:
        attribution = api.attribution(path, **vars(options))
        census = api.census(attribution, rate_class)
        found = census.to_json()
        trace = attribution.trace
        row: dict[str, Any] = {
            "reason": None,
            "peak_bytes": peak_bytes(),
            "host": host_of(trace),
            "rank": rank_in(trace),
            "device": census.device,
            "anchor": census.anchor,
            "build": census.build,
            "steps": found["steps"]["count"],
            "launches": found["steps"]["launches"],
            "span_ms": found["steps"]["span_ms"],
            "idle_ms": found["steps"]["idle_ms"],
            "step_gbps": found["rates"]["step_gbps"],
            "matched_time_pct": found["matched"]["time_pct"],
            "warnings": found["warnings"],
            "sites": [{key: site[key] for key in SITE_KEYS} for site in found["sites"]],
        }
    except Exception as error:  # one bad file of a thousand is a row, not the end
        return {"reason": printable(reason(error).replace(path, Path(path).name))}
    return dict(clean(row))
