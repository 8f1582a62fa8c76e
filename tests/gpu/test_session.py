"""A whole small model on the device against the float64 reference, and the promises of a captured step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import dispatch
from engine.bench import prompt
from engine.config import ModelConfig, synthetic
from engine.dispatch import Build
from engine.errors import DeviceMemoryError, PlanError
from engine.gguf import read_config
from engine.ggufwrite import best_source, from_host, write
from engine.plan import Weight
from engine.repack import from_gpu, gpu_bytes
from engine.session import Session, open_session
from engine.synth import host_rows
from tests.gpu.support import cache, decoder, only, small
from tests.helpers.reference import Rounding, exact, nmse, through_f16, through_q8

pytestmark = pytest.mark.gpu
# 64 splits of one 32-position tile reach 2048 positions; one more makes every split two tiles
POSITIONS = (1, 2, 31, 32, 33, 1000, 2048, 2049)
CAPACITY = 2304
TOKEN = 7


@pytest.fixture(scope="module", params=["matvec_padded_f32", "mmvq_v2", "mmvq_v2_pf"])
def kernel(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def session(kernel: str) -> Iterator[Session]:
    with open_session(small(), only(kernel), CAPACITY) as opened:
        yield opened


def decode_at(session: Session, length: int) -> np.ndarray:
    """Logits of one step whose KV length is `length`, after a prefill of the positions before."""
    if length > 1:
        session.prefill(prompt(session, length - 1))
    session.set_state(length - 1, TOKEN)
    session.step()
    return session.logits()


@pytest.mark.parametrize("length", POSITIONS)
def test_decode_is_the_reference_on_the_same_activations(session: Session, kernel: str, length: int) -> None:
    logits = decode_at(session, length)
    activations = exact if kernel == "matvec_padded_f32" else through_q8
    reference = decoder(session.config, Rounding(activations, through_f16))
    reference.cache = [(k[:, : length - 1], v[:, : length - 1]) for k, v in cache(session, length)]
    assert nmse(logits, reference.forward([TOKEN])[0]) < 1e-6


@pytest.mark.parametrize("length", [1, 32, 33, 1000])
def test_decode_is_near_the_model_in_float(session: Session, length: int) -> None:
    logits = decode_at(session, length)
    reference = decoder(session.config, Rounding())
    tokens = [*(prompt(session, length - 1) if length > 1 else []), TOKEN]
    assert nmse(logits, reference.forward(tokens)[-1]) < 5e-4


@pytest.mark.parametrize("count", [1, 2, 31, 33, 512, 513, 1000])
def test_prefill_is_the_reference_on_the_same_activations(session: Session, count: int) -> None:
    tokens = prompt(session, count)
    session.prefill(tokens)
    reference = decoder(session.config, Rounding(through_f16, through_f16), half_weights=True)
    want = reference.forward(tokens)[-1]
    limit = 1e-6 if session.build.name == "matvec_padded_f32" else 1e-4  # the head quantizes to q8
    assert nmse(session.logits(), want) < limit
    assert session.state().position == count
    for (k, v), (want_k, want_v) in zip(cache(session, count), reference.cache, strict=True):
        assert nmse(k, want_k) < 1e-6
        assert nmse(v, want_v) < 1e-6


def test_prefill_is_near_the_model_in_float(session: Session) -> None:
    tokens = prompt(session, 200)
    session.prefill(tokens)
    assert nmse(session.logits(), decoder(session.config, Rounding()).forward(tokens)[-1]) < 5e-4


def test_replay_is_eager_bit_for_bit(session: Session) -> None:
    results = []
    for eager in (False, True):
        session.prefill(prompt(session, 40))
        for _ in range(3):
            if eager:
                session.step_eager()
            else:
                session.step()
        kv = b"".join(part.tobytes() for layer in cache(session, 43) for part in layer)
        results.append((session.state(), session.logits().tobytes(), kv))
    assert results[0] == results[1]
    assert results[0][0].position == 43
    assert session.graph.nodes == len(session.launches)


def test_greedy_tokens_are_the_arg_max_of_the_logits(session: Session) -> None:
    session.prefill(prompt(session, 5))
    for _ in range(4):
        before = session.logits()
        assert session.state().token == int(before.argmax())
        session.step()
    assert len(session.produced(100)) == 5


def test_two_sessions_give_the_same_bytes(kernel: str) -> None:
    found = []
    for _ in range(2):
        with open_session(small(), only(kernel), 256) as session:
            session.prefill(prompt(session, 65))
            for _ in range(8):
                session.step()
            found.append((session.produced(9), session.logits().tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("config", [small(arch="llama"), small(head_dim=128, heads=10)], ids=["llama", "wide"])
def test_other_shapes_are_the_reference_too(config: ModelConfig) -> None:
    with open_session(config, dispatch.load("reference"), 256) as session:
        logits = decode_at(session, 100)
        reference = decoder(config, Rounding(exact, through_f16))
        reference.cache = [(k[:, :99], v[:, :99]) for k, v in cache(session, 100)]
        assert nmse(logits, reference.forward([TOKEN])[0]) < 1e-6
        session.prefill(prompt(session, 77))
        half = decoder(config, Rounding(through_f16, through_f16), half_weights=True)
        assert nmse(session.logits(), half.forward(prompt(session, 77))[-1]) < 1e-6


@pytest.fixture(scope="module")
def reference_build() -> Build:
    return dispatch.load("reference")


def test_a_file_and_a_seed_put_the_same_bytes_on_the_device(tmp_path: Path, reference_build: Build) -> None:
    config, path = small(), tmp_path / "small.gguf"
    write(config, path, from_host(config), lambda done: None)
    from_file = read_config(path)
    found = []
    for each in (config, from_file):
        with open_session(each, reference_build, 64) as session:
            for tensor in config.model.tensors:
                nbytes = gpu_bytes(tensor.quant, tensor.rows, tensor.cols)
                raw = session.read(Weight(tensor.name), nbytes).reshape(tensor.rows, -1)
                stored = from_gpu(tensor.quant, raw, tensor.cols)
                assert stored.tobytes() == host_rows(config, tensor, 0, tensor.rows).tobytes(), tensor.name
            found.append(decode_at(session, 20).tobytes())
    assert found[0] == found[1]


def test_the_gpu_writes_the_file_the_host_writes(tmp_path: Path) -> None:
    config = small()
    with best_source(config) as (source, maker):
        assert maker != "host"
        write(config, tmp_path / "gpu.gguf", source, lambda done: None)
    write(config, tmp_path / "host.gguf", from_host(config), lambda done: None)
    assert (tmp_path / "gpu.gguf").read_bytes() == (tmp_path / "host.gguf").read_bytes()


def test_a_full_cache_and_wrong_tokens_are_refused(session: Session) -> None:
    session.set_state(CAPACITY - 1, TOKEN)
    session.step()
    with pytest.raises(PlanError, match=f"KV cache of {CAPACITY} positions is full"):
        session.step()
    with pytest.raises(PlanError, match="outside the vocabulary of 512"):
        session.prefill([512])
    with pytest.raises(PlanError, match="does not fit a capacity of 2304"):
        session.prefill([1] * CAPACITY)


def test_too_little_memory_names_both_numbers(reference_build: Build) -> None:
    with (
        pytest.raises(DeviceMemoryError, match=r"needs \d+ bytes of device memory and \d+ are free"),
        open_session(synthetic("14b"), reference_build, 8_000_000),
    ):
        pass
