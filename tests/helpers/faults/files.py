"""Files that are damaged, of another kind, out of reach, or left half-written by another program."""

from __future__ import annotations

import gzip
import lzma
import os
import random
import shutil
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest import mock

from tests.helpers.faults.case import Fault, Make, Refused, without_rights
from tests.helpers.faults.small import KERNEL, WHOLE, census, of_bytes, write

NOISE = random.Random(7).randbytes(65_536)


def _text(folder: Path, content: bytes, name: str = "trace.sqlite") -> list[object]:
    path = folder / name
    path.write_bytes(content)
    return census(path)


def _holding(content: bytes, name: str = "trace.sqlite") -> Make:
    return lambda folder: _text(folder, content, name)


def _at(offset: int, content: bytes) -> Callable[[bytes], bytes]:
    return lambda raw: raw[:offset] + content + raw[offset + len(content) :]


def _page_size(raw: bytes) -> int:
    return int.from_bytes(raw[16:18], "big")


def _every_second_page(raw: bytes) -> bytes:
    size = _page_size(raw)
    damaged = bytearray(raw)
    for begin in range(2 * size, len(raw), 2 * size):
        damaged[begin : begin + size] = NOISE[:size]
    return bytes(damaged)


def _made(make: Callable[[Path], object], name: str = "trace.sqlite") -> Make:
    def build(folder: Path) -> list[object]:
        make(folder / name)
        return census(folder / name)

    return build


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path has 108 bytes at most
    try:
        with closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _loop(path: Path) -> None:
    path.symlink_to(path.name + "-2")
    path.with_name(path.name + "-2").symlink_to(path.name)


def _link(path: Path) -> None:
    path.symlink_to(write(path.with_name("real.sqlite")).name)


def _unreadable(path: Path) -> None:
    write(path).chmod(0)


def _read_only(path: Path) -> None:
    write(path).chmod(0o444)


def _wal(path: Path) -> None:
    with closing(sqlite3.connect(write(path))) as db:
        assert db.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)


def _wal_with_content(path: Path) -> None:
    """The database and its log as a writer holds them, copied while it is open."""
    source = path.with_name("open.sqlite")
    _wal(source)
    with closing(sqlite3.connect(source)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint=0")
        writer.execute(f"DELETE FROM {KERNEL} WHERE rowid > 10")
        writer.commit()
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{source}{suffix}", f"{path}{suffix}")
    _remove(source)


def _empty_wal(path: Path) -> None:
    _wal(path)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").touch()


def _hot_journal(path: Path) -> None:
    """A journal that begins with the magic of one that must be rolled back."""
    write(path)
    Path(f"{path}-journal").write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(504))


def _cleared_journal(path: Path) -> None:
    write(path)
    Path(f"{path}-journal").write_bytes(bytes(512))


def _remove(path: Path) -> None:
    for file in path.parent.glob(path.name + "*"):
        file.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    from attrib import trace

    before, trace.LOCK_TIMEOUT_S = trace.LOCK_TIMEOUT_S, 0.05
    try:
        with closing(sqlite3.connect(folder / "trace.sqlite")) as writer:
            writer.execute("BEGIN EXCLUSIVE")
            yield
            writer.rollback()
    finally:
        trace.LOCK_TIMEOUT_S = before


def _directory(path: Path) -> None:
    path.mkdir()


def _fake_table(path: Path) -> None:
    path.mkdir()
    (path / f"{KERNEL}.parquet").write_bytes(b"PAR1 and no more")


def _packed(change: Callable[[bytes], bytes]) -> Make:
    return of_bytes(lambda raw: change(lzma.compress(raw, preset=0)), "trace.sqlite.xz")


CASES = (
    Fault("empty", "an empty file", _holding(b""), Refused("is empty")),
    Fault("one-byte", "a file of one byte", _holding(b"S"), Refused("is not a SQLite database")),
    Fault("text", "a text file", _holding(b"start,end,name\n1,2,k\n"), Refused("is not a SQLite database")),
    Fault("zeros", "a file of zeros", _holding(bytes(4096)), Refused("is not a SQLite database")),
    Fault("noise", "random bytes, as of an encrypted database", _holding(NOISE), Refused("is not a SQLite database")),
    Fault(
        "magic-noise",
        "SQLite's first 16 bytes, then noise",
        _holding(b"SQLite format 3\0" + NOISE),
        Refused("trace.sqlite"),
    ),
    Fault("header-only", "the first 100 bytes of an export", of_bytes(lambda raw: raw[:100]), Refused("cut short")),
    Fault("half-header", "the first 50 bytes of an export", of_bytes(lambda raw: raw[:50]), Refused("cut short")),
    Fault("half", "an export cut in half", of_bytes(lambda raw: raw[: len(raw) // 2]), Refused("cut short")),
    Fault(
        "last-page",
        "an export without its last page",
        of_bytes(lambda raw: raw[: -_page_size(raw)]),
        Refused("cut short"),
    ),
    Fault("mid-page", "an export cut inside a page", of_bytes(lambda raw: raw[:-17]), Refused("cut short")),
    Fault("page-size", "a page size that is none in the header", of_bytes(_at(16, b"\0\3")), Refused("trace.sqlite")),
    Fault(
        "encoding", "a text encoding that is none in the header", of_bytes(_at(56, b"\0\0\0\x63")), Refused("damaged")
    ),
    Fault("schema-page", "noise over the table list", of_bytes(_at(100, NOISE[:2000])), Refused("damaged")),
    Fault("pages", "noise over every second page", of_bytes(_every_second_page), Refused(f"table {KERNEL} is damaged")),
    Fault("trailing", "an export with noise after its end", of_bytes(lambda raw: raw + NOISE[:5000]), WHOLE),
    Fault("directory", "an empty directory", _made(_directory), Refused("directory without Parquet tables")),
    Fault("missing", "a name that does not exist", _made(lambda _: None), Refused("cannot be read: No such file")),
    Fault("fifo", "a named pipe that nobody writes", _made(os.mkfifo), Refused("not a regular file")),
    Fault("socket", "a socket", _made(_socket), Refused("not a regular file")),
    Fault("symlink-loop", "symbolic links in a circle", _made(_loop), Refused("Too many levels of symbolic links")),
    Fault("symlink", "a symbolic link to an export", _made(_link), WHOLE),
    Fault(
        "dangling",
        "a symbolic link to nothing",
        _made(lambda path: path.symlink_to("gone")),
        Refused("No such file"),
    ),
    Fault("unreadable", "an export the user may not read", _made(_unreadable), Refused("denied"), without_rights),
    Fault("read-only", "an export nobody may write", _made(_read_only), WHOLE),
    Fault("xz", "an export packed with xz", _packed(lambda raw: raw), WHOLE),
    Fault("xz-flipped", "xz with bytes flipped", _packed(_at(200, b"\xaa" * 8)), Refused("damaged xz file")),
    Fault("xz-cut", "xz cut in half", _packed(lambda raw: raw[: len(raw) // 2]), Refused("damaged xz file")),
    Fault("xz-header", "the header of an xz file alone", _packed(lambda raw: raw[:12]), Refused("damaged xz file")),
    Fault(
        "xz-text",
        "xz of a text file",
        _holding(lzma.compress(b"hello\n"), "trace.sqlite.xz"),
        Refused("is not a SQLite database"),
    ),
    Fault("xz-empty", "xz of an empty file", _holding(lzma.compress(b""), "trace.sqlite.xz"), Refused("is empty")),
    Fault("xz-named-sqlite", "xz under the name .sqlite", of_bytes(lzma.compress), WHOLE),
    Fault("gzip", "an export packed with gzip", of_bytes(gzip.compress), Refused("is not a SQLite database")),
    Fault("wal", "a database left in WAL mode", _made(_wal), WHOLE),
    Fault("wal-leftovers", "WAL mode with empty -wal and -shm files", _made(_empty_wal), WHOLE),
    Fault("wal-content", "a -wal file with content", _made(_wal_with_content), Refused("is still in trace.sqlite-wal")),
    Fault(
        "journal", "a rollback journal of a stopped writer", _made(_hot_journal), Refused("a writer stopped half-way")
    ),
    Fault("journal-cleared", "a journal that was cleared", _made(_cleared_journal), WHOLE),
    Fault("locked", "an export another program writes", _made(write), Refused("is locked"), _locked),
    Fault("parquet", "a Parquet directory with a damaged table", _made(_fake_table), Refused("damaged Parquet file")),
    Fault(
        "parquet-file",
        "one table of a Parquet export",
        _holding(b"PAR1" + NOISE),
        Refused("give the folder it lies in"),
    ),
    Fault(
        "report",
        "an nsys report where no nsys is",
        _holding(NOISE, "run.nsys-rep"),
        Refused("is an nsys report, which only nsys can read"),
        lambda _: mock.patch.dict(os.environ, ATTRIB_NSYS="no-nsys"),
    ),
    Fault("report-empty", "an empty nsys report", _holding(b"", "run.nsys-rep"), Refused("is empty")),
    Fault("report-is-export", "an export under the name of a report", of_bytes(bytes, "run.nsys-rep"), WHOLE),
)
