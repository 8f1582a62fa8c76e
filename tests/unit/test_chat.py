"""Chat templates: what they see, what they cannot do, and how their failures read."""

from __future__ import annotations

import re
import sys

import pytest

from engine.chat import messages, render
from engine.errors import EngineError, ModelError
from engine.vocabulary import Vocabulary
from tests.helpers.slow_bpe import vocabulary

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def using(template: str | None) -> Vocabulary:
    return vocabulary([], template=template)


def rendered(template: str) -> str:
    return render(using(template), messages("Hi"))


def test_a_question_with_and_without_a_system_message() -> None:
    assert render(using(CHATML), messages("Hi")) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(using(CHATML), messages("Hi", "Be brief.")) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_a_template_sees() -> None:
    assert rendered("{{ bos_token }}{{ eos_token }}{{ messages | length }}") == "<|start|><|end|>1"
    assert rendered("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert rendered("{{ [1] | tojson(indent=1) }}") == "[\n 1\n]"
    assert re.fullmatch(r"\d{4}-\d\d", rendered("{{ strftime_now('%Y-%m') }}"))
    assert rendered("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"


def test_blocks_leave_no_blank_lines() -> None:
    assert rendered("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_a_file_without_tokens_of_its_own_gives_empty_ones() -> None:
    bare = vocabulary([], template="[{{ bos_token }}{{ eos_token }}]", bos=None, eos=None)
    assert render(bare, messages("Hi")) == "[]"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles\n must alternate') }}", "refuses these messages: roles must alternate$"),
        ("{% if %}", "cannot be rendered: TemplateSyntaxError"),
        ("{{ absent.field }}", "cannot be rendered: UndefinedError: 'absent' is undefined"),
        ("{{ messages[0]['content'] + 1 }}", "cannot be rendered: TypeError"),
        ("{{ 1 // 0 }}", "cannot be rendered: ZeroDivisionError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "cannot be rendered: SecurityError"),
        ("{{ messages.append(1) }}", "cannot be rendered: SecurityError"),
        ("{% for i in range(10**9) %}{% endfor %}", "cannot be rendered: OverflowError"),
        ("{% include 'x' %}", "cannot be rendered: TypeError: no loader"),
    ],
)
def test_failures_are_one_sentence(template: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        rendered(template)
    assert "\n" not in str(caught.value)


def test_a_file_without_template_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"no chat template .* give a prompt without --chat"):
        render(using(None), messages("Hi"))
    monkeypatch.setitem(sys.modules, "jinja2.sandbox", None)
    with pytest.raises(EngineError, match=r"package jinja2; pip install 'attrib\[engine\]'"):
        rendered("x")


def test_the_conversation_is_left_as_it_was() -> None:
    talk = messages("Hi")
    with pytest.raises(ModelError):
        render(using("{% set _ = messages[0].update({'content': 'x'}) %}"), talk)
    assert talk == [{"role": "user", "content": "Hi"}]
