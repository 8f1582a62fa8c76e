"""The GPU's state while a window runs: clocks, temperature, power, throttling, other users. Read through NVML.

NVML comes with the optional nvidia-ml-py; without it, or where the driver refuses, the state is unknown and says why.
"""

from __future__ import annotations

import importlib
import math
import os
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

PERIOD_S = 0.25
CLOCK_DROP = 0.03
"""A window whose SM clock is this share under the earlier windows' median is disturbed."""
IDLE_MEMORY = 2 << 30
"""More device memory in use before the engine starts belongs to somebody, even where processes are hidden."""
BUSY_PCT = 50
# bits of nvmlDeviceGetCurrentClocksEventReasons (NVML API reference); a power cap alone is a card's normal state
THROTTLES = {0x08: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
POWER_CAP = 0x04


@dataclass(frozen=True)
class Sample:
    """One reading. Clocks in MHz, temperature in °C, power in W; NaN where the driver does not tell."""

    sm_mhz: float = math.nan
    memory_mhz: float = math.nan
    temperature_c: float = math.nan
    power_w: float = math.nan
    busy_pct: float = math.nan
    reasons: int = 0
    processes: int = 0


@dataclass(frozen=True)
class Environment:
    """A window's readings: medians while the GPU was busy, the hottest temperature, every throttle reason seen.

    `others` is the most GPU processes seen that are not the engine; `foreign_bytes` the memory in use before it
    started. `unknown` tells why nothing was read, and is empty otherwise.
    """

    unknown: str = ""
    samples: int = 0
    sm_mhz: float = math.nan
    memory_mhz: float = math.nan
    temperature_c: float = math.nan
    power_w: float = math.nan
    throttle: tuple[str, ...] = ()
    power_capped: bool = False
    others: int = 0
    foreign_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Fields by name."""
        return asdict(self) | {"throttle": list(self.throttle)}

    def disturbed(self, usual_mhz: float) -> tuple[str, ...]:
        """Why the window cannot be trusted; `usual_mhz` is the earlier windows' SM clock, NaN for the first."""
        reasons = [f"throttled: {reason}" for reason in self.throttle]
        if self.others:
            reasons.append(f"{self.others} other process{'es' * (self.others > 1)} on the GPU")
        elif self.foreign_bytes > IDLE_MEMORY:
            reasons.append(f"{self.foreign_bytes / 1e9:.1f} GB of the GPU's memory in use by others")
        if self.sm_mhz < usual_mhz * (1 - CLOCK_DROP):
            reasons.append(f"SM clock {self.sm_mhz:.0f} MHz, usually {usual_mhz:.0f}")
        return tuple(reasons)


def from_json(body: dict[str, Any]) -> Environment:
    """The environment `to_json` gave, after a journey through JSON; unknown numbers are None there."""
    numbers = {key: math.nan if value is None else value for key, value in body.items()}
    return Environment(**numbers | {"throttle": tuple(body["throttle"])})


def summarize(before: Sample, foreign_bytes: int, during: list[Sample]) -> Environment:
    """One window's environment from the reading before it and those during it; pure arithmetic.

    During the window one process is the engine.
    """
    busy = [s for s in during if s.busy_pct >= BUSY_PCT] or during
    bits = 0
    for sample in during:
        bits |= sample.reasons
    return Environment(
        samples=len(during),
        sm_mhz=_median([s.sm_mhz for s in busy]),
        memory_mhz=_median([s.memory_mhz for s in busy]),
        temperature_c=max((s.temperature_c for s in during if not math.isnan(s.temperature_c)), default=math.nan),
        power_w=_median([s.power_w for s in busy]),
        throttle=tuple(name for bit, name in THROTTLES.items() if bits & bit),
        power_capped=bool(bits & POWER_CAP),
        others=max(before.processes, max((s.processes for s in during), default=1) - 1),
        foreign_bytes=foreign_bytes,
    )


def _median(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


@dataclass
class Watch:
    """A window being watched; `result` is its environment once the block has ended."""

    result: Environment = field(default_factory=Environment)


@contextmanager
def watching(gpu: int) -> Iterator[Watch]:
    """Read the state of a CUDA device number every PERIOD_S seconds while the block runs, in a thread of its own."""
    watch = Watch()
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        watch.result = Environment(unknown="nvidia-ml-py is not installed (pip install 'attrib[engine]')")
        yield watch
        return
    try:
        nvml.nvmlInit()
        handle = _handle(nvml, gpu)
        before, foreign = _sample(nvml, handle), _used(nvml, handle)
    except nvml.NVMLError as error:
        watch.result = Environment(unknown=f"NVML cannot read the GPU: {error}")
        yield watch
        return
    during: list[Sample] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.wait(PERIOD_S):
            during.append(_sample(nvml, handle))

    reader = threading.Thread(target=read, name="gpu environment", daemon=True)
    reader.start()
    try:
        yield watch
    finally:
        stop.set()
        reader.join()
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()
    watch.result = summarize(before, foreign, during)


def _handle(nvml: Any, gpu: int) -> Any:
    """NVML's handle of a CUDA device number; CUDA_VISIBLE_DEVICES renumbers CUDA's devices and not NVML's."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[gpu] if gpu < len(visible) else str(gpu)
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


def _used(nvml: Any, handle: Any) -> int:
    """Device memory in use, in bytes; 0 where it is shared with the host and NVML does not tell."""
    with suppress(nvml.NVMLError):
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
    return 0


def _sample(nvml: Any, handle: Any) -> Sample:
    """One reading; what this GPU does not support stays unknown."""
    found: dict[str, Any] = {}
    for name, ask in (
        ("sm_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        ("memory_mhz", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        ("temperature_c", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        ("power_w", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3),
        ("busy_pct", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        ("reasons", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        ("processes", lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle))),
    ):
        with suppress(nvml.NVMLError):
            found[name] = ask()
    return Sample(**found)
