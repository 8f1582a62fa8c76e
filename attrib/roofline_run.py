"""`attrib roofline`: have the engine measure this GPU, check the fit and keep it as the class source `measured`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrib import capture, measured
from attrib.capture import CaptureError
from attrib.jsonout import document

SCHEMA = "attrib.roofline/1"
ENGINE_SCHEMA = "engine.roofline/1"


@dataclass(frozen=True)
class Measured:
    """t(bytes) = t0 + bytes / bandwidth of one device; seconds, bytes/s, points (bytes, seconds)."""

    device: str
    t0: float
    bandwidth: float
    points: tuple[tuple[int, float], ...]
    measured_at: str
    file: Path

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object."""
        return document(
            {
                "schema": SCHEMA,
                "device": self.device,
                "t0_us": self.t0 * 1e6,
                "bw_gbps": self.bandwidth / 1e9,
                "points": [
                    {"bytes": nbytes, "us": seconds * 1e6, "gbps": nbytes / seconds / 1e9}
                    for nbytes, seconds in self.points
                ],
                "measured_at": self.measured_at,
                "file": str(self.file),
            }
        )


def measure(gpu: int, limit_s: float) -> Measured:
    """Measure GPU number `gpu` in a process of its own and store the fit.

    Raises CaptureError with the engine's sentence when it cannot run, RefusedError for a fit no device can have.
    """
    command = capture.engine_command("roofline", "--gpu", str(gpu), "--json")
    body = capture.engine_json(capture.run_program(command, limit_s), ENGINE_SCHEMA)
    try:
        device, t0, bandwidth = str(body["device"]), float(body["t0_ns"]) * 1e-9, float(body["rate_gbps"]) * 1e9
        points = tuple((int(p["nbytes"]), float(p["ns"]) * 1e-9) for p in body["points"])
    except (KeyError, TypeError, ValueError) as error:
        raise CaptureError(f"the engine's roofline has a missing or wrong field: {error}") from error
    when = datetime.now(UTC).isoformat(timespec="seconds")
    details = {"points": [{"bytes": nbytes, "s": seconds} for nbytes, seconds in points]}
    file = measured.store_roofline(device, t0, bandwidth, when, details)
    return Measured(device, t0, bandwidth, points, when, file)
