"""Models by name and from GGUF files: what is read, and one sentence for whatever cannot be run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from attrib.errors import AttribError
from attrib.models import Model, ModelShape, Tensor, recipe_tensors
from engine.config import DIMENSIONS, ModelConfig, checked, of_model, resolve, synthetic
from engine.errors import ModelError
from engine.gguf import Reader, read_config
from engine.ggufwrite import file_type, from_host, vocabulary, write
from engine.repack import gpu_row_bytes
from engine.synth import host_rows
from engine.weights import chunks

TINY = ModelShape("tiny", "qwen2", 2, 256, 512, 4, 2, 64, 1500, False, True, 1e6, 1e-6)


def tiny(**changes: Any) -> ModelConfig:
    shape = replace(TINY, **changes)
    return of_model(Model(shape, "q4_k_m", tuple(recipe_tensors(shape))))


def written(config: ModelConfig, path: Path) -> Path:
    write(config, path, from_host(config), lambda done: None)
    return path


@pytest.mark.parametrize("changes", [{}, {"tied": True}, {"arch": "llama", "bias": False}], ids=str)
def test_a_written_file_reads_back_as_the_same_model(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = tiny(**changes)
    read = read_config(written(config, tmp_path / "tiny.gguf"))
    assert read.model.tensors == config.model.tensors
    assert read.model.shape == replace(config.model.shape, norm_eps=read.model.shape.norm_eps)
    assert read.model.shape.norm_eps == pytest.approx(1e-6)
    assert read.paired_rope == (config.model.shape.arch == "llama")
    assert read.source.startswith("file tiny.gguf, header sha256 ")
    reader = Reader(tmp_path / "tiny.gguf")
    for tensor in config.model.tensors:
        assert reader.stored(tensor.name).tobytes() == host_rows(config, tensor, 0, tensor.rows).tobytes()


def test_the_package_reads_what_was_written(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(written(tiny(), tmp_path / "tiny.gguf"))
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == len(set(tokens)) == 1500
    assert tokens == vocabulary(1500)
    assert reader.fields["tokenizer.ggml.model"].contents() == "gpt2"
    quantized = next(t for t in reader.tensors if t.name == "blk.1.ffn_down.weight")
    assert quantized.tensor_type == gguf.GGMLQuantizationType.Q6_K
    assert [int(n) for n in quantized.shape] == [512, 256]


def test_the_file_type_is_the_recipes() -> None:
    numbers = {"q4_k_m": 15, "q4_k": 14, "q8_0": 7, "bf16": 32, "f32": 0, "iq4_xs": 30, "q4_K+q6_K": 1024}
    assert {recipe: file_type(recipe) for recipe in numbers} == numbers


def test_vocabulary_is_gpt2s_alphabet() -> None:
    tokens = vocabulary(300)
    assert tokens[ord("A")] == "A"
    assert (tokens[ord(" ")], tokens[ord("\n")]) == ("Ġ", "Ċ")
    assert tokens[-1] == "<|endoftext|>"


def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    whole = written(tiny(), tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (0, 3, 8, 23, 24, 100, 5000, 20_000, len(whole) // 2, len(whole) - 40):
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_config(cut)


def test_changed_headers_never_escape_as_other_errors(tmp_path: Path) -> None:
    whole = bytearray(written(tiny(), tmp_path / "whole.gguf").read_bytes())
    rng = np.random.default_rng(3)
    broken = tmp_path / "broken.gguf"
    refused = 0
    for at in rng.integers(0, 2000, 60):
        changed = bytearray(whole)
        changed[at] ^= 0xFF
        broken.write_bytes(changed)
        try:
            read_config(broken)
        except AttribError:
            refused += 1
    assert refused > 10


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("hello, this is no model file at all, only text\n" * 9)
    with pytest.raises(ModelError, match="is not a GGUF file: it starts with b'hell'"):
        resolve(str(text))
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        resolve(str(tmp_path / "absent.gguf"))


@pytest.mark.parametrize("name", DIMENSIONS)
@pytest.mark.parametrize("size", [0, -1])
def test_a_model_without_a_dimension_is_refused(name: str, size: int) -> None:
    config = tiny()
    shape = replace(config.model.shape, **{name: size})
    with pytest.raises(ModelError, match=f"^model tiny has {name} {size}; a model has at least one$"):
        checked(replace(config, model=replace(config.model, shape=shape)))


def _without(config: ModelConfig, name: str) -> ModelConfig:
    tensors = tuple(t for t in config.model.tensors if t.name != name)
    return replace(config, model=replace(config.model, tensors=tensors))


def _typed(config: ModelConfig, name: str, **changes: Any) -> ModelConfig:
    tensors = tuple(replace(t, **changes) if t.name == name else t for t in config.model.tensors)
    return replace(config, model=replace(config.model, tensors=tensors))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: _without(c, "blk.1.ffn_up.weight"), r"lacks tensor blk\.1\.ffn_up\.weight"),
        (lambda c: _typed(c, "blk.0.attn_q.weight", rows=128), "is 128 × 256; the metadata says 256 × 256"),
        (lambda c: _without(c, "output_norm.weight"), r"lacks tensor output_norm\.weight"),
    ],
)
def test_unfit_files_are_refused_by_tensor(
    tmp_path: Path, change: Callable[[ModelConfig], ModelConfig], message: str
) -> None:
    config = change(tiny())

    def bytes_of(tensor: Tensor) -> np.ndarray:
        return np.zeros(tensor.nbytes, np.uint8)

    write(config, tmp_path / "unfit.gguf", bytes_of, lambda done: None)
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path / "unfit.gguf")


def test_short_names() -> None:
    assert synthetic("14b") == synthetic("qwen2.5-14b:q4_k_m")
    assert synthetic("7B", 5).source == "synthetic seed 5"


@pytest.mark.parametrize("limit", [1, 50_000, 1 << 24])
def test_chunks_carry_every_row_once(limit: int) -> None:
    tensors = tiny().model.tensors
    taken: dict[str, int] = {}
    for chunk in chunks(tensors, limit):
        width = gpu_row_bytes(chunk.tensor.quant, chunk.tensor.cols)
        assert chunk.first == taken.get(chunk.tensor.name, 0)
        assert chunk.nbytes == chunk.rows * width
        assert chunk.nbytes <= max(limit, width)
        taken[chunk.tensor.name] = chunk.first + chunk.rows
    assert taken == {t.name: t.rows for t in tensors}
