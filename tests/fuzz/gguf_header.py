"""What the fuzzer feeds: whatever the bytes, the GGUF reader makes a model of them or says one sentence."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Protocol

import numpy as np

from attrib.errors import AttribError
from attrib.models import BLOCKS, LAYER_ROLES, ModelShape
from engine.config import HEAD_NORMS
from engine.gguf import Reader, read_config
from engine.ggufheader import metadata, parse
from tests.helpers.gguf_bytes import entry, header, pair, text

CORPUS = Path(__file__).parent / "corpus"
ARCHITECTURES = ("qwen2", "qwen3", "llama", "mistral")
TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "f16", "bf16", "f32")
# value types: u8 i8 u16 i16 u32 i32 f32 bool, then u64 i64 f64
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
U32, F32, STRING, ARRAY = 4, 6, 8, 9
ODD_KEYS = (
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "expert_count",
    "vocab_size",
    "context_length",
)
WHOLE_KEYS = ("general.alignment", "split.count", "split.no", "split.tensors.count", "tokenizer.ggml.tokens")


class Pick(Protocol):
    """Choices that the fuzzer steers: atheris.FuzzedDataProvider, or random bytes."""

    def ConsumeIntInRange(self, low: int, high: int, /) -> int: ...  # noqa: N802 - its name there

    def ConsumeBytes(self, count: int, /) -> bytes: ...  # noqa: N802


Fields = dict[str, tuple[int, bytes]]
Table = list[tuple[str, list[int], int, int]]


def model(arch: str) -> tuple[Fields, Table, int]:
    """Metadata, tensors (name, sizes, type, offset) and data bytes of a whole model of one layer."""
    shape = ModelShape("seed", arch, 1, 32, 32, 1, 1, 64, 40, False, arch == "qwen2", 1e4, 1e-5)
    numbers = {"block_count": 1, "embedding_length": 32, "feed_forward_length": 32, "attention.head_count": 1}
    fields: Fields = {"general.architecture": (STRING, text(arch))}
    fields |= {
        f"{arch}.{key}": (U32, struct.pack("<I", n)) for key, n in {**numbers, "attention.key_length": 64}.items()
    }
    fields[f"{arch}.attention.layer_norm_rms_epsilon"] = F32, struct.pack("<f", 1e-5)
    wanted = [("token_embd.weight", [32, 40], "q8_0"), ("output.weight", [32, 40], "f16")]
    for i, role in enumerate(LAYER_ROLES):
        rows, cols = shape.matrix(role)
        wanted.append((f"blk.0.{role}.weight", [cols, rows], TYPES[i % len(TYPES)]))
        if shape.bias and role in LAYER_ROLES[:3]:
            wanted.append((f"blk.0.{role}.bias", [rows], "f32"))
    wanted += [(f"blk.0.{role}.weight", [64], "f32") for role in HEAD_NORMS if arch == "qwen3"]
    wanted += [(f"{name}.weight", [32], "f32") for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")]
    table: Table = []
    at = 0
    for name, sizes, quant in wanted:
        elements, nbytes, kind = BLOCKS[quant]
        table.append((name, sizes, kind, at))
        at += -(-int(np.prod(sizes)) // elements * nbytes // 32) * 32
    return fields, table, at


def built(fields: Fields, table: Table, data: int) -> bytes:
    """The file."""
    entries = [entry(name, tuple(sizes), kind, offset) for name, sizes, kind, offset in table]
    return header(*entries, pairs=tuple(pair(key, *value) for key, value in fields.items()), data=data)


def seed(arch: str) -> bytes:
    """A sound file, about 12 KB."""
    return built(*model(arch))


def edited(pick: Pick) -> bytes:
    """A sound file with up to four changes to its metadata or its table, so that lengths stay right."""
    arch = ARCHITECTURES[pick.ConsumeIntInRange(0, len(ARCHITECTURES) - 1)]
    fields, table, data = model(arch)
    for _ in range(pick.ConsumeIntInRange(0, 4)):
        (_edit_field if pick.ConsumeIntInRange(0, 1) else _edit_tensor)(pick, arch, fields, table)
    return built(fields, table, data)


def _value(pick: Pick) -> tuple[int, bytes]:
    kind = pick.ConsumeIntInRange(0, 12)
    if kind == STRING:
        return kind, text("yarn")
    if kind == ARRAY:
        count, item = pick.ConsumeIntInRange(0, 40), pick.ConsumeIntInRange(0, 7)
        return kind, struct.pack("<IQ", item, count) + bytes(count * SIZES[item])
    return kind, pick.ConsumeBytes(SIZES[kind]).ljust(SIZES[kind], b"\0")


def _edit_field(pick: Pick, arch: str, fields: Fields, _: Table) -> None:
    keys = [*fields, *(f"{arch}.{key}" for key in ODD_KEYS), *WHOLE_KEYS]
    key = keys[pick.ConsumeIntInRange(0, len(keys) - 1)]
    if pick.ConsumeIntInRange(0, 3):
        fields[key] = _value(pick)
    else:
        fields.pop(key, None)


def _edit_tensor(pick: Pick, arch: str, _: Fields, table: Table) -> None:
    at = pick.ConsumeIntInRange(0, len(table) - 1)
    name, sizes, kind, offset = table[at]
    what = pick.ConsumeIntInRange(0, 6)
    if what == 0:
        sizes = [*sizes, pick.ConsumeIntInRange(0, 3)]
    elif what == 1:
        sizes = [pick.ConsumeIntInRange(0, 2**64 - 1), *sizes[1:]]
    elif what == 2:
        kind = pick.ConsumeIntInRange(0, 41)
    elif what == 3:
        offset = pick.ConsumeIntInRange(0, 2**64 - 1)
    elif what == 4:
        offset = 32 * pick.ConsumeIntInRange(0, 400)
    elif what == 5:
        names = ("rope_freqs.weight", "blk.0.attn_q_norm.weight", f"blk.{pick.ConsumeIntInRange(0, 300)}.attn_q.weight")
        name = names[pick.ConsumeIntInRange(0, 2)]
    else:
        del table[at]
        if not table:
            table.append((name, sizes, kind, offset))
        return
    table[at] = name, sizes, kind, offset


def check(data: bytes, path: Path) -> bool:
    """Read these bytes as a model, `path` being where to put them; True where they are one.

    Anything but a model or an expected error propagates; so does an error of more than one line.
    """
    said = ""
    try:
        parse(data, path)
        path.write_bytes(data)
        metadata(path, "tokenizer.")
        config = read_config(path)
        reader = Reader(path)
        for tensor in config.model.tensors:
            assert reader.rows(tensor, 0, tensor.rows).nbytes == tensor.nbytes
    except AttribError as error:
        said = str(error)
    assert "\n" not in said, f"more than one line: {said}"
    return not said
