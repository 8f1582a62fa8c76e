"""What every command does with an expected failure: one sentence on stderr and exit code 2. A leaf."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import typer

from attrib.errors import AttribError


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
