"""Writing files whole or not at all, never over an input, and reading none that would not end. A leaf."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attrib.errors import RefusedError

if TYPE_CHECKING:
    import pandas as pd

TRACE, MANIFEST, STAGES, BENCH = "trace.sqlite", "manifest.json", "stages.json", "bench.json"
"""What is read of a run directory; the rest of what it holds was made from these."""
TABLE = ".parquet"
"""Suffix of the tables of a Parquet directory export."""
_SIDE = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database of content that is not in it yet."""
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""What ends a program politely: Ctrl-C, `kill`, a terminal that is closed."""


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary path beside `path`, then rename; nothing half-written is ever left.

    The temporary name keeps the suffix, because writers choose their format by it. Raises RefusedError when the
    folder cannot be written.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise RefusedError(f"{path} is not a regular file and would be replaced; give another name")
    temporary = path.with_name(f".{path.stem[:32]}-{secrets.token_hex(8)}{path.suffix}")
    with interruptible():
        try:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            write(temporary)
            temporary.replace(path)
        except OSError as error:
            raise RefusedError(f"{path} cannot be written: {error.strerror or error}") from error
        finally:
            with suppress(OSError):  # of a folder that is none, or a file that has its name by now
                temporary.unlink()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a polite kill or a closed terminal unwind like Ctrl-C, so that programs are ended and files removed.

    Only the first signal counts: a second one would interrupt the clean-up. Handlers that another part of the program
    has set stay, and so does everything where this is not the main thread, which alone may set them.
    """
    usual = (signal.SIG_DFL, signal.default_int_handler)
    main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.getsignal(number) for number in SIGNALS} if main else {}
    replaced = {number: handler for number, handler in previous.items() if handler in usual}

    def interrupt(number: int, frame: object) -> None:
        for each in replaced:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    try:
        for number in replaced:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV; unknown values are empty."""
    write_whole(path, lambda temporary: frame.to_csv(temporary, index=False))


def require_distinct(outputs: Iterable[Path | None], inputs: Iterable[Path]) -> None:
    """Raise RefusedError for an output that is an input (by whatever name) or is named twice.

    A folder among the inputs stands for the files that are read of it.
    """
    given = [path for path in outputs if path is not None]
    read = [file for source in inputs for file in _read_of(source) if file.exists()]
    for place, path in enumerate(given):
        if any(os.path.realpath(path) == os.path.realpath(other) for other in given[:place]):
            raise RefusedError(f"{path} is named for two outputs; give each a name of its own")
        if path.exists() and any(path.samefile(file) for file in read):
            raise RefusedError(f"{path} is an input and would be overwritten; give another name")


def _read_of(source: Path) -> Iterator[Path]:
    """The file itself with what SQLite keeps beside it; of a run directory or Parquet export what is read of it."""
    if not source.is_dir():
        yield source
        yield from (Path(f"{os.path.realpath(source)}{side}") for side in _SIDE)
        return
    yield from source.glob(f"*{TABLE}")
    for name in (TRACE, MANIFEST, STAGES, BENCH):
        yield from _read_of(source / name)


def require_regular(path: Path) -> None:
    """Raise OSError for a pipe, socket or device: reading one may wait for ever. A folder fails by itself."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe, socket or device and not a regular file", str(path))


def read_text(path: Path) -> str:
    """The text of a regular file in UTF-8. Raises OSError and UnicodeDecodeError."""
    require_regular(path)
    return path.read_text(encoding="utf-8")


def numbered(path: Path, place: int, of: int) -> Path:
    """The path itself for a single result, `name-1.png`, `name-2.png`, … for several."""
    return path if of == 1 else path.with_name(f"{path.stem}-{place + 1}{path.suffix}")
