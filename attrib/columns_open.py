"""How an export is opened so that reading changes nothing: not the file, not the folder it lies in."""

from pathlib import Path

from attrib.errors import RefusedError

WAL_VERSION = 2
HEADER_BYTES = 20


def readonly_uri(path: Path) -> str:
    """The SQLite URI that reads `path` and neither changes it nor leaves a file beside it.

    A database in WAL mode (read version 2 in byte 19 of the header, https://www.sqlite.org/fileformat.html
    section 1.3.3) makes even a read-only connection create `-shm` and `-wal` files. Such a file is opened
    `immutable=1`, which uses neither and takes no lock; that is right only while the database file is complete
    by itself. Raises RefusedError for a `-wal` with content and for a rollback journal a stopped writer left.
    """
    journal = path.with_name(path.name + "-journal")
    if _header(journal)[:1].strip(b"\0"):
        raise RefusedError(
            f"{path}: a writer stopped half-way and left {journal.name}; "
            "open a copy of both files once with sqlite3 to roll it back, then read the copy."
        )
    uri = f"{path.absolute().as_uri()}?mode=ro"
    if not is_wal(path):
        return uri
    wal = path.with_name(path.name + "-wal")
    if _header(wal):
        raise RefusedError(
            f"{path}: part of its content is still in {wal.name}; run `PRAGMA wal_checkpoint(TRUNCATE)` "
            "on a copy of both files with sqlite3, then read the copy."
        )
    return f"{uri}&immutable=1"


def is_wal(path: Path) -> bool:
    """Whether the database file at `path` is in WAL mode; False where there is no readable file."""
    header = _header(path)
    return len(header) == HEADER_BYTES and header[19] == WAL_VERSION


def _header(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(HEADER_BYTES)
    except OSError:
        return b""
