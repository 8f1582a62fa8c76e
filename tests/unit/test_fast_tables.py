"""The tables of the fast build: as the kernel's structures, each record once, turns that show what is stale."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib.models import LAYER_ROLES
from engine import dispatch, fast_model, fast_plan, fast_tables, plan, program, tiles
from engine.config import synthetic
from engine.errors import PlanError
from engine.fast_tables import AFTER_ALL, ATTEND, IN_ODD, LAST_LOGITS, LOGITS, NORM_INPUT, OUT_ODD, PLAIN_INPUT, QKV
from tests.helpers.fast_plans import (
    BUILDS,
    MODELS,
    SHARED,
    SMS,
    argument,
    decode_phases,
    made,
    planned,
    steps_of,
    tables_of,
)

SOURCES = Path(__file__).parents[2] / "cuda_src"
_TYPES = {"float": ctypes.c_float, "int": ctypes.c_int32, "u64": ctypes.c_uint64}


@pytest.mark.parametrize("model", MODELS)
def test_pieces_of_every_matrix_follow_each_other_and_each_record_counts_once(model: str) -> None:
    config = synthetic(model)
    blocks, found = fast_model.blocks_of(config, SMS), fast_model.matrices(config)
    ends: Counter[str] = Counter()
    for phase in decode_phases(config):
        for segment in phase.segments:
            counts = fast_tables.coverage_of(segment, blocks)
            assert counts.size == segment.tiles * segment.steps
            assert (counts == 1).all()
            assert segment.first == ends[segment.matrix.name]
            ends[segment.matrix.name] += segment.tiles
    assert {name: 8 * count for name, count in ends.items()} == {name: m.rows for name, m in found.items()}


@pytest.mark.parametrize("model", MODELS)
def test_shared_memory_holds_two_rounds_and_all_a_phase_needs(model: str) -> None:
    config = synthetic(model)
    blocks, every, s = fast_model.blocks_of(config, SMS), tables_of(config), config.model.shape
    for launch in [*steps_of(planned(config)), *steps_of(planned(config, "phases"))]:
        first, last, ring, scratch, image_steps, pairs = (
            int(argument(launch, name))
            for name in ("first", "last", "ring_bytes", "scratch_bytes", "image_steps", "most_pairs")
        )
        assert ring % 128 == scratch % 128 == 0
        assert ring >= 2 * 15 * max(kind[2] for kind in every.kinds)
        assert ring >= (15 + 5) * 16 * 2 * s.head_dim
        tables = 32 * (last - first) + len(every.kinds) * (16 + 12) + 8 * pairs
        assert 128 + ring + scratch + tables <= launch.spec.shared_bytes
        assert launch.spec.shared_bytes + 3072 <= SHARED
        assert scratch >= fast_tables.attention_bytes(dict(launch.spec.defines)["GROUP"], s.head_dim)
        for phase in every.phases[first:last]:
            records = sum(-(-segment.tiles // blocks) * segment.steps for segment in phase.segments)
            steps = max((segment.steps for segment in phase.segments), default=0)
            assert steps <= image_steps
            assert 640 * image_steps + 32 * records <= scratch


def test_a_ring_that_cannot_hold_a_round_of_keys_wherever_it_begins_is_refused() -> None:
    """Two rounds of q4_K are 69,120 bytes; one of the cache, with heads of 128, and a copy of it are 81,920."""
    every = fast_plan.step_tables(
        made({"output": "q4_K", "attn_v": "q4_K", "ffn_down": "q4_K"}, heads=4, head_dim=128), 64
    )

    def ring(limit: int) -> int:
        layout = fast_tables.shared_layout(every, 1, blocks=64, group=2, head_dim=128, limit=limit)
        return layout.ring_bytes

    enough = (15 + 5) * 16 * 256
    limit = SHARED - (ring(SHARED) - enough)
    assert ring(limit) == enough
    with pytest.raises(PlanError, match=f"a ring of at least {enough} bytes does not fit"):
        ring(limit - 128)


@pytest.fixture
def fresh_counts() -> Iterator[None]:
    fast_tables._counts.cache_clear()
    yield
    fast_tables._counts.cache_clear()


@pytest.mark.usefixtures("fresh_counts")
@pytest.mark.parametrize("build", BUILDS)
def test_two_records_in_one_place_are_refused_with_the_matrix(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def colliding(count: int, steps: int, blocks: int) -> np.ndarray:
        found = tiles.places(count, steps, blocks)
        if (count, steps) == (64, 2):  # ffn_down of 512 × 1024
            found[3, 1] = found[0, 0]
        return found

    monkeypatch.setattr(fast_tables, "places", colliding)
    with pytest.raises(PlanError, match=r"fast_step on .*ffn_down: 2 of 128 never computed \(0\.\.7\)"):
        planned.__wrapped__(made(), build)


@pytest.mark.usefixtures("fresh_counts")
@pytest.mark.parametrize("build", BUILDS)
def test_tiles_that_no_block_takes_are_refused(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(count: int, block: int, blocks: int) -> tuple[int, int]:
        each = count // blocks  # the remainder of the division is forgotten
        return block * each, (block + 1) * each

    monkeypatch.setattr(fast_tables, "tile_range", short)
    # 80 tiles of q and k on 64 blocks: 16 tiles of one step are left over
    with pytest.raises(PlanError, match=r"fast_step on .* blk\.0\.attn_qk: 16 of 80 never computed \(64\.\.79\)"):
        planned.__wrapped__(made(), build)


@pytest.mark.usefixtures("fresh_counts")
def test_blocks_that_share_a_tile_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(count: int, block: int, blocks: int) -> tuple[int, int]:
        return block * count // blocks, min(count, (block + 1) * count // blocks + (block == 5))

    monkeypatch.setattr(fast_tables, "tile_range", greedy)
    with pytest.raises(PlanError, match="computed more than once"):
        planned.__wrapped__(made())


def test_units_of_a_segment_leave_padding_out() -> None:
    config = made(dict.fromkeys(LAYER_ROLES, "q5_0"), hidden=544)
    segment = fast_plan.step_tables(config, 60).phases[0].segments[0]
    assert segment.steps == 2
    counts = np.ones(segment.tiles * 2, np.int64)
    rows = 8 * segment.tiles
    assert fast_tables.units_of(segment, counts) == (rows * 17, rows * 17)
    counts[1] = 0  # the last 32 columns of the first tile
    assert fast_tables.units_of(segment, counts) == (rows * 17, rows * 17 - 8)
    counts[2] = 2  # the first 512 of the second
    assert fast_tables.units_of(segment, counts) == (rows * 17, rows * 17 - 8 - 8 * 16)


def fields_of(name: str) -> list[tuple[str, type]]:
    """Members of a structure in the kernel's sources."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("fast_*.cuh")))
    body = re.search(rf"struct {name} {{\n(.*?)\n}};", text, re.DOTALL)
    assert body is not None
    found: list[tuple[str, type]] = []
    for statement in filter(None, map(str.strip, re.sub(r"//[^\n]*", "", body[1]).split(";"))):
        kind, names = re.fullmatch(r"(?:const )?(\w+)\s*(.*)", statement, re.DOTALL).groups()
        for each in names.split(","):
            member, star, count = re.fullmatch(r"\s*(\*?) ?(\w+)(?:\[(\d+)\])?\s*", each).group(2, 1, 3)
            one = ctypes.c_void_p if star or kind.endswith("*") else _TYPES[kind]
            found.append((member, one * int(count) if count else one))
    return found


@pytest.mark.parametrize(
    ("name", "dtype", "nbytes"),
    [
        ("Phase", fast_tables.PHASE, 80),
        ("Stream", fast_tables.STREAM, 32),
        ("Segment", fast_tables.SEGMENT, 16),
    ],
)
def test_tables_have_the_layout_of_the_kernel_s_structures(name: str, dtype: np.dtype, nbytes: int) -> None:
    structure = type(name, (ctypes.Structure,), {"_fields_": fields_of(name)})
    assert ctypes.sizeof(structure) == dtype.itemsize == nbytes
    members = [(member, getattr(structure, member)) for member, _ in structure._fields_]
    assert [(member, at.offset, at.size) for member, at in members] == [
        (member, dtype.fields[member][1], dtype.fields[member][0].itemsize) for member in dtype.names
    ]


def macro(name: str, file: str) -> int:
    text = (SOURCES / file).read_text(encoding="utf-8")
    found = re.search(rf"^#define {name} (-?\d+)\b", text, re.MULTILINE)
    assert found is not None, name
    return int(found[1])


def test_numbers_on_both_sides_are_the_same() -> None:
    flags = ("AFTER_ALL", "NORM_INPUT", "PLAIN_INPUT", "BRIEF_INPUT", "LAST_LOGITS", "IN_ODD", "OUT_ODD", "NORMED_ROWS")
    values = [getattr(fast_tables, name) for name in flags]
    assert values == [macro(name, "fast_layout.cuh") for name in flags] == [1 << i for i in range(8)]
    order = re.search(r"enum Operation {(.*?)}", (SOURCES / "fast_layout.cuh").read_text(encoding="utf-8"))
    assert [getattr(fast_tables, name.strip()) for name in order[1].split(",")] == list(range(5))
    assert macro("MOST_SPLITS", "fast_attention.cuh") == fast_tables.MOST_SPLITS
    assert tuple(macro(name, "tile.cuh") for name in ("TILE_ROWS", "STEP", "WARPS")) == (
        tiles.ROWS,
        tiles.STEP,
        tiles.WARPS,
    )
    assert macro("IMAGE_BYTES", "tile.cuh") == fast_tables._IMAGE_BYTES
    for name in ("ROUNDS", "PLACES_BYTES", "CACHE"):
        assert macro(name, "fast_ring.cuh") == getattr(fast_tables, f"_{name}")
    assert macro("GROUPS", "fast_ring.cuh") == fast_tables._COPIES
    assert macro("POSITIONS", "fast_attention.cuh") == fast_tables._CACHE_POSITIONS
    text = (SOURCES / "tile.cuh").read_text(encoding="utf-8")
    records = re.findall(r"struct Tile(\w+) {.*?\bRECORD = (\d+)\b", text, re.DOTALL)
    assert {name[:2] + "_" + name[2]: int(size) for name, size in records} == {
        quant.upper(): size for quant, size in tiles.RECORD_BYTES.items()
    }


def test_tables_in_memory_by_hand() -> None:
    config = made()
    every = fast_plan.step_tables(config, 64)
    places = {name: 1 << 32 | i << 20 for i, name in enumerate(["hidden", "residual_b", "qkv", "k.1", "v.1", "logits"])}
    arrays = every.arrays(lambda name: places.get(name, 1), lambda name: 7 << 40 | len(name))
    phases, streams, segments = arrays["phases"], arrays["streams"], arrays["segments"]
    assert (phases.dtype, streams.dtype, segments.dtype) == (
        fast_tables.PHASE, fast_tables.STREAM, fast_tables.SEGMENT,
    )  # fmt: skip
    # layer 1 begins at phase 5: q, k and v from what layer 0's ffn_down shared
    row = phases[5]
    assert (row["x"], row["shared"], row["k"], row["v"]) == tuple(
        places[name] for name in ("residual_b", "qkv", "k.1", "v.1")
    )
    assert (row["out"], row["operation"], row["cols"]) == (0, QKV, 512)
    assert row["gamma"] == 7 << 40 | len("blk.1.attn_norm.weight")
    assert row["bias"] == 7 << 40 | len("blk.1.attn_q.bias")
    assert (streams["segment"][5] == [every.kinds.index((80, 1, 2304, 0)), every.kinds.index((16, 1, 3360, 1))]).all()
    assert phases["operation"][6] == ATTEND
    assert streams["segment"][6].tolist() == [fast_tables._CACHE, -1]
    assert streams["weights"][6].tolist() == [places["k.1"], places["v.1"]]
    assert segments.tolist() == [
        (80, 1, 2304, 0),  # layer 0: q and k, v, output, gate and up, down
        (16, 1, 2304, 0),
        (64, 1, 2304, 0),
        (256, 1, 2304, 0),
        (64, 2, 2304, 0),
        (16, 1, 3360, 1),  # v and down of layer 1 are q6_K, and so is the output matrix
        (64, 2, 3360, 1),
        (80, 1, 3360, 1),
    ]
    assert every.qk_segment == 0


def test_a_cut_output_matrix_continues_where_the_piece_before_ended() -> None:
    config = synthetic("14b")
    every = tables_of(config)
    arrays = every.arrays(lambda _: 1 << 20, lambda _: 0)
    for half in (every.phases[-5:], every.phases[-10:-5]):
        assert [phase.row for phase in half] == [0, *(8 * 3802 * i for i in range(1, 5))]
        assert [bool(phase.flags & AFTER_ALL) for phase in half] == [True, False, False, False, False]
        assert [bool(phase.flags & LAST_LOGITS) for phase in half] == [False, False, False, False, True]
        assert all(phase.operation == LOGITS for phase in half)
    assert arrays["streams"]["weights"][-5:, 0].tolist() == [3802 * i * 10 * 3360 for i in range(5)]
    assert (every.phases[-10].x, every.phases[-5].x) == (("residual_b", 0), ("normed", 0))
    assert every.phases[-10].flags & NORM_INPUT
    assert every.phases[-5].flags & PLAIN_INPUT
    assert (arrays["streams"]["shallow"][-10:] > 0).tolist() == [True, False, False, False, False] * 2


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 7, 48])
def test_a_stale_word_always_shows_and_a_fresh_one_always_serves(layers: int) -> None:
    """`held` is the turn that a buffer's words were last written in, `before` the one before."""
    config = made(layers=layers)
    (step,) = steps_of(planned(config))
    turns = argument(step, "turns")
    assert turns == layers & 1
    held, before = Counter[str](), Counter[str]()  # memory starts in turn 0
    base, waits = 0, 0
    for replay in range(4):
        for i, phase in enumerate(decode_phases(config)):
            where = (replay, phase.site, phase.layer)
            out = base ^ bool(phase.flags & OUT_ODD)
            if i and phase.flags & AFTER_ALL and phase.x:
                waits += 1
                wanted, source = base ^ bool(phase.flags & IN_ODD), phase.x[0]
                assert (held[source], before[source]) == (wanted, 1 - wanted), where
            if phase.operation == ATTEND:
                assert held["parts"] != out, where
                held["parts"] = out
            if phase.shared:
                before[phase.shared[0]], held[phase.shared[0]] = held[phase.shared[0]], out
        base ^= turns
    assert waits == 4 * (5 * layers - 1 + 1)  # all phases of layers but the first, and the output matrix


def test_an_odd_number_of_layers_never_splits_the_kv_range() -> None:
    odd, even = (steps_of(planned(made(layers=layers))) for layers in (3, 2))
    assert dict(odd[0].spec.defines)["SPLIT"] == fast_plan.NEVER
    assert "SPLIT" not in dict(even[0].spec.defines)
    assert all(argument(launch, "turns") == 0 for launch in steps_of(planned(made(layers=3), "phases")))


@pytest.mark.parametrize("layers", [2, 3])
def test_prefill_leaves_the_turn_alone(layers: int) -> None:
    """Its output matrix shares no words: the next step would take the step before's for its own."""
    config = made(layers=layers)
    work = program.prefill(config, dispatch.load("fast"), plan.geometry(config, 64, SMS, SHARED), 8, sample=True)
    found = [one for one in work if isinstance(one, plan.PlannedLaunch) and one.spec.name == "fast_step"]
    assert found
    assert all(argument(launch, "turns") == 0 for launch in found)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 132))
def test_the_output_matrix_is_cut_into_pieces_that_fit(count: int, blocks: int) -> None:
    tensor = replace(made().model.head(), rows=8 * count, cols=5120)
    matrix = fast_model.Matrix("head", "output", None, (fast_model.Part(tensor, 0),))
    pieces = fast_tables.segments_of(matrix, blocks)
    assert sum(piece.tiles for piece in pieces) == count
    assert all(piece.tiles > 0 for piece in pieces)
    assert [piece.offset for piece in pieces] == [piece.first * 10 * 3360 for piece in pieces]
    assert max(-(-piece.tiles // blocks) for piece in pieces) * 10 <= 320 + 10
