"""Rooflines measured on this user's devices: one JSON file, keyed by the name the driver reports.

The file is `rooflines.json` in `$ATTRIB_CONFIG_DIR`, else in `$XDG_CONFIG_HOME/attrib`, else in
`~/.config/attrib`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrib.errors import RefusedError
from attrib.files import read_text, write_whole

SCHEMA = "attrib.rooflines/1"
FILE = "rooflines.json"
_AGAIN = "delete it and run `attrib roofline` again"


def config_path() -> Path:
    """Where rooflines are stored; the file need not exist."""
    if given := os.environ.get("ATTRIB_CONFIG_DIR"):
        return Path(given) / FILE
    home = os.environ.get("XDG_CONFIG_HOME")
    base = Path(home) if home else Path("~/.config").expanduser()
    return base / "attrib" / FILE


def load_roofline(device_name: str) -> tuple[float, float, str] | None:
    """(t0 in s, bandwidth in bytes/s, ISO time of measurement) of a device, None when none was measured.

    Raises RefusedError when the file exists and is damaged.
    """
    path = config_path()
    entry = _read(path).get(device_name)
    if entry is None:
        return None
    try:
        t0, bandwidth, when = float(entry["t0_s"]), float(entry["bytes_per_s"]), str(entry["measured_at"])
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"{path}: the roofline of {device_name!r} is damaged; {_AGAIN}") from error
    _check(t0, bandwidth, device_name)
    return t0, bandwidth, when


def store_roofline(
    device_name: str,
    t0_s: float,
    bytes_per_s: float,
    measured_at: str,
    details: Mapping[str, Any] | None = None,
) -> Path:
    """Keep a roofline, replacing an earlier one of the same device; returns the file.

    `details` (for example the measured points) are kept beside the fit and not interpreted. Raises
    RefusedError for a fit that no device can have or a file that cannot be written.
    """
    _check(t0_s, bytes_per_s, device_name)
    path = config_path()
    devices = _read(path)
    devices[device_name] = {
        "t0_s": t0_s,
        "bytes_per_s": bytes_per_s,
        "measured_at": measured_at,
        **({"details": dict(details)} if details else {}),
    }
    text = json.dumps({"schema": SCHEMA, "devices": devices}, indent=1, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(
            f"{path.parent} cannot be made: {error.strerror}; set ATTRIB_CONFIG_DIR to a folder of your own"
        ) from error
    write_whole(path, lambda temporary: _write(temporary, text))
    return path


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _check(t0_s: float, bytes_per_s: float, device_name: str) -> None:
    if not (math.isfinite(t0_s) and t0_s >= 0 and math.isfinite(bytes_per_s) and bytes_per_s > 0):
        raise RefusedError(
            f"a roofline of t0 {t0_s} s and {bytes_per_s} bytes/s is impossible for {device_name!r}; "
            "measure again on an idle device"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_text(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RefusedError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RefusedError(f"{path} is not JSON: {error}; {_AGAIN}") from error
    devices = document.get("devices") if isinstance(document, dict) else None
    if not isinstance(devices, dict) or document.get("schema") != SCHEMA:
        raise RefusedError(f"{path} is not a file of rooflines ({SCHEMA}); {_AGAIN}")
    return devices
