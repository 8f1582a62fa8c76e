"""GGUF models: the tensors of a file or of all files of a split model, and the ModelConfig their metadata makes."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attrib.models import LAYER_ROLES, Model, ModelShape, Tensor, shard_paths
from engine.config import ARCHITECTURES, HEAD_NORMS, ModelConfig, checked, paired
from engine.errors import ModelError
from engine.ggufheader import Header, LongArray, TensorInfo, read_header
from engine.quant import not_finite, stored_rows

_HEADS = ("token_embd", "output", "output_norm", "rope_freqs")
_NORMS = ("attn_norm", "ffn_norm", *HEAD_NORMS)
_MOST = 2**31 - 1
# metadata that changes results and is not computed here -> the value that changes nothing
_NEUTRAL: dict[str, object] = {
    "rope.scaling.type": "none",
    "rope.scale_linear": 1.0,
    "expert_count": 0,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.causal": True,
    "attention.sliding_window": 0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 0.0,
    "residual_scale": 0.0,
    "embedding_scale": 0.0,
}


class Reader:
    """An open model of one or more GGUF files; tensor bytes are views of the mapped files.

    Raises ModelError in one sentence for a file that is damaged, or missing from or out of order in a split model.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.paths = shard_paths(path)
        for number, shard in enumerate(self.paths, 1):
            if len(self.paths) > 1 and not shard.is_file():
                raise ModelError(f"{path} is split over {len(self.paths)} files and file {number}, {shard}, is missing")
        self._headers = tuple(read_header(shard) for shard in self.paths)
        self._tensors: dict[str, tuple[int, TensorInfo]] = {}
        for number, (shard, header) in enumerate(zip(self.paths, self._headers, strict=True)):
            self._check_split(number, shard, header)
            for tensor in header.tensors:
                if tensor.name in self._tensors:
                    first = self.paths[self._tensors[tensor.name][0]]
                    raise ModelError(f"tensor {tensor.name} is in both {first} and {shard}")
                self._tensors[tensor.name] = number, tensor
        told = self._headers[0].fields.get("split.tensors.count", len(self._tensors))
        if told != len(self._tensors):
            raise ModelError(f"{path} says its files hold {told} tensors and they hold {len(self._tensors)}")
        self._mapped = tuple(np.memmap(shard, np.uint8, "r") for shard in self.paths)

    def _check_split(self, number: int, shard: Path, header: Header) -> None:
        files, count, place = len(self.paths), header.fields.get("split.count"), header.fields.get("split.no")
        if files == 1 and count in (None, 0, 1):
            return
        if count != files:
            raise ModelError(f"{shard} says its model has split.count {count} and its name says {files}")
        if place != number:
            raise ModelError(f"{shard} says it is file {place} (split.no, from 0) and its name says {number}")

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata value, or the default; raises ModelError when it is absent and there is no default."""
        found = self._headers[0].fields.get(name, default)
        if found is None:
            raise ModelError(f"GGUF file {self.paths[0]} lacks the metadata key {name}")
        return found

    def names(self) -> tuple[str, ...]:
        """Tensor names in file order."""
        return tuple(self._tensors)

    def stored(self, name: str) -> NDArray[np.uint8]:
        """The stored bytes of a tensor, uint8 [nbytes], mapped from the file."""
        number, tensor = self._tensors[name]
        return self._mapped[number][tensor.first : tensor.end].view(np.ndarray)

    def rows(self, tensor: Tensor, first: int, count: int) -> NDArray[np.uint8]:
        """Stored rows first .. first + count − 1, uint8 [count][row bytes].

        Raises ModelError when a block scale or a value among them is NaN or infinite: logits would be NaN.
        """
        found = stored_rows(tensor.quant, self.stored(tensor.name), tensor.cols)[first : first + count]
        wrong = not_finite(tensor.quant, found)
        if wrong is not None:
            what = "value" if tensor.quant in ("f16", "bf16", "f32") else "block scale"
            raise ModelError(
                f"tensor {tensor.name} of {self.path} has a {what} in row {first + wrong} that is not finite"
            )
        return found

    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor; raises ModelError for one without use here, as ignoring it would change results."""
        return tuple(self._tensor(tensor) for _, tensor in self._tensors.values())

    def _tensor(self, raw: TensorInfo) -> Tensor:
        layer, role = _role(raw.name)
        if role is None:
            raise ModelError(f"tensor {raw.name} of {self.path} has no place in the models the engine runs")
        if any(size != 1 for size in raw.sizes[2:]):
            raise ModelError(f"tensor {raw.name} of {self.path} has {len(raw.sizes)} dimensions; matrices have two")
        return Tensor(raw.name, role, layer, math.prod(raw.sizes[1:]), raw.sizes[0], raw.quant)

    def header_hash(self) -> str:
        """SHA-256 of everything before the tensor data, of all files: metadata, names, shapes and offsets."""
        digest = hashlib.sha256()
        for data, header in zip(self._mapped, self._headers, strict=True):
            digest.update(data[: header.data_start].tobytes())
        return digest.hexdigest()


def _role(name: str) -> tuple[int | None, str | None]:
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _HEADS and parts[1] == "weight":
        return None, parts[0]
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdecimal():
        _, layer, role, kind = parts
        if layer != str(int(layer)):
            return None, None
        if kind == "weight" and role in (*LAYER_ROLES, *_NORMS):
            return int(layer), role
        if kind == "bias" and role in LAYER_ROLES[:3]:
            return int(layer), f"{role}_bias"
    return None, None


class _Metadata:
    """Metadata of one architecture, checked as it is asked for."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.path = reader.path
        self.arch = reader.field("general.architecture")
        if self.arch not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise ModelError(f"{reader.path} has architecture {_shown(self.arch)}; the engine runs {known}")

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 to 2^31 − 1."""
        value = self.reader.field(f"{self.arch}.{key}", default)
        if type(value) is not int or not 1 <= value <= _MOST:
            raise ModelError(f"metadata key {self.arch}.{key} of {self.path} is {_shown(value)}, not a positive number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.reader.field(f"{self.arch}.{key}", default)
        if type(value) not in (int, float) or not (math.isfinite(value) and value > 0):
            raise ModelError(f"metadata key {self.arch}.{key} of {self.path} is {_shown(value)}, not a positive number")
        return float(value)

    def refuse_what_is_not_computed(self) -> None:
        """Raise ModelError naming a key that would change results, and its value."""
        for key, neutral in _NEUTRAL.items():
            value = self.reader.field(f"{self.arch}.{key}", neutral)
            wide = key == "attention.sliding_window" and type(value) is int and value >= self.context()
            if value != neutral and not wide:
                raise ModelError(
                    f"{self.path} has {self.arch}.{key} {_shown(value)}, which the engine does not compute"
                )

    def context(self) -> int:
        """Positions the model was trained for."""
        return self.count("context_length", 4096)

    def same(self, key: str, expected: int, what: str) -> None:
        """Raise ModelError with both values where a key is there and differs."""
        value = self.reader.field(f"{self.arch}.{key}", expected)
        if value != expected:
            raise ModelError(
                f"{self.path} has {self.arch}.{key} {_shown(value)} and {what} {expected}; they must be equal"
            )


def _shown(value: object) -> str:
    if isinstance(value, list | LongArray):
        return f"a list of {value.count if isinstance(value, LongArray) else len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def read_config(path: Path) -> ModelConfig:
    """The model that a GGUF file, or any file of a split model, describes.

    Absent keys take the format's defaults: as many KV heads as heads, heads of width / heads dimensions, all of
    them rotated, rope base 10000. Raises ModelError in one sentence for a damaged file, an unknown architecture,
    contradictions (with both values), metadata that is not computed, or a tensor that the engine cannot use.
    """
    reader = Reader(path)
    meta = _Metadata(reader)
    meta.refuse_what_is_not_computed()
    tensors = reader.tensors()
    by_role = {(t.role, t.layer): t for t in tensors}
    embedding = by_role.get(("token_embd", None))
    if embedding is None:
        raise ModelError(f"{path} lacks tensor token_embd.weight")
    heads, hidden = meta.count("attention.head_count"), meta.count("embedding_length")
    if hidden % heads and reader.field(f"{meta.arch}.attention.key_length", 0) == 0:
        raise ModelError(f"{path} is {hidden} wide and has {heads} heads, which do not divide it, and no key_length")
    shape = ModelShape(
        name=path.stem,
        arch=meta.arch,
        layers=meta.count("block_count"),
        hidden=hidden,
        ffn=meta.count("feed_forward_length"),
        heads=heads,
        kv_heads=meta.count("attention.head_count_kv", heads),
        head_dim=meta.count("attention.key_length", hidden // heads),
        vocab=embedding.rows,
        tied=("output", None) not in by_role,
        bias=any(t.role.endswith("_bias") for t in tensors),
        rope_theta=meta.number("rope.freq_base", 10000.0),
        norm_eps=meta.number("attention.layer_norm_rms_epsilon"),
    )
    meta.same("attention.value_length", shape.head_dim, "a head size of")
    meta.same("rope.dimension_count", shape.head_dim, "a head size of")
    meta.same("vocab_size", shape.vocab, "embedding rows")
    _check_tokens(reader, shape.vocab)
    recipe = "+".join(sorted({t.quant for t in tensors if t.role in LAYER_ROLES}))
    source = f"file {path.name}, header sha256 {reader.header_hash()[:16]}"
    config = ModelConfig(Model(shape, recipe, tensors), source, meta.context(), path, paired_rope=paired(meta.arch))
    _check_rope_factors(reader, checked(config))
    return config


def _check_tokens(reader: Reader, rows: int) -> None:
    tokens = reader.field("tokenizer.ggml.tokens", LongArray(rows))
    if not isinstance(tokens, list | LongArray):
        raise ModelError(f"{reader.path} has tokenizer.ggml.tokens {_shown(tokens)}, not a list")
    count = tokens.count if isinstance(tokens, LongArray) else len(tokens)
    if count != rows:
        raise ModelError(f"{reader.path} has {count} tokens and {rows} embedding rows; they must be equal")


def _check_rope_factors(reader: Reader, config: ModelConfig) -> None:
    tensor = config.model.find("rope_freqs")
    if tensor is not None and not (reader.rows(tensor, 0, 1).view(np.float32) > 0).all():
        raise ModelError(f"tensor {tensor.name} of {reader.path} has rope factors that are not above 0")
