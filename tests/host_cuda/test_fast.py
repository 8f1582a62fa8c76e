"""The fast build on the host: tiles made and read, whole steps against float64, coverage, and waits that matter."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attrib.models import BLOCKS, Model, ModelShape
from engine import fast_plan, fast_tables, stamps, tiles
from engine.config import ModelConfig, of_model
from engine.dispatch import load
from engine.kernels import Shape
from engine.kernels_fast import tile_dequantize, tile_pack
from engine.plan import Geometry
from engine.program import decode
from engine.quant import dequantize
from engine.repack import to_gpu
from engine.synthetic import random_rows
from tests.gpu.support import decoder, small
from tests.helpers import fast_probe
from tests.helpers.fast_plans import made, tensors
from tests.helpers.fast_reference import FastDecoder, fast_decoder
from tests.helpers.reference import Rounding, nmse, through_f16
from tests.host_cuda import launcher
from tests.host_cuda.host_session import HostSession
from tests.host_cuda.launcher import SOURCES, HostLaunchError, aligned, launch, library, run, zeros

KINDS = tuple(tiles.RECORD_BYTES)
SHARED = 232_448
PROMPT = [(7 * i + 3) % 512 for i in range(40)]
# a rounding of int8 or f16 that falls the other way, because f32 and float64 differ in the last bits, moves logits by
# about 1e-5; between such steps the kernels are the reference to 1e-13
EXACT, NEAR = 1e-11, 5e-4


def geometry(sms: int = 3, capacity: int = 64, shared_bytes: int = SHARED, **how: bool) -> Geometry:
    return Geometry(capacity, 2, sms=sms, shared_bytes=shared_bytes, **how)


# --- tiles ---


def placed(rows: int, base: int, stride: int, half: int) -> np.ndarray:
    """Packed rows of a tensor's rows."""
    if half:
        return base + np.argsort(tiles.pair_order(rows, 2 * half))
    return base + stride * np.arange(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("base", "stride", "half"), [(64, 1, 0), (1, 2, 0), (64, 1, 32)], ids=["plain", "every-other", "pairs"]
)
def test_packed_tiles_are_numpy_s_and_give_the_rows_back(kind: str, base: int, stride: int, half: int) -> None:
    rows, all_rows, piece, blocks, first = 128, 264, 20, 3, 40
    cols = 3 * max(256, BLOCKS[kind][0]) - (32 if BLOCKS[kind][0] == 32 else 0)
    rng = np.random.default_rng(len(kind) + base)
    stored = random_rows(kind, rows, cols, rng)
    place = (base, stride, half, all_rows // 8, piece, blocks)
    made_ = zeros(tiles.tile_bytes(kind, all_rows, cols), np.uint8)
    launch(tile_pack(kind), Shape(rows=rows, cols=cols), aligned(to_gpu(kind, stored, cols)), made_, cols, *place)

    whole = np.zeros((all_rows, stored.shape[1]), np.uint8)
    whole[placed(rows, base, stride, half)] = stored
    np.testing.assert_array_equal(made_, tiles.arrange(tiles.pack(kind, whole, cols), piece, blocks))

    out = zeros((rows - first, cols), np.float16)
    launch(tile_dequantize(kind), Shape(rows=rows - first, cols=cols), made_, out, rows - first, cols, first, *place)
    np.testing.assert_array_equal(out, dequantize(kind, stored[first:], cols).astype(np.float16))


# --- steps ---


def teacher_forced(session: HostSession, model: FastDecoder, steps: int) -> np.ndarray:
    """NMSE of each step's logits against the reference over the session's own cache, from position 0 on."""
    vocab, errors = session.config.model.shape.vocab, []
    for position in range(steps):
        token = (37 * position + 7) % vocab
        session.state[:] = (position, token, position)
        model.cache = session.cache(position)
        got, want = session.step(), model.forward([token])[0]
        assert session.state.tolist() == [position + 1, int(got.argmax()), position + 1]
        for (k, v), (want_k, want_v) in zip(session.cache(position + 1), model.cache, strict=True):
            assert nmse(k, want_k) < NEAR
            assert nmse(v, want_v) < NEAR
        errors.append(nmse(got, want))
    return np.array(errors)


def grouped() -> ModelConfig:
    """Sixteen query heads a KV head: two groups of eight each; 768 and 1280 columns, odd multiples of 256."""
    return made(heads=32, kv_heads=2, hidden=768, ffn=1280)


def old_types() -> ModelConfig:
    """q8_0 and q5_0 matrices whose 544 and 288 columns are no whole step, and an output matrix of q6_K."""
    shape = ModelShape(
        "old", "llama", 2, 544, 288, 4, 4, 64, 512, tied=False, bias=False, rope_theta=1e4, norm_eps=1e-5
    )
    kinds = {"attn_output": "q5_0", "attn_v": "q5_0", "ffn_down": "q5_0", "token_embd": "q8_0"}
    every = {"attn_q": "q8_0", "attn_k": "q8_0", "ffn_gate": "q8_0", "ffn_up": "q8_0", "output": "q8_0", **kinds}
    return of_model(Model(shape, "old", tensors(shape, every)))


@pytest.mark.parametrize(
    ("config", "sms", "steps"),
    [
        (small(), 3, 34),  # KV lengths 1, 15, 16, 17 and 33 are among them; two groups on three blocks
        (small(arch="llama"), 7, 18),
        (small(head_dim=128, heads=10), 1, 18),  # one block with two groups
        (grouped(), 3, 4),
        (old_types(), 5, 18),
    ],
    ids=["qwen2", "llama", "wide", "grouped", "old-types"],
)
def test_steps_are_the_reference_with_the_same_roundings(config: ModelConfig, sms: int, steps: int) -> None:
    session = HostSession(config, load("phases"), geometry(sms), 1)
    errors = teacher_forced(session, fast_decoder(config), steps)
    assert np.median(errors) < EXACT, errors
    assert errors.max() < NEAR, errors


def layers(count: int, base: ModelConfig) -> ModelConfig:
    shape = replace(base.model.shape, layers=count)
    return of_model(Model(shape, "q4_k_m", tensors(shape)))


# turns of 16 positions: the last of a round of 15 warps, one more, with and without this token alone; several rounds
LENGTHS = (128, 129, 225, 239, 240, 241, 256, 481, 900)


@pytest.mark.parametrize("base", [small(), small(head_dim=128, heads=10)], ids=["64", "128"])
def test_long_ranges_in_one_piece_are_the_reference_with_the_same_roundings(base: ModelConfig) -> None:
    """An odd number of layers never splits; what lies in the cache at and behind this token must not matter."""
    config = layers(1, base)
    session, model = HostSession(config, load("phases"), geometry(3, 1024), 1), fast_decoder(config)
    rng, errors = np.random.default_rng(3), []
    for length in LENGTHS:
        for name in ("k.0", "v.0"):
            rows = session.buffers[name].view(np.float16).reshape(config.model.shape.kv_heads, 1024, -1)
            rows[:] = rng.standard_normal(rows.shape)
            rows[:, length - 1 :] = np.nan
        model.cache = session.cache(length - 1)
        session.state[:] = (length - 1, 7, length - 1)
        errors.append(nmse(session.step(), model.forward([7])[0]))
    assert np.median(errors) < EXACT, errors
    assert max(errors) < NEAR, errors


@pytest.mark.parametrize("kind", ["q4_K", "q6_K"])
def test_records_that_end_where_the_ring_ends(kind: str) -> None:
    """The next copy starts at the ring's beginning, whatever the ring's length is a multiple of."""
    config = made({"ffn_down": kind}, ffn=8192)
    every = fast_plan.step_tables(config, 1)
    copy = tiles.RECORD_BYTES[kind] * tiles.WARPS // 3

    def ring(limit: int) -> int:
        return fast_tables.shared_layout(every, 1, blocks=1, group=2, head_dim=64, limit=limit).ring_bytes

    exact = next(limit for limit in range(SHARED, SHARED - 2 * copy, -128) if ring(limit) % copy == 0)
    found = []
    for limit in (exact, exact - 128):
        session = HostSession(config, load("phases"), geometry(1, shared_bytes=limit), 1)
        session.state[:] = (0, 7, 0)
        found.append(session.step().copy())
    assert np.isfinite(found[0]).all()
    np.testing.assert_array_equal(found[0], found[1])


def test_a_persistent_step_is_its_phases_bit_for_bit() -> None:
    """One block waits for nobody, but for words of the wrong turn it would wait for ever."""
    sessions = [HostSession(small(), load(name), geometry(1), 1) for name in ("fast", "phases")]
    for position in range(4):
        for session in sessions:
            session.state[:] = (position, PROMPT[position], position)
            session.step()
        fast, phases = sessions
        for name in ("logits", "state", "ring", "counters", *(f"{kv}.{i}" for kv in "kv" for i in (0, 1))):
            np.testing.assert_array_equal(fast.buffers[name], phases.buffers[name], name)


def test_an_odd_number_of_layers_changes_the_turn_with_every_step() -> None:
    config = layers(3, small())
    session, model = HostSession(config, load("fast"), geometry(1), 1), fast_decoder(config)
    errors = []
    for position in range(8):
        session.state[:] = (position, PROMPT[position], position)
        assert session.buffers["counters"].view(np.uint32).tolist() == [0, position & 1]
        model.cache, model.turn = session.cache(position), position & 1
        errors.append(nmse(session.step(), model.forward([PROMPT[position]])[0]))
    assert np.median(errors) < EXACT, errors
    assert max(errors) < NEAR, errors


def test_a_prompt_through_tiles_is_the_reference_and_steps_go_on_from_it() -> None:
    config = small()
    session = HostSession(config, load("phases"), geometry(), 40)
    logits = session.prefill(PROMPT[:30])
    halves = decoder(config, Rounding(through_f16, through_f16), half_weights=True)
    assert nmse(logits, halves.forward(PROMPT[:30])[-1]) < 1e-4  # the output matrix takes int8
    for (k, v), (want_k, want_v) in zip(session.cache(30), halves.cache, strict=True):
        assert nmse(k, want_k) < 1e-6
        assert nmse(v, want_v) < 1e-6
    assert session.state.tolist() == [30, int(logits.argmax()), 1]
    model = fast_decoder(config)
    errors = []
    for position in range(30, 35):
        token = int(session.state[1])
        model.cache = session.cache(position)
        errors.append(nmse(session.step(), model.forward([token])[0]))
    assert min(errors) < EXACT
    assert max(errors) < NEAR


def test_stamps_follow_each_other() -> None:
    config = small()
    session = HostSession(config, load("fast"), geometry(1, stamps=True), 1)
    session.state[:] = (0, 7, 0)
    session.step()
    (step,) = (one for one in decode(config, load("fast"), geometry(1, stamps=True), 1) if one.stages)
    raw = session.buffers["stamps"].view(np.uint64).reshape(-1, 1, 2)[: len(step.stages)]
    assert (np.diff(raw.reshape(-1).astype(np.int64)) >= 0).all()
    found = stamps.reduce(raw)
    assert len(found.end_ns) == 2 * 5 + 1
    assert 0 < found.end_ns[0] < found.end_ns[-1]


# --- coverage ---


def probed(config: ModelConfig) -> list[tuple[np.ndarray, int]]:
    """Per segment, what the probe's phases added up to in each row, and what they should."""
    geo, found = geometry(3), []
    planned = fast_probe.launch_of(config, geo)
    for segment in fast_probe.segments(config, geo.sms):
        arrays = {name: aligned(array) for name, array in fast_probe.buffers(config, geo, segment).items()}
        addresses = {name: array.ctypes.data for name, array in arrays.items()}
        tables = fast_probe.tables(config, geo, segment, addresses.__getitem__)
        arrays |= {name: aligned(array) for name, array in tables.items()}
        for phase in range(len(fast_probe.FACTORS)):
            arguments = fast_probe.arguments(planned, arrays.__getitem__, phase)
            launch(planned.spec, planned.shape, *arguments, grid=planned.grid)
        found.append((arrays["out"], fast_probe.expected(segment)))
    return found


@pytest.mark.parametrize("config", [small(), grouped(), old_types()], ids=["qwen2", "grouped", "old-types"])
def test_every_unit_of_every_matrix_is_multiplied_once(config: ModelConfig) -> None:
    for added, units in probed(config):
        assert (added == units).all()


# --- what the emulator catches ---


def broken(folder: Path, file: str, old: str, new: str) -> Path:
    """A copy of the step kernel's sources in which one place, found by a pattern, is wrong."""
    text, count = re.subn(old, new, (SOURCES / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert count == 1, f"{file} has {count} places like {old}"
    # a library is cached by its source's path: another text needs another folder
    target = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    shutil.copytree(SOURCES, target)
    (target / file).write_text(text, encoding="utf-8")
    return target / "fast_step.cu"


MISTAKES = {
    "weights-before-they-land": ("fast_ring.cuh", r"^ *barrier_wait\(ring\.full\(round, group\), [^;]*;$", ""),
    "a-round-given-back-too-early": (
        "fast_step.cu",
        r"weights\.load\((intake\.wait\([^)]*\)), lane\);\s*intake\.done\(lane\);",
        r"const u8* at = \1; intake.done(lane); weights.load(at, lane);",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_missing_wait_is_seen(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = made(ffn=8192)  # more records than the ring has room for
    geo = geometry(1)
    whole = HostSession(config, load("phases"), geo, 1)
    whole.state[:] = (0, 7, 0)
    assert np.isfinite(whole.step()).all()
    source, original = broken(tmp_path, *MISTAKES[mistake]), launcher._load

    def replaced(spec):
        return library(str(source), (spec.name,), spec.defines) if spec.name == "fast_step" else original(spec)

    monkeypatch.setattr(launcher, "_load", replaced)
    session = HostSession(config, load("phases"), geo, 1)
    session.state[:] = (0, 7, 0)
    assert np.isnan(session.step()).any()


def test_a_record_that_a_warp_forgets_is_counted_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = broken(tmp_path, "fast_step.cu", r"record \+ each \+ \(warp < more\)", "record + each")
    monkeypatch.setattr(launcher, "_load", lambda spec: library(str(source), (spec.name,), spec.defines))
    for added, units in probed(small()):
        assert (added != units).any()


def test_words_of_the_wrong_turn_are_waited_for() -> None:
    """A phase whose input is never written in its turn does not run on."""
    config = small()
    session = HostSession(config, load("fast"), geometry(1), 1)
    session.state[:] = (0, 7, 0)
    session.step()
    flags = session.buffers["phases"].view(fast_tables.PHASE)["flags"]
    flags[2] ^= fast_tables.IN_ODD  # attn_output of layer 0
    with pytest.raises(HostLaunchError, match="not all of its threads reach"):
        session.step()


# --- structures ---

SIZES = """
#include "fast_attention.cuh"
extern "C" __global__ void sizes(int* out) {
    const int found[] = {sizeof(AttentionMemory), sizeof(Phase), sizeof(Stream), sizeof(Segment), sizeof(Share),
                         sizeof(float2)};
    for (int i = 0; i < 6; ++i) out[i] = found[i];
}
"""


@pytest.mark.parametrize(("head_dim", "group"), [(64, 2), (128, 5), (128, 8)])
def test_structures_take_the_shared_memory_that_is_set_aside(head_dim: int, group: int, tmp_path: Path) -> None:
    source = tmp_path / "sizes.cu"
    source.write_text(SIZES, encoding="utf-8")
    built, out = library(str(source), ("sizes",), (("HEAD_DIM", head_dim), ("GROUP", group))), zeros(6, np.int32)
    value = ctypes.c_void_p(out.ctypes.data)
    run(built, "sizes", (1, 1, 1), (32, 1, 1), (ctypes.c_void_p * 1)(ctypes.addressof(value)))
    assert out[0] <= fast_tables.attention_bytes(group, head_dim) <= out[0] + 128
    kinds = (fast_tables.PHASE.itemsize, fast_tables.STREAM.itemsize, fast_tables.SEGMENT.itemsize)
    assert out[1:].tolist() == [*kinds, fast_tables._SHARE_BYTES, fast_tables._ANGLE_BYTES]
