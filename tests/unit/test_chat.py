"""Chat templates: what they see, what they cannot do, and how their failures read."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine import chat
from engine.chat import messages, render
from engine.errors import EngineError, ModelError
from engine.vocabulary import Vocabulary
from tests.helpers.chat_templates import CHATML, PUBLISHED
from tests.helpers.slow_bpe import vocabulary


def using(template: str | None) -> Vocabulary:
    return vocabulary([], template=template)


def rendered(template: str) -> str:
    return render(using(template), messages("Hi"))


def test_a_question_with_and_without_a_system_message() -> None:
    assert render(using(CHATML), messages("Hi")) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(using(CHATML), messages("Hi", "Be brief.")) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_templates_built_as_published_ones_are(name: str) -> None:
    published = PUBLISHED[name]
    assert render(using(published.template), messages("Hi")) == published.alone
    if published.after_system is None:
        with pytest.raises(ModelError, match="refuses these messages"):
            render(using(published.template), messages("Hi", "Be brief."))
    else:
        assert render(using(published.template), messages("Hi", "Be brief.")) == published.after_system


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
        ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "cannot be rendered: RecursionError"),
        ("{{ lipsum(n=10**6) }}", "cannot be rendered: UndefinedError: 'lipsum' is undefined"),
        ("{{ cycler(1) }}", "cannot be rendered: UndefinedError: 'cycler' is undefined"),
        ("{{ joiner() }}", "cannot be rendered: UndefinedError: 'joiner' is undefined"),
    ],
)
def test_failures_are_one_sentence(template: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        rendered(template)
    assert "\n" not in str(caught.value)


def test_a_file_without_template_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"no chat template .* give a prompt without --chat"):
        render(using(None), messages("Hi"))
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(EngineError, match=r"package jinja2; pip install 'attrib\[engine\]'"):
        rendered("x")


def test_the_conversation_is_left_as_it_was() -> None:
    talk = messages("Hi")
    with pytest.raises(ModelError):
        render(using("{% set _ = messages[0].update({'content': 'x'}) %}"), talk)
    assert talk == [{"role": "user", "content": "Hi"}]


TIME = "takes more than 1 s"
MEMORY = f"needs more than {chat.MEMORY_BYTES >> 20} MiB of memory"
EITHER = f"{TIME}|{MEMORY}"
LENGTH = f"writes more than {chat.CHARACTERS:,} characters"
NESTED = "{% for i in range(99999) %}" * 4
HOSTILE = {
    "loops in loops": (NESTED + "{% endfor %}" * 4, TIME),
    "loops in loops that write": (NESTED + "x" + "{% endfor %}" * 4, LENGTH),
    "a power": ("{{ 7 ** (7 ** 11) }}", TIME),
    "a power with a name": ("{% set n = messages | length + 6 %}{{ n ** (n ** 11) }}", TIME),
    "a search": ("{{ ('a' * 4000000 + 'b') | replace('a' * 2000000 + 'c', '') | length * 0 }}" * 999, TIME),
    "a long string": ("{{ 'x' * 10 ** 9 }}", MEMORY),
    "a long string that is not written": ("{% set n = 10 ** 9 %}{% set x = 'x' * n %}", MEMORY),
    "a long list": ("{{ ([0] * 10 ** 9) | length }}", MEMORY),
    "a string doubled": (
        "{% set s = namespace(x='x') %}{% for i in range(60) %}{% set s.x = s.x + s.x %}{% endfor %}",
        EITHER,
    ),
    "a width": ("{{ '%1000000000d' % 1 }}", MEMORY),
    "a width of format": ("{{ '{:1000000000d}'.format(1) }}", MEMORY),
    "a filter's width": ("{{ 'x' | center(10 ** 9) }}", MEMORY),
    "a method's width": ("{{ 'x'.ljust(10 ** 9) }}", MEMORY),
    "an indent of JSON": ("{{ [1] | tojson(indent=10 ** 9) }}", MEMORY),
    "an indent": ("{{ 'x\ny' | indent(10 ** 9) }}", MEMORY),
    "a join": ("{{ range(99999) | join('x' * 9999) }}", MEMORY),
    "a replacement": ("{{ ('x' * 99999) | replace('x', 'y' * 99999) }}", MEMORY),
    "a date": ("{{ strftime_now('%A' * 10 ** 8) }}", EITHER),
    "a sentence of refusal": ("{{ raise_exception('x' * 10 ** 9) }}", MEMORY),
    "a long text": ("{% for i in range(9999) %}{{ 'x' * 1000 }}{% endfor %}", LENGTH),
    "a long template": ("x" * (chat.CHARACTERS + 1), LENGTH),
    "deep brackets": ("{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}", "RecursionError"),
    "deep blocks": ("{% if true %}" * 9999 + "{% endif %}" * 9999, "RecursionError"),
    "endless macros": (
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
        "cannot be rendered: RecursionError",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_template_takes_more_than_its_budget(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "CPU_SECONDS", 1)
    template, expected = HOSTILE[kind]
    begun = time.monotonic()
    with pytest.raises(ModelError, match=expected) as caught:
        rendered(template)
    assert time.monotonic() - begun < 10
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_template_that_waits_is_ended_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "CLOCK_SECONDS", 0.001)
    with pytest.raises(ModelError, match="takes more than 2 s"):
        rendered("x")


def test_a_process_that_ends_otherwise_is_told_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess("", -11, b"", b""))
    with pytest.raises(ModelError, match="end with status -11, as those of published models do not; give a prompt"):
        rendered("x")


def test_the_process_holds_neither_numbers_nor_a_gpu() -> None:
    """What a template could reach from a broken sandbox, and what would make each start slow."""
    program = Path(chat.__file__).with_name("chat_render.py")
    code = f"import runpy, sys; runpy.run_path({str(program)!r}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "cuda", "engine", "attrib"} & {name.partition(".")[0] for name in loaded.split()}


def test_a_long_conversation_is_rendered() -> None:
    assert len(render(using(CHATML), messages("x" * 500_000))) > 500_000
