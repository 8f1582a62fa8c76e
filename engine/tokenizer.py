"""Text to token ids and back: byte-level BPE through the `tokenizers` library, and a decoder for streams.

Byte-level BPE writes each byte of a text as one printable letter, cuts the text into words by a pattern that
goes with the vocabulary (`PATTERNS`), and merges letters by rank within each word. No Unicode normalization
is applied, so that decoding gives back the very bytes that were encoded.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from typing import Any

from engine.errors import EngineError, ModelError
from engine.vocabulary import Vocabulary

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDING = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_MODERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{ending}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    + _ENDING.replace(r"[\r\n]*", r"[\r\n/]*", 1)
)
_QWEN2 = _MODERN.format(digits=r"\p{N}", ending=_ENDING)
_LLAMA3 = _MODERN.format(digits=r"\p{N}{1,3}", ending=_ENDING)

PATTERNS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_WORDS,),
    "smollm": (r"\p{N}", _WORDS),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "tekken": (_TEKKEN,),
}
"""Patterns by `tokenizer.ggml.pre`, applied one after another: each cuts every piece into its matches and the
rest. Facts of the models' published tokenizers, `default` as llama.cpp reads files without a name."""
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")
"""Pre-tokenizers whose words that are tokens stay whole, whatever the merges say."""


def _byte_letters() -> dict[str, int]:
    """Byte-level letters: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF_LETTER = _byte_letters()


class Tokenizer:
    """Encodes and decodes with the vocabulary of one file.

    Raises ModelError for a pre-tokenizer without a pattern, or merges that do not fit the tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._library = _library_tokenizer(vocabulary)
        self._special = {*vocabulary.control, *vocabulary.user_defined}

    def encode(self, text: str, *, specials: bool = True) -> list[int]:
        """Token ids of a text, without a first token of its own.

        specials: text that spells a control token becomes that token; otherwise it is plain text. User-defined
        tokens are always found. Raises EngineError for text the vocabulary has no bytes for or that is no Unicode.
        """
        try:
            expected = text.encode()
        except UnicodeEncodeError:
            raise EngineError(
                "the text holds lone surrogates, which no UTF-8 text has; was it read as UTF-8?"
            ) from None
        self._library.encode_special_tokens = not specials
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        # without an unknown token the library leaves out what it has no token for
        if (got := b"".join(map(self.token_bytes, ids))) != expected:
            at = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), len(got))
            raise EngineError(f"the vocabulary has no token for byte 0x{expected[at]:02x} of the text")
        return ids

    def prompt(self, text: str, *, specials: bool = True) -> list[int]:
        """`encode`, after the file's first token where it asks for one and the text does not begin with it."""
        ids = self.encode(text, specials=specials)
        bos = self.vocabulary.bos
        return [bos, *ids] if self.vocabulary.add_bos and bos is not None and ids[:1] != [bos] else ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for, a special token's own text; none for ids past the vocabulary."""
        return self._bytes[token] if token < len(self._bytes) else b""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of all tokens, control tokens left out; bytes that are no UTF-8 become U+FFFD."""
        stream = Stream(self)
        return "".join(map(stream.feed, tokens)) + stream.end()

    @cached_property
    def _bytes(self) -> tuple[bytes, ...]:
        return tuple(self._spelled(i, text) for i, text in enumerate(self.vocabulary.tokens))

    def _spelled(self, token: int, text: str) -> bytes:
        if token in self._special or not all(letter in BYTE_OF_LETTER for letter in text):
            return text.encode()
        return bytes(BYTE_OF_LETTER[letter] for letter in text)

    @cached_property
    def control(self) -> frozenset[int]:
        """Ids of control tokens, which are never shown."""
        return frozenset(self.vocabulary.control)


class Stream:
    """Decodes tokens as they come. What it returns is whole characters: a character that is spread over tokens
    is held until its last byte is there."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The characters this token completes; nothing for a control token."""
        return "" if token in self._tokenizer.control else self._decoder.decode(self._tokenizer.token_bytes(token))

    def end(self) -> str:
        """U+FFFD for bytes of a character that never became whole."""
        return self._decoder.decode(b"", final=True)


def _library_tokenizer(vocabulary: Vocabulary) -> Any:
    patterns = PATTERNS.get(vocabulary.pre)
    if patterns is None:
        known = ", ".join(PATTERNS)
        raise ModelError(f"pre-tokenizer {vocabulary.pre!r} is not known to the engine; known are {known}")
    try:
        library = import_module("tokenizers")
    except ImportError as error:
        raise EngineError("text needs the package tokenizers; pip install 'attrib[engine]'") from error
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    try:
        model = library.models.BPE(
            vocab=ids, merges=list(vocabulary.merges), ignore_merges=vocabulary.pre in _WHOLE_WORDS
        )
    # the library raises bare Exception for merges of tokens that are not in the vocabulary
    except Exception as error:
        raise ModelError(f"the vocabulary's merges do not fit its tokens: {error}") from error
    made = library.Tokenizer(model)
    cut = library.pre_tokenizers
    splits = [cut.Split(library.Regex(pattern), "isolated") for pattern in patterns]
    made.pre_tokenizer = cut.Sequence([*splits, cut.ByteLevel(add_prefix_space=False, use_regex=False)])

    def added(tokens: tuple[int, ...], *, special: bool) -> list[Any]:
        return [library.AddedToken(vocabulary.tokens[t], special=special, normalized=False) for t in tokens]

    made.add_special_tokens(added(vocabulary.control, special=True))
    made.add_tokens(added(vocabulary.user_defined, special=False))
    return made
