"""GGUF files that are cut, damaged or contradict themselves: one sentence, no large allocation, no other error."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

from attrib.models import Model, ModelShape, recipe_tensors
from engine.cli import app
from engine.config import ModelConfig, of_model
from engine.errors import ModelError
from engine.gguf import Reader, read_config
from engine.ggufheader import LongArray, metadata, parse
from engine.ggufwrite import from_host, write
from tests.helpers.gguf_bytes import entry, header, pair, text

TINY = ModelShape("tiny", "qwen2", 2, 256, 512, 4, 2, 64, 1500, False, True, 1e6, 1e-6)
HERE = Path("x.gguf")


def config_of(**changes: Any) -> ModelConfig:
    shape = replace(TINY, **changes)
    return of_model(Model(shape, "q4_k_m", tuple(recipe_tensors(shape))))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small valid file."""
    path, config = tmp_path_factory.mktemp("gguf") / "whole.gguf", config_of()
    write(config, path, from_host(config), lambda done: None)
    return path.read_bytes()


def said(data: bytes) -> str:
    """The sentence about a header, reached without allocating more than a megabyte."""
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as refused:
            parse(data, HERE)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def boundaries(path: Path) -> Iterator[int]:
    """Where a section of a file ends, as the gguf package sees it: magic, version, counts, pairs, tensors, data."""
    yield from (0, 3, 4, 7, 8, 15, 16, 23, 24)
    reader = gguf.GGUFReader(path)
    starts = [field.offset for field in reader.fields.values()]
    starts += [tensor.field.offset for tensor in reader.tensors]
    yield from (at + step for at in starts for step in (0, 5, 9))
    yield from (reader.data_offset - 1, reader.data_offset)
    for tensor in reader.tensors:
        yield from (tensor.data_offset, tensor.data_offset + tensor.n_bytes - 1)


def test_a_file_cut_at_any_boundary_is_refused(whole: bytes, source: Path) -> None:
    parse(whole, HERE)
    sentences = {at: said(whole[:at]) for at in boundaries(source)}
    assert len(sentences) > 150
    assert all("cut short" in s or "claims" in s or "not a GGUF file" in s for s in sentences.values()), sentences
    kinds = {s.partition("tensor ")[0] for s in sentences.values()}
    assert "GGUF file x.gguf is cut short: it ends within its metadata" in kinds
    assert "GGUF file x.gguf is cut short: it ends within its table of tensors" in kinds


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"GGML" + header()[4:], "is not a GGUF file: it starts with b'GGML'"),
        (header(version=1), "has version 1; the engine reads little-endian files of versions 2 and 3"),
        (header(version=4), "has version 4"),
        (header(version=3 << 24), "is big-endian"),
        (header(counts=(2**63, 0)), "claims 9223372036854775808 tensors"),
        (header(counts=(0, 2**64 - 1)), "claims 18446744073709551615 metadata pairs"),
        (header(pairs=(struct.pack("<Q", 2**62),)), "ends within its metadata"),
        (header(pairs=(pair("k", 8, struct.pack("<Q", 2**40)),)), "ends within its metadata"),
        (header(pairs=(pair("k", 9, struct.pack("<IQ", 4, 2**61)),)), "claims 2305843009213693952 items of k"),
        (header(pairs=(pair("k", 9, struct.pack("<IQ", 8, 2**61)),)), "claims 2305843009213693952 items of k"),
        (header(pairs=(pair("k", 9, struct.pack("<IQ", 8, 2000) + text("a") * 1999 + b"\xff" * 8),)), "ends within"),
        (header(pairs=(pair("k", 9, struct.pack("<IQ", 8, 2000) + b"\xff" * 8),)), "ends within its metadata"),
        (header(pairs=(pair("k", 9, struct.pack("<IQ", 9, 1)),)), "an array of arrays"),
        (header(pairs=(pair("k", 77, b""),)), "has value type 77, which GGUF does not define"),
        (header(pairs=(pair("k", 4, bytes(4)), pair("k", 4, bytes(4)))), "metadata key k twice"),
        (header(pairs=(pair("k", 8, struct.pack("<Q", 2) + b"\xff\xfe"),)), "that is not UTF-8"),
        (header(pairs=(pair("general.alignment", 4, struct.pack("<I", 24)),)), "general.alignment 24, not a power of"),
        (header(pairs=(pair("general.alignment", 4, bytes(4)),)), "general.alignment 0"),
        (header(pairs=(pair("general.alignment", 8, text("32")),)), "general.alignment '32'"),
        (header(entry(sizes=())), "has 0 dimensions, not 1 to 4"),
        (header(entry(sizes=(1, 1, 1, 1, 1))), "has 5 dimensions"),
        (header(text("a") + struct.pack("<I", 2**31) + bytes(40)), "has 2147483648 dimensions"),
        (header(entry(sizes=(32, 0))), "is 0 × 32, whose rows are no whole blocks of f32"),
        (header(entry(sizes=(48,), kind=2)), "is 48, whose rows are no whole blocks of q4_0"),
        (header(entry(sizes=(2**63, 2))), "is cut short: tensor a.weight ends at byte"),
        (header(entry(sizes=(2**32, 2**32))), "is cut short: tensor a.weight ends at byte"),
        (header(entry(sizes=(32, 513))), "is cut short: tensor a.weight ends at byte"),
        (header(entry(offset=16)), "tensor a.weight of x.gguf is at offset 16, no multiple of 32"),
        (header(entry(offset=2**63)), "is cut short"),
        (header(entry(), entry("b")), "tensors a.weight and b of x.gguf share bytes"),
        (header(entry("b", offset=128), entry(sizes=(64,))), "tensors a.weight and b of x.gguf share bytes"),
        (header(entry(), entry(offset=128)), "has two tensors named a.weight"),
        (header(entry("n" * 65)), "which is no tensor name"),
        (header(entry("a\nb")), "which is no tensor name"),
        (header(entry(kind=26)), "tensor a.weight of x.gguf has type I32; the engine reads f32, f16, q4_0"),
        (header(entry(sizes=(256,), kind=16)), "tensor a.weight of x.gguf has type IQ2_XXS"),
        (header(entry(kind=4)), "has type number 4"),
    ],
)
def test_damage_is_one_sentence(data: bytes, sentence: str) -> None:
    assert sentence in said(data)


def test_what_a_valid_header_says() -> None:
    many = pair("t.many", 9, struct.pack("<IQ", 5, 2000) + np.arange(2000, dtype="<i4").tobytes())
    names = pair("t.names", 9, struct.pack("<IQ", 8, 1500) + text("é") * 1500)
    small = pair("t.small", 9, struct.pack("<IQ3f", 6, 3, 1, 2, 3))
    flag, wide = pair("u.flag", 7, b"\1"), pair("u.wide", 10, struct.pack("<Q", 2**64 - 1))
    data = header(entry("a", (64, 3), 8), entry("b", (5,), 0, 224), pairs=(many, names, small, flag, wide), version=2)
    found = parse(data, HERE)
    assert found.fields["t.many"] == LongArray(2000)
    assert found.fields["t.names"] == LongArray(1500)
    assert found.fields["t.small"] == [1, 2, 3]
    assert found.fields["u.flag"] is True
    assert found.fields["u.wide"] == 2**64 - 1
    a, b = found.tensors
    assert (a.quant, a.sizes, a.first, a.end) == ("q8_0", (64, 3), found.data_start, found.data_start + 3 * 68)
    assert (b.quant, b.end - b.first) == ("f32", 20)


def test_long_arrays_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    names = pair("t.names", 9, struct.pack("<IQ", 8, 1500) + text("é") * 1500)
    path = tmp_path / "m.gguf"
    path.write_bytes(header(pairs=(names, pair("u", 4, bytes(4)))))
    assert metadata(path, "t.") == {"t.names": ["é"] * 1500}


@pytest.mark.parametrize("content", [b"", b"G", b"GGUF\x01\0\0\0"])
def test_the_command_line_says_it_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["bench", str(path)])
    assert isinstance(result.exception, ModelError)
    assert "damaged.gguf" in str(result.exception)


# --- models ---

Edit = Callable[[gguf.GGUFWriter], None]


def rewritten(source: Path, path: Path, *, drop: str = "", change: Edit = lambda w: None, **tensors: Any) -> Path:
    """A copy of a file without the keys that end in `drop`, with `change` applied and tensors replaced by arrays."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or (drop and name.endswith(drop)):
            continue
        kind, item = field.types[0], field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, item)
    change(writer)
    for tensor in reader.tensors:
        key = tensor.name.replace(".", "_")
        data, kind = tensors.get(key, tensor.data), tensor.tensor_type
        if key in tensors and data is None:
            continue
        raw = None if data.dtype in (np.float32, np.float16) else kind
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def source(whole: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "source.gguf"
    path.write_bytes(whole)
    return path


def test_a_rewritten_file_is_the_same_model(source: Path, tmp_path: Path) -> None:
    assert read_config(rewritten(source, tmp_path / "source.gguf")).model == read_config(source).model


def test_absent_keys_take_the_formats_defaults(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    bare = source
    for i, key in enumerate(("rope.freq_base", "attention.key_length", "attention.value_length", "dimension_count")):
        bare = rewritten(bare, tmp_path / f"{i}.gguf", drop=key)
    bare.rename(path)
    shape = read_config(path).model.shape
    assert (shape.rope_theta, shape.head_dim) == (10000.0, 64)
    without = rewritten(source, tmp_path / "kv.gguf", drop="head_count_kv")
    with pytest.raises(ModelError, match=r"blk\.0\.attn_k\.weight is 128 × 256; the metadata says 256 × 256"):
        read_config(without)


def with_key(key: str, value: object) -> Edit:
    def add(writer: gguf.GGUFWriter) -> None:
        kind = {int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32, str: gguf.GGUFValueType.STRING}
        writer.add_key_value(f"qwen2.{key}", value, kind[type(value)])

    return add


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("attention.value_length", 128, "attention.value_length 128 and a head size of 64; they must be equal"),
        ("rope.dimension_count", 32, "rope.dimension_count 32 and a head size of 64"),
        ("attention.key_length", 96, "attention.value_length 64 and a head size of 96"),
        ("vocab_size", 1501, "vocab_size 1501 and embedding rows 1500"),
        ("attention.head_count_kv", 3, "has 4 heads, no multiple of 3 KV heads"),
        ("block_count", 1, r"has tensor blk\.1\.\S+ and 1 layers in its metadata"),
        ("block_count", 2**31 - 1, r"lacks tensor blk\.2\.attn_q\.weight"),
        ("block_count", 0, "block_count of .* is 0, not a positive number"),
        ("feed_forward_length", 1.5, "feed_forward_length of .* is 1.5, not a positive number"),
        ("rope.freq_base", float("nan"), "rope.freq_base of .* is nan, not a positive number"),
        ("attention.layer_norm_rms_epsilon", -1.0, "is -1.0, not a positive number"),
        ("rope.scaling.type", "yarn", r"qwen2\.rope\.scaling\.type 'yarn', which the engine does not compute"),
        ("attention.sliding_window", 512, r"attention\.sliding_window 512, which the engine does not compute"),
        ("expert_count", 8, r"expert_count 8, which"),
        ("embedding_length", 320, r"is 1500 × 256; the metadata says 1500 × 320|blk.0.\S+ is"),
    ],
)
def test_contradictions_and_what_is_not_computed_are_named(
    source: Path, tmp_path: Path, key: str, value: object, sentence: str
) -> None:
    path = rewritten(source, tmp_path / "odd.gguf", drop=f".{key}", change=with_key(key, value))
    with pytest.raises(ModelError, match=sentence):
        read_config(path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"arch": "gemma3"}, "has architecture 'gemma3'; the engine runs qwen2, qwen3, llama, mistral"),
        ({"head_dim": 96}, "has heads of 96 dimensions; the attention kernels take 64 or 128"),
    ],
)
def test_models_without_kernels_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        config_of(**changes)


def test_a_cube_is_no_matrix(source: Path, tmp_path: Path) -> None:
    values = np.zeros((2, 64, 256), np.float32)
    path = rewritten(source, tmp_path / "cube.gguf", blk_0_attn_k_weight=values)
    with pytest.raises(ModelError, match=r"blk\.0\.attn_k\.weight of .* has 3 dimensions; matrices have two"):
        read_config(path)


def test_a_window_as_long_as_the_context_changes_nothing(source: Path, tmp_path: Path) -> None:
    path = rewritten(source, tmp_path / "wide.gguf", change=with_key("attention.sliding_window", 32768))
    assert read_config(path).context == 32768


def test_norms_and_biases_must_be_f32_and_complete(source: Path, tmp_path: Path) -> None:
    path = rewritten(source, tmp_path / "half.gguf", blk_1_attn_norm_weight=np.ones(256, np.float16))
    with pytest.raises(ModelError, match=r"tensor blk\.1\.attn_norm\.weight has type f16; norms, biases and rope"):
        read_config(path)
    path = rewritten(source, tmp_path / "partial.gguf", blk_1_attn_k_bias=None)
    with pytest.raises(ModelError, match=r"lacks tensor blk\.1\.attn_k\.bias"):
        read_config(path)
    path = rewritten(source, tmp_path / "short.gguf", blk_0_attn_v_bias=np.zeros(64, np.float32))
    with pytest.raises(ModelError, match=r"blk\.0\.attn_v\.bias is 1 × 64; the metadata says 1 × 128"):
        read_config(path)


def test_scales_that_are_no_numbers_are_found_when_rows_are_read(source: Path, tmp_path: Path) -> None:
    tensor = next(t for t in gguf.GGUFReader(source).tensors if t.name == "blk.0.attn_q.weight")
    data = np.array(tensor.data)
    data[77, 2:4] = np.array([np.nan], np.float16).view(np.uint8)  # dmin of a q4_K block
    path = rewritten(source, tmp_path / "nan.gguf", blk_0_attn_q_weight=data)
    config, reader = read_config(path), Reader(path)
    found = config.model.find("attn_q", 0)
    assert found is not None
    assert reader.rows(found, 0, 77).shape == (77, 144)
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.weight of .*nan\.gguf has a block scale in row 77 that is"):
        reader.rows(found, 60, 40)
    norm = np.ones(256, np.float32)
    norm[3] = np.inf
    path = rewritten(source, tmp_path / "inf.gguf", output_norm_weight=norm)
    with pytest.raises(ModelError, match=r"output_norm\.weight of .* has a value in row 0 that is not finite"):
        Reader(path).rows(read_config(path).model.find("output_norm"), 0, 1)  # type: ignore[arg-type]


def split(
    whole: Path, folder: Path, count: int, change: Callable[[int, gguf.GGUFWriter], None] | None = None
) -> list[Path]:
    """A file cut into `count` files, tensors dealt out in order, as llama.cpp's splitter names and marks them."""
    reader = gguf.GGUFReader(whole)
    each, made = -(-len(reader.tensors) // count), []
    for number in range(count):
        path = folder / f"m-{number + 1:05}-of-{count:05}.gguf"
        writer = gguf.GGUFWriter(path, "qwen2")
        if number == 0:
            for name, field in reader.fields.items():
                if not name.startswith("GGUF.") and name != "general.architecture":
                    item = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                    writer.add_key_value(name, field.contents(), field.types[0], item)
        values = {"split.no": number, "split.count": count, "split.tensors.count": len(reader.tensors)}
        for key, value in values.items():
            kind = gguf.GGUFValueType.INT32 if key == "split.tensors.count" else gguf.GGUFValueType.UINT16
            writer.add_key_value(key, value, kind)
        if change:
            change(number, writer)
        for tensor in reader.tensors[number * each : (number + 1) * each]:
            raw = None if tensor.data.dtype == np.float32 else tensor.tensor_type
            writer.add_tensor(tensor.name, np.ascontiguousarray(tensor.data), raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        made.append(path)
    return made


def test_a_split_model_is_the_whole_one_from_any_file(source: Path, tmp_path: Path) -> None:
    files = split(source, tmp_path, 3)
    want, one = read_config(source), Reader(source)
    for path in files:
        found = read_config(path)
        assert found.model.tensors == want.model.tensors
        assert found.model.shape == replace(want.model.shape, name=path.stem)
        for name in ("token_embd.weight", "blk.1.ffn_down.weight", "output.weight"):
            assert Reader(path).stored(name).tobytes() == one.stored(name).tobytes()


def test_files_missing_or_out_of_order_are_named(source: Path, tmp_path: Path) -> None:
    files = split(source, tmp_path, 3)
    second = files[1].read_bytes()
    files[1].unlink()
    with pytest.raises(ModelError, match=r"split over 3 files and file 2, .*m-00002-of-00003\.gguf, is missing"):
        read_config(files[2])
    files[1].write_bytes(files[2].read_bytes())
    with pytest.raises(ModelError, match=r"m-00002-of-00003\.gguf says it is file 2 \(split\.no, from 0\)"):
        read_config(files[0])
    files[1].write_bytes(second)
    read_config(files[0])
    alone = tmp_path / "alone.gguf"
    alone.write_bytes(second)
    with pytest.raises(ModelError, match=r"alone\.gguf says its model has split\.count 3 and its name says 1"):
        read_config(alone)
    whole = tmp_path / "x-00001-of-00001.gguf"
    whole.write_bytes(source.read_bytes())
    assert read_config(whole).model.tensors == read_config(source).model.tensors
