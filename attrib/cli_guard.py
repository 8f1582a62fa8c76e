"""What every command shares: how it prints JSON, and one sentence and exit code 2 for an expected failure. A leaf."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import typer

from attrib.errors import AttribError


def print_json(body: dict[str, Any]) -> None:
    """Print one JSON object; `allow_nan` is off, so an unknown that was not made null is an error here."""
    typer.echo(json.dumps(body, indent=1, allow_nan=False, ensure_ascii=False))


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn expected failures into one sentence on stderr and exit code 2."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except AttribError as error:
            typer.echo(f"attrib: {error}", err=True)
            raise typer.Exit(2) from error
        except BrokenPipeError:
            # the reader of a pipe left, nothing is wrong; what is still buffered must not fail at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            typer.echo(f"attrib: {where}{error.strerror or error}", err=True)
            raise typer.Exit(2) from error

    return run
