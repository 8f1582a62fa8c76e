"""What an export holds and what can be attributed from it, with the reason where it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attrib import schema as sch
from attrib.device import GIGA, lookup
from attrib.errors import AttribError
from attrib.jsonout import document
from attrib.steps import find_steps
from attrib.trace import Gpu, Trace
from attrib.words import counted

SCHEMA = "attrib.info/1"


@dataclass(frozen=True)
class Info:
    """Facts of one export."""

    path: str
    product: str
    schema_version: str
    graph_mode: str
    counts: dict[str, int]
    gpus: tuple[Gpu, ...]
    devices: dict[int, int]
    """launches by CUDA device"""
    can: tuple[str, ...]
    cannot: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The facts with units in the key names; unknown values are null."""
        return document(
            {
                "schema": SCHEMA,
                "file": self.path,
                "nsys_version": self.product,
                "export_schema": self.schema_version,
                "graph_mode": self.graph_mode,
                "counts": self.counts,
                "gpus": [
                    {
                        "row": g.row,
                        "name": g.name,
                        "bus": g.bus,
                        "sms": g.sms,
                        "peak_gbps": g.peak_bytes_per_s / GIGA,
                    }
                    for g in self.gpus
                ],
                "launches_by_device": self.devices,
                "can": list(self.can),
                "cannot": list(self.cannot),
                "warnings": list(self.warnings),
            }
        )


def describe(trace: Trace) -> Info:
    """Look at every part of the export; a part that cannot be used is named with its reason, not raised."""
    counts = {
        "kernels": trace.count(sch.KERNEL),
        "copies": trace.count(sch.MEMCPY) + trace.count(sch.MEMSET),
        "api_calls": trace.count(sch.RUNTIME),
        "graph_nodes_created": trace.created_nodes(),
        "whole_graph_rows": trace.count(sch.GRAPH_TRACE),
        "nvtx_rows": trace.count(sch.NVTX),
    }
    can: list[str] = []
    cannot: list[str] = []
    warnings: list[str] = []
    devices: dict[int, int] = {}
    gpus: list[Gpu] = []
    try:
        kernels = trace.kernels
        numbers, each = np.unique(kernels.device, return_counts=True)
        devices = {int(d): int(n) for d, n in zip(numbers, each, strict=True)}
        first = [int(np.flatnonzero(kernels.device == d)[0]) for d in numbers]
        gpus = [
            trace.gpu(int(d), int(kernels.processes[kernels.process[row]]))
            for d, row in zip(numbers, first, strict=True)
        ]
        can.append(f"anatomy and kernel times of {counted(len(kernels.start), 'launch')}")
        _steps(trace, can, cannot, warnings)
        _rates(gpus, can, cannot)
    except AttribError as error:
        cannot.append(str(error))
    if counts["nvtx_rows"]:
        can.append(f"steps from {counted(counts['nvtx_rows'], 'NVTX row')} with --step-nvtx PATTERN")
    return Info(
        path=trace.path.name,
        product=trace.schema.product,
        schema_version=trace.schema.version,
        graph_mode=trace.graph_mode(),
        counts=counts,
        gpus=tuple(gpus),
        devices=devices,
        can=tuple(can),
        cannot=tuple(cannot),
        warnings=tuple(warnings),
    )


def _steps(trace: Trace, can: list[str], cannot: list[str], warnings: list[str]) -> None:
    steps = find_steps(trace)
    if steps.source == "whole trace":
        cannot.append(
            "per-step numbers: no graph replay and no repeating launch pattern; name NVTX ranges with --step-nvtx"
        )
    else:
        can.append(f"{counted(steps.count, 'step')} of {counted(steps.launches, 'launch')} ({steps.source})")
    warnings.extend(steps.warnings)
    warnings.extend(f"excluded: {number} × {reason}" for reason, number in steps.excluded.items())


def _rates(gpus: list[Gpu], can: list[str], cannot: list[str]) -> None:
    for gpu in gpus:
        known = lookup(gpu.name)
        if known is not None and known.rate is not None:
            can.append(
                f"stragglers against the class of {known.name} in the device table, with --model, --bytes or --manifest"
            )
        elif known is not None or np.isfinite(gpu.peak_bytes_per_s):
            can.append(f"% of the DRAM peak of {gpu.name}; the class comes from `attrib roofline`, --class or a fit")
        else:
            cannot.append(
                f"% of peak: {gpu.name!r} is not in the device table and the export has no bandwidth; use --class"
            )
