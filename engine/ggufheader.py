"""The header of a GGUF file: metadata and the table of tensors, checked against the file's size as it is read.

Layout (GGUF specification, little-endian): `GGUF`, u32 version, u64 tensors, u64 pairs; the pairs, each a string
(u64 length, bytes), a u32 type and the value; the tensors, each a name, u32 dimensions, u64 sizes (fastest first),
u32 type, u64 offset; then zeros to a multiple of `general.alignment` (32), from where offsets count. An array is
a u32 item type, a u64 count and the items. Versions 2 and 3 have this layout; version 1 has 32-bit lengths.

No count or length of the file is believed before that many bytes are known to be there, so that a damaged file
costs neither memory nor time.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from attrib.models import BLOCKS, QUANT_OF_GGML
from engine.errors import ModelError

DEFAULT_ALIGNMENT = 32
MOST_ALIGNMENT = 1 << 16
MOST_DIMS = 4
MOST_NAME = 64
MOST_KEY = 256
LONG_ARRAY = 1024
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_LEAST_PAIR, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8  # bytes a pair and a tensor take at least
Data = bytes | bytearray | mmap.mmap


@dataclass(frozen=True)
class LongArray:
    """An array that was stepped over: how many items it has."""

    count: int


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the table. sizes: fastest dimension first. first, end: its bytes in the file."""

    name: str
    quant: str
    sizes: tuple[int, ...]
    first: int
    end: int


@dataclass(frozen=True)
class Header:
    """What a file says of itself. fields: numbers, strings, lists, and `LongArray`s; data_start: the header's bytes."""

    fields: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    data_start: int


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """A file's bytes, mapped read-only; raises ModelError for a file that cannot be read or is empty."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data
    except OSError as error:
        raise ModelError(f"GGUF file {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelError(f"GGUF file {path} is empty") from error


def metadata(path: Path, prefix: str) -> dict[str, Any]:
    """Values of every key that starts with `prefix`: numbers, strings, and lists of these, however long.

    Raises ModelError for a file that cannot be read, is no GGUF file or ends within its metadata.
    """
    with mapped(path) as data:
        walk = _Walk(data, path)
        _, pairs = walk.counts()
        found = walk.pairs(pairs, prefix)
    return {key: value for key, value in found.items() if key.startswith(prefix)}


def read_header(path: Path) -> Header:
    """The header of one file.

    Raises ModelError in one sentence for a file that is no GGUF file, ends too early, or whose tensors have unknown
    types, sizes that are no whole blocks, or bytes that are misaligned, shared or outside the file.
    """
    with mapped(path) as data:
        return parse(data, path)


def parse(data: Data, path: Path) -> Header:
    """`read_header` of bytes; `path` is for messages."""
    walk = _Walk(data, path)
    tensors, pairs = walk.counts()
    fields = walk.pairs(pairs)
    alignment = fields.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
        raise ModelError(f"GGUF file {path} has general.alignment {alignment!r}, not a power of two from 8 to 65536")
    table = walk.tensors(tensors)
    start = -(-walk.at // alignment) * alignment
    return Header(fields, _placed(table, start, alignment, len(data), path), start)


_Raw = tuple[str, str, tuple[int, ...], int]


def _placed(table: list[_Raw], start: int, alignment: int, size: int, path: Path) -> tuple[TensorInfo, ...]:
    """The table with places in the file, in the file's order of entries."""
    found, seen = [], set()
    for name, quant, sizes, offset in table:
        if name in seen:
            raise ModelError(f"GGUF file {path} has two tensors named {name}")
        seen.add(name)
        if offset % alignment:
            raise ModelError(f"tensor {name} of {path} is at offset {offset}, no multiple of {alignment}")
        elements, nbytes, _ = BLOCKS[quant]
        end = start + offset + prod(sizes) // elements * nbytes
        if end > size:
            raise ModelError(
                f"GGUF file {path} is cut short: tensor {name} ends at byte {end} and the file at byte {size}"
            )
        found.append(TensorInfo(name, quant, sizes, start + offset, end))
    for before, after in pairwise(sorted(found, key=lambda t: t.first)):
        if after.first < before.end:
            raise ModelError(f"tensors {before.name} and {after.name} of {path} share bytes of the file")
    return tuple(found)


class _Walk:
    """A position in the file's bytes that never passes their end."""

    def __init__(self, data: Data, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self.where = "header"

    def counts(self) -> tuple[int, int]:
        """(tensors, pairs), once magic and version are known to be right."""
        if self.data[:4] != _MAGIC:
            raise ModelError(f"{self.path} is not a GGUF file: it starts with {bytes(self.data[:4])!r}, not b'GGUF'")
        self.at = 4
        version = self._number("I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            what = "is big-endian" if swapped in _VERSIONS else f"has version {version}"
            raise ModelError(f"GGUF file {self.path} {what}; the engine reads little-endian files of versions 2 and 3")
        tensors, pairs = self._number("Q"), self._number("Q")
        self._room(pairs, _LEAST_PAIR, "metadata pairs")
        self._room(tensors, _LEAST_TENSOR, "tensors")
        return tensors, pairs

    def pairs(self, count: int, whole: str | None = None) -> dict[str, Any]:
        """The metadata; arrays of over `LONG_ARRAY` items only for keys that start with `whole`."""
        self.where = "metadata"
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._text()
            if not key.isprintable() or len(key) > MOST_KEY:
                raise ModelError(f"GGUF file {self.path} has a metadata key {key[:MOST_NAME]!r}, which is no key")
            if key in found:
                raise ModelError(f"GGUF file {self.path} has metadata key {key} twice")
            found[key] = self._value(self._number("I"), key, whole is not None and key.startswith(whole))
        return found

    def tensors(self, count: int) -> list[_Raw]:
        """(name, quant type, sizes, offset) of every tensor."""
        self.where = "table of tensors"
        return [self._tensor() for _ in range(count)]

    def _tensor(self) -> _Raw:
        name, dims = self._text(), self._number("I")
        if len(name) > MOST_NAME or not name.isprintable():
            raise ModelError(f"GGUF file {self.path} has a tensor named {name[:MOST_NAME]!r}, which is no tensor name")
        if not 1 <= dims <= MOST_DIMS:
            raise ModelError(f"tensor {name} of {self.path} has {dims} dimensions, not 1 to {MOST_DIMS}")
        sizes = tuple(self._number("Q") for _ in range(dims))
        kind, offset = self._number("I"), self._number("Q")
        quant = QUANT_OF_GGML.get(kind)
        if quant is None:
            raise ModelError(
                f"tensor {name} of {self.path} has type {_type_name(kind)}; the engine reads {', '.join(BLOCKS)}"
            )
        if 0 in sizes or sizes[0] % BLOCKS[quant][0]:
            shown = " × ".join(str(n) for n in reversed(sizes))
            raise ModelError(f"tensor {name} of {self.path} is {shown}, whose rows are no whole blocks of {quant}")
        return name, quant, sizes, offset

    def _room(self, count: int, least: int, what: str) -> None:
        if count * least > len(self.data) - self.at:
            raise ModelError(f"GGUF file {self.path} claims {count} {what}, more than its {len(self.data)} bytes hold")

    def _skip(self, nbytes: int) -> int:
        """Step over bytes; their start."""
        start, end = self.at, self.at + nbytes
        if end > len(self.data):
            raise ModelError(f"GGUF file {self.path} is cut short: it ends within its {self.where}")
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

    def _value(self, kind: int, key: str, whole: bool) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array(key, whole)
        return self._number(self._code(kind, key))

    def _array(self, key: str, whole: bool) -> list[Any] | LongArray:
        kind, count = self._number("I"), int(self._number("Q"))
        if kind == _ARRAY:
            raise ModelError(f"metadata key {key} of {self.path} is an array of arrays, which the engine does not read")
        stepped = count > LONG_ARRAY and not whole
        if kind == _STRING:
            self._room(count, 8, f"items of {key}")
            if not stepped:
                return [self._text() for _ in range(count)]
            self._step_over_texts(count)
            return LongArray(count)
        code = self._code(kind, key)
        size = struct.calcsize(f"<{code}")
        self._room(count, size, f"items of {key}")
        start = self._skip(count * size)
        return LongArray(count) if stepped else list(struct.unpack_from(f"<{count}{code}", self.data, start))

    def _step_over_texts(self, count: int) -> None:
        """A vocabulary has hundreds of thousands, so this is `_skip` and `_number` without their calls."""
        at, last, length_at = self.at, len(self.data) - 8, _LENGTH.unpack_from
        for _ in range(count):
            if at > last:
                break
            at += 8 + length_at(self.data, at)[0]
        else:
            self._skip(at - self.at)
            return
        self._skip(len(self.data))

    def _code(self, kind: int, key: str) -> str:
        code = _SCALARS.get(kind)
        if code is None:
            raise ModelError(f"metadata key {key} of {self.path} has value type {kind}, which GGUF does not define")
        return code


def _type_name(number: int) -> str:
    from gguf import GGMLQuantizationType  # noqa: PLC0415 - slow to import and needed for a message alone

    try:
        return str(GGMLQuantizationType(number).name)
    except ValueError:
        return f"number {number}"
