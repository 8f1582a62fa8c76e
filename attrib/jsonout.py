"""JSON without NaN: unknown numbers become null, numpy scalars become Python's. A leaf."""

from __future__ import annotations

import math
from typing import Any


def document(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of one JSON object, cleaned."""
    return {str(key): clean(item) for key, item in fields.items()}


def whole(value: float) -> float | int:
    """An integer where the value is one, such as a count of bytes; anything else unchanged."""
    return int(value) if math.isfinite(value) and value == int(value) else value


def clean(value: Any) -> Any:
    """The value with every non-finite number replaced by None and numpy scalars unwrapped."""
    if isinstance(value, dict):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
