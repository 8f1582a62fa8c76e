"""Model shapes and tensor types from a GGUF file or the files of a split model, through the `gguf` package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from attrib.errors import JoinError
from attrib.files import require_regular
from attrib.models import QUANT_OF_GGML, Model, ModelShape, Tensor, shard_paths

_BLOCK = re.compile(r"^blk\.(\d+)\.")
_LAYER = re.compile(r"^blk\.(\d+)\.([a-z_]+)\.(weight|bias)$")


def load(path: Path) -> Model:
    """Names, shapes and types of the tensors of a GGUF file or of all files of a split model; data is mapped, not read.

    Raises JoinError naming the file for anything that is not a usable decoder model, AttribError for a file that is
    named outside its own count.
    """
    readers = [(_open(shard), shard) for shard in shard_paths(path)]
    reader = readers[0][0]
    arch = _field(reader, "general.architecture", path)
    tensors = tuple(_tensor(t, shard) for each, shard in readers for t in each.tensors)
    by_name = {t.name: t for t in tensors}
    if "token_embd.weight" not in by_name:
        raise JoinError(f"{path} has no token_embd.weight, so it is not a decoder model")

    def number(key: str, default: Any = None) -> Any:
        return _field(reader, f"{arch}.{key}", path, default)

    def count(key: str, default: int | None = None) -> int:
        value = number(key, default)
        if not isinstance(value, int) or value < 1:
            raise JoinError(f"GGUF file {path}: {arch}.{key} is {value!r}, and one positive number is supported")
        return value

    layers = count("block_count")
    held = len({found[1] for name in by_name if (found := _BLOCK.match(name))})
    if layers > held:
        raise JoinError(f"GGUF file {path}: {arch}.block_count is {layers}, and it has the tensors of {held}")
    embedding = by_name["token_embd.weight"]
    hidden, heads = count("embedding_length"), count("attention.head_count")
    shape = ModelShape(
        name=path.stem,
        arch=str(arch),
        layers=layers,
        hidden=hidden,
        ffn=count("feed_forward_length"),
        heads=heads,
        kv_heads=count("attention.head_count_kv", heads),
        head_dim=count("attention.key_length", hidden // heads),
        vocab=embedding.rows,
        tied="output.weight" not in by_name,
        bias="blk.0.attn_q.bias" in by_name,
        rope_theta=float(number("rope.freq_base", 10000.0)),
        norm_eps=float(number("attention.layer_norm_rms_epsilon", 1e-5)),
    )
    return Model(shape, "gguf", tensors)


def _open(path: Path) -> Any:
    from gguf import GGUFReader  # noqa: PLC0415 - slow to import and needed for GGUF files alone

    try:
        require_regular(path)
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise JoinError(f"{path} is not a GGUF file (wrong magic)")
        return GGUFReader(str(path))
    except OSError as error:
        raise JoinError(f"GGUF file {path} cannot be read: {error.strerror or error}") from error
    except JoinError:
        raise
    except Exception as error:  # the reader raises whatever numpy does on a damaged file
        raise JoinError(f"GGUF file {path} is damaged: {error}") from error


def _field(reader: Any, key: str, path: Path, default: Any = None) -> Any:
    field = reader.get_field(key)
    if field is None:
        if default is None:
            raise JoinError(f"GGUF file {path} has no {key}")
        return default
    return field.contents()


def _tensor(raw: Any, path: Path) -> Tensor:
    quant = QUANT_OF_GGML.get(int(raw.tensor_type))
    if quant is None:
        raise JoinError(f"GGUF file {path}: tensor {raw.name} has the unsupported type {raw.tensor_type!r}")
    dims = [int(d) for d in raw.shape]
    cols, rows = dims[0], 1
    for d in dims[1:]:
        rows *= d
    match = _LAYER.match(raw.name)
    if match:
        role = match.group(2) + ("_bias" if match.group(3) == "bias" else "")
        return Tensor(raw.name, role, int(match.group(1)), rows, cols, quant)
    return Tensor(raw.name, raw.name.removesuffix(".weight"), None, rows, cols, quant)
