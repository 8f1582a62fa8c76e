"""A whole small model through the engine's plans on the host build, against the float64 reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.dispatch import Build, load
from engine.plan import Geometry
from tests.gpu.support import decoder, only, small
from tests.helpers.reference import Rounding, exact, nmse, through_f16, through_q8
from tests.host_cuda.host_session import HostSession

GEOMETRY = Geometry(capacity=160, splits=3)
BATCH = 40
PROMPT = [(7 * i + 3) % 512 for i in range(BATCH)]


@pytest.mark.parametrize("kernel", ["matvec_padded_f32", "mmvq_v2", "mmvq_v2_pf"])
@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama", "mistral"])
def test_prefill_then_decode_across_a_tile(kernel: str, arch: str) -> None:
    """Positions 30 to 33 cross the end of the first 32-position tile; each step attends to its own writes."""
    config = small(arch=arch)
    session = HostSession(config, only(kernel), GEOMETRY, BATCH)
    logits = session.prefill(PROMPT[:30])
    quantized = kernel != "matvec_padded_f32"
    halves = decoder(config, Rounding(through_f16, through_f16), half_weights=True)
    # the head reads q8 activations where the build's kernel does, while the reference keeps f16
    assert nmse(logits, halves.forward(PROMPT[:30])[-1]) < (1e-4 if quantized else 1e-6)
    for (k, v), (want_k, want_v) in zip(session.cache(30), halves.cache, strict=True):
        assert nmse(k, want_k) < 1e-6
        assert nmse(v, want_v) < 1e-6

    reference = decoder(config, Rounding(through_q8 if quantized else exact, through_f16))
    reference.cache = session.cache(30)
    chosen = [int(session.state[1])]
    assert chosen == [int(np.argmax(logits))]
    for position in range(30, 34):
        assert session.state.tolist() == [position, chosen[-1], len(chosen)]
        logits = session.step()
        want = reference.forward([chosen[-1]])[0]
        assert nmse(logits, want) < 1e-6
        chosen.append(int(np.argmax(logits)))
    assert session.produced() == chosen


def test_one_position_and_a_full_batch_agree_with_the_float_model() -> None:
    """The first position alone (KV length 1), and a prefill long enough for several query tiles."""
    config = small()
    session = HostSession(config, load("reference"), GEOMETRY, BATCH)
    session.state[:] = (0, PROMPT[0], 0)
    first = session.step()
    model = decoder(config, Rounding())
    assert nmse(first, model.forward(PROMPT[:1])[0]) < 5e-4
    whole = session.prefill(PROMPT)
    again = decoder(config, Rounding())
    assert nmse(whole, again.forward(PROMPT)[-1]) < 5e-4


def test_a_prompt_in_two_passes_is_the_prompt_in_one() -> None:
    config = small()
    one, two = (HostSession(config, only("mmvq_v2"), GEOMETRY, BATCH) for _ in range(2))
    whole = one.prefill(PROMPT)
    two.prefill(PROMPT[:17])
    parts = two.prefill(PROMPT[17:], start=17)
    assert nmse(parts, whole) < 1e-4
    for (k, v), (want_k, want_v) in zip(two.cache(BATCH), one.cache(BATCH), strict=True):
        assert nmse(k, want_k) < 1e-6
        assert nmse(v, want_v) < 1e-6


def test_prefetching_changes_no_bit_of_a_whole_step() -> None:
    config = small(ffn=2048)  # 64 units: two for each of 32 threads
    logits = []
    for kernel in ("mmvq_v2", "mmvq_v2_pf"):
        rules = only(kernel).rules
        narrow = Build(kernel, (), tuple(replace(rule, params={"threads": 32}) for rule in rules))
        session = HostSession(config, narrow, GEOMETRY, 1)
        session.state[:] = (0, 5, 0)
        logits.append(session.step())
    np.testing.assert_array_equal(logits[0].view(np.uint32), logits[1].view(np.uint32))
