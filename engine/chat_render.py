"""Renders one chat template, in a process of its own: JSON on standard input, JSON on standard output.

A template is a program from a file. Jinja's sandbox keeps it from reaching anything; it does not keep it from running
for hours or asking for terabytes, which the operating system does here, whatever the expression. Imports no package of
this project, so that it starts fast and holds nothing worth taking.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any, NoReturn

from jinja2.sandbox import ImmutableSandboxedEnvironment

_LONGEST_REASON = 200
_UNUSED = ("lipsum", "cycler", "joiner")
"""Jinja's own globals that no published template calls."""


class _RefusedByTemplateError(Exception):
    """The template itself called raise_exception."""


class _TooLongError(Exception):
    """The text passed the number of characters it may have."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """`{"text": …}`, or the one of `refused`, `failed`, `memory` and `length` that tells why there is none.

    request: template, variables, and the most characters the text may have.
    """
    try:
        pieces = _environment().from_string(request["template"]).generate(**request["variables"])
        return {"text": _joined(pieces, request["characters"])}
    except _TooLongError:
        return {"length": True}
    except MemoryError:
        return {"memory": True}
    except _RefusedByTemplateError as error:
        return {"refused": _line(error)}
    # besides Jinja's errors a template can raise whatever its expressions do
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {_line(error)}"}


def _joined(pieces: Iterable[str], most: int) -> str:
    found, length = [], 0
    for piece in pieces:
        length += len(piece)
        if length > most:
            raise _TooLongError
        found.append(piece)
    return "".join(found)


def _environment() -> ImmutableSandboxedEnvironment:
    # trimmed blocks and loop controls are what the templates of published models are written for
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    for name in _UNUSED:
        del environment.globals[name]
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


def limit(seconds: int, nbytes: int) -> None:
    """Give this process a budget of processor time and of address space, for good.

    The system ends the process at the first, whatever code is running, and refuses memory beyond the second. macOS
    keeps only the first; where neither exists, the caller's clock is the limit.
    """
    try:
        import resource  # noqa: PLC0415 - absent on some systems
    except ImportError:
        return
    budgets = (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, seconds, seconds + 1),  # the signal of the first tells why; the second cannot be ignored
        (resource.RLIMIT_AS, nbytes, nbytes),
    )
    for kind, *wanted in budgets:
        _, hard = resource.getrlimit(kind)
        soft, last = (most if hard == resource.RLIM_INFINITY else min(most, hard) for most in wanted)
        with suppress(ValueError, OSError):  # macOS keeps no limit of address space
            resource.setrlimit(kind, (soft, last))


def main() -> None:
    """One request, one answer."""
    request = json.load(sys.stdin)
    limit(request["seconds"], request["bytes"])
    try:
        found = answer(request)
    except MemoryError:  # again while the first was being told
        found = {"memory": True}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
