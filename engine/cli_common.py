"""What the engine's commands share: options, how results are printed or written, how failures end."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from attrib.errors import AttribError
from engine.errors import EngineError, GateFailedError

ModelArg = Annotated[str, typer.Argument(help="A GGUF file, or a built-in model: 7b, 14b, qwen2.5-14b:q4_k_m, …")]
BuildOpt = Annotated[str, typer.Option(help="Engine build, a table in engine/builds.")]
SeedOpt = Annotated[int, typer.Option(help="Seed of synthetic weights.")]
GpuOpt = Annotated[int, typer.Option(help="Number of the GPU.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def emit(document: dict[str, Any], as_json: bool, lines: list[str]) -> None:
    """Print the document as JSON, or the lines for people."""
    show((json.dumps(without_nan(document), allow_nan=False) if as_json else "\n".join(lines)) + "\n")


def show(text: str) -> None:
    """Write to standard output at once; a reader that left ends the command without a failure."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # what is still buffered must not fail at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def without_nan(value: Any) -> Any:
    """The value with every number that is not finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    return [without_nan(item) for item in value] if isinstance(value, list | tuple) else value


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all; raises EngineError when its folder cannot be written."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    except OSError as error:
        raise EngineError(f"{path} cannot be written: {error.strerror}") from error
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(text)
    Path(temporary).replace(path)


def run(program: Callable[[], None]) -> None:
    """Run the command line: exit code 0, 1 for a failed gate, 2 for bad input or a missing device."""
    try:
        program()
    except AttribError as error:
        print(f"engine: {error}", file=sys.stderr)
        sys.exit(2)
    except GateFailedError as error:
        print(f"engine: {error}", file=sys.stderr)
        sys.exit(1)
