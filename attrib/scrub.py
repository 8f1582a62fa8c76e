"""A copy of an export that can be attached to a report: GPU work and timings stay, people and machines do not.

Only what `scrub_policy` allows is copied, into a database of its own, so no page of the original is carried over.
"""

from __future__ import annotations

import lzma
import re
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attrib.columns_open import readonly_uri
from attrib.errors import RefusedError, SchemaError
from attrib.files import require_distinct, write_whole
from attrib.jsonout import document
from attrib.scrub_policy import (
    API_NAME,
    KERNEL_NAME,
    NVTX,
    PAIRS,
    RANGE_TEXT,
    REASONS,
    STRINGS,
    TABLES,
    UNKNOWN_REASON,
    PairsPolicy,
    TablePolicy,
)
from attrib.trace import open_trace

SCHEMA = "attrib.scrub/1"
MARK = "[removed]"
CONSTANTS = "constants that nsys writes into every export"
_API = re.compile(r"[\w .:~<>-]{1,128}")
# A path starts at a root, a drive, a share or a home; what precedes it keeps `a/b` in range texts and templates.
_PATH_START = (
    r"(?:(?<![\w.)\]>/])/+(?=[^\s/<>&*=)])|(?<!\w)[A-Za-z]:[\\/]|\\\\(?=\w)|(?<!\w)~[\w.-]*/|(?<![\w.])\.{1,2}/)"
)
_PATH_IN_NAME = re.compile(_PATH_START + r"[^)>\"'`]*")
_PATH_TO_END = re.compile(_PATH_START + r".*", re.DOTALL)


@dataclass(frozen=True)
class Removal:
    """What one table lost: whole rows, single values (columns or texts in rows that stay), and why."""

    table: str
    rows: int
    values: int
    columns: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class ScrubReport:
    """What a scrubbed copy lacks and holds; bytes of the unpacked export and of the file written."""

    removed: tuple[Removal, ...]
    kept: dict[str, int]
    size_before: int
    size_after: int

    def to_json(self) -> dict[str, Any]:
        """The documented JSON object."""
        return document(
            {
                "schema": SCHEMA,
                "removed": [
                    {
                        "table": r.table,
                        "rows": r.rows,
                        "values": r.values,
                        "columns": list(r.columns),
                        "reason": r.reason,
                    }
                    for r in self.removed
                ],
                "kept_rows": self.kept,
                "size_before_bytes": self.size_before,
                "size_after_bytes": self.size_after,
            }
        )


def scrub(source: Path, target: Path, *, drop_nvtx: bool = False, force: bool = False) -> ScrubReport:
    """Write a scrubbed copy of the export `source` to `target` (`.sqlite`, or `.sqlite.xz` to compress it).

    `drop_nvtx` removes the texts of NVTX ranges too; without it only paths in them are. Raises RefusedError when the
    target is the source or exists, SchemaError when the source is not an export.
    """
    if target.exists():
        if source.exists() and target.samefile(source):
            raise RefusedError(f"{target} is the export itself; give another name for the scrubbed copy")
        if target.is_dir():
            raise RefusedError(f"{target} is a directory; give a file name for the scrubbed copy")
        if not force:
            raise RefusedError(f"{target} exists; give another name, or --force to replace it")
    require_distinct((target,), [source])
    trace = open_trace(source)
    with trace.connect() as connection:
        database = Path(connection.execute("SELECT file FROM pragma_database_list WHERE name = 'main'").fetchone()[0])
    found: list[ScrubReport] = []
    packed = target.suffix == ".xz"

    def write(temporary: Path) -> None:
        with _scratch(temporary, packed) as plain:
            copier = _Copier(database, plain, drop_nvtx)
            try:
                copier.run()
            except sqlite3.Error as error:
                raise SchemaError(f"{source} cannot be read to its end ({error}); export the report again") from error
            if packed:
                with plain.open("rb") as raw, lzma.open(temporary, "wb", preset=9) as out:
                    shutil.copyfileobj(raw, out, 1 << 20)
            after = temporary.stat().st_size
        found.append(ScrubReport(copier.removed(), dict(copier.kept), database.stat().st_size, after))

    write_whole(target, write)
    return found[0]


@contextmanager
def _scratch(temporary: Path, packed: bool) -> Iterator[Path]:
    """Where the database is built: the temporary itself, or a folder that is gone once it is compressed."""
    if not packed:
        yield temporary
        return
    with tempfile.TemporaryDirectory(prefix="attrib-") as folder:
        yield Path(folder) / "scrubbed.sqlite"


def without_paths(text: str) -> str:
    """A range text with everything from its first file system path on replaced by a mark."""
    return _PATH_TO_END.sub(MARK, text)


def _clean_string(roles: Sequence[str], text: str) -> str:
    if API_NAME in roles and not _API.fullmatch(text):
        return MARK
    if RANGE_TEXT in roles:
        text = without_paths(text)
    if KERNEL_NAME in roles:
        text = _PATH_IN_NAME.sub(MARK, text)
    return text


def _decode(raw: object) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class _Copier:
    """Copies allowed content from an attached export into a new database, counting what stays behind."""

    def __init__(self, source: Path, target: Path, drop_nvtx: bool) -> None:
        self._source = source
        self._target = target
        self._drop_nvtx = drop_nvtx
        self.kept: dict[str, int] = {}
        self._rows: Counter[str] = Counter()
        self._values: Counter[str] = Counter()
        self._columns: dict[str, tuple[str, ...]] = {}

    def run(self) -> None:
        """Copy everything; raises sqlite3.Error for a damaged source."""
        with closing(sqlite3.connect(self._target.absolute().as_uri(), uri=True, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = OFF")
            db.execute("PRAGMA synchronous = OFF")
            db.execute("PRAGMA temp_store = MEMORY")
            db.execute("ATTACH ? AS src", (readonly_uri(self._source),))
            db.execute("CREATE TEMP TABLE used (id INTEGER, role TEXT, PRIMARY KEY (id, role)) WITHOUT ROWID")
            names = [r[0] for r in db.execute("SELECT name FROM src.sqlite_master WHERE type IN ('table', 'view')")]
            db.execute("BEGIN")
            for name in names:
                if name in TABLES:
                    self._copy_table(db, name, TABLES[name])
                elif name in PAIRS:
                    self._copy_pairs(db, name, PAIRS[name])
                elif name != STRINGS and not name.startswith("sqlite_"):
                    self._rows[name] = _count(db, name)
            if STRINGS in names:
                self._copy_strings(db)
            db.execute("COMMIT")
            db.execute("DETACH src")
            db.execute("VACUUM")

    def removed(self) -> tuple[Removal, ...]:
        """Removals by table, empty tables left out."""
        touched = [t for t in {**self._rows, **self._columns, **self._values} if self._rows[t] or self._values[t]]
        return tuple(
            Removal(
                table,
                self._rows[table],
                self._values[table],
                self._columns.get(table, ()),
                _reason(table),
            )
            for table in sorted(touched)
        )

    def _copy_table(self, db: sqlite3.Connection, name: str, policy: TablePolicy) -> None:
        types = {row[1]: str(row[2]).upper() for row in db.execute(f"PRAGMA src.table_info({_quote(name)})")}
        present = list(types)
        strings = {} if name == NVTX and self._drop_nvtx else policy.strings
        texts = {} if name == NVTX and self._drop_nvtx else policy.texts
        numbers = set(policy.numbers) | set(strings)
        columns = [c for c in present if c in numbers or c in texts]
        if not columns:
            self._rows[name] = _count(db, name)
            return
        self._note_columns(db, name, [c for c in present if c not in columns])
        kinds = {c: "TEXT" if c in texts else "REAL" if types[c] == "REAL" else "INTEGER" for c in columns}
        declared = ", ".join(f"{_quote(c)} {kinds[c]}" for c in columns)
        db.execute(f"CREATE TABLE {_quote(name)} ({declared})")
        db.create_function("attrib_text", 2, lambda column, raw: self._text(name, column, raw))
        picked = ", ".join(
            f"attrib_text('{c}', CAST({_quote(c)} AS BLOB))" if c in texts else _number(c) for c in columns
        )
        copied = db.execute(f"INSERT INTO {_quote(name)} SELECT {picked} FROM src.{_quote(name)}")
        self.kept[name] = copied.rowcount
        for column in columns:
            if column not in texts:
                odd = f"typeof({_quote(column)}) NOT IN ('integer', 'real', 'null')"
                self._values[name] += _count(db, name, odd)
        for column in strings.keys() & set(columns):
            db.execute(
                f"INSERT OR IGNORE INTO used SELECT DISTINCT {_quote(column)}, ? FROM main.{_quote(name)} "
                f"WHERE typeof({_quote(column)}) = 'integer'",
                (strings[column],),
            )

    def _text(self, table: str, column: str, raw: bytes | None) -> str | None:
        if raw is None:
            return None
        text = _decode(raw)
        if table == NVTX:
            cleaned = without_paths(text)
            self._values[table] += cleaned != text
            return cleaned
        if TABLES[table].texts[column].fullmatch(text):
            return text
        self._values[table] += 1
        return None

    def _note_columns(self, db: sqlite3.Connection, table: str, dropped: list[str]) -> None:
        """Count the values of dropped columns; constants such as 0 or empty text are no loss."""
        lost = {c: _count(db, table, f"{_quote(c)} NOT NULL AND {_quote(c)} NOT IN (0, '')") for c in dropped}
        self._columns[table] = tuple(c for c, number in lost.items() if number)
        self._values[table] += sum(lost.values())

    def _copy_pairs(self, db: sqlite3.Connection, name: str, policy: PairsPolicy) -> None:
        present = [row[1] for row in db.execute(f"PRAGMA src.table_info({_quote(name)})")]
        if not {"name", "value"} <= set(present):
            self._rows[name] = _count(db, name)
            return
        numbers = [c for c in policy.numbers if c in present]
        declared = ", ".join([f"{_quote(c)} INTEGER" for c in numbers] + ['"name" TEXT', '"value" TEXT'])
        db.execute(f"CREATE TABLE {_quote(name)} ({declared})")
        picked = ", ".join([_number(c) for c in numbers] + ["CAST(name AS BLOB)", "CAST(value AS BLOB)"])
        kept = 0
        for row in db.execute(f"SELECT {picked} FROM src.{_quote(name)}").fetchall():
            key, value = _decode(row[-2]), _decode(row[-1])
            if any(n.fullmatch(key) and v.fullmatch(value) for n, v in policy.names.items()):
                marks = ", ".join("?" * len(row))
                db.execute(f"INSERT INTO {_quote(name)} VALUES ({marks})", (*row[:-2], key, value))
                kept += 1
            else:
                self._rows[name] += 1
        self.kept[name] = kept

    def _copy_strings(self, db: sqlite3.Connection) -> None:
        info = {row[1]: row[5] for row in db.execute(f"PRAGMA src.table_info({_quote(STRINGS)})")}
        if not {"id", "value"} <= set(info):
            self._rows[STRINGS] = _count(db, STRINGS)
            return
        key = " PRIMARY KEY" if info["id"] else ""
        db.execute(f"CREATE TABLE {_quote(STRINGS)} (id INTEGER{key}, value TEXT)")
        roles: dict[int, list[str]] = {}
        for number, role in db.execute("SELECT id, role FROM used"):
            roles.setdefault(number, []).append(role)
        rows = db.execute(f"SELECT id, CAST(value AS BLOB) FROM src.{_quote(STRINGS)}")
        kept = []
        for number, raw in rows:
            if number not in roles or raw is None:
                self._rows[STRINGS] += 1
                continue
            text = _decode(raw)
            cleaned = _clean_string(roles[number], text)
            self._values[STRINGS] += cleaned != text
            kept.append((number, cleaned))
        db.executemany(f"INSERT INTO {_quote(STRINGS)} VALUES (?, ?)", kept)
        self.kept[STRINGS] = len(kept)


def _number(column: str) -> str:
    """SQL for the value of a column where it is a number: SQLite stores text in any column."""
    name = _quote(column)
    return f"CASE WHEN typeof({name}) IN ('integer', 'real') THEN {name} END"


def _count(db: sqlite3.Connection, table: str, condition: str = "1") -> int:
    return int(db.execute(f"SELECT COUNT(*) FROM src.{_quote(table)} WHERE {condition}").fetchone()[0])


def _reason(table: str) -> str:
    if table in TABLES:
        return REASONS.get(table, "columns and values that are not on the list")
    return REASONS.get(table, CONSTANTS if table.startswith("ENUM_") else UNKNOWN_REASON)
