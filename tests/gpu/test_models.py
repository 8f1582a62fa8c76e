"""Models from files on the device: all types in one, head norms, and a real model against the float64 decoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine import dispatch
from engine.config import ModelConfig
from engine.gguf import read_config
from engine.ggufwrite import from_host, write
from engine.session import open_session
from engine.verify import kl, top1
from tests.gpu.support import cache, small
from tests.helpers.reference import Rounding, nmse, through_f16
from tests.host_cuda.host_session import reference_of
from tests.host_cuda.test_models import real_model, typed

pytestmark = pytest.mark.gpu
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
POSITIONS = 64
START = 1
LEAST_TOP1, MOST_KL = 0.99, 1e-3


def written(config: ModelConfig, path: Path) -> ModelConfig:
    write(config, path, from_host(config), lambda done: None)
    return read_config(path)


@pytest.mark.parametrize("which", ["types from q4_0", "types from iq4_nl", "qwen3", "mistral"])
def test_a_file_is_the_reference(which: str, tmp_path: Path) -> None:
    made = typed(small(), 0 if "q4_0" in which else 7) if which.startswith("types") else small(arch=which)
    config = written(made, tmp_path / "m.gguf")
    with open_session(config, dispatch.load("reference"), 128) as session:
        session.prefill(PROMPT)
        halves = reference_of(config, Rounding(through_f16, through_f16))
        got = session.logits()
        assert nmse(got, halves.forward(PROMPT)[-1]) < 1e-4
        session.step()
        model = reference_of(config, Rounding(kv=through_f16))
        length = len(PROMPT)
        model.cache = [(k[:, :length], v[:, :length]) for k, v in cache(session, length)]
        assert nmse(session.logits(), model.forward([int(got.argmax())])[0]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("build", ["reference", "loop"])
def test_a_real_model_is_the_float_model_over_64_positions(build: str) -> None:
    path = real_model()
    if path is None:
        pytest.skip("no model in models/ (make model) and no file in ATTRIB_MODEL")
    config = read_config(path)
    tokens, found = [START], []
    with open_session(config, dispatch.load(build), 128) as session:
        for position in range(POSITIONS):
            session.set_state(position, tokens[-1])
            session.step()
            found.append(session.logits())
            tokens.append(int(found[-1].argmax()))
    want = reference_of(config, Rounding()).forward(tokens[:-1])
    got = np.stack(found).astype(np.float64)
    print(f"top-1 {top1(want, got):.4f}, KL {kl(want, got):.3g}, NMSE {nmse(got, want):.3g}")
    assert top1(want, got) >= LEAST_TOP1
    assert kl(want, got) < MOST_KL
