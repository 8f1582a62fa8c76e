"""GGUF files, memory-mapped by the `gguf` package: metadata to a ModelConfig, tensors to byte views."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from attrib.models import LAYER_ROLES, QUANT_OF_GGML, Model, ModelShape, Tensor
from engine.config import ModelConfig, checked
from engine.errors import ModelError

_LENGTH = struct.Struct("<Q")
_SHORT_ARRAY = 1024
_HEADS = ("token_embd", "output", "output_norm", "rope_freqs")


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(f"GGUF file {path} cannot be read: {error.strerror or error}") from error
    # the reader indexes damaged offsets with NumPy, which raises any of these
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, EOFError) as error:
        raise ModelError(f"GGUF file {path} is damaged or not a GGUF file: {error}") from error


class _QuickReader(gguf.GGUFReader):  # type: ignore[misc]
    """Steps over long arrays: a vocabulary read one NumPy view at a time takes seconds a file.

    Fields of that kind hold their count and no items. Where the package stops calling this method, opening a
    file is slow and still right.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        raw = self.data[orig_offs : orig_offs + 12].tobytes()
        kind, count = int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:], "little")
        if self.byte_order != "I" or raw_type != gguf.GGUFValueType.ARRAY or count <= _SHORT_ARRAY:
            found: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return found
        item = gguf.GGUFValueType(kind)
        scalar = self.gguf_scalar_to_np.get(item)
        size = count * np.dtype(scalar).itemsize if scalar else self._string_bytes(orig_offs + 12, count)
        parts = [np.frombuffer(raw[:4], "<u4"), np.frombuffer(raw[4:], "<u8")]
        return 12 + size, parts, [], [gguf.GGUFValueType.ARRAY, item]

    def _string_bytes(self, start: int, count: int) -> int:
        """Bytes of `count` strings, each a 64-bit length and that many bytes."""
        raw, at = np.asarray(self.data).data, start
        for _ in range(count):
            if at + 8 > len(raw):
                raise ValueError("an array of strings runs past the end of the file")
            at += 8 + int(_LENGTH.unpack_from(raw, at)[0])
        return at - start


class Reader:
    """An open GGUF file; tensor bytes are views of the mapped file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _one_sentence(path):
            self._reader = _QuickReader(path)
            self._tensors = {t.name: t for t in self._reader.tensors}

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata value, or the default; raises ModelError when it is absent and there is no default."""
        found = self._reader.fields.get(name)
        if found is not None:
            with _one_sentence(self.path):
                return found.contents()
        if default is None:
            raise ModelError(f"GGUF file {self.path} lacks the metadata key {name}")
        return default

    def names(self) -> tuple[str, ...]:
        """Tensor names in file order."""
        return tuple(self._tensors)

    def stored(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes of a tensor, uint8 [nbytes], mapped from the file."""
        tensor = self._tensors[name]
        data = tensor.data.reshape(-1).view(np.uint8)
        if data.size != tensor.n_bytes:
            raise ModelError(f"GGUF file {self.path} is cut short within tensor {name}")
        return data  # type: ignore[no-any-return]

    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor; raises ModelError for one without use here, as ignoring it would change results."""
        return tuple(self._tensor(name) for name in self._tensors)

    def _tensor(self, name: str) -> Tensor:
        raw = self._tensors[name]
        quant = QUANT_OF_GGML.get(int(raw.tensor_type))
        if quant is None:
            raise ModelError(f"tensor {name} of {self.path} has type {raw.tensor_type.name}, unknown to the engine")
        dims = [int(n) for n in raw.shape]
        rows, cols = (int(np.prod(dims[1:])), dims[0]) if len(dims) > 1 else (1, dims[0])
        layer, role = _role(name)
        if role is None:
            raise ModelError(f"tensor {name} of {self.path} has no place in the models the engine runs")
        return Tensor(name, role, layer, rows, cols, quant)

    def header_hash(self) -> str:
        """SHA-256 of everything before the tensor data: metadata, names, shapes and offsets."""
        start = int(self._reader.data_offset)
        return hashlib.sha256(np.asarray(self._reader.data[:start]).tobytes()).hexdigest()


def _role(name: str) -> tuple[int | None, str | None]:
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _HEADS and parts[1] == "weight":
        return None, parts[0]
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdigit():
        _, layer, role, kind = parts
        if kind == "weight" and role in (*LAYER_ROLES, "attn_norm", "ffn_norm"):
            return int(layer), role
        if kind == "bias" and role in LAYER_ROLES[:3]:
            return int(layer), f"{role}_bias"
    return None, None


def read_config(path: Path) -> ModelConfig:
    """The model a GGUF file describes.

    Raises ModelError in one sentence for an unreadable or damaged file, an unknown architecture, rope scaling
    that is not computed here, or a tensor without kernels (with its name and type).
    """
    reader = Reader(path)
    arch = str(reader.field("general.architecture"))

    def number(key: str, kind: Callable[[Any], Any], default: Any = None) -> Any:
        value = reader.field(f"{arch}.{key}", default)
        try:
            return kind(value)
        except (TypeError, ValueError):
            raise ModelError(f"metadata key {arch}.{key} of {path} is {value!r}, not a number") from None

    scaling = str(reader.field(f"{arch}.rope.scaling.type", "none"))
    if scaling != "none":
        raise ModelError(f"{path} asks for rope scaling {scaling!r}, which the engine does not compute")
    with _one_sentence(path):
        tensors = reader.tensors()
    by_role = {(t.role, t.layer): t for t in tensors}
    embedding = by_role.get(("token_embd", None))
    if embedding is None:
        raise ModelError(f"{path} lacks tensor token_embd.weight")
    heads = number("attention.head_count", int)
    hidden = number("embedding_length", int)
    shape = ModelShape(
        name=path.stem,
        arch=arch,
        layers=number("block_count", int),
        hidden=hidden,
        ffn=number("feed_forward_length", int),
        heads=heads,
        kv_heads=number("attention.head_count_kv", int, heads),
        head_dim=number("attention.key_length", int, hidden // heads),
        vocab=embedding.rows,
        tied=("output", None) not in by_role,
        bias=("attn_q_bias", 0) in by_role,
        rope_theta=number("rope.freq_base", float, 10000.0),
        norm_eps=number("attention.layer_norm_rms_epsilon", float),
    )
    rotated = number("rope.dimension_count", int, shape.head_dim)
    if rotated != shape.head_dim:
        raise ModelError(f"{path} rotates {rotated} of {shape.head_dim} head dimensions; the engine rotates all")
    recipe = "+".join(sorted({t.quant for t in tensors if t.role in LAYER_ROLES}))
    source = f"file {path.name}, header sha256 {reader.header_hash()[:16]}"
    context = number("context_length", int, 4096)
    return checked(ModelConfig(Model(shape, recipe, tensors), source, context, path, paired_rope=arch == "llama"))
