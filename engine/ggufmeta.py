"""Metadata of a GGUF file by prefix, long arrays included, without a view for each item.

Layout (GGUF specification, little-endian): `GGUF`, u32 version, u64 tensors, u64 pairs, then the pairs: a string
(u64 length, bytes), a u32 type, the value. An array is a u32 item type, a u64 count and the items.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from engine.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
Bytes = bytes | mmap.mmap


def metadata(path: Path, prefix: str) -> dict[str, Any]:
    """Values of every key that starts with `prefix`: numbers, strings, and lists of these.

    Raises ModelError for a file that cannot be read, is no GGUF file or ends within its metadata.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(data, path).pairs(prefix)
    except OSError as error:
        raise ModelError(f"GGUF file {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelError(f"GGUF file {path} is empty") from error


class _Walk:
    """A position in the mapped file that never passes its end."""

    def __init__(self, data: Bytes, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def pairs(self, prefix: str) -> dict[str, Any]:
        if self.data[:4] != _MAGIC:
            raise ModelError(f"{self.path} is not a GGUF file: it starts with {bytes(self.data[:4])!r}")
        self.at = 4
        version = self._number("I")
        if version not in _VERSIONS:
            raise ModelError(f"GGUF file {self.path} has version {version}; the engine reads 2 and 3")
        self._number("Q")
        count = self._number("Q")
        found = {}
        for _ in range(count):
            key = self._text()
            value = self._value(self._number("I"), key.startswith(prefix), key)
            if key.startswith(prefix):
                found[key] = value
        return found

    def _skip(self, nbytes: int) -> int:
        """Step over bytes; their start."""
        start, end = self.at, self.at + nbytes
        if end > len(self.data):
            raise ModelError(f"GGUF file {self.path} ends within its metadata")
        self.at = end
        return start

    def _number(self, code: str) -> Any:
        form = struct.Struct(f"<{code}")
        return form.unpack_from(self.data, self._skip(form.size))[0]

    def _text(self) -> str:
        length = int(self._number("Q"))
        start = self._skip(length)
        try:
            return self.data[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"GGUF file {self.path} has a string at byte {start} that is not UTF-8") from error

    def _value(self, kind: int, wanted: bool, key: str) -> Any:
        if kind == _STRING:
            return self._text() if wanted else self._step_over_text()
        if kind == _ARRAY:
            return self._array(wanted, key)
        return self._number(self._code(kind, key))

    def _step_over_text(self) -> None:
        self._skip(int(self._number("Q")))

    def _array(self, wanted: bool, key: str) -> list[Any] | None:
        kind, count = self._number("I"), int(self._number("Q"))
        if kind == _STRING:
            return self._texts(count, wanted)
        if kind == _ARRAY:
            raise ModelError(f"metadata key {key} of {self.path} is an array of arrays, which the engine does not read")
        code = self._code(kind, key)
        size = struct.calcsize(f"<{code}")
        start = self._skip(count * size)
        return list(struct.unpack_from(f"<{count}{code}", self.data, start)) if wanted else None

    def _texts(self, count: int, wanted: bool) -> list[str] | None:
        if 8 * count > len(self.data) - self.at:
            raise ModelError(f"GGUF file {self.path} ends within its metadata")
        if not wanted:
            for _ in range(count):
                self._skip(_LENGTH.unpack_from(self.data, self._skip(8))[0])
            return None
        return [self._text() for _ in range(count)]

    def _code(self, kind: int, key: str) -> str:
        code = _SCALARS.get(kind)
        if code is None:
            raise ModelError(f"metadata key {key} of {self.path} has value type {kind}, which GGUF does not define")
        return code
