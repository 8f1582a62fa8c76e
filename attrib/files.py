"""Writing files whole or not at all. A leaf."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from attrib.errors import RefusedError

if TYPE_CHECKING:
    import pandas as pd


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary path beside `path`, then rename; nothing half-written is ever left.

    The temporary name keeps the suffix, because writers choose their format by it. Raises RefusedError when the
    folder cannot be written.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise RefusedError(f"{path} is not a regular file and would be replaced; give another name")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    except OSError as error:
        raise RefusedError(f"{path} cannot be written: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp's private mode is for secrets, not for charts
        temporary.replace(path)
    except OSError as error:
        raise RefusedError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV; unknown values are empty."""
    write_whole(path, lambda temporary: frame.to_csv(temporary, index=False))


def require_distinct(outputs: Iterable[Path | None], inputs: Iterable[Path]) -> None:
    """Raise RefusedError for an output that is an input (by whatever name) or is named twice."""
    given = [path for path in outputs if path is not None]
    for place, path in enumerate(given):
        if any(path == other for other in given[:place]):
            raise RefusedError(f"{path} is named for two outputs; give each a name of its own")
        for source in inputs:
            if path.exists() and source.exists() and path.samefile(source):
                raise RefusedError(f"{path} is an input and would be overwritten; give another name")


def numbered(path: Path, place: int, of: int) -> Path:
    """The path itself for a single result, `name-1.png`, `name-2.png`, … for several."""
    return path if of == 1 else path.with_name(f"{path.stem}-{place + 1}{path.suffix}")
