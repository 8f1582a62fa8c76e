"""What every command shares: how it prints JSON, and one sentence and exit code 2 for an expected failure. A leaf.

A command that was asked for JSON prints one object about its failure on stdout too: schema `attrib.error/1`, the
sentence as `error`, the exit code as `exit`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import typer

from attrib.errors import AttribError
from attrib.files import interruptible
from attrib.words import WIDTH, wrapped

ERROR_SCHEMA = "attrib.error/1"
JSON_OPTION = "--json"
UNUSABLE = 2
"""Exit code for input that cannot be used."""
# what the parser raises for a mistake in the arguments; typer hands out only its subclasses
_ParseError: type[Exception] = typer.BadParameter.__mro__[2]


def print_json(body: dict[str, Any]) -> None:
    """Print one JSON object; `allow_nan` is off, so an unknown that was not made null is an error here."""
    typer.echo(json.dumps(body, indent=1, allow_nan=False, ensure_ascii=False))


def say(text: str) -> None:
    """Print what is no table in lines of the tables' width."""
    typer.echo(wrapped(text))


def _failed(message: str, code: int) -> None:
    """Print the failure's object where JSON was asked for."""
    if JSON_OPTION in sys.argv[1:]:
        print_json({"schema": ERROR_SCHEMA, "error": message, "exit": code})


def entry(app: typer.Typer) -> None:
    """Run the program and exit; a mistake in the arguments is told as the parser tells it, and in JSON if asked for."""
    try:
        with interruptible():
            code = app(standalone_mode=False)
    except _ParseError as error:
        mistake: Any = error
        code = mistake.exit_code
        _failed(mistake.format_message(), code)
        mistake.show()
    except typer.Abort:
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn expected failures into one sentence on stderr and exit code 2."""

    def refuse(message: str) -> typer.Exit:
        _failed(message, UNUSABLE)
        sentence = f"attrib: {message}"
        if sys.stderr.isatty():  # a program that reads the sentence wants it on one line
            sentence = wrapped(sentence, min(WIDTH, shutil.get_terminal_size().columns))
        typer.echo(sentence, err=True)
        return typer.Exit(UNUSABLE)

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except AttribError as error:
            raise refuse(str(error)) from error
        except BrokenPipeError:
            # the reader of a pipe left, nothing is wrong; what is still buffered must not fail at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise refuse(f"{where}{error.strerror or error}") from error

    return run
