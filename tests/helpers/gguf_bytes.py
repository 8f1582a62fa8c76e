"""GGUF headers byte by byte, sound or not: what no writer would write."""

from __future__ import annotations

import struct


def text(value: str) -> bytes:
    """A length and the characters."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, kind: int, value: bytes) -> bytes:
    """One metadata pair; value: as stored."""
    return text(key) + struct.pack("<I", kind) + value


def entry(name: str = "a.weight", sizes: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    """One line of the table of tensors."""
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def header(
    *tensors: bytes,
    pairs: tuple[bytes, ...] = (),
    version: int = 3,
    counts: tuple[int, int] | None = None,
    data: int = 1 << 16,
) -> bytes:
    """A whole file with `data` zero bytes for its tensors; counts: (tensors, pairs) where the file should lie."""
    told = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, *told) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)
