"""What a trace may be given as: a SQLite export, one packed with xz, a Parquet directory, or an nsys report.

Everything but a plain export becomes a SQLite database elsewhere, so one reader serves all; an input is only read.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from attrib import parquet
from attrib.capture import CaptureError, Nsys, export, find_nsys
from attrib.errors import RefusedError, SchemaError
from attrib.files import write_whole
from attrib.words import counted

SQLITE_MAGIC = b"SQLite format 3\0"
XZ_MAGIC = b"\xfd7zXZ\x00"
PARQUET_MAGIC = b"PAR1"
REPORTS = (".nsys-rep", ".qdrep")
"""Suffixes of the reports nsys writes; what they hold is its own format."""
CACHE_BYTES = 20 << 30
"""Exports kept of reports: the least recently used go when a new one brings them above this."""

Cleanup = Callable[[], None]


def database_of(path: Path) -> tuple[Path, Cleanup | None]:
    """The SQLite database that holds the trace given as `path`, and what removes it when it was made for this.

    A report is exported once by an installed nsys into the user's cache folder. Raises SchemaError, RefusedError or
    CaptureError, naming `path`, for what is none of the four or cannot be read.
    """
    if path.is_dir():
        if not parquet.is_export(path):
            raise SchemaError(
                f"{path} is a directory without Parquet tables; give an export that `nsys export` writes, or a run "
                "directory of `attrib record`"
            )
        return _unpacked(path, "trace.sqlite", parquet.to_sqlite)
    if path.exists() and not path.is_file():
        raise SchemaError(f"{path} is not a regular file (a pipe or device); unpack it to a file first")
    try:
        with path.open("rb") as file:
            magic = file.read(16)
    except OSError as error:
        raise SchemaError(f"{path} cannot be read: {error.strerror}") from error
    if magic.startswith(XZ_MAGIC):
        return _unpacked(path, path.stem, _unxz)
    if magic.startswith(PARQUET_MAGIC):
        raise RefusedError(f"{path} is one table of a Parquet export; give the folder it lies in, {path.parent}")
    if path.suffix in REPORTS and magic and magic != SQLITE_MAGIC:
        return exported(path), None
    check_header(path, path)
    return path, None


def check_header(path: Path, database: Path) -> None:
    """Refuse what is no database and what is shorter than its own header says; errors name `path`.

    Page size and page count are at bytes 16 and 28 of the header (sqlite.org/fileformat2.html, 1.3).
    """
    with database.open("rb") as file:
        header = file.read(100)
    if not header:
        raise SchemaError(f"{path} is empty; export the report again")
    if header[:16] != SQLITE_MAGIC:
        raise SchemaError(f"{path} is not a SQLite database; give the file that `nsys export` writes")
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    expected = (65536 if page == 1 else page) * pages
    valid_count = header[24:28] == header[92:96]
    size = database.stat().st_size
    if len(header) < 100 or (valid_count and size < expected):
        raise SchemaError(f"{path} is cut short: {counted(size, 'byte')} of {expected:,}; copy or export it again")


def _unpacked(path: Path, name: str, unpack: Callable[[Path, Path], None]) -> tuple[Path, Cleanup]:
    """Unpack into a temporary folder, which is removed again when that fails."""
    folder = tempfile.TemporaryDirectory(prefix="attrib-")
    target = Path(folder.name) / name
    try:
        unpack(path, target)
        check_header(path, target)
    except OSError as error:
        folder.cleanup()
        raise SchemaError(f"{path} cannot be unpacked into {folder.name}: {error.strerror or error}") from error
    except BaseException:
        folder.cleanup()
        raise
    return target, folder.cleanup


def _unxz(path: Path, target: Path) -> None:
    try:
        with lzma.open(path) as packed, target.open("wb") as out:
            shutil.copyfileobj(packed, out, 1 << 20)
    except (lzma.LZMAError, EOFError) as error:
        raise SchemaError(f"{path} is a damaged xz file ({error}); copy or compress it again") from error


def cache_folder() -> Path:
    """Where exports of reports are kept: the user's cache folder, `XDG_CACHE_HOME` respected."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "attrib" / "exports"


def exported(report: Path) -> Path:
    """The SQLite export of a report, made by an installed nsys unless the cache has it.

    The name in the cache tells path, size and time of the report and the version of nsys, so a report that changed is
    exported again. Raises CaptureError where nsys is missing or cannot read the report.
    """
    try:
        nsys = find_nsys()
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{report.stem}-{_key(report, nsys)}.sqlite"
        if target.is_file():
            target.touch()
            return target
        write_whole(target, lambda temporary: check_header(report, export(nsys, report.resolve(), temporary)))
    except CaptureError as error:
        raise CaptureError(
            f"{report} is an nsys report, which only nsys can read: {error}; or give its `nsys export --type sqlite`"
        ) from error
    _prune(folder, target)
    return target


def _key(report: Path, nsys: Nsys) -> str:
    facts = report.stat()
    said = f"{report.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}\0{nsys.version}"
    return hashlib.sha256(said.encode(errors="surrogateescape")).hexdigest()[:24]


def _prune(folder: Path, newest: Path) -> None:
    """Remove the least recently used exports beyond `CACHE_BYTES`; never the newest."""
    others = sorted((f for f in folder.glob("*.sqlite") if f != newest), key=lambda f: f.stat().st_mtime, reverse=True)
    total = newest.stat().st_size
    for file in others:
        total += file.stat().st_size
        if total > CACHE_BYTES:
            file.unlink(missing_ok=True)
