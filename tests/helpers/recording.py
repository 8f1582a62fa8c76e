"""Traces built launch by launch for tests of steps, and the account that every cut into steps must pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attrib.steps import Steps
from attrib.trace import Trace, open_trace
from tests.helpers import nsysgen as gen
from tests.helpers.nsysgen import H200, Graph, Kernel, Process


@dataclass
class Recording:
    """A trace under construction with one process on one H200."""

    trace: gen.Trace
    process: Process
    at: int = 1_000_000

    @classmethod
    def new(cls) -> Recording:
        trace = gen.Trace("2025.3")
        process = trace.process(pid=11)
        process.device(trace.gpu(H200))
        return cls(trace, process)

    def replay(self, graph: Graph, times: int = 1, **options: Any) -> None:
        for _ in range(times):
            self.at = self.process.replay(graph, self.at, **options) + 5000

    def eager(self, *kernels: Kernel, gap: int = 100) -> None:
        for kernel in kernels:
            self.at = self.process.launch(kernel, self.at, 1000) + gap

    def open(self, folder: Path) -> Trace:
        return open_trace(self.trace.write(folder / "trace.sqlite"))


def sequence(trace: Trace, rows: np.ndarray) -> list[str]:
    return [trace.names.short[v] for v in trace.kernels.variant[rows]]


def account(trace: Trace, steps: Steps) -> None:
    """Every usable launch of the chosen GPU is in exactly one step or outside, and all steps are alike."""
    kernels = trace.kernels
    flat = steps.rows.ravel()
    assert len(np.unique(flat)) == flat.size
    assert (kernels.device[flat] == steps.device).all()
    assert (kernels.processes[kernels.process[flat]] == steps.process).all()
    first = trace.first_api_ns or 0
    usable = (kernels.end >= kernels.start) & (kernels.end > 0) & (kernels.start >= first)
    mine = (kernels.device == steps.device) & (kernels.processes[kernels.process] == steps.process)
    assert steps.outside == np.count_nonzero(usable & mine) - flat.size
    assert usable[flat].all()
    for rows in steps.rows:
        assert sequence(trace, rows) == sequence(trace, steps.rows[0])
    begins = kernels.start[steps.rows].min(axis=1)
    assert (np.diff(begins) > 0).all()
