"""Which traces a fleet is made of, and which rank, machine and group each belongs to."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from attrib.errors import AttribError, NoDataError, RefusedError
from attrib.files import TRACE
from attrib.parquet import is_export
from attrib.trace import Trace

MOST_RANKS = 100_000
"""A number from here on in a name is a date, a time or a process, and no rank."""
RANK_PATTERN = r"rank[-_.]?(\d+)"
REPORT = ".nsys-rep"
EXPORTS = (".sqlite", ".sqlite.xz")
PARQUET = "_pqtdir"
"""How `nsys export --type parquetdir` ends the name of the folder it writes."""
RANK_VARIABLES = (
    "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "MV2_COMM_WORLD_RANK", "NODE_RANK",
)  # fmt: skip
"""Environment variables launchers give each process: torchrun, Open MPI, PMIx, PMI (MPICH), Slurm, MVAPICH."""
CAPTURE, SYSTEM = "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV"


@dataclass(frozen=True)
class Found:
    """A trace. `group` is its folder below the one all share, printable, without the parts that name a rank.

    `rank` is None where no part of the path names one.
    """

    path: Path
    group: str
    rank: int | None


def find(patterns: Iterable[str], rank_pattern: str = RANK_PATTERN) -> list[Found]:
    """Traces in folders (at any depth), matching globs, or named, each once, by group, rank and name.

    Raises NoDataError when a pattern finds nothing and RefusedError for a rank pattern without a group of digits.
    """
    try:
        regex = re.compile(rank_pattern, re.IGNORECASE)
    except re.error as error:
        raise RefusedError(f"--rank-pattern {rank_pattern!r} is not a regular expression: {error}") from error
    if regex.groups < 1:
        raise RefusedError(f"--rank-pattern {rank_pattern!r} has no group; put the rank's digits in parentheses")
    found: dict[Path, None] = {}
    for pattern in patterns:
        matched = [path for base in _expanded(pattern) for path in _traces(base)]
        if not matched:
            raise NoDataError(
                f"{pattern} holds no trace ({', '.join((*EXPORTS, REPORT))} files, Parquet exports, run directories)"
            )
        found |= dict.fromkeys(path.absolute() for path in matched)
    shared = _shared([path.parent for path in found])
    listed = [Found(path, _group(path, shared, regex), _rank(path, shared, regex)) for path in found]
    return sorted(listed, key=lambda m: (m.group, m.rank is None, m.rank or 0, m.path))


def _expanded(pattern: str) -> list[Path]:
    plain = Path(pattern)
    if plain.exists():
        return [plain]
    if not plain.name:
        return []
    root = Path(plain.anchor)
    return sorted((root if plain.anchor else Path()).glob(str(plain.relative_to(root) if plain.anchor else plain)))


def _traces(base: Path) -> Iterator[Path]:
    """Traces at or below a path; a report beside its export is not read a second time."""
    if not base.is_dir():
        yield base
        return
    if (base / TRACE).exists() or base.name.endswith(PARQUET) or is_export(base):
        yield base
        return
    entries = sorted(entry for entry in base.iterdir() if not entry.name.startswith("."))
    exported = {_stem(entry.name) for entry in entries if entry.name.endswith((*EXPORTS, PARQUET))}
    for entry in entries:
        if entry.is_dir():
            yield from _traces(entry)
        elif entry.name.endswith(EXPORTS) or (entry.suffix == REPORT and entry.stem not in exported):
            yield entry


def _stem(name: str) -> str:
    return name.removesuffix(PARQUET).removesuffix(".xz").removesuffix(".sqlite")


def _shared(folders: list[Path]) -> Path:
    """The deepest folder that all of them are in."""
    shared = folders[0]
    for folder in folders[1:]:
        while shared not in (folder, *folder.parents):
            shared = shared.parent
    return shared


def _group(path: Path, shared: Path, regex: re.Pattern[str]) -> str:
    parts = path.parent.relative_to(shared).parts if path.parent != shared else ()
    return printable("/".join(part for part in parts if not regex.search(part)))


def _rank(path: Path, shared: Path, regex: re.Pattern[str]) -> int | None:
    """The last match below the folder that all share; a trace alone may be named by the folder it is in."""
    for text in (path.relative_to(shared).as_posix(), f"{path.parent.name}/{path.name}"):
        matches = list(regex.finditer(text))
        ranks = [_number(group) for match in matches for group in match.groups() if group]
        known = [rank for rank in ranks if rank is not None]
        if known:
            return known[-1]
    return None


def _number(text: str) -> int | None:
    """The rank that digits say, None where they are none or too many."""
    return int(text) if text.isdecimal() and len(text) < 20 and int(text) < MOST_RANKS else None


def rank_in(trace: Trace) -> int | None:
    """The rank that the launcher's environment in the capture's metadata says, None where it does not."""
    if not trace.schema.has(CAPTURE, "name", "value"):
        return None
    said: dict[str, str] = {}
    for (value,) in trace.query(f"SELECT value FROM {CAPTURE} WHERE name LIKE '%ENVIRONMENT_VARIABLE'"):
        name, _, text = str(value).partition("=")
        said.setdefault(name, text.strip('"'))
    known = (_number(said[name]) for name in RANK_VARIABLES if name in said)
    return next((rank for rank in known if rank is not None), None)


def host_of(trace: Trace) -> str:
    """The machine's name as the export says, empty where it does not (a scrubbed one)."""
    if not trace.schema.has(SYSTEM, "name", "value"):
        return ""
    rows = trace.query(f"SELECT value FROM {SYSTEM} WHERE name = 'Hostname' LIMIT 1")
    return str(rows[0][0] or "") if rows else ""


def printable(text: str) -> str:
    """A path as text: bytes of a name that are no UTF-8 as `\\xff`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def reason(error: Exception) -> str:
    """Why a trace gave no census: the sentence of an expected failure, else the kind of error and what it says."""
    if isinstance(error, AttribError):
        return str(error)
    if isinstance(error, (OSError, sqlite3.Error)):
        return f"cannot be read ({error})"
    return f"unexpected {type(error).__name__}: {error}"
