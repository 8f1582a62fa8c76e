"""Byte-level BPE in plain Python, written from its description, and small vocabularies with files that hold them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import gguf

from engine.vocabulary import Vocabulary

CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
SPECIAL = ("<|end|>", "<|start|>", "<tool>")
"""After the letters and merges of `vocabulary`: two control tokens and a user-defined one."""


def letter(byte: int) -> str:
    """The printable letter of a byte, by counting: bytes without one of their own get U+0100, U+0101, …"""
    own = 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174
    if own:
        return chr(byte)
    return chr(256 + sum(not (33 <= b <= 126 or 161 <= b <= 172 or b >= 174) for b in range(byte)))


def spelled(text: str) -> str:
    """A text in byte-level letters."""
    return "".join(letter(byte) for byte in text.encode())


def _letter(c: str) -> bool:
    return unicodedata.category(c).startswith("L")


def _number(c: str) -> bool:
    return unicodedata.category(c).startswith("N")


def _other(c: str) -> bool:
    return not (c.isspace() or _letter(c) or _number(c))


def _run(text: str, start: int, kind: Callable[[str], bool], most: int | None = None) -> int:
    """The end of the run of characters of a kind that starts here."""
    end = start
    while end < len(text) and kind(text[end]) and (most is None or end - start < most):
        end += 1
    return end


def _spaces(text: str, at: int) -> int:
    """All blanks up to the end, all but the last before a word, one alone."""
    end = _run(text, at, str.isspace)
    return end if end == len(text) or end - at == 1 else end - 1


def words_gpt2(text: str) -> list[str]:
    """An English ending, or a run of letters, digits or other signs with at most one space before; else blanks."""
    found, at = [], 0
    while at < len(text):
        end = next((at + len(c) for c in CONTRACTIONS if text.startswith(c, at)), at)
        first = at + (text[at] == " ")
        for kind in (_letter, _number, _other):
            if end == at and _run(text, first, kind) > first:
                end = _run(text, first, kind)
        end = end if end > at else _spaces(text, at)
        found.append(text[at:end])
        at = end
    return found


def words_by_digit(text: str) -> list[str]:
    """Every digit alone, the text between cut as gpt-2 cuts it."""
    found, at = [], 0
    while at < len(text):
        end = _run(text, at, lambda c: not _number(c))
        found += words_gpt2(text[at:end]) if end > at else [text[at]]
        at = max(end, at + 1)
    return found


def words_modern(text: str, digits: int) -> list[str]:
    """As Llama 3 (digits 3) and Qwen2 (digits 1) cut: any sign but a line end may stand before letters, signs take
    the line ends after them, blanks end with a line end where they hold one."""
    found, at = [], 0
    while at < len(text):
        end = _modern_end(text, at, digits)
        found.append(text[at:end])
        at = end
    return found


def _modern_end(text: str, at: int, digits: int) -> int:
    for contraction in CONTRACTIONS:
        if text[at : at + len(contraction)].casefold() == contraction:
            return at + len(contraction)
    c = text[at]
    first = at + (c not in "\r\n" and not _letter(c) and not _number(c))
    if (end := _run(text, first, _letter)) > first:
        return end
    if (end := _run(text, at, _number, digits)) > at:
        return end
    first = at + (c == " ")
    if (end := _run(text, first, _other)) > first:
        return _run(text, end, lambda c: c in "\r\n")
    blanks = text[at : _run(text, at, str.isspace)]
    if "\n" in blanks or "\r" in blanks:
        return at + 1 + max(blanks.rfind("\n"), blanks.rfind("\r"))
    return _spaces(text, at)


def words_default(text: str) -> list[str]:
    """Runs of punctuation and $+<=>^~| apart, the rest as gpt-2 cuts it, digits in threes from the left."""

    def mark(c: str) -> bool:
        return unicodedata.category(c).startswith("P") or c in "$+<=>^~|"

    found, at = [], 0
    while at < len(text):
        end = _run(text, at, mark)
        pieces = [text[at:end]]
        if end == at:
            end = _run(text, at, lambda c: not mark(c))
            pieces = [part for word in words_gpt2(text[at:end]) for part in _apart(word)]
        found += pieces
        at = end
    return found


def _apart(word: str) -> list[str]:
    """Numbers cut off the space before them; ASCII digits in threes, what is left of them alone."""
    first = next((i for i, c in enumerate(word) if _number(c)), None)
    if first is None:
        return [word]
    found, digits, at = [word[:first]] * bool(first), word[first:], 0
    while at < len(digits):
        three = digits[at : at + 3]
        end = at + 3 if len(three) == 3 and all(c in "0123456789" for c in three) else None
        if end is None:
            end = at + 1
            while end < len(digits) and not (
                len(digits[end : end + 3]) == 3 and all(c in "0123456789" for c in digits[end : end + 3])
            ):
                end += 1
        found.append(digits[at:end])
        at = end
    return found


WORDS: dict[str, Callable[[str], list[str]]] = {
    "gpt-2": words_gpt2,
    "smollm": words_by_digit,
    "qwen2": lambda text: words_modern(text, 1),
    "llama-bpe": lambda text: words_modern(text, 3),
    "default": words_default,
}


def encode(vocabulary: Vocabulary, text: str) -> list[int]:
    """Ids of a text without special tokens: in each word the pair of the lowest rank is joined until none is left."""
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    ranks = {pair: rank for rank, pair in enumerate(vocabulary.merges)}
    found: list[int] = []
    for word in WORDS[vocabulary.pre](text):
        parts = list(spelled(word))
        if vocabulary.pre == "llama-bpe" and "".join(parts) in ids:
            parts = ["".join(parts)]
        while True:
            pairs = [(ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks]
            if not pairs:
                break
            _, at = min(pairs)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        found += [ids[part] for part in parts]
    return found


def vocabulary(merges: list[tuple[str, str]], pre: str = "smollm", **more: object) -> Vocabulary:
    """256 letters, a token for each merge, then `SPECIAL`."""
    joined = [first + second for first, second in merges]
    tokens = tuple(dict.fromkeys([*(letter(b) for b in range(256)), *joined]))
    start = len(tokens)
    given: dict[str, object] = {
        "control": (start, start + 1),
        "user_defined": (start + 2,),
        "bos": start + 1,
        "eos": start,
        "ends": frozenset([start]),
    }
    return Vocabulary(tokens=(*tokens, *SPECIAL), merges=tuple(merges), pre=pre, **(given | more))  # type: ignore[arg-type]


def write(path: Path, words: Vocabulary, *, model: str = "gpt2", **other: object) -> Path:
    """A GGUF file of a vocabulary and nothing else, through the gguf package; `other` replaces or (None) removes
    keys after `tokenizer.ggml.`."""
    types = [3 if i in words.control else 4 if i in words.user_defined else 1 for i in range(len(words.tokens))]
    keys: dict[str, object] = {
        "model": model,
        "pre": words.pre,
        "tokens": list(words.tokens),
        "token_type": types,
        "merges": [" ".join(pair) for pair in words.merges],
        "bos_token_id": words.bos,
        "eos_token_id": words.eos,
        "add_bos_token": words.add_bos,
    } | other
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in keys.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        if value is not None:
            add[type(value)](f"tokenizer.ggml.{key}", value)
    if words.template is not None:
        writer.add_chat_template(words.template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
