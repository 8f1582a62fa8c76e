"""Which model to run: dimensions and tensors of a built-in shape or a GGUF file. Reads no weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attrib.manifest import ModelInfo
from attrib.models import LAYER_ROLES, Model, builtin
from engine.errors import ModelError
from engine.repack import GPU_QUANTS

ARCHITECTURES = ("qwen2", "llama")
DEFAULT_SEED = 1
SYNTHETIC_CONTEXT = 32768
ALIASES = {"7b": "qwen2.5-7b", "14b": "qwen2.5-14b"}
_VECTOR_ROLES = ("attn_norm", "ffn_norm", "output_norm")


@dataclass(frozen=True)
class ModelConfig:
    """A model the engine can run.

    source: where the weights come from, for the manifest. context: positions the model was trained for.
    path: the GGUF file, None for synthetic weights filled from `seed`. paired_rope: attn_q and attn_k rows
    are stored so that a rotation pairs neighbours, as llama files do, and are reordered to halves at load.
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
        names = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab")
        dims = {name: int(getattr(shape, name)) for name in names}
        return ModelInfo(shape.name, shape.arch, self.model.recipe, self.source, dims)


def synthetic(spec: str, seed: int = DEFAULT_SEED) -> ModelConfig:
    """A built-in model such as `qwen2.5-14b:q4_k_m` or `14b`, with weights to be filled from a seed.

    Raises AttribError for a name that is not built in, ModelError for a tensor type without kernels.
    """
    name, _, recipe = spec.lower().partition(":")
    return of_model(builtin(":".join(filter(None, (ALIASES.get(name, name), recipe)))), seed)


def of_model(model: Model, seed: int = DEFAULT_SEED) -> ModelConfig:
    """Any shape and recipe with synthetic weights; raises ModelError for a tensor type without kernels."""
    return checked(ModelConfig(model, f"synthetic seed {seed}", SYNTHETIC_CONTEXT, seed=seed))


def checked(config: ModelConfig) -> ModelConfig:
    """The config itself, once every tensor is known to be present and readable.

    Raises ModelError naming the tensor and its type, or the tensor that is missing.
    """
    model, shape = config.model, config.model.shape
    if shape.arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"model {shape.name} has architecture {shape.arch!r}; the engine runs {known}")
    for tensor in model.tensors:
        if tensor.quant not in GPU_QUANTS:
            known = ", ".join(GPU_QUANTS)
            raise ModelError(f"tensor {tensor.name} has type {tensor.quant}; the engine has kernels for {known}")
    model.head()
    for layer in range(shape.layers):
        for role in (*LAYER_ROLES, "attn_norm", "ffn_norm"):
            _require(model, role, layer)
    _require(model, "token_embd", None)
    _require(model, "output_norm", None)
    if shape.heads % shape.kv_heads:
        raise ModelError(f"model {shape.name} has {shape.heads} heads, no multiple of {shape.kv_heads} KV heads")
    return config


def _require(model: Model, role: str, layer: int | None) -> None:
    tensor = model.find(role, layer)
    where = role if layer is None else f"blk.{layer}.{role}"
    if tensor is None:
        raise ModelError(f"model {model.shape.name} lacks tensor {where}.weight")
    expected = (1, model.shape.hidden) if role in _VECTOR_ROLES else model.shape.matrix(role)
    if (tensor.rows, tensor.cols) != expected:
        rows, cols = expected
        raise ModelError(f"tensor {tensor.name} is {tensor.rows} × {tensor.cols}; the metadata says {rows} × {cols}")


def resolve(spec: str, seed: int = DEFAULT_SEED) -> ModelConfig:
    """A model by GGUF path or built-in name.

    Raises ModelError for a file that cannot be read, AttribError for an unknown name.
    """
    if spec.endswith(".gguf") or Path(spec).is_file():
        from engine.gguf import read_config  # noqa: PLC0415 - a built-in shape needs no GGUF reader

        return read_config(Path(spec))
    return synthetic(spec, seed)
