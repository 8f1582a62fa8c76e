"""Everything a run computed, by name, and the first place where two runs differ.

`logits_*`, `kv_*` and `decode/…` must be equal between builds that claim the same arithmetic. `slot/…` are
buffers after prefill: many launches share them, so a difference there may only say who wrote last (aliasing).
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.plan import Buf, PlannedLaunch
from engine.session import Session

Dump = dict[str, NDArray[Any]]
SLOT = "slot/"
NODE = "decode/"
_SLOTS = ("hidden", "normed", "q", "k", "v", "attn", "gate", "up")
_KINDS: dict[str, type[np.generic]] = {"q8": np.uint8, "state": np.int32, "half": np.float16}


@dataclass(frozen=True)
class Difference:
    """The first element two files disagree at; `ulps` counts representable values between the two."""

    name: str
    element: int
    first: float
    second: float
    ulps: int
    count: int
    aliasing: bool

    def sentence(self) -> str:
        """One line for a report."""
        what = "aliasing of a recycled buffer, no verdict" if self.aliasing else "differs"
        return (
            f"{self.name} {what}: {self.count} elements, first at {self.element}: "
            f"{self.first!r} and {self.second!r}, {self.ulps} ulp apart"
        )


def collect(session: Session, prompt: Sequence[int]) -> Dump:
    """Run a prompt and one decode step; logits of both, KV of every layer, every decode node's output.

    Node outputs are read right after their launch, before their buffer is used again.
    """
    found: Dump = {}
    session.prefill(prompt)
    found["logits_prefill"] = session.logits()
    found |= _kv(session, "prefill", len(prompt))
    rows = min(len(prompt), session.batch)
    for name in _SLOTS:
        size = session.size(name) // session.batch * rows
        found[SLOT + name] = session.read(Buf(name), size).view(np.float32)
    seen: Counter[str] = Counter()

    def keep(_: int, launch: PlannedLaunch) -> None:
        if launch.output_bytes:
            where = "step" if launch.layer is None else f"blk.{launch.layer}"
            site = f"{where}.{launch.site.partition('/')[0]}"
            data = session.read(launch.output, launch.output_bytes)
            found[f"{NODE}{site}.{seen[site]}"] = data.view(_KINDS.get(launch.output.name, np.float32))
            seen[site] += 1

    session.step_eager(keep)
    found["logits_decode"] = session.logits()
    return found | _kv(session, "decode", len(prompt) + 1)


def _kv(session: Session, phase: str, positions: int) -> Dump:
    s, capacity = session.config.model.shape, session.geometry.capacity
    found: Dump = {}
    for layer in range(s.layers):
        for name in ("k", "v"):
            raw = session.read(Buf(f"{name}.{layer}"), session.size(f"{name}.{layer}")).view(np.float16)
            cache = raw.reshape(s.kv_heads, capacity, s.head_dim)[:, :positions]
            found[f"kv_{phase}/{name}.{layer}"] = np.ascontiguousarray(cache)
    return found


def compare(first: Dump, second: Dump) -> tuple[list[Difference], list[str]]:
    """(differences in name order of the first, names that only one of the two has or that differ in type)."""
    both = [name for name in first if name in second and first[name].dtype == second[name].dtype]
    found = [d for name in both if (d := difference(name, first[name], second[name])) is not None]
    return found, sorted((first.keys() | second.keys()) - set(both))


def difference(name: str, first: NDArray[Any], second: NDArray[Any]) -> Difference | None:
    """Where two arrays of one type differ in any byte, or None; unequal sizes differ at the shorter's end."""
    a, b = first.reshape(-1), second.reshape(-1)
    common = min(a.size, b.size)
    bits = np.dtype(f"u{a.itemsize}")
    where = np.flatnonzero(a[:common].view(bits) != b[:common].view(bits))
    aliasing = name.startswith(SLOT)
    if where.size:
        i = int(where[0])
        gap = ulps(a[i : i + 1], b[i : i + 1])
        return Difference(name, i, float(a[i]), float(b[i]), gap, int(where.size), aliasing)
    if a.size != b.size:
        return Difference(name, common, float(a.size), float(b.size), 0, abs(a.size - b.size), aliasing)
    return None


def ulps(first: NDArray[Any], second: NDArray[Any]) -> int:
    """Representable values between two one-element arrays: bit patterns ordered as the numbers are."""

    def ordered(value: NDArray[Any]) -> int:
        if value.dtype.kind != "f":
            return int(value[0])
        width = 8 * value.itemsize
        pattern = int(value.view(np.dtype(f"u{value.itemsize}"))[0])
        sign = 1 << (width - 1)
        return sign - pattern if pattern & sign else pattern

    return abs(ordered(first) - ordered(second))


def save(dump: Dump, path: Path) -> None:
    """Write a dump as one uncompressed .npz; the file appears whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as out:
            np.savez(out, **dump)  # type: ignore[arg-type]
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
