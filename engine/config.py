"""Which model to run: dimensions and tensors of a built-in shape or a GGUF file. Reads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attrib.manifest import ModelInfo
from attrib.models import LAYER_ROLES, Model, ModelShape, builtin
from engine.errors import ModelError
from engine.kernels_ops import HEAD_DIMS
from engine.repack import GPU_QUANTS

ARCHITECTURES = ("qwen2", "qwen3", "llama", "mistral")
DEFAULT_SEED = 1
SYNTHETIC_CONTEXT = 32768
ALIASES = {"7b": "qwen2.5-7b", "14b": "qwen2.5-14b"}
HEAD_NORMS = ("attn_q_norm", "attn_k_norm")  # qwen3: RMSNorm of each head of q and k before they are rotated
DIMENSIONS = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab")
"""Of a shape; a model has at least one of each."""
_BIASES = ("attn_q_bias", "attn_k_bias", "attn_v_bias")


@dataclass(frozen=True)
class ModelConfig:
    """A model the engine can run.

    source: where the weights come from, for the manifest. context: positions the model was trained for.
    path: the GGUF file, None for synthetic weights filled from `seed`. paired_rope: attn_q and attn_k rows
    are stored so that a rotation pairs neighbours, as in llama files, not i with i + head_dim/2.
    """

    model: Model
    source: str
    context: int
    path: Path | None = None
    seed: int = DEFAULT_SEED
    paired_rope: bool = False

    def info(self) -> ModelInfo:
        """The manifest's description of this model."""
        shape = self.model.shape
        dims = {name: int(getattr(shape, name)) for name in DIMENSIONS}
        return ModelInfo(shape.name, shape.arch, self.model.recipe, self.source, dims)


def synthetic(spec: str, seed: int = DEFAULT_SEED) -> ModelConfig:
    """A built-in model such as `qwen2.5-14b:q4_k_m` or `14b`, with weights to be filled from a seed.

    Raises AttribError for a name that is not built in, ModelError for a tensor type without kernels.
    """
    name, _, recipe = spec.lower().partition(":")
    return of_model(builtin(":".join(filter(None, (ALIASES.get(name, name), recipe)))), seed)


def of_model(model: Model, seed: int = DEFAULT_SEED) -> ModelConfig:
    """Any shape and recipe with synthetic weights; raises ModelError for a tensor type without kernels."""
    rope = paired(model.shape.arch)
    return checked(ModelConfig(model, f"synthetic seed {seed}", SYNTHETIC_CONTEXT, seed=seed, paired_rope=rope))


def paired(arch: str) -> bool:
    """Whether files of an architecture store attn_q and attn_k for a rotation of neighbours."""
    return arch in ("llama", "mistral")


def checked(config: ModelConfig) -> ModelConfig:
    """The config itself, once every dimension is positive and every tensor is known to be present and readable.

    Raises ModelError naming the dimension, the tensor and its type, or the tensor that is missing.
    """
    model, shape = config.model, config.model.shape
    if shape.arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"model {shape.name} has architecture {shape.arch!r}; the engine runs {known}")
    for name in DIMENSIONS:
        if getattr(shape, name) < 1:
            raise ModelError(f"model {shape.name} has {name} {getattr(shape, name)}; a model has at least one")
    for tensor in model.tensors:
        if tensor.quant not in GPU_QUANTS:
            known = ", ".join(GPU_QUANTS)
            raise ModelError(f"tensor {tensor.name} has type {tensor.quant}; the engine has kernels for {known}")
        if _is_vector(tensor.role) and tensor.quant != "f32":
            raise ModelError(
                f"tensor {tensor.name} has type {tensor.quant}; norms, biases and rope factors must be f32"
            )
        if tensor.layer is not None and tensor.layer >= shape.layers:
            raise ModelError(f"model {shape.name} has tensor {tensor.name} and {shape.layers} layers in its metadata")
    if shape.heads % shape.kv_heads:
        raise ModelError(f"model {shape.name} has {shape.heads} heads, no multiple of {shape.kv_heads} KV heads")
    if shape.head_dim not in HEAD_DIMS:
        known = " or ".join(str(n) for n in HEAD_DIMS)
        raise ModelError(
            f"model {shape.name} has heads of {shape.head_dim} dimensions; the attention kernels take {known}"
        )
    for layer in range(shape.layers):
        _check_layer(model, layer)
    for role in ("token_embd", "output_norm", *(() if shape.tied else ("output",))):
        _require(model, role, None)
    if model.find("rope_freqs") is not None:
        _require(model, "rope_freqs", None)
    return config


def _is_vector(role: str) -> bool:
    return role.endswith(("_norm", "_bias")) or role == "rope_freqs"


def _check_layer(model: Model, layer: int) -> None:
    shape = model.shape
    for role in (*LAYER_ROLES, "attn_norm", "ffn_norm", *(_BIASES if shape.bias else ())):
        _require(model, role, layer)
    for role in HEAD_NORMS:
        if shape.arch == "qwen3":
            _require(model, role, layer)
        elif (found := model.find(role, layer)) is not None:
            raise ModelError(f"model {shape.name} is {shape.arch}, which has no tensor {found.name}")


def _expected(shape: ModelShape, role: str) -> tuple[int, int]:
    """(rows, cols) of a tensor; a vector is one row."""
    if role in HEAD_NORMS:
        return 1, shape.head_dim
    if role == "rope_freqs":
        return 1, shape.head_dim // 2
    if role.endswith("_bias"):
        return 1, shape.matrix(role.removesuffix("_bias"))[0]
    return (1, shape.hidden) if role.endswith("_norm") else shape.matrix(role)


def _require(model: Model, role: str, layer: int | None) -> None:
    tensor, name = model.find(role, layer), role.removesuffix("_bias")
    if tensor is None:
        where = name if layer is None else f"blk.{layer}.{name}"
        kind = "bias" if role.endswith("_bias") else "weight"
        raise ModelError(f"model {model.shape.name} lacks tensor {where}.{kind}")
    rows, cols = _expected(model.shape, role)
    if (tensor.rows, tensor.cols) != (rows, cols):
        raise ModelError(f"tensor {tensor.name} is {tensor.rows} × {tensor.cols}; the metadata says {rows} × {cols}")


def resolve(spec: str, seed: int = DEFAULT_SEED) -> ModelConfig:
    """A model by GGUF path or built-in name.

    Raises ModelError for a file that cannot be read, AttribError for an unknown name.
    """
    if spec.endswith(".gguf") or Path(spec).is_file():
        from engine.gguf import read_config  # noqa: PLC0415 - a built-in shape needs no GGUF reader

        return read_config(Path(spec))
    return synthetic(spec, seed)
