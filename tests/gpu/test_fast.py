"""The fast build on the device: its two forms bit for bit, the reference, coverage of every shape, stamps, the gate."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from attrib.models import Model
from engine import driver, fast_model, module
from engine.bench import prompt
from engine.config import ModelConfig, of_model, synthetic
from engine.dispatch import load
from engine.errors import PlanError
from engine.plan import Buf, Geometry, PlannedLaunch, Weight, geometry
from engine.session import Session, open_session
from engine.verify import judge, run
from tests.gpu.support import Bench, arguments, bench, cache, decoder, small
from tests.helpers import fast_probe
from tests.helpers.fast_plans import MODELS, made, tensors
from tests.helpers.fast_reference import fast_decoder
from tests.helpers.reference import Rounding, nmse, through_f16, through_q8
from tests.host_cuda.host_session import tiled

pytestmark = pytest.mark.gpu
CAPACITY = 1024
TOKEN = 7
# KV ranges are split from 129 positions on; 16 positions are a warp's turn
LENGTHS = (1, 15, 16, 17, 33, 127, 128, 129, 300, 1000)
NEAR = 5e-4
SMALL = {
    "qwen2": small(),
    "wide": small(head_dim=128, heads=10),
    "llama": small(arch="llama"),
}


@pytest.fixture(params=SMALL)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return SMALL[request.param]


def odd_layers() -> ModelConfig:
    shape = replace(small().model.shape, layers=3)
    return of_model(Model(shape, "q4_k_m", tensors(shape)))


def trajectory(config: ModelConfig, build: str, start: int, steps: int) -> list[bytes]:
    """Logits of every greedy step after a prompt, then the tokens and the KV cache, as bytes."""
    with open_session(config, load(build), CAPACITY) as session:
        session.set_state(0, TOKEN)
        if start:
            session.prefill(prompt(session, start))
        found = []
        for _ in range(steps):
            session.step()
            found.append(session.logits().tobytes())
        kv = b"".join(part.tobytes() for layer in cache(session, start + steps) for part in layer)
        return [*found, repr(session.produced(steps)).encode(), kv]


def first_difference(one: list[bytes], other: list[bytes]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


# --- one launch, and one a phase ---


def test_a_persistent_step_is_its_phases_bit_for_bit(config: ModelConfig) -> None:
    one, many = (trajectory(config, build, 20, 40) for build in ("fast", "phases"))
    assert first_difference(one, many) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2", "wide"])
def test_five_hundred_steps_are_equal(name: str) -> None:
    """From the first position over the length at which KV ranges begin to be split, and each further piece."""
    one, many = (trajectory(SMALL[name], build, 0, 500) for build in ("fast", "phases"))
    assert first_difference(one, many) is None


@pytest.mark.parametrize("start", [0, 120, 600])
def test_two_sessions_give_the_same_bytes(config: ModelConfig, start: int) -> None:
    one, other = (trajectory(config, "fast", start, 32) for _ in range(2))
    assert first_difference(one, other) is None


def test_an_odd_number_of_layers_is_deterministic_too() -> None:
    one, other = (trajectory(odd_layers(), "fast", 20, 33) for _ in range(2))
    assert first_difference(one, other) is None


@pytest.mark.parametrize("build", ["fast", "phases"])
def test_replay_is_eager_bit_for_bit(config: ModelConfig, build: str) -> None:
    results = []
    with open_session(config, load(build), CAPACITY) as session:
        for eager in (False, True):
            session.prefill(prompt(session, 127))
            for _ in range(6):
                if eager:
                    session.step_eager()
                else:
                    session.step()
            kv = b"".join(part.tobytes() for layer in cache(session, 133) for part in layer)
            results.append((session.state(), session.logits().tobytes(), kv))
        assert session.graph.nodes == len(session.launches)
    assert results[0] == results[1]
    assert results[0][0].position == 133


# --- the reference ---


def after(session: Session, length: int) -> NDArray[np.float32]:
    """Logits of one step whose KV length is `length`, after a prefill of the positions before."""
    if length > 1:
        session.prefill(prompt(session, length - 1))
    session.set_state(length - 1, TOKEN)
    session.step()
    return session.logits()


@pytest.mark.parametrize("build", ["fast", "phases"])
@pytest.mark.parametrize("name", [*SMALL, "odd"])
def test_steps_at_every_kind_of_length_are_near_the_reference(name: str, build: str) -> None:
    config = SMALL.get(name) or odd_layers()
    with open_session(config, load(build), CAPACITY) as session:
        for length in LENGTHS:
            logits = after(session, length)
            model = decoder(config, Rounding(through_q8, through_f16))
            model.cache = [(k[:, : length - 1], v[:, : length - 1]) for k, v in cache(session, length)]
            assert nmse(logits, model.forward([TOKEN])[0]) < NEAR, length
            assert session.state().token == int(logits.argmax())


def test_steps_are_the_reference_with_the_same_roundings(config: ModelConfig) -> None:
    """Where no rounding falls the other way, only the order of f32 sums and the last bit of reciprocals differ."""
    errors = []
    with open_session(config, load("fast"), 64) as session:
        for position in range(40):
            token = (37 * position + 7) % config.model.shape.vocab
            session.set_state(position, token)
            session.step()
            logits, model = session.logits(), fast_decoder(config)
            model.cache = [(k[:, :position], v[:, :position]) for k, v in cache(session, position + 1)]
            errors.append(nmse(logits, model.forward([token])[0]))
    assert max(errors) < NEAR
    assert np.quantile(errors, 0.25) < 1e-9, sorted(errors)


def test_prefill_from_tiles_leaves_the_keys_and_values_of_the_reference_build(config: ModelConfig) -> None:
    """Tiles and the row layout give the same f16 weights, so the same products."""
    found = []
    for build in ("fast", "reference"):
        with open_session(config, load(build), CAPACITY) as session:
            session.prefill(prompt(session, 300))
            session.wait()
            found.append([part.tobytes() for layer in cache(session, 300) for part in layer])
            logits = session.logits()
        halves = decoder(config, Rounding(through_f16, through_f16), half_weights=True)
        assert nmse(logits, halves.forward(prompt(session, 300))[-1]) < 1e-4  # the output matrix takes int8
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "qwen2.5-7b"])
def test_the_tolerance_gate_against_the_reference_build(model: str) -> None:
    config = synthetic(model)
    reference, fast = (run(config, load(build), ("tolerance",)) for build in ("reference", "fast"))
    (verdict,) = judge(reference, fast, ("tolerance",))
    assert verdict.passed, verdict


# --- weights ---


@pytest.mark.parametrize("name", ["qwen2", "llama", "wide", "mixed"])
def test_tiles_on_the_device_are_the_host_s(name: str) -> None:
    config = SMALL.get(name) or made({"attn_output": "q5_0", "ffn_down": "q8_0"}, hidden=768, ffn=1280)
    with open_session(config, load("fast"), 64) as session:
        blocks = fast_model.blocks_of(config, session.gpu.sms)
        for matrix in fast_model.matrices(config).values():
            want = tiled(config, matrix, blocks)
            assert session.read(Weight(matrix.name), want.nbytes).tobytes() == want.tobytes(), matrix.name


# --- coverage ---


@pytest.fixture(scope="module")
def device() -> Iterator[Bench]:
    with bench() as opened:
        yield opened


class Probe:
    """The probe's launches of one segment on the device."""

    def __init__(self, device: Bench, kernel: driver.Kernel, config: ModelConfig, geo: Geometry) -> None:
        self.device, self.kernel, self.config, self.geo = device, kernel, config, geo
        self.planned: PlannedLaunch = fast_probe.launch_of(config, geo)

    def added(self, segment: fast_probe.Segment, *, forgotten_tiles: int = 0) -> NDArray[np.float32]:
        """What both phases added up to in each row; forgotten_tiles: how many the table of segments leaves out."""
        on, spec = self.device.on, self.planned.spec
        buffers = fast_probe.buffers(self.config, self.geo, segment)
        with ExitStack() as stack:
            at: dict[str, int] = {}

            def place(arrays: fast_probe.Arrays) -> None:
                for name, array in arrays.items():
                    at[name] = stack.enter_context(driver.allocation(array.nbytes))
                    driver.upload(at[name], array, on)

            place(buffers)
            tables = fast_probe.tables(self.config, self.geo, segment, at.__getitem__)
            which = tables["streams"]["segment"][0, 0]
            tables["segments"]["tiles"][which] -= forgotten_tiles
            place(tables)
            for phase in range(len(fast_probe.FACTORS)):
                values = fast_probe.arguments(self.planned, at.__getitem__, phase)
                driver.launch(
                    self.kernel,
                    self.planned.grid,
                    self.planned.block,
                    arguments(spec, values),
                    on=on,
                    smem=spec.shared_bytes,
                    early=spec.early,
                )
            out = buffers["out"]
            driver.download(out, at["out"], on)
            driver.synchronize(on)
            return out


@pytest.mark.parametrize("model", [*MODELS, "smollm2-135m", "llama-3.1-8b"])
def test_every_unit_of_every_matrix_is_multiplied_once(device: Bench, model: str) -> None:
    """Every kind of matrix and piece of a matrix that a step of the model has, on this device's blocks."""
    config = synthetic(model)
    geo = geometry(config, 64, device.gpu.sms, device.gpu.shared_bytes)
    spec = fast_probe.launch_of(config, geo).spec
    with module.load([spec], device.gpu.arch) as kernels:
        probe = Probe(device, kernels[module.key(spec)], config, geo)
        names = []
        for segment in fast_probe.segments(config, geo.sms):
            added = probe.added(segment)
            wrong = np.flatnonzero(added != fast_probe.expected(segment))
            assert not wrong.size, (segment.matrix.name, segment.matrix.quant, wrong[:8], added[wrong[:8]])
            names.append(segment.matrix.role)
        assert set(names) == {"attn_qk", "attn_v", "attn_output", "ffn_gate_up", "ffn_down", "output"}


def test_a_forgotten_tile_is_counted_out(device: Bench) -> None:
    config = synthetic("qwen2.5-7b")
    geo = geometry(config, 64, device.gpu.sms, device.gpu.shared_bytes)
    spec = fast_probe.launch_of(config, geo).spec
    with module.load([spec], device.gpu.arch) as kernels:
        segment = next(fast_probe.segments(config, geo.sms))
        added = Probe(device, kernels[module.key(spec)], config, geo).added(segment, forgotten_tiles=1)
    assert (added[-8:] == 0).all()
    assert (added[:-8] == fast_probe.expected(segment)).all()


# --- stamps ---


def test_stamps_follow_each_other_and_fill_the_step() -> None:
    config, steps = synthetic("qwen2.5-0.5b"), 50
    with open_session(config, load("fast"), 256, stamps=True) as session:
        session.prefill(prompt(session, 64))
        session.step()
        session.wait()
        begun = time.perf_counter_ns()
        for _ in range(steps):
            session.step()
        session.wait()
        a_step = (time.perf_counter_ns() - begun) / steps
        staged = next(launch for launch in session.launches if launch.stages)
        raw = session.read(Buf("stamps"), 16 * len(staged.stages) * staged.grid[0]).view(np.uint64)
        found = session.stamps()
    times = raw.reshape(len(staged.stages), staged.grid[0], 2).astype(np.int64)
    of_block = times.transpose(1, 0, 2).reshape(staged.grid[0], -1)
    assert (np.diff(of_block, axis=1) >= 0).all()
    assert (of_block[:, -1] > of_block[:, 0]).all()
    assert len(found.end_ns) == len(found.wait_ns) == 24 * 5 + len([s for s in staged.stages if s.layer is None])
    assert all(end >= 0 for end in np.diff(found.end_ns))
    # the embedding, the arg max and what lies between launches are the rest
    assert 0.7 * a_step < found.end_ns[-1] < 1.05 * a_step


def test_a_session_that_was_not_opened_for_stamps_has_none() -> None:
    with open_session(small(), load("fast"), 64) as session:
        session.step()
        with pytest.raises(PlanError, match="no persistent kernel that writes stamps"):
            session.stamps()
