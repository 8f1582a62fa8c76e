"""Model shapes, quantization recipes and the bytes of every weight matrix. A leaf: standard library only.

Sources: shapes from the models' published configurations (`models.toml`); block sizes from the GGUF
specification; the `q4_k_m` recipe from llama.cpp's quantizer (which layers get more bits, and the type a
matrix falls back to when its row length is not a multiple of the 256-element super-block).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path

from attrib.errors import AttribError

# quant type -> (elements per block, bytes per block, ggml_type number)
BLOCKS: dict[str, tuple[int, int, int]] = {
    "f32": (1, 4, 0),
    "f16": (1, 2, 1),
    "q4_0": (32, 18, 2),
    "q4_1": (32, 20, 3),
    "q5_0": (32, 22, 6),
    "q5_1": (32, 24, 7),
    "q8_0": (32, 34, 8),
    "q2_K": (256, 84, 10),
    "q3_K": (256, 110, 11),
    "q4_K": (256, 144, 12),
    "q5_K": (256, 176, 13),
    "q6_K": (256, 210, 14),
    "iq4_nl": (32, 18, 20),
    "iq4_xs": (256, 136, 23),
    "bf16": (1, 2, 30),
}
QUANT_OF_GGML = {number: name for name, (_, _, number) in BLOCKS.items()}
# what llama.cpp's quantizer takes for rows that are no multiple of 256
_FALLBACK = {
    "q2_K": "iq4_nl",
    "q3_K": "iq4_nl",
    "q4_K": "q5_0",
    "q5_K": "q5_1",
    "q6_K": "q8_0",
    "iq4_xs": "iq4_nl",
}
UNIFORM = {quant.lower(): quant for quant in BLOCKS}
"""Recipes that store every matrix alike, as PyTorch and vLLM keep a model they do not quantize; the type of each."""
RECIPES = ("q4_k_m", *UNIFORM)
GGUF = ".gguf"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")

# Matrices a decode step streams whole, in the order a layer uses them.
LAYER_ROLES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of one decoder-only transformer with grouped-query attention and a SwiGLU feed-forward."""

    name: str
    arch: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    bias: bool
    rope_theta: float
    norm_eps: float

    def matrix(self, role: str) -> tuple[int, int]:
        """(rows, cols) of a weight matrix: rows are outputs, cols are inputs, as GGUF stores them."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = {
            "attn_q": (q, self.hidden),
            "attn_k": (kv, self.hidden),
            "attn_v": (kv, self.hidden),
            "attn_output": (self.hidden, q),
            "ffn_gate": (self.ffn, self.hidden),
            "ffn_up": (self.ffn, self.hidden),
            "ffn_down": (self.hidden, self.ffn),
            "output": (self.vocab, self.hidden),
            "token_embd": (self.vocab, self.hidden),
        }
        return shapes[role]


@dataclass(frozen=True)
class Tensor:
    """One weight tensor as stored: `name` follows GGUF (`blk.7.attn_v.weight`), `layer` is None outside layers."""

    name: str
    role: str
    layer: int | None
    rows: int
    cols: int
    quant: str

    @property
    def nbytes(self) -> int:
        """Stored bytes, without any padding a kernel's own layout may add."""
        return matrix_bytes(self.quant, self.rows, self.cols)


@dataclass(frozen=True)
class Model:
    """A shape together with the stored type of every tensor."""

    shape: ModelShape
    recipe: str
    tensors: tuple[Tensor, ...]

    def find(self, role: str, layer: int | None = None) -> Tensor | None:
        """The tensor with this role in this layer, or None when the model has none."""
        return self._by_role.get((role, layer))

    @cached_property
    def _by_role(self) -> dict[tuple[str, int | None], Tensor]:
        return {(t.role, t.layer): t for t in self.tensors}

    def head(self) -> Tensor:
        """The matrix the output head streams: `output`, or the embedding where the two are tied."""
        head = self.find("output") or self.find("token_embd")
        if head is None:
            raise AttribError(f"model {self.shape.name} has neither output.weight nor token_embd.weight")
        return head

    def step_bytes(self) -> int:
        """Weight bytes one decode step must stream: every layer matrix and the head, not the embedding table."""
        streamed = sum(t.nbytes for t in self.tensors if t.role in LAYER_ROLES)
        return streamed + self.head().nbytes


def matrix_bytes(quant: str, rows: int, cols: int) -> int:
    """Stored bytes of a rows × cols matrix.

    Raises AttribError for an unknown type or a row that is not a whole number of blocks.
    """
    if quant not in BLOCKS:
        raise AttribError(f"quant type {quant!r} is unknown; known are {', '.join(BLOCKS)}")
    elements, size, _ = BLOCKS[quant]
    if cols % elements:
        raise AttribError(f"a {quant} row of {cols} elements is not a whole number of {elements}-element blocks")
    return rows * (cols // elements) * size


def shard_paths(path: Path) -> tuple[Path, ...]:
    """The files of a split GGUF model (`NAME-00001-of-0000N.gguf`) in order, from any of them; else the file alone.

    Raises AttribError for a number that is not within the count.
    """
    found = _SHARD.fullmatch(path.name)
    if found is None:
        return (path,)
    number, count = int(found["number"]), int(found["count"])
    if not 1 <= number <= count:
        raise AttribError(f"{path} is named file {number} of {count}; a split model's files count from 1")
    return tuple(path.with_name(f"{found['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1))


def gguf_files(spec: str) -> tuple[Path, ...]:
    """The files of a model that is given as a GGUF file; none for a built-in name. Raises as `shard_paths`."""
    return shard_paths(Path(spec)) if spec.lower().endswith(GGUF) else ()


def more_bits(layer: int, layers: int) -> bool:
    """Whether q4_k_m stores this layer's attn_v and ffn_down as q6_K (the first and last eighth, and every third)."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _recipe_type(role: str, layer: int | None, shape: ModelShape) -> str:
    if role in ("norm", "bias"):
        return "f32"
    quant = "q4_K"
    if role == "output" or (role == "token_embd" and shape.tied):
        quant = "q6_K"
    elif role in ("attn_v", "ffn_down") and layer is not None:
        if more_bits(layer, shape.layers):
            quant = "q6_K"
        elif role == "attn_v" and shape.layers == 80 and shape.heads == 8 * shape.kv_heads:
            quant = "q5_K"  # the 70B class shares each attn_v among eight heads, so the quantizer spends more on it
    return quant


def recipe_tensors(shape: ModelShape, recipe: str = RECIPES[0]) -> Iterator[Tensor]:
    """Every tensor of a model of this shape as a recipe stores it, in file order."""

    def matrix(name: str, role: str, layer: int | None) -> Tensor:
        rows, cols = shape.matrix(role)
        quant = UNIFORM.get(recipe) or _recipe_type(role, layer, shape)
        quant = quant if cols % BLOCKS[quant][0] == 0 else _FALLBACK[quant]
        return Tensor(f"{name}.weight", role, layer, rows, cols, quant)

    yield matrix("token_embd", "token_embd", None)
    for i in range(shape.layers):
        yield Tensor(f"blk.{i}.attn_norm.weight", "attn_norm", i, 1, shape.hidden, "f32")
        for role in LAYER_ROLES[:4]:
            yield matrix(f"blk.{i}.{role}", role, i)
            if shape.bias and role != "attn_output":
                yield Tensor(f"blk.{i}.{role}.bias", f"{role}_bias", i, 1, shape.matrix(role)[0], "f32")
            if shape.arch == "qwen3" and role in ("attn_q", "attn_k"):
                yield Tensor(f"blk.{i}.{role}_norm.weight", f"{role}_norm", i, 1, shape.head_dim, "f32")
        yield Tensor(f"blk.{i}.ffn_norm.weight", "ffn_norm", i, 1, shape.hidden, "f32")
        for role in LAYER_ROLES[4:]:
            yield matrix(f"blk.{i}.{role}", role, i)
    yield Tensor("output_norm.weight", "output_norm", None, 1, shape.hidden, "f32")
    if not shape.tied:
        yield matrix("output", "output", None)


@cache
def shapes() -> dict[str, ModelShape]:
    """The built-in shapes by name."""
    table = tomllib.loads(files("attrib").joinpath("models.toml").read_text(encoding="utf-8"))
    return {name: ModelShape(name=name, **fields) for name, fields in table["models"].items()}


@cache
def builtin(spec: str) -> Model:
    """A built-in model from `NAME:RECIPE`, for example `qwen2.5-14b:q4_k_m`; the recipe may be left out.

    Raises AttribError naming the known models or recipes.
    """
    name, _, recipe = spec.lower().partition(":")
    recipe = recipe or RECIPES[0]
    known = shapes()
    if name not in known:
        raise AttribError(f"model {name!r} is not built in; known are {', '.join(sorted(known))}, or give a GGUF file")
    if recipe not in RECIPES:
        raise AttribError(f"recipe {recipe!r} is not built in; known are {', '.join(RECIPES)}")
    shape = known[name]
    return Model(shape, recipe, tuple(recipe_tensors(shape, recipe)))
