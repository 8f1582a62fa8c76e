"""Built-in shapes and the q4_k_m recipe against published sizes and layers listed by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from attrib import models
from attrib.errors import AttribError

# first and last eighth, and every third between
Q6_OF_28 = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
Q6_OF_48 = [0, 1, 2, 3, 4, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35, 38, 41, 42, 43, 44, 45, 46, 47]


@pytest.mark.parametrize(("layers", "listed"), [(28, Q6_OF_28), (48, Q6_OF_48)])
def test_layers_with_more_bits(layers: int, listed: list[int]) -> None:
    assert [i for i in range(layers) if models.more_bits(i, layers)] == listed


@pytest.mark.parametrize(
    ("name", "file_gb", "step_gb"), [("qwen2.5-14b", 8.982, 8.5408), ("qwen2.5-7b", 4.677, 4.3692)]
)
def test_total_and_step_bytes(name: str, file_gb: float, step_gb: float) -> None:
    model = models.builtin(name)
    assert sum(t.nbytes for t in model.tensors) / 1e9 == pytest.approx(file_gb, abs=5e-4)
    assert model.step_bytes() / 1e9 == pytest.approx(step_gb, abs=5e-5)
    embedding = model.find("token_embd")
    assert embedding is not None
    rest = sum(t.nbytes for t in model.tensors if t.quant == "f32")  # norms and biases
    assert sum(t.nbytes for t in model.tensors) - embedding.nbytes - rest == model.step_bytes()


def test_bytes_of_single_matrices_by_hand() -> None:
    model = models.builtin("qwen2.5-14b:q4_k_m")
    expected = {
        ("attn_q", 0): 5120 * 5120 // 256 * 144,
        ("attn_k", 7): 1024 * 5120 // 256 * 144,
        ("attn_v", 0): 1024 * 5120 // 256 * 210,
        ("attn_v", 6): 1024 * 5120 // 256 * 144,
        ("ffn_down", 47): 5120 * 13824 // 256 * 210,
        ("ffn_gate", 0): 13824 * 5120 // 256 * 144,
        ("output", None): 152064 * 5120 // 256 * 210,
    }
    for (role, layer), nbytes in expected.items():
        tensor = model.find(role, layer)
        assert tensor is not None
        assert tensor.nbytes == nbytes, (role, layer)
    assert expected["output", None] == 638_668_800
    assert model.find("attn_v", 48) is None
    assert model.find("ffn_gate_up", 0) is None


def quants(name: str, role: str) -> dict[str, int]:
    return dict(Counter(t.quant for t in models.builtin(name).tensors if t.role == role))


def test_rows_that_are_no_whole_super_blocks_fall_back() -> None:
    """896 = 3.5 and 29568 = 115.5 super-blocks of 256; both are whole blocks of 32."""
    small, large = "qwen2.5-0.5b", "qwen2.5-72b"
    assert quants(small, "attn_q") == quants(small, "ffn_gate") == {"q5_0": 24}
    assert quants(small, "attn_v") == {"q8_0": 12, "q5_0": 12}
    assert quants(small, "ffn_down") == {"q6_K": 12, "q4_K": 12}  # 4864 = 19 × 256
    assert quants(small, "token_embd") == {"q8_0": 1}  # the head of a tied model
    assert models.builtin(small).head().name == "token_embd.weight"
    assert quants(large, "ffn_down") == {"q8_0": 40, "q5_0": 40}
    assert quants(large, "ffn_up") == {"q4_K": 80}
    tensor = models.builtin(large).find("ffn_down", 0)
    assert tensor is not None
    assert tensor.nbytes == 8192 * 924 * 34
    assert quants(large, "output") == {"q6_K": 1}


def test_the_70b_class_spends_more_on_attn_v() -> None:
    for name in ("llama-3.1-70b", "qwen2.5-72b"):
        assert quants(name, "attn_v") == {"q6_K": 40, "q5_K": 40}
    assert "q5_K" not in quants("qwen2.5-32b", "attn_v")


@pytest.mark.parametrize("name", sorted(models.shapes()))
def test_every_built_in_model_is_consistent(name: str) -> None:
    model = models.builtin(f"{name}:q4_k_m")
    shape = model.shape
    assert shape.heads % shape.kv_heads == 0
    assert shape.heads * shape.head_dim == shape.hidden or shape.arch == "qwen3"  # its heads are wider
    names = [t.name for t in model.tensors]
    assert len(set(names)) == len(names)
    for tensor in model.tensors:
        assert isinstance(tensor.nbytes, int)
        assert tensor.nbytes > 0
    for role in models.LAYER_ROLES:
        per_layer = [model.find(role, i) for i in range(shape.layers)]
        assert all(t is not None and (t.rows, t.cols) == shape.matrix(role) for t in per_layer)
    assert (model.find("output") is None) == shape.tied
    assert (model.find("attn_q_bias", 0) is not None) == shape.bias
    assert model.head().rows == shape.vocab
    billions = sum(t.rows * t.cols for t in model.tensors) / 1e9
    size = name.rsplit("-", 1)[1]
    told = float(size[:-1]) / {"b": 1, "m": 1000}[size[-1]]
    assert billions == pytest.approx(told, rel=0.24)


def test_files_of_a_split_model_from_any_of_them() -> None:
    names = [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    for name in names:
        assert [p.name for p in models.shard_paths(Path("x") / name)] == names
    assert models.shard_paths(Path("m-1-of-2.gguf")) == (Path("m-1-of-2.gguf"),)
    with pytest.raises(AttribError, match="is named file 4 of 3"):
        models.shard_paths(Path("m-00004-of-00003.gguf"))


def test_blocks_agree_with_the_gguf_package() -> None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    for name, (elements, size, number) in models.BLOCKS.items():
        kind = GGMLQuantizationType(number)
        assert kind.name.lower() == name.lower()
        assert GGML_QUANT_SIZES[kind] == (elements, size)
        assert models.QUANT_OF_GGML[number] == name


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(AttribError, match=r"model 'gpt-5' is not built in; known are llama-2-13b, .*, or give a GGUF"):
        models.builtin("gpt-5:q4_k_m")
    with pytest.raises(AttribError, match="recipe 'q9_z' is not built in; known are q4_k_m"):
        models.builtin("qwen2.5-14b:q9_z")
    with pytest.raises(AttribError, match="quant type 'q9' is unknown"):
        models.matrix_bytes("q9", 1, 256)
    with pytest.raises(AttribError, match="a q4_K row of 896 elements is not a whole number of 256-element blocks"):
        models.matrix_bytes("q4_K", 1, 896)
    shape = models.builtin("qwen2.5-14b").shape
    with pytest.raises(AttribError, match=r"has neither output\.weight nor token_embd\.weight"):
        models.Model(shape, "none", ()).head()


def test_specs_without_recipe_and_in_capitals_are_the_same_model() -> None:
    assert models.builtin("Qwen2.5-14B") == models.builtin("qwen2.5-14b:Q4_K_M")


@pytest.mark.parametrize(("recipe", "bits"), [("bf16", 16), ("f16", 16), ("q8_0", 8.5)])
def test_uniform_recipes_store_every_matrix_alike(recipe: str, bits: float) -> None:
    """7B: 28 layers of (3584 x (3584 + 2 x 512 + 3584) + 3 x 3584 x 18944) weights, and a head of 152064 x 3584."""
    model = models.builtin(f"qwen2.5-7b:{recipe}")
    weights = 28 * 3584 * (3584 + 2 * 512 + 3584 + 3 * 18944) + 152_064 * 3584
    assert model.step_bytes() == weights * bits / 8
    assert {t.quant for t in model.tensors if t.rows > 1} == {recipe}


@pytest.mark.parametrize("quant", models.BLOCKS)
def test_every_type_is_a_recipe_of_its_own(quant: str) -> None:
    wide, narrow = (models.builtin(f"{name}:{quant}") for name in ("qwen2.5-14b", "smollm2-135m"))
    assert {t.quant for t in wide.tensors if t.rows > 1} == {quant}
    taken = {t.quant for t in narrow.tensors if t.role in ("attn_q", "ffn_up")}
    wanted = {"q2_K": "iq4_nl", "q4_K": "q5_0", "q5_K": "q5_1", "q6_K": "q8_0"}.get(quant, quant)
    if quant in ("q3_K", "iq4_xs"):
        wanted = "iq4_nl"
    assert taken == {wanted}  # rows of 576
