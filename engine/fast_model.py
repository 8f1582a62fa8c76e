"""The matrices of a model as the fast build streams them: which tensors lie in one matrix, and in which row order.

Rows that one thread turns into one result are neighbours: the two elements of a rotary pair in q and k, and a gate row
with its up row. Every matrix is in tiles (`tiles`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from attrib.models import Tensor
from engine.config import ModelConfig
from engine.errors import PlanError
from engine.repack import gpu_bytes
from engine.tiles import RECORD_BYTES, ROWS, tile_bytes

LAYER_MATRICES = (
    ("attn_qk", ("attn_q", "attn_k")),
    ("attn_v", ("attn_v",)),
    ("attn_output", ("attn_output",)),
    ("ffn_gate_up", ("ffn_gate", "ffn_up")),
    ("ffn_down", ("ffn_down",)),
)


@dataclass(frozen=True)
class Part:
    """Where a tensor's rows lie: row r at base + stride × r, or pairs of a head together (half = head_dim/2)."""

    tensor: Tensor
    base: int
    stride: int = 1
    half: int = 0


@dataclass(frozen=True)
class Matrix:
    """A fused matrix: `name` is its weights' name in plans."""

    name: str
    role: str
    layer: int | None
    parts: tuple[Part, ...]

    @property
    def quant(self) -> str:
        """The type its tensors share."""
        return self.parts[0].tensor.quant

    @property
    def rows(self) -> int:
        """Packed rows."""
        return sum(part.tensor.rows for part in self.parts)

    @property
    def cols(self) -> int:
        """Columns of every row."""
        return self.parts[0].tensor.cols

    @property
    def nbytes(self) -> int:
        """Bytes in tiles."""
        return tile_bytes(self.quant, self.rows, self.cols)


@lru_cache(maxsize=8)
def matrices(config: ModelConfig) -> Mapping[str, Matrix]:
    """Every matrix of a decode step by name, in the order it is streamed.

    Raises PlanError, naming the tensor, for a model the fast build cannot run: a type without tiles, rows that are no
    whole tiles, or fused tensors of different types.
    """
    found = {}
    for layer in range(config.model.shape.layers):
        for role, roles in LAYER_MATRICES:
            matrix = _fused(config, role, roles, layer)
            found[matrix.name] = matrix
    head = config.model.head()
    found["head"] = _checked(Matrix("head", "output", None, (Part(head, 0),)))
    return MappingProxyType(found)


def blocks_of(config: ModelConfig, sms: int) -> int:
    """Blocks of a step: one a multiprocessor, but none without rows in matrices whose results all blocks wait for."""
    found = matrices(config).values()
    return min(sms, *(m.rows // ROWS for m in found if m.layer == 0 and m.role != "attn_v"))


def _fused(config: ModelConfig, role: str, roles: tuple[str, ...], layer: int) -> Matrix:
    tensors = []
    for each in roles:
        tensor = config.model.find(each, layer)
        if tensor is None:
            raise PlanError(f"model {config.model.shape.name} has no {each} in layer {layer}")
        tensors.append(tensor)
    shape = config.model.shape
    parts: tuple[Part, ...]
    if role == "attn_qk":
        half = 0 if config.paired_rope else shape.head_dim // 2
        parts = (Part(tensors[0], 0, half=half), Part(tensors[1], tensors[0].rows, half=half))
    elif role == "ffn_gate_up":
        parts = (Part(tensors[0], 0, stride=2), Part(tensors[1], 1, stride=2))
    else:
        parts = (Part(tensors[0], 0),)
    return _checked(Matrix(f"blk.{layer}.{role}", role, layer, parts))


def _checked(matrix: Matrix) -> Matrix:
    for part in matrix.parts:
        tensor = part.tensor
        if tensor.quant not in RECORD_BYTES:
            raise PlanError(
                f"the fast build has no tiles for {tensor.name} ({tensor.quant}); it has {', '.join(RECORD_BYTES)}; "
                "use the reference build"
            )
        if tensor.quant != matrix.quant or tensor.cols != matrix.cols:
            first = matrix.parts[0].tensor
            raise PlanError(
                f"the fast build streams {first.name} ({first.quant}) and {tensor.name} ({tensor.quant}) as one "
                "matrix, so they must be of one type; use the reference build"
            )
        if tensor.rows % ROWS:
            raise PlanError(f"the fast build takes whole tiles of {ROWS} rows, and {tensor.name} has {tensor.rows}")
    return matrix


def place_of(found: Mapping[str, Matrix], tensor: Tensor) -> tuple[Matrix, Part]:
    """The matrix a tensor lies in, and where."""
    for matrix in found.values():
        for part in matrix.parts:
            if part.tensor.name == tensor.name:
                return matrix, part
    raise PlanError(f"{tensor.name} is not part of a fused matrix")


def resident(config: ModelConfig) -> tuple[Tensor, ...]:
    """Tensors that stay in the row layout: the embedding, norms, biases."""
    fused = {p.tensor.name for m in matrices(config).values() for p in m.parts} - {"token_embd.weight"}
    return tuple(t for t in config.model.tensors if t.name not in fused)


def places(config: ModelConfig) -> dict[str, int]:
    """Bytes of everything on the device by name: matrices in tiles, then tensors in the row layout.

    The biases of q, k and v follow each other without a gap, as one vector.
    """
    found = {name: matrix.nbytes for name, matrix in matrices(config).items()}
    return found | {t.name: gpu_bytes(t.quant, t.rows, t.cols) for t in sorted(resident(config), key=_bias_order)}


def _bias_order(tensor: Tensor) -> tuple[int, int, int]:
    order = ("attn_q_bias", "attn_k_bias", "attn_v_bias")
    last = order.index(tensor.role) if tensor.role in order else len(order)
    return (int(tensor.role not in order), -1 if tensor.layer is None else tensor.layer, last)
