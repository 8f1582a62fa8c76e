"""The vocabulary of a GGUF file: tokens, merges, special tokens and the rules of a prompt's first token.

Token types follow the GGUF specification: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attrib.models import shard_paths
from engine.errors import ModelError
from engine.ggufheader import metadata

BYTE_LEVEL_MODEL = "gpt2"
DEFAULT_PRE = "default"
_CONTROL, _USER_DEFINED = 3, 4
# files of chat models often name only one end in their keys; these control tokens end a turn in all of them
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "</s>")
# pre-tokenizers whose prompts start with a first token unless the file says otherwise
_STARTS_WITH_BOS = ("llama-bpe", "llama3", "llama-v3", "tekken")


@dataclass(frozen=True)
class Vocabulary:
    """What a file says about text.

    tokens: by id, as stored (byte-level letters for normal tokens, the text itself for special ones).
    merges: pairs of tokens, the first is merged first. pre: name of the rule that cuts text into words.
    control, user_defined: ids of special tokens. ends: ids after which a generation is over.
    bos: the id a text starts with where add_bos is set. template: the chat template, where there is one.
    """

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    pre: str
    control: tuple[int, ...] = ()
    user_defined: tuple[int, ...] = ()
    bos: int | None = None
    eos: int | None = None
    ends: frozenset[int] = frozenset()
    add_bos: bool = False
    template: str | None = None

    def text(self, token: int | None) -> str:
        """A special token's text, empty for no token; what templates call bos_token and eos_token."""
        return "" if token is None else self.tokens[token]


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF file, or of the first file of a split model.

    Raises ModelError for a file without one, of another tokenizer model, or that contradicts itself.
    """
    return _Reading(path, metadata(shard_paths(path)[0], "tokenizer.")).vocabulary()


class _Reading:
    def __init__(self, path: Path, found: dict[str, Any]) -> None:
        self.path = path
        self.found = found

    def vocabulary(self) -> Vocabulary:
        model = self._get("model", str)
        if model is None:
            raise ModelError(f"{self.path} has no tokenizer (tokenizer.ggml.model); give token ids with --tokens")
        if model != BYTE_LEVEL_MODEL:
            raise ModelError(
                f"{self.path} has tokenizer model {model!r}; the engine reads byte-level BPE ({BYTE_LEVEL_MODEL!r}) "
                "only, so give token ids with --tokens"
            )
        tokens = tuple(self._items("tokens", str))
        self._refuse_repeated(tokens)
        types = self._items("token_type", int) if "tokenizer.ggml.token_type" in self.found else [1] * len(tokens)
        if len(types) != len(tokens):
            raise ModelError(f"{self.path} has {len(tokens)} tokens and {len(types)} token types")
        pre = self._get("pre", str) or DEFAULT_PRE
        control = tuple(i for i, kind in enumerate(types) if kind == _CONTROL)
        bos, eos = self._token("bos_token_id", tokens), self._token("eos_token_id", tokens)
        add_bos = self._get("add_bos_token", bool)
        if add_bos and bos is None:
            raise ModelError(f"{self.path} sets tokenizer.ggml.add_bos_token and lacks tokenizer.ggml.bos_token_id")
        named = (eos, self._token("eot_token_id", tokens), self._token("eom_token_id", tokens))
        return Vocabulary(
            tokens=tokens,
            merges=tuple(self._merge(i, text) for i, text in enumerate(self._items("merges", str))),
            pre=pre,
            control=control,
            user_defined=tuple(i for i, kind in enumerate(types) if kind == _USER_DEFINED),
            bos=bos,
            eos=eos,
            ends=frozenset([*(t for t in named if t is not None), *(i for i in control if tokens[i] in _ENDS)]),
            add_bos=pre in _STARTS_WITH_BOS and bos is not None if add_bos is None else add_bos,
            template=self._get("chat_template", str, "tokenizer."),
        )

    def _get(self, key: str, kind: type, prefix: str = "tokenizer.ggml.") -> Any:
        """A single value, None where the file has none; raises ModelError for one of another type."""
        value = self.found.get(prefix + key)
        if value is None or type(value) is kind:
            return value
        raise ModelError(f"metadata key {prefix}{key} of {self.path} is no {kind.__name__}")

    def _items(self, key: str, kind: type) -> list[Any]:
        value = self._get(key, list)
        if value is None:
            raise ModelError(f"{self.path} lacks the metadata key tokenizer.ggml.{key}")
        if value and type(value[0]) is not kind:
            raise ModelError(f"metadata key tokenizer.ggml.{key} of {self.path} is no array of {kind.__name__}")
        return list(value)

    def _refuse_repeated(self, tokens: tuple[str, ...]) -> None:
        if len(set(tokens)) == len(tokens):
            return
        seen: dict[str, int] = {}
        for i, token in enumerate(tokens):
            if token in seen:
                raise ModelError(f"{self.path} has token {token!r} twice, as {seen[token]} and {i}")
            seen[token] = i

    def _token(self, key: str, tokens: tuple[str, ...]) -> int | None:
        value = self._get(key, int)
        if value is None or 0 <= value < len(tokens):
            return None if value is None else int(value)
        raise ModelError(f"tokenizer.ggml.{key} of {self.path} is {value}, outside the vocabulary of {len(tokens)}")

    def _merge(self, i: int, text: str) -> tuple[str, str]:
        """A merge as stored: two tokens with a space between; byte-level letters are never a space."""
        first, space, second = text.partition(" ")
        if not (first and space and second):
            raise ModelError(f"merge {i} of {self.path} is {text!r}, not two tokens with a space between")
        return first, second
