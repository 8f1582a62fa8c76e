"""Models from GGUF files, written here by the `gguf` package: shapes and bytes, or one sentence about the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter

from attrib import ggufmodel
from attrib.attribution import load_model
from attrib.errors import JoinError
from tests.helpers import small_step

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 256, 512, 4, 2, 64, 300


def write(path: Path, omit: tuple[str, ...] = (), tensors: dict[str, Any] | None = None, **extra: Any) -> Path:
    """A one-layer qwen2 model of zeros; `omit` leaves out keys or tensors, `extra` adds integer keys."""
    writer = GGUFWriter(str(path), "qwen2")
    fields: dict[str, Any] = {
        "block_count": 1, "embedding_length": HIDDEN, "feed_forward_length": FFN, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, **extra,
    }  # fmt: skip
    for key, value in fields.items():
        if key in omit:
            continue
        if isinstance(value, list):
            writer.add_array(f"qwen2.{key}", value)
        else:
            writer.add_uint32(f"qwen2.{key}", value)
    writer.add_float32("qwen2.rope.freq_base", 1e6)
    matrices: dict[str, tuple[int, int, Type]] = {
        "token_embd.weight": (VOCAB, HIDDEN, Type.Q4_K),
        "output.weight": (VOCAB, HIDDEN, Type.Q6_K),
        "blk.0.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN, Type.Q4_K),
        "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN, Type.Q6_K),
        "blk.0.ffn_down.weight": (HIDDEN, FFN, Type.Q6_K),
        **(tensors or {}),
    }
    for name, (rows, cols, kind) in matrices.items():
        if name not in omit:
            sizes = {Type.Q4_K: 144, Type.Q6_K: 210, Type.TQ2_0: 66}
            writer.add_tensor(name, np.zeros((rows, cols // 256 * sizes[kind]), np.uint8), raw_dtype=kind)
    if "bias" not in omit:
        writer.add_tensor("blk.0.attn_q.bias", np.zeros(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_shapes_and_stored_bytes(tmp_path: Path) -> None:
    model = ggufmodel.load(write(tmp_path / "tiny.gguf"))
    shape = model.shape
    assert (shape.name, shape.arch, model.recipe) == ("tiny", "qwen2", "gguf")
    assert (shape.layers, shape.hidden, shape.ffn, shape.vocab) == (1, HIDDEN, FFN, VOCAB)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (HEADS, KV_HEADS, HEAD_DIM)
    assert (shape.tied, shape.bias, shape.rope_theta) == (False, True, 1e6)
    expected = {
        ("attn_q", 0): ("q4_K", 256 * 144),
        ("attn_v", 0): ("q6_K", 128 * 210),
        ("ffn_down", 0): ("q6_K", 256 * 2 * 210),
        ("output", None): ("q6_K", 300 * 210),
        ("attn_q_bias", 0): ("f32", 1024),
    }
    for (role, layer), (quant, nbytes) in expected.items():
        tensor = model.find(role, layer)
        assert tensor is not None
        assert (tensor.quant, tensor.nbytes) == (quant, nbytes)
    assert model.step_bytes() == 256 * 144 + 128 * 210 + 512 * 210 + 300 * 210
    assert load_model(str(tmp_path / "tiny.gguf")) == model


def test_a_tied_model_without_bias_and_kv_heads(tmp_path: Path) -> None:
    omit = ("output.weight", "bias", "attention.head_count_kv")
    model = ggufmodel.load(write(tmp_path / "tied.gguf", omit))
    assert (model.shape.tied, model.shape.bias, model.shape.kv_heads) == (True, False, HEADS)
    assert model.head().name == "token_embd.weight"


def test_a_head_length_of_its_own(tmp_path: Path) -> None:
    assert ggufmodel.load(write(tmp_path / "t.gguf", **{"attention.key_length": 128})).shape.head_dim == 128


def test_a_split_model_is_one_model_from_any_file(tmp_path: Path) -> None:
    whole = ggufmodel.load(write(tmp_path / "whole.gguf"))
    first = write(tmp_path / "m-00001-of-00002.gguf", ("output.weight",))
    second = write(tmp_path / "m-00002-of-00002.gguf", tuple(t.name for t in whole.tensors if t.role != "output"))
    for path in (first, second):
        model = ggufmodel.load(path)
        assert {t.name: t.nbytes for t in model.tensors} == {t.name: t.nbytes for t in whole.tensors}
        assert not model.shape.tied
    second.unlink()
    with pytest.raises(JoinError, match=r"m-00002-of-00002\.gguf cannot be read: No such file"):
        ggufmodel.load(first)


def refusal(path: Path) -> str:
    with pytest.raises(JoinError) as error:
        ggufmodel.load(path)
    assert path.name in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("omit", "said"),
    [
        (("block_count",), r"has no qwen2.block_count"),
        (("attention.head_count",), r"has no qwen2.attention.head_count"),
        (("token_embd.weight",), "has no token_embd.weight, so it is not a decoder model"),
    ],
)
def test_what_is_missing_is_named(omit: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in refusal(write(tmp_path / "m.gguf", omit))


def test_heads_that_are_a_list_or_zero_are_refused(tmp_path: Path) -> None:
    assert "attention.head_count_kv" in refusal(write(tmp_path / "a.gguf", **{"attention.head_count_kv": [2, 2]}))
    assert "attention.head_count" in refusal(write(tmp_path / "b.gguf", **{"attention.head_count": 0}))


@pytest.mark.parametrize("layers", [2, 1000, 2**31, 2**32 - 1])
def test_more_layers_than_the_tensors_are_of(layers: int, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", block_count=layers)
    said = refusal(path)
    assert said == f"GGUF file {path}: qwen2.block_count is {layers}, and it has the tensors of 1"


def test_a_layer_far_up_is_no_layer_for_every_number_below(tmp_path: Path) -> None:
    name = f"blk.{2**32 - 2}.attn_q.weight"
    path = write(tmp_path / "m.gguf", tensors={name: (256, 256, Type.Q4_K)}, block_count=2**32 - 1)
    assert "block_count is 4294967295, and it has the tensors of 2" in refusal(path)


@pytest.mark.parametrize(
    "key",
    ["block_count", "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv"],
)
def test_no_number_of_a_file_makes_a_census_hang(key: str, tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    model = write(tmp_path / "m.gguf", **{key: 2**32 - 1})
    command = [sys.executable, "-m", "attrib", "census", trace, "--model", model]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in ended.stderr
    assert ended.returncode in (0, 2)


def test_an_unsupported_type_names_the_tensor(tmp_path: Path) -> None:
    path = write(tmp_path / "t.gguf", tensors={"blk.0.ffn_up.weight": (FFN, HIDDEN, Type.TQ2_0)})
    assert "tensor blk.0.ffn_up.weight has the unsupported type" in refusal(path)


def test_files_that_are_no_gguf(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.gguf").read_bytes()
    assert "cannot be read: No such file" in refusal(tmp_path / "none.gguf")
    for name, content in (("empty", b""), ("other", b"PK\x03\x04" * 20)):
        (tmp_path / f"{name}.gguf").write_bytes(content)
        assert "is not a GGUF file (wrong magic)" in refusal(tmp_path / f"{name}.gguf")
    for size in (4, 10, 24, 100, len(whole) // 2):
        (tmp_path / f"cut{size}.gguf").write_bytes(whole[:size])
        assert "is damaged" in refusal(tmp_path / f"cut{size}.gguf")
    (tmp_path / "folder.gguf").mkdir()
    assert "cannot be read: Is a directory" in refusal(tmp_path / "folder.gguf")
