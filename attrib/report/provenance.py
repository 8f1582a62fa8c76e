"""Where the numbers of a report come from: device, driver, profiler, model, build, anchor and dates."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

import numpy as np

import attrib
from attrib.census import Census
from attrib.device import GIGA
from attrib.report.subject import Subject
from attrib.trace import Trace
from attrib.words import counted

SYSTEM = "TARGET_INFO_SYSTEM_ENV"
SESSION = "TARGET_INFO_SESSION_START_TIME"
UNKNOWN = "unknown"
_EPOCH = "1970-01-01"
"""What a scrubbed export says instead of its time."""


def provenance(subject: Subject, census: Census) -> list[tuple[str, str]]:
    """(name, value) in reading order; a fact the sources do not tell is `unknown`, never left out."""
    attribution, manifest = subject.attribution, subject.manifest
    trace = attribution.trace
    build = attribution.build
    if manifest is not None:
        build = " ".join((manifest.build.name, manifest.build.hash, *manifest.build.flags))
    return [
        ("trace", subject.label),
        ("device", " · ".join(_device(subject))),
        ("driver", _system(trace, "NvDriverVersion")),
        ("CUDA driver API", _cuda(_system(trace, "CudaDriverVersion"))),
        ("Nsight Systems", f"{trace.schema.product}, export schema {trace.schema.version}"),
        ("CUDA graphs traced by", trace.graph_mode()),
        ("model", attribution.model or UNKNOWN),
        ("weights", f"{manifest.model.source}, recipe {manifest.model.recipe}" if manifest else UNKNOWN),
        ("build", build or UNKNOWN),
        ("anchor", attribution.anchor or UNKNOWN),
        ("steps", f"{census.step_count} × {counted(census.launches, 'launch')} ({census.step_source})"),
        ("bytes", f"{census.traffic_source}, {100 * census.matched_share:.1f} % of kernel time matched"),
        ("class", census.rate_class.describe() if census.rate_class is not None else UNKNOWN),
        ("ledger", f"closes to {census.closure_ns} ns"),
        ("recorded (UTC)", subject.recorded or _session(trace) or UNKNOWN),
        ("report written", f"{date.today().isoformat()} by attrib {attrib.__version__}"),
    ]


def _device(subject: Subject) -> Iterable[str]:
    gpu, peak = subject.attribution.gpu, subject.attribution.peak
    yield gpu.name
    if np.isfinite(gpu.sms):
        yield f"{gpu.sms:.0f} SMs"
    yield f"DRAM peak {peak / GIGA:,.0f} GB/s" if np.isfinite(peak) else "DRAM peak unknown"


def _system(trace: Trace, name: str) -> str:
    if not trace.schema.has(SYSTEM, "name", "value"):
        return UNKNOWN
    rows = trace.query(f"SELECT value FROM {SYSTEM} WHERE name = ? LIMIT 1", (name,))
    return str(rows[0][0]) if rows else UNKNOWN


def _cuda(number: str) -> str:
    """`13000` as `13.0`: cuDriverGetVersion gives 1000 × major + 10 × minor."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}" if number.isdigit() else number


def _session(trace: Trace) -> str:
    if not trace.schema.has(SESSION, "utcTime"):
        return ""
    rows = trace.query(f"SELECT utcTime FROM {SESSION} LIMIT 1")
    text = str(rows[0][0]) if rows and rows[0][0] else ""
    return "" if text.startswith(_EPOCH) else text.replace("T", " ")
