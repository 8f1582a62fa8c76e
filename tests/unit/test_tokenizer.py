"""Text to ids and back: against byte-level BPE in plain Python, and a stream that never shows half a character."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError, ModelError
from engine.tokenizer import BYTE_OF_LETTER, PATTERNS, Stream, Tokenizer
from engine.vocabulary import Vocabulary, read_vocabulary
from tests.helpers import slow_bpe
from tests.helpers.slow_bpe import SPECIAL, spelled, vocabulary, write

HELLO = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("o", "r"), ("Ġw", "or"), ("1", "2")]
LETTERS = "ab cdeſé日本ङि'sStTrRlLvVmM12345٣²Ⅷ.,!?$+<=>^~|_#@\n\r\t 　👩‍😀"
TEXTS = st.text(alphabet=LETTERS, max_size=40)


def tokenizer(pre: str = "smollm", merges: list[tuple[str, str]] = HELLO, **more: object) -> Tokenizer:
    return Tokenizer(vocabulary(merges, pre, **more))


def test_letters_are_those_of_the_plain_definition() -> None:
    assert {slow_bpe.letter(byte): byte for byte in range(256)} == BYTE_OF_LETTER
    assert (spelled(" "), spelled("\n"), spelled("é")) == ("Ġ", "Ċ", "Ã©")


def test_known_encodings() -> None:
    """By hand: `hello` joins he, ll, hell, hello; ` world` joins Ġw, or, Ġwor, then l and d stay."""
    made = tokenizer()
    words = made.vocabulary.tokens
    assert [words[i] for i in made.encode("hello world")] == ["hello", "Ġwor", "l", "d"]
    assert [words[i] for i in made.encode("12")] == ["1", "2"]
    assert [words[i] for i in tokenizer("llama-bpe").encode("12")] == ["12"]
    assert made.encode("") == []


@st.composite
def merges(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Merges of tokens that exist when they are made, of letters that texts have."""
    tokens, found = sorted(set(spelled(LETTERS))), []
    for _ in range(draw(st.integers(0, 25))):
        pair = draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens))
        if "".join(pair) not in tokens:
            found.append(pair)
            tokens.append("".join(pair))
    return found


@pytest.mark.parametrize("pre", slow_bpe.WORDS)
@given(merges=merges(), text=TEXTS)
@settings(max_examples=150, deadline=None)
def test_ids_are_those_of_plain_python(pre: str, merges: list[tuple[str, str]], text: str) -> None:
    made = tokenizer(pre, merges)
    ids = made.encode(text)
    assert ids == slow_bpe.encode(made.vocabulary, text)
    assert b"".join(map(made.token_bytes, ids)).decode() == text


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "it's 12 am\n\n  x", ["it", "'s", " 12", " am", "\n\n ", " x"]),
        ("smollm", "it's 12 am", ["it", "'s", " ", "1", "2", " am"]),
        ("qwen2", "It'S 12(ab)\n\n x", ["It", "'S", " ", "1", "2", "(ab", ")\n\n", " x"]),
        ("qwen2", "x'ſa", ["x", "'ſ", "a"]),
        ("llama-bpe", "x12345 \n y", ["x", "123", "45", " \n", " y"]),
        ("default", "a$b 12345, c", ["a", "$", "b", " ", "123", "45", ",", " c"]),
        ("tekken", "camelCase ABc1", ["camel", "Case", " ABc", "1"]),
    ],
)
def test_words(pre: str, text: str, words: list[str]) -> None:
    """Each word a token: with a token for every word and its prefixes, ids show where the text was cut."""
    pairs = dict.fromkeys((spelled(w)[:i], spelled(w)[i]) for w in words for i in range(1, len(spelled(w))))
    made = tokenizer(pre, list(pairs))
    assert [made.token_bytes(i).decode() for i in made.encode(text)] == words


def test_every_pattern_has_a_test() -> None:
    aliases = {"llama3", "llama-v3", "deepseek-r1-qwen"}
    assert set(PATTERNS) == {*slow_bpe.WORDS, "tekken"} | aliases
    assert PATTERNS["llama3"] == PATTERNS["llama-v3"] == PATTERNS["llama-bpe"]
    assert PATTERNS["deepseek-r1-qwen"] == PATTERNS["qwen2"]


def test_words_that_are_tokens_stay_whole_for_llama_bpe() -> None:
    """`abc` is a token no merge makes: (a, b) alone joins."""
    words = vocabulary([("a", "b")])
    tokens = (*words.tokens, "abc")
    for pre, expected in (("llama-bpe", ["abc"]), ("qwen2", ["ab", "c"])):
        made = Tokenizer(Vocabulary(tokens, words.merges, pre))
        assert [tokens[i] for i in made.encode("abc")] == expected


def test_special_tokens_are_whole_and_control_tokens_are_not_shown() -> None:
    made = tokenizer()
    end, start, tool = (made.vocabulary.tokens.index(text) for text in SPECIAL)
    ids = made.encode("<|start|>hello<tool><|end|>")
    assert ids == [start, *made.encode("hello"), tool, end]
    assert made.decode(ids) == "hello<tool>"
    plain = made.encode("<|start|>hello<tool>", specials=False)
    assert start not in plain
    assert plain[-1] == tool
    assert made.decode(plain) == "<|start|>hello<tool>"
    assert made.encode("<|start|>") == [start]  # the choice above was for one call


def test_the_first_token_comes_once() -> None:
    with_bos, without = tokenizer(add_bos=True), tokenizer()
    bos = with_bos.vocabulary.bos
    assert with_bos.prompt("hello") == [bos, *without.prompt("hello")]
    assert with_bos.prompt("<|start|>hello") == with_bos.prompt("hello")
    assert bos not in without.prompt("hello")
    assert with_bos.prompt("<|start|>", specials=False)[0] == bos


@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=30), pre=st.sampled_from(sorted(PATTERNS)))
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back_in_whole_characters(text: str, pre: str) -> None:
    """No normalization, no byte lost; each piece of the stream ends between characters."""
    made = tokenizer(pre)
    stream, shown = Stream(made), ""
    for token in made.encode(text, specials=False):
        piece = stream.feed(token)
        assert "\ufffd" not in piece or "\ufffd" in text
        shown += piece
        assert text.startswith(shown)
    assert shown + stream.end() == text


@given(data=st.lists(st.integers(0, 255), max_size=20))
@settings(max_examples=200, deadline=None)
def test_bytes_in_any_order_decode_as_they_do_at_once(data: list[int]) -> None:
    """A model may choose bytes that are no UTF-8; they become U+FFFD and nothing else changes."""
    made = tokenizer()
    tokens = [made.vocabulary.tokens.index(slow_bpe.letter(byte)) for byte in data]
    assert made.decode(tokens) == bytes(data).decode("utf-8", "replace")


def test_a_character_over_three_tokens_appears_with_the_last() -> None:
    made = tokenizer()
    stream = Stream(made)
    assert [stream.feed(token) for token in made.encode("日a")] == ["", "", "日", "a"]
    stream = Stream(made)
    assert [stream.feed(token) for token in made.encode("日")[:2]] == ["", ""]
    assert stream.end() == "\ufffd"


def test_tokens_past_the_vocabulary_have_no_text() -> None:
    made = tokenizer()
    assert made.token_bytes(len(made.vocabulary.tokens)) == b""


def test_bytes_without_a_token_are_refused_and_not_left_out() -> None:
    words = vocabulary([])
    kept = tuple(token for token in words.tokens if token != spelled("z"))
    made = Tokenizer(Vocabulary(kept, (), "smollm"))
    with pytest.raises(EngineError, match="no token for byte 0x7a"):
        made.encode("a z")
    with pytest.raises(EngineError, match="lone surrogates"):
        made.encode("\ud800")


def test_what_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ModelError, match=r"pre-tokenizer 'falcon' is not known to the engine; known are default, gpt-2"
    ):
        tokenizer("falcon")
    with pytest.raises(ModelError, match="merges do not fit its tokens"):
        Tokenizer(Vocabulary(("a", "b"), (("a", "x"),), "smollm"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(EngineError, match=r"package tokenizers; pip install 'attrib\[engine\]'"):
        tokenizer()


def test_a_file_gives_back_its_vocabulary(tmp_path: Path) -> None:
    words = vocabulary(HELLO, template="{{ messages }}", add_bos=True)
    assert read_vocabulary(write(tmp_path / "model.gguf", words)) == words


def test_long_arrays_are_read_whole(tmp_path: Path) -> None:
    """A vocabulary of thousands is an array that readers of headers step over."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    pairs = [(a, b + c) for a in letters for b in letters for c in letters]
    words = vocabulary([*((b, c) for b in letters for c in letters), *pairs])
    assert read_vocabulary(write(tmp_path / "model.gguf", words)) == words


def test_defaults_of_absent_keys(tmp_path: Path) -> None:
    words = vocabulary(HELLO)
    found = read_vocabulary(
        write(
            tmp_path / "a.gguf",
            words,
            pre=None,
            token_type=None,
            bos_token_id=None,
            eos_token_id=None,
            add_bos_token=None,
        )
    )
    assert (found.pre, found.control, found.bos, found.eos, found.add_bos) == ("default", (), None, None, False)
    assert found.ends == frozenset()
    assert (found.text(found.bos), found.template) == ("", None)


@pytest.mark.parametrize(
    ("pre", "add_bos"), [("llama-bpe", True), ("tekken", True), ("qwen2", False), ("smollm", False)]
)
def test_the_pre_tokenizer_decides_the_first_token_where_no_key_does(tmp_path: Path, pre: str, add_bos: bool) -> None:
    words = vocabulary(HELLO, pre)
    assert read_vocabulary(write(tmp_path / "a.gguf", words, add_bos_token=None)).add_bos == add_bos
    assert not read_vocabulary(write(tmp_path / "b.gguf", words, add_bos_token=False)).add_bos


def test_every_token_that_ends_a_turn_is_an_end(tmp_path: Path) -> None:
    """eos, eot and the control tokens known to end a turn; a normal token of that spelling is text."""
    tokens = ("a", "</s>", "<|im_end|>", "<|eot_id|>", "<x>", "<y>", "aa")
    words = Vocabulary(tokens, (("a", "a"),), "smollm", control=(2, 3, 4, 5), bos=4, eos=5)
    found = read_vocabulary(write(tmp_path / "a.gguf", words, eot_token_id=0))
    assert found.ends == {5, 0, 2, 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, r"has no tokenizer \(tokenizer\.ggml\.model\)"),
        ({"model": "llama"}, "has tokenizer model 'llama'; the engine reads byte-level BPE"),
        ({"tokens": None}, r"lacks the metadata key tokenizer\.ggml\.tokens"),
        ({"merges": None}, r"lacks the metadata key tokenizer\.ggml\.merges"),
        ({"tokens": [1, 2]}, "is no array of str"),
        ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "has token 'a' twice, as 0 and 2"),
        ({"token_type": [1, 1]}, "259 tokens and 2 token types"),
        ({"merges": ["ab"]}, "merge 0 of .* is 'ab', not two tokens"),
        ({"bos_token_id": 9999}, r"bos_token_id of .* is 9999, outside the vocabulary of 259"),
        ({"bos_token_id": None, "add_bos_token": True}, "sets .*add_bos_token and lacks .*bos_token_id"),
        ({"add_bos_token": 1}, "add_bos_token of .* is no bool"),
    ],
)
def test_contradictions_are_one_sentence(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = write(tmp_path / "model.gguf", vocabulary([]), **change)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=message) as caught:
        read_vocabulary(path)
    assert "\n" not in str(caught.value)
