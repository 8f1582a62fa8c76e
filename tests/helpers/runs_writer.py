"""A process that writes many runs: python -m tests.helpers.runs_writer FOLDER PREFIX COUNT SITES

Prints a line after each run it has stored, so that a test knows what must be there whatever happens next.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from attrib import runs


def run_row(name: str, **changes: Any) -> dict[str, Any]:
    """A run with the columns a recording has that matter here."""
    found = {
        "id": name, "recorded_utc": "20260101T000000Z", "anchor": "14b:tg128", "model": "qwen2.5-14b",
        "source": "synthetic seed 1", "build": "fast", "build_hash": "0123456789abcdef", "device": "NVIDIA H200",
        "nsys": "2025.3", "tok_per_s": 150.0, "untraced_step_ms": 6.6, "traced_span_ms": 6.8, "steps": 16,
        "launches": 900, "step_gbps": 1300.0, "recoverable_ms": 2.5,
    }  # fmt: skip
    return found | changes


def site_row(name: str, **changes: Any) -> dict[str, Any]:
    """A site as the census' JSON has it."""
    found = {
        "site": name, "quant": "q4_K", "category": "weight streaming", "launches": 48, "bytes": 39_813_120,
        "exclusive_us": 20.0, "ms_per_step": 0.96, "gbps": 1990.0, "class_gbps": 3173.0, "recoverable_ms": 0.35,
        "straggler": True,
    }  # fmt: skip
    return found | changes


def main() -> None:
    folder, prefix, count, sites = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    for number in range(count):
        rows = [site_row(f"site{place}/q4_K", gbps=float(number)) for place in range(sites)]
        runs.append(folder, run_row(f"{prefix}-{number:04d}"), rows)
        print(f"{prefix}-{number:04d}", flush=True)


if __name__ == "__main__":
    main()
