"""Whole traces device by device: first start to last end, and the time any launch ran. No steps, no bytes.

Every launch with usable times counts, also those already under way when the first API call was recorded: they
occupied the device, though no step could be told from them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attrib import ledger
from attrib.errors import NoDataError
from attrib.jsonout import document
from attrib.steps import unbelievable
from attrib.trace import PID_MASK, PID_SHIFT, Trace
from attrib.words import counted

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "attrib.compare-devices/1"
ONE_CAPTURE = "one capture a side is no proof: these differences cannot be told from differences between two captures"


@dataclass(frozen=True)
class DeviceTime:
    """What one process did on one device; ns. `busy` is the union of its launches, overlap counted once."""

    device: int
    process: int
    launches: int
    early: int
    """launches that started before the first recorded API call"""
    unusable: int
    """launches without times, or that end before they start: left out"""
    span: int
    busy: int

    @property
    def idle(self) -> int:
        """Time in the span that no launch covers."""
        return self.span - self.busy


@dataclass(frozen=True)
class DevicePair:
    """One device on both sides; None where a side did not use it."""

    device: int
    a: DeviceTime | None
    b: DeviceTime | None

    def delta(self, field: str) -> float:
        """B − A of `span`, `busy` or `idle` in ns; NaN for a device of one side only."""
        return getattr(self.b, field) - getattr(self.a, field) if self.a and self.b else np.nan


@dataclass(frozen=True)
class DeviceComparison:
    """All devices of two traces; nothing is pooled over processes."""

    labels: tuple[str, str]
    pairs: tuple[DevicePair, ...]
    warnings: tuple[str, ...]

    def total(self, field: str) -> float:
        """Sum over the devices that both sides used of B − A, ns; NaN where they share none."""
        found = [pair.delta(field) for pair in self.pairs if pair.a and pair.b]
        return sum(found) if found else np.nan

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object; unknown values are null."""
        return document(
            {
                "schema": SCHEMA,
                "a": self.labels[0],
                "b": self.labels[1],
                "devices": [
                    {
                        "device": pair.device,
                        "a": _time_json(pair.a),
                        "b": _time_json(pair.b),
                        **{f"delta_{field}_ms": pair.delta(field) / 1e6 for field in ("span", "busy", "idle")},
                    }
                    for pair in self.pairs
                ],
                "total": {f"delta_{field}_ms": self.total(field) / 1e6 for field in ("span", "busy", "idle")},
                "warnings": list(self.warnings),
            }
        )

    def to_pandas(self) -> pd.DataFrame:
        """One row per device; columns of the two sides end in `_a` and `_b`."""
        import pandas as pd  # noqa: PLC0415 - half a second that the command line should not pay

        rows = []
        for entry in self.to_json()["devices"]:
            sides = {f"{key}_{name}": value for name in "ab" for key, value in (entry.pop(name) or {}).items()}
            rows.append({**entry, **sides})
        return pd.DataFrame(rows)


def device_times(trace: Trace) -> list[DeviceTime]:
    """Every (device, process) pair of a trace, by device, then by process."""
    kernels = trace.kernels
    usable = ~np.logical_or.reduce(list(unbelievable(kernels.start, kernels.end, None).values()))
    early = usable & (kernels.start < (trace.first_api_ns or 0))
    pid = (kernels.processes >> PID_SHIFT) & PID_MASK
    found = []
    for device, process in sorted(set(zip(kernels.device.tolist(), kernels.process.tolist(), strict=True))):
        mine = (kernels.device == device) & (kernels.process == process)
        rows = np.flatnonzero(mine & usable)
        if not len(rows):
            continue
        closed = ledger.close_rows(kernels.start, kernels.end, rows[None, :])
        found.append(
            DeviceTime(
                device=int(device),
                process=int(pid[process]),
                launches=len(rows),
                early=int((mine & early).sum()),
                unusable=int((mine & ~usable).sum()),
                span=int(closed.span[0]),
                busy=int(closed.exclusive.sum()),
            )
        )
    if not found:
        raise NoDataError(f"{trace.path} has no launch with usable times on any device")
    return found


def compare_devices(a: Trace, b: Trace) -> DeviceComparison:
    """Pair the devices of two traces by ordinal; where several processes used one ordinal, in order of their pids."""
    times = device_times(a), device_times(b)
    keyed: list[dict[tuple[int, int], DeviceTime]] = []
    for side in times:
        seen: dict[int, int] = defaultdict(int)
        keyed.append({})
        for time in side:
            keyed[-1][time.device, seen[time.device]] = time
            seen[time.device] += 1
    keys = sorted({*keyed[0], *keyed[1]})
    pairs = tuple(DevicePair(key[0], keyed[0].get(key), keyed[1].get(key)) for key in keys)
    return DeviceComparison((a.path.name, b.path.name), pairs, tuple(_notes(times)))


def _notes(times: tuple[list[DeviceTime], list[DeviceTime]]) -> list[str]:
    notes = [ONE_CAPTURE]
    for name, side in zip("AB", times, strict=True):
        if early := sum(time.early for time in side):
            were = counted(early, "launch was", "launches were")
            notes.append(f"{name}: {were} under way before the first recorded API call, and counted here")
        if unusable := sum(time.unusable for time in side):
            notes.append(f"{name}: {counted(unusable, 'launch')} without usable times left out")
    return notes


def _time_json(time: DeviceTime | None) -> dict[str, Any] | None:
    if time is None:
        return None
    fields = asdict(time)
    spans = {f"{key}_ms": ns / 1e6 for key, ns in (("span", time.span), ("busy", time.busy), ("idle", time.idle))}
    return {key: fields[key] for key in ("process", "launches", "early", "unusable")} | spans
