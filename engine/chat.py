"""The chat template of a GGUF file: messages to the text a model was tuned on, within a budget."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.errors import EngineError, ModelError
from engine.vocabulary import Vocabulary

Message = dict[str, str]
CPU_SECONDS = 2
"""Processor time of a rendering, its start included; templates of published models take milliseconds."""
CLOCK_SECONDS = 15.0
"""The same on the clock, on a machine that may have other work."""
MEMORY_BYTES = 512 << 20
CHARACTERS = 1 << 20
"""Of the text; above any context that the engine runs."""
_REMEDY = "give a prompt without --chat"


def messages(user: str, system: str | None = None) -> list[Message]:
    """One question, after a system message where there is one."""
    start = [] if system is None else [{"role": "system", "content": system}]
    return [*start, {"role": "user", "content": user}]


def render(vocabulary: Vocabulary, conversation: Sequence[Message]) -> str:
    """The text of a conversation, up to where the assistant's answer begins.

    The template sees what the models' own libraries give it: messages, add_generation_prompt, bos_token,
    eos_token, raise_exception, strftime_now, namespace, range and tojson; it can change nothing and reach nothing
    else, and runs in a process of its own (`chat_render`) with limits of time, memory and length.
    Raises ModelError for a file without template, or one that fails, with the template's own reason, or that passes
    a limit.
    """
    if vocabulary.template is None:
        raise ModelError(f"the file has no chat template (tokenizer.chat_template); {_REMEDY}")
    if find_spec("jinja2") is None:
        raise EngineError("a chat template needs the package jinja2; pip install 'attrib[engine]'")
    variables = {
        "messages": list(conversation),
        "add_generation_prompt": True,
        "bos_token": vocabulary.text(vocabulary.bos),
        "eos_token": vocabulary.text(vocabulary.eos),
    }
    found = _in_a_process(
        {
            "template": vocabulary.template,
            "variables": variables,
            "seconds": CPU_SECONDS,
            "bytes": MEMORY_BYTES,
            "characters": CHARACTERS,
        }
    )
    if "text" in found:
        return str(found["text"])
    raise ModelError(_sentence(found))


def _in_a_process(request: dict[str, Any]) -> dict[str, Any]:
    """What `chat_render` answers, or `time`, or `ended` with the status it died with."""
    # -P: a file of the user's that is called jinja2.py is not imported
    command = [sys.executable, "-P", str(Path(__file__).with_name("chat_render.py"))]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=CLOCK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"time": True}
    if done.returncode:
        return {"time": True} if done.returncode == -signal.SIGXCPU else {"ended": done.returncode}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _sentence(found: dict[str, Any]) -> str:
    """Why there is no text."""
    match found:
        case {"refused": reason}:
            return f"the chat template refuses these messages: {reason}"
        case {"failed": reason}:
            return f"the chat template cannot be rendered: {reason}"
        case {"time": _}:
            limit = f"takes more than {CPU_SECONDS} s"
        case {"memory": _}:
            limit = f"needs more than {MEMORY_BYTES >> 20} MiB of memory"
        case {"length": _}:
            limit = f"writes more than {CHARACTERS:,} characters"
        case _:
            limit = f"made the process that rendered it end with status {found['ended']}"
    return f"the chat template {limit}, as those of published models do not; {_REMEDY}"
