"""The chat template of a GGUF file, rendered in a sandbox: messages to the text a model was tuned on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from typing import Any, NoReturn

from engine.errors import EngineError, ModelError
from engine.vocabulary import Vocabulary

Message = dict[str, str]
_LONGEST_REASON = 200


class _RefusedByTemplateError(Exception):
    """The template itself called raise_exception."""


def messages(user: str, system: str | None = None) -> list[Message]:
    """One question, after a system message where there is one."""
    start = [] if system is None else [{"role": "system", "content": system}]
    return [*start, {"role": "user", "content": user}]


def render(vocabulary: Vocabulary, conversation: Sequence[Message]) -> str:
    """The text of a conversation, up to where the assistant's answer begins.

    The template sees what the models' own libraries give it: messages, add_generation_prompt, bos_token,
    eos_token, raise_exception, strftime_now and tojson; it can change nothing and reach nothing else.
    Raises ModelError for a file without template or one that fails, with the template's own reason.
    """
    if vocabulary.template is None:
        raise ModelError("the file has no chat template (tokenizer.chat_template); give a prompt without --chat")
    environment = _environment()
    try:
        return str(
            environment.from_string(vocabulary.template).render(
                messages=list(conversation),
                add_generation_prompt=True,
                bos_token=vocabulary.text(vocabulary.bos),
                eos_token=vocabulary.text(vocabulary.eos),
            )
        )
    except _RefusedByTemplateError as error:
        raise ModelError(f"the chat template refuses these messages: {_line(error)}") from error
    # a template is a program from a file: besides Jinja's errors it can raise whatever its expressions do
    except Exception as error:
        raise ModelError(f"the chat template cannot be rendered: {type(error).__name__}: {_line(error)}") from error


def _environment() -> Any:
    try:
        sandbox = import_module("jinja2.sandbox")
    except ImportError as error:
        raise EngineError("a chat template needs the package jinja2; pip install 'attrib[engine]'") from error
    # trimmed blocks and loop controls are what the templates of published models are written for
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    environment.filters["tojson"] = _to_json
    return environment


def _refuse(reason: object) -> NoReturn:
    raise _RefusedByTemplateError(reason)


def _now(form: str) -> str:
    """The local date and time; some templates put today's date into the system message."""
    return datetime.now().strftime(form)


def _to_json(value: Any, indent: int | None = None) -> str:
    """JSON as it is, where Jinja's own filter escapes it for a web page."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:_LONGEST_REASON]
