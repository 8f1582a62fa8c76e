"""Models from files on the host build: every type in one model, biases and rope factors that count, a real model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attrib.models import LAYER_ROLES, Model, Tensor
from engine.config import ModelConfig, of_model
from engine.dispatch import Build, load, parse
from engine.gguf import read_config
from engine.ggufwrite import from_host, write
from engine.plan import Geometry
from engine.quant import FLOATS, QUANTS
from engine.quant_blocks import DEQUANTIZERS, Bytes
from tests.gpu.support import small
from tests.helpers.reference import Rounding, exact, nmse, through_f16, through_q8
from tests.host_cuda.host_session import HostSession, reference_of

GEOMETRY = Geometry(capacity=64, splits=2)
STEPS = 4
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
START = 1  # <|im_start|>, the token every chat of this model starts with


def typed(config: ModelConfig, first: int) -> ModelConfig:
    """The model with the layers' matrices in every type in turn, starting from one."""
    count = 0

    def of(tensor: Tensor) -> Tensor:
        nonlocal count
        if tensor.role not in LAYER_ROLES:
            return tensor
        count += 1
        return replace(tensor, quant=QUANTS[(first + count) % len(QUANTS)])

    model = Model(config.model.shape, "mixed", tuple(map(of, config.model.tensors)))
    return of_model(model)


def written(config: ModelConfig, path: Path) -> ModelConfig:
    write(config, path, from_host(config), lambda done: None)
    return read_config(path)


def logits(config: ModelConfig, token: int = 5) -> np.ndarray:
    session = HostSession(config, load("reference"), GEOMETRY, 8)
    session.state[:] = (0, token, 0)
    return session.step()


def looping() -> Build:
    """A build that sends every block type to the kernels that read q8 activations."""
    every = "weights = [1, 8_589_934_592]\ncols = [32, 1_048_576]\n"
    rules = (("mmvq_v2", list(DEQUANTIZERS)), ("matvec_float", list(FLOATS)))
    return parse("looping", "".join(f'[[rule]]\nkernel = "{name}"\nquants = {kinds}\n{every}' for name, kinds in rules))


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("build", ["reference", "looping"])
def test_a_model_of_all_types_is_the_reference(build: str, first: int, tmp_path: Path) -> None:
    config = written(typed(small(), first), tmp_path / "mixed.gguf")
    assert len({t.quant for t in config.model.tensors if t.role in LAYER_ROLES}) == 14  # of 15, another one each time
    quantized = build == "looping"
    session = HostSession(config, looping() if quantized else load(build), GEOMETRY, 8)
    got = session.prefill([3, 1, 4, 1, 5])
    halves = reference_of(config, Rounding(through_f16, through_f16))
    assert nmse(got, halves.forward([3, 1, 4, 1, 5])[-1]) < 1e-4
    token = int(got.argmax())
    step = session.step()
    model = reference_of(config, Rounding(through_q8 if quantized else exact, through_f16))
    model.cache = session.cache(5)
    # matrices of float types read f32 where the reference takes q8
    assert nmse(step, model.forward([token])[0]) < (1e-3 if quantized else 1e-9)


def test_a_file_and_a_seed_give_the_same_bits(tmp_path: Path) -> None:
    config = small(arch="qwen3")
    np.testing.assert_array_equal(logits(written(config, tmp_path / "m.gguf")), logits(config))


@pytest.mark.parametrize("role", ["attn_q", "attn_k", "attn_v"])
def test_a_zeroed_bias_changes_logits(role: str, tmp_path: Path) -> None:
    config = small()

    def without(tensor: Tensor) -> Bytes:
        rows = from_host(config)(tensor)
        return np.zeros_like(rows) if tensor.name == f"blk.1.{role}.bias" else rows

    whole = written(config, tmp_path / "whole.gguf")
    write(config, tmp_path / "zeroed.gguf", without, lambda done: None)
    found = []
    for each in (whole, read_config(tmp_path / "zeroed.gguf")):
        session = HostSession(each, load("reference"), GEOMETRY, 8)
        found.append(session.prefill([3, 1, 4, 1, 5]))  # with one position alone, q and k would not matter
    assert nmse(found[1], found[0]) > 1e-6


def test_rope_factors_of_a_file_are_applied(tmp_path: Path) -> None:
    config = small(arch="llama")
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    tensor = Tensor("rope_freqs.weight", "rope_freqs", None, 1, 32, "f32")
    model = replace(config.model, tensors=(*config.model.tensors, tensor))
    scaled = replace(config, model=model)

    def source(wanted: Tensor) -> Bytes:
        return factors.view(np.uint8) if wanted == tensor else from_host(config)(wanted)

    write(scaled, tmp_path / "scaled.gguf", source, lambda done: None)
    read = read_config(tmp_path / "scaled.gguf")
    prompt = [3, 1, 4, 1, 5]
    got = HostSession(read, load("reference"), GEOMETRY, 8).prefill(prompt)
    want = reference_of(read, Rounding(through_f16, through_f16))
    assert nmse(got, want.forward(prompt)[-1]) < 1e-4
    plain = HostSession(written(config, tmp_path / "plain.gguf"), load("reference"), GEOMETRY, 8).prefill(prompt)
    assert nmse(got, plain) > 1e-4


def real_model() -> Path | None:
    """The model that `make model` fetches, or the file that ATTRIB_MODEL names."""
    path = Path(os.environ.get("ATTRIB_MODEL") or Path(__file__).parents[2] / "models" / NAME)
    return path if path.is_file() else None


@pytest.mark.slow
def test_the_first_steps_of_a_real_model_choose_the_tokens_of_a_float_model() -> None:
    path = real_model()
    if path is None:
        pytest.skip(f"no {NAME} in models/ (make model) and no file in ATTRIB_MODEL")
    config = read_config(path)
    shape = config.model.shape
    session = HostSession(config, load("reference"), GEOMETRY, 1)
    session.state[:] = (0, START, 0)
    reference, token = reference_of(config, Rounding()), START
    for position in range(STEPS):
        got, want = session.step(), reference.forward([token])[0]
        assert got.shape == (shape.vocab,)
        assert int(got.argmax()) == int(want.argmax()), position
        assert nmse(got, want) < 1e-5, position  # KV is f16
        token = int(want.argmax())
    assert session.produced()[-1] == token
