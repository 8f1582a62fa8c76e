"""Rules: launches become matrices in the order of a layer, or the first that cannot be one is named."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from attrib import models, rules
from attrib.errors import JoinError
from attrib.models import BLOCKS, Model, Tensor
from attrib.rules import Assigned, Candidate

MODEL = models.builtin("qwen2.5-14b:q4_k_m")
BOOKS = {book.name: book for book in rules.builtin_rules()}
LLAMA_CPP = BOOKS["llama.cpp"]
QVK = ("attn_q", "attn_v", "attn_k", "attn_output", "ffn_gate+ffn_up", "ffn_down")
QKV = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate+ffn_up", "ffn_down")
APART = ("attn_q", "attn_v", "attn_k", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def launch(position: int, tensor: Tensor, rows_per_block: int = 1) -> Candidate:
    number = BLOCKS[tensor.quant][2]
    full = f"void mul_mat_vec_q<(ggml_type){number}, (int)1, (bool)1>(const void *)"
    return Candidate(position, "mul_mat_vec_q", full, -(-tensor.rows // rows_per_block))


def step(order: Sequence[str], model: Model = MODEL, rows_per_block: int = 1) -> list[Candidate]:
    """The launches of a decode step, every third position of it."""

    def tensors() -> Iterable[Tensor]:
        for layer in range(model.shape.layers):
            for role in order:
                tensor = model.find(role.partition("+")[0], layer)
                assert tensor is not None
                yield tensor
        yield model.head()

    return [launch(3 * i, tensor, rows_per_block) for i, tensor in enumerate(tensors())]


@pytest.mark.parametrize("order", [QVK, QKV, APART])
@pytest.mark.parametrize("rows_per_block", [1, 2, 4])
def test_every_matrix_of_every_order(order: tuple[str, ...], rows_per_block: int) -> None:
    found = rules.plan(LLAMA_CPP, step(order, rows_per_block=rows_per_block), MODEL)
    assert list(found) == list(range(0, 3 * (48 * len(order) + 1), 3))
    assert sum(a.nbytes for a in found.values()) == MODEL.step_bytes()
    for place, role in enumerate(order):
        for layer in (0, 6, 47):
            parts = [MODEL.find(part, layer) for part in role.split("+")]
            nbytes = sum(t.nbytes for t in parts if t is not None)
            quant = parts[0].quant if parts[0] is not None else ""
            name = "ffn_gate_up" if "+" in role else role
            assert found[3 * (layer * len(order) + place)] == Assigned(name, layer, quant, nbytes)
    assert found[3 * 48 * len(order)] == Assigned("output", None, "q6_K", 638_668_800)


def test_v_before_k_or_after_it_is_told_by_the_type() -> None:
    """K and V have the same shape; in a layer where V is q6_K only one order fits."""
    for order in (QVK, QKV):
        found = rules.plan(LLAMA_CPP, step(order), MODEL)
        assert [found[3 * i].role for i in range(6)] == [rules.FUSED.get(role, role) for role in order]
        assert found[3 * order.index("attn_v")].quant == "q6_K"


def test_a_tied_head_is_the_embedding() -> None:
    model = models.builtin("llama-3.2-1b")
    found = rules.plan(LLAMA_CPP, step(QVK, model), model)
    assert found[3 * 16 * 6] == Assigned("output", None, "q6_K", 128256 * 2048 // 256 * 210)


def refusal(candidates: Sequence[Candidate], model: Model = MODEL, book: rules.Rules = LLAMA_CPP) -> str:
    with pytest.raises(JoinError) as error:
        rules.plan(book, candidates, model)
    return str(error.value)


def test_an_impossible_shape_names_the_launch() -> None:
    candidates = step(QVK)
    candidates[9] = replace(candidates[9], grid_x=5121)
    text = refusal(candidates)
    assert "launch 27 (mul_mat_vec_q, grid 5121), type q4_K, cannot be blk.1.attn_output.weight with 5,120 rows" in text
    assert "9 of 289 launches fitted before it" in text
    assert "check --model or give --rules or --bytes" in text


def test_an_impossible_type_names_the_launch() -> None:
    candidates = step(QVK)
    candidates[-1] = replace(candidates[-1], full=candidates[-1].full.replace("14", "12"))
    text = refusal(candidates)
    assert (
        "launch 864 (mul_mat_vec_q, grid 152064), type q4_K, cannot be output.weight with 152,064 rows of q6_K" in text
    )
    assert "288 of 289" in text


def test_too_few_and_too_many_launches() -> None:
    assert "has 288 weight-streaming launches and the order needs 289" in refusal(step(QVK)[:-1])
    candidates = step(QVK)
    text = refusal([*candidates, replace(candidates[-1], position=999)])
    assert "has 290 weight-streaming launches and the order needs 289" in text


def test_another_model_is_refused_at_its_first_launch() -> None:
    text = refusal(step(QVK, models.builtin("qwen2.5-7b")))
    assert "do not fit model qwen2.5-14b: launch 0 (mul_mat_vec_q, grid 3584), type q4_K" in text
    assert "blk.0.attn_q.weight with 5,120 rows of q4_K" in text


def test_a_role_the_model_lacks() -> None:
    book = replace(LLAMA_CPP, layers=(("attn_qkv", *QVK[3:]),))
    assert "launch 0 (mul_mat_vec_q, grid 5120) would be attn_qkv of layer 0, which the model does not have" in refusal(
        step(QVK), book=book
    )


def test_a_fused_qkv_is_the_sum_of_its_parts() -> None:
    book = replace(LLAMA_CPP, layers=(("attn_q+attn_k+attn_v",),), tail=(), streams=LLAMA_CPP.streams)
    candidates = [launch(i, MODEL.tensors[2]) for i in range(48)]
    found = rules.plan(book, [replace(c, grid_x=5120, full="void f<(ggml_type)12>()") for c in candidates], MODEL)
    assert found[0].role == "attn_qkv"
    assert found[0].nbytes == (5120 + 1024) * 2880 + 1024 * 4200  # a q4_K row of 5120 is 2880 B, a q6_K one 4200
    assert found[6].nbytes == (5120 + 2 * 1024) * 2880


@pytest.mark.parametrize(
    ("argument", "quant"),
    [
        ("(ggml_type)12", "q4_K"),
        ("(ggml_type)14", "q6_K"),
        ("14", "q6_K"),
        ("(ggml_type)99", None),
        ("float", "f32"),
        ("__half", "f16"),
        ("nv_bfloat16", "bf16"),
        ("T1", None),
    ],
)
def test_types_from_template_arguments(argument: str, quant: str | None) -> None:
    stream = LLAMA_CPP.streams[0]
    assert rules.quant_of(stream, f"void mul_mat_vec_q<{argument}, (int)1>(int)") == quant


def test_a_type_that_the_name_does_not_hold_is_taken_from_the_model() -> None:
    stream = LLAMA_CPP.streams[0]
    assert rules.quant_of(stream, "mul_mat_vec_q") is None
    assert rules.quant_of(replace(stream, quant=None), "void f<(ggml_type)12>()") is None
    untyped = [replace(c, full="mul_mat_vec_q") for c in step(QVK)]
    assert sum(a.nbytes for a in rules.plan(LLAMA_CPP, untyped, MODEL).values()) == MODEL.step_bytes()


def test_only_the_named_functions_are_streams() -> None:
    for name in ("mul_mat_vec_q", "mul_mat_vec", "mul_mat_vec_f"):
        assert LLAMA_CPP.stream(name) is not None
    for name in ("quantize_q8_1", "my_mul_mat_vec_q", "mul_mat_vec_q_moe", "mul_mat_q"):
        assert LLAMA_CPP.stream(name) is None


GOOD = """
name = "mine"
[[stream]]
function = "gemv"
[[layer]]
roles = ["attn_q"]
"""


def test_a_rule_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    found = rules.load(path)
    assert (found.name, found.layers, found.tail, found.kv) == ("mine", (("attn_q",),), (), ())
    assert (found.streams[0].quant, found.streams[0].rows_per_block) == (None, (1,))
    assert (found.kernels, found.about, found.order) == ((), "", rules.ORDER)


@pytest.mark.parametrize(
    "text",
    {
        "no TOML": "name = ",
        "no name": GOOD.replace('name = "mine"', ""),
        "no rules": '[[layer]]\nroles = ["attn_q"]\nname = "x"',
        "kernel without a pattern": 'name = "x"\n[[kernel]]\ncategory = "norm"',
        "kernel without a category": 'name = "x"\n[[kernel]]\nfunction = "f"',
        "kernel of no category": 'name = "x"\n[[kernel]]\ncategory = "idle"\nfunction = "f"',
        "bad name pattern": 'name = "x"\n[[kernel]]\ncategory = "norm"\nname = "("',
        "kernel is a text": 'name = "x"\nkernel = "norm"',
        "order is a text": 'order = "first"\n' + GOOD,
        "rows per block is a word": GOOD.replace("[[layer]]", 'rows_per_block = "all"\n[[layer]]'),
        "no layer": GOOD.partition("[[layer]]")[0],
        "empty layers": "layer = []\n" + GOOD.partition("[[layer]]")[0],
        "bad pattern": GOOD.replace("gemv", "("),
        "pattern is a number": GOOD.replace('"gemv"', "5"),
        "quant is text": GOOD.replace("[[layer]]", 'quant = "0"\n[[layer]]'),
        "no rows per block": GOOD.replace("[[layer]]", "rows_per_block = [0]\n[[layer]]"),
        "rows per block is text": GOOD.replace("[[layer]]", 'rows_per_block = ["2"]\n[[layer]]'),
        "rows per block is no list": GOOD.replace("[[layer]]", "rows_per_block = 2\n[[layer]]"),
        "roles are numbers": GOOD.replace('["attn_q"]', "[1]"),
        "roles are a text": GOOD.replace('["attn_q"]', '"attn_q"'),
        "tail is a text": 'tail = "output"\n' + GOOD,
        "kv is a text": 'kv = "flash"\n' + GOOD,
        "stream is a text": GOOD.replace('[[stream]]\nfunction = "gemv"', 'stream = "gemv"'),
        "stream of texts": GOOD.replace('[[stream]]\nfunction = "gemv"', 'stream = ["gemv"]'),
        "deep nesting": "a = " + "[" * 5000,
    }.items(),
    ids=lambda item: item[0],
)
def test_a_broken_rule_file_is_named(text: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text(text[1])
    with pytest.raises(JoinError, match=r"rule file .*broken\.toml (is not valid: |has no '(name|category|layer)')"):
        rules.load(path)


def test_a_rule_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(JoinError, match="cannot be read: No such file"):
        rules.load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(JoinError, match="is not UTF-8 text"):
        rules.load(tmp_path / "latin.toml")


MINE = """
name = "mine"
about = "a test"
order = 1
[[kernel]]
category = "rope"
function = "^quantize_q8_1$"
[[kernel]]
category = "norm"
function = "^reduce$"
name = "Mean"
"""


def test_a_given_file_is_asked_before_those_shipped() -> None:
    mine = rules.parse(MINE, "mine.toml")
    books = rules.in_effect(mine)
    assert books[0] is mine
    assert books[1:] == rules.builtin_rules()
    assert rules.category(books, "quantize_q8_1", "quantize_q8_1(int)") == "rope"
    assert rules.category(rules.in_effect(None), "quantize_q8_1", "quantize_q8_1(int)") == "quantize"


def test_function_and_name_must_both_match() -> None:
    books = (rules.parse(MINE, "mine.toml"),)
    found = rules.match(books, "reduce", "void reduce<MeanOps>(int)")
    assert found is not None
    assert found[1].category == "norm"
    assert rules.match(books, "reduce", "void reduce<SumOps>(int)") is None
    assert rules.match(books, "other", "void other<MeanOps>(int)") is None


def test_a_kernel_no_rule_knows_is_told_by_its_words() -> None:
    assert rules.category(rules.builtin_rules(), "my_rms_norm", "my_rms_norm(int)") == "norm"
    assert rules.category(rules.builtin_rules(), "kernel_17", "kernel_17(int)") == "other"


def test_shipped_files_are_tried_in_their_order() -> None:
    assert [book.order for book in rules.builtin_rules()] == sorted(book.order for book in rules.builtin_rules())
    assert rules.builtin_rules()[-1].name == "pytorch"


@pytest.mark.parametrize(
    "order",
    [
        ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
        ("attn_q+attn_k+attn_v", "attn_output", "ffn_gate+ffn_up", "ffn_down"),
    ],
)
def test_library_kernels_are_placed_by_order_alone(order: tuple[str, ...]) -> None:
    """Any grid will do, and the count decides which of the two orders it is."""
    count = 48 * len(order) + 1
    candidates = [Candidate(i, "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT", "nvjet_hsh_64x8_64x16", 132) for i in range(count)]
    found = rules.plan(BOOKS["pytorch"], candidates, MODEL)
    assert sum(a.nbytes for a in found.values()) == MODEL.step_bytes()
    assert [found[i].role for i in range(len(order))] == [rules.FUSED.get(role, role) for role in order]
    assert f"has {count - 1} weight-streaming launches" in refusal(candidates[:-1], book=BOOKS["pytorch"])


def test_rules_of_kernels_alone_give_no_bytes() -> None:
    assert "say what kernels are, not which matrix they stream" in refusal(step(QVK), book=BOOKS["nccl"])


DOCS = (Path(__file__).resolve().parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
INDENTED = [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", DOCS, re.MULTILINE)]
EXAMPLES = [block.strip() for block in INDENTED if "[[" in block]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_docs_are_rule_files(example: str) -> None:
    text = example if example.startswith("name") else f'name = "example"\n{example}'
    found = rules.parse(text, "docs/rules.md")
    assert found.kernels or found.streams


def test_the_docs_name_every_shipped_file_and_key() -> None:
    assert len(EXAMPLES) == 3
    assert set(re.findall(r"^\| `([\w.-]+)` \| .* \| .* \|$", DOCS, re.MULTILINE)) >= set(BOOKS)
