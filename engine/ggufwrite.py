"""A synthetic model as a GGUF file that other engines load, with the weights a session fills from a seed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import gguf
import numpy as np

from attrib.models import BLOCKS, Tensor
from engine import driver, module
from engine.config import ModelConfig
from engine.errors import CudaError, ModelError
from engine.quant_blocks import Bytes
from engine.repack import from_gpu, gpu_bytes
from engine.synth import fill_tensor, host_rows, specs_for

Source = Callable[[Tensor], Bytes]
_NORMAL, _CONTROL = 1, 3
_FILE_TYPES = {"f32": "ALL_F32", "q3_k": "MOSTLY_Q3_K_S", "q4_k": "MOSTLY_Q4_K_S", "q5_k": "MOSTLY_Q5_K_S"}


def write(config: ModelConfig, path: Path, source: Source, done: Callable[[int], None]) -> int:
    """Write every tensor of a model with metadata and a synthetic tokenizer; returns the file's bytes.

    source gives a tensor's stored rows, done is told each tensor's bytes. The file appears whole or
    not at all. Raises ModelError when it cannot be written.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    except OSError as error:
        raise ModelError(f"GGUF file {path} cannot be written: {error.strerror}") from error
    os.close(handle)
    try:
        writer = gguf.GGUFWriter(temporary, config.model.shape.arch)
        _metadata(writer, config)
        for tensor in config.model.tensors:
            kind = gguf.GGMLQuantizationType(BLOCKS[tensor.quant][2])
            dims = (tensor.cols,) if _is_vector(tensor) else (tensor.rows, tensor.cols)
            writer.add_tensor_info(tensor.name, dims, np.dtype(np.float32), tensor.nbytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in config.model.tensors:
            writer.write_tensor_data(source(tensor))
            done(tensor.nbytes)
        writer.close()
        Path(temporary).replace(path)
    except OSError as error:
        raise ModelError(f"GGUF file {path} cannot be written: {error.strerror}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)
    return path.stat().st_size


def _is_vector(tensor: Tensor) -> bool:
    return tensor.role.endswith(("_norm", "_bias"))


def _metadata(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    s = config.model.shape
    writer.add_name(f"{s.name} ({config.source})")
    writer.add_file_type(file_type(config.model.recipe))
    writer.add_quantization_version(2)
    writer.add_block_count(s.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(s.hidden)
    writer.add_feed_forward_length(s.ffn)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_rope_dimension_count(s.head_dim)
    writer.add_rope_freq_base(s.rope_theta)
    writer.add_layer_norm_rms_eps(s.norm_eps)
    writer.add_vocab_size(s.vocab)
    tokens = vocabulary(s.vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([_NORMAL] * (len(tokens) - 1) + [_CONTROL])
    writer.add_token_merges([f"{a} {b}" for a, b in (("a", "b"),) if s.vocab > 256])
    writer.add_bos_token_id(s.vocab - 1)
    writer.add_eos_token_id(s.vocab - 1)
    writer.add_add_bos_token(False)


def file_type(recipe: str) -> int:
    """The `general.file_type` of a recipe: what llama.cpp calls a file of mostly this type, or a guess (1024)."""
    name = _FILE_TYPES.get(recipe, f"MOSTLY_{recipe.upper()}")
    return int(getattr(gguf.LlamaFileType, name, gguf.LlamaFileType.GUESSED))


def vocabulary(size: int) -> list[str]:
    """`size` distinct tokens: the 256 bytes in GPT-2's printable alphabet, `ab`, fillers, an end of text.

    The alphabet maps printable Latin-1 to itself and each other byte to the next code point from 256 on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    alphabet = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
    fillers = (f"<filler_{i}>" for i in range(size))
    tokens = [*alphabet, "ab"][: size - 1]
    tokens += [next(fillers) for _ in range(size - 1 - len(tokens))]
    return [*tokens, "<|endoftext|>"]


def from_host(config: ModelConfig) -> Source:
    """Weights made on the host."""
    return lambda tensor: host_rows(config, tensor, 0, tensor.rows)


@contextmanager
def best_source(config: ModelConfig, ordinal: int = 0) -> Iterator[tuple[Source, str]]:
    """(source, what makes the weights): the GPU where there is one, otherwise the host."""
    with ExitStack() as stack:
        try:
            gpu = stack.enter_context(driver.open_gpu(ordinal))
        except CudaError:
            yield from_host(config), "host"
            return
        on = stack.enter_context(driver.stream())
        kernels = stack.enter_context(module.load(specs_for(config), gpu.arch))
        sizes = {t.name: gpu_bytes(t.quant, t.rows, t.cols) for t in config.model.tensors}
        room = stack.enter_context(driver.allocation(max(sizes.values()), "the largest tensor"))

        def make(tensor: Tensor) -> Bytes:
            fill_tensor(kernels, config, tensor, room, on)
            raw = np.empty(sizes[tensor.name], np.uint8)
            driver.download(raw, room, on)
            driver.synchronize(on)
            return from_gpu(tensor.quant, raw.reshape(tensor.rows, -1), tensor.cols)

        yield make, gpu.name
