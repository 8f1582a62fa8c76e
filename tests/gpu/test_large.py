"""The real shapes: three layers of 7B and 14B against float64, layer by layer, and the head's arg max."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from attrib.models import LAYER_ROLES
from engine import dispatch
from engine.bench import prompt
from engine.config import synthetic
from engine.plan import Buf, PlannedLaunch, Weight
from engine.quant import dequantize
from engine.repack import from_gpu, gpu_bytes
from engine.session import Session, open_session
from tests.gpu.support import cache
from tests.helpers.reference import Decoder, Rounding, nmse, rms_norm, swiglu, through_f16

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
LENGTH = 100
HEAD_ROWS = 16384


def weights_of(session: Session, role: str, layer: int | None, first: int = 0, rows: int | None = None) -> NDArray:
    """Rows of a tensor as the device holds it, f32 [rows][cols]."""
    tensor = session.config.model.find(role, layer)
    assert tensor is not None
    rows = tensor.rows if rows is None else min(rows, tensor.rows - first)
    width = gpu_bytes(tensor.quant, 1, tensor.cols)
    raw = session.read(Weight(tensor.name, first * width), rows * width).reshape(rows, width)
    return dequantize(tensor.quant, from_gpu(tensor.quant, raw, tensor.cols), tensor.cols)


def layer_decoder(session: Session, layer: int) -> Decoder:
    """The reference with the weights and the KV cache of one layer."""
    names: dict[str, NDArray] = {}
    for role in LAYER_ROLES:
        names[f"blk.{layer}.{role}.weight"] = weights_of(session, role, layer)
        if session.config.model.find(f"{role}_bias", layer):
            names[f"blk.{layer}.{role}.bias"] = weights_of(session, f"{role}_bias", layer)[0]
    made = Decoder(session.config.model.shape, names, Rounding(kv=through_f16))
    made.cache[layer] = cache(session, LENGTH)[layer]
    return made


@pytest.mark.parametrize("model", ["7b", "14b"])
def test_three_layers_and_the_head_are_the_reference(model: str) -> None:
    config = synthetic(model)
    shape = config.model.shape
    layers = (0, shape.layers // 2, shape.layers - 1)
    before: dict[int, NDArray] = {}
    after: dict[int, NDArray] = {}
    with open_session(config, dispatch.load("reference"), 256) as session:
        session.prefill(prompt(session, LENGTH))

        def watch(_: int, launch: PlannedLaunch) -> None:
            if launch.layer not in layers:
                return
            hidden = session.read(Buf("hidden"), 4 * shape.hidden).view(np.float32)
            before.setdefault(launch.layer, hidden)
            after[launch.layer] = hidden

        references = {layer: layer_decoder(session, layer) for layer in layers}
        session.step_eager(watch)
        for layer in layers:
            reference, x = references[layer], before[layer].astype(np.float64)[None]
            at = f"blk.{layer}"
            norm = weights_of(session, "attn_norm", layer)[0]
            x = x + reference._attention(layer, rms_norm(x, norm, shape.norm_eps))
            normed = rms_norm(x, weights_of(session, "ffn_norm", layer)[0], shape.norm_eps)
            gate, up = (reference._product(f"{at}.{name}", normed) for name in ("ffn_gate", "ffn_up"))
            x = x + reference._product(f"{at}.ffn_down", swiglu(gate, up))
            assert nmse(after[layer], x[0]) < 5e-4, layer
        logits = session.logits()
        assert np.isfinite(logits).all()
        last = session.read(Buf("hidden"), 4 * shape.hidden).view(np.float32).astype(np.float64)
        normed = rms_norm(last, weights_of(session, "output_norm", None)[0], shape.norm_eps)
        parts = [
            weights_of(session, "output", None, first, HEAD_ROWS).astype(np.float64) @ normed
            for first in range(0, shape.vocab, HEAD_ROWS)
        ]
        want = np.concatenate(parts)
        assert nmse(logits, want) < 5e-4
        assert int(logits.argmax()) == int(want.argmax()) == session.state().token
