"""Databases whose tables, columns, types, values or names are not what nsys writes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.helpers.faults.case import Fault, Make, Refused, Right
from tests.helpers.faults.small import GEMV, KERNEL, NORM, SPAN, WHOLE, census, of_nodes, of_sql, with_warning, without
from tests.helpers.nsysgen import Kernel, Node

DEEP = "void f<" + "std::pair<" * 20_000 + "int" + ">" * 20_001 + "(int)"
REBUILT = "CREATE TABLE n AS SELECT {} FROM K!; DROP TABLE K!; ALTER TABLE n RENAME TO K!;"
WITHOUT_ROWID = 'start, "end", deviceId, correlationId, globalPid, shortName, demangledName, graphNodeId'
LONGEST = 2**63 - 1
THREE = (Node(NORM, 2000), Node(GEMV, 50_000, gap=300), Node(Kernel("argmax"), 4000, gap=200))


def _database(script: str) -> Make:
    def make(folder: Path) -> list[object]:
        with closing(sqlite3.connect(folder / "trace.sqlite")) as db:
            db.executescript(script)
        return census(folder / "trace.sqlite")

    return make


def _named(name: str, demangled: str | None = None) -> Make:
    return of_nodes(Node(Kernel(name, demangled), 4000), Node(NORM, 1000, gap=50))


def _two(shown: str = "", **more: object) -> Right:
    """Six steps of 4,000 + 50 + 1,000 ns."""
    return Right({"steps.count": 6, "steps.launches": 2, "steps.span_ms": 0.00505, **more}, shown)


def _without_columns(*dropped: str) -> Make:
    return of_sql(*(f"ALTER TABLE K! DROP COLUMN {name}" for name in dropped))


VIRTUAL = (
    "PRAGMA writable_schema = 1; INSERT INTO sqlite_master VALUES "
    "('table', 'odd', 'odd', 0, 'CREATE VIRTUAL TABLE odd USING nothere(x)');"
)
ENDLESS = (
    "ALTER TABLE K! RENAME TO kept; CREATE VIEW K! AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) "
    "SELECT kept.* FROM kept, r;"
)

TABLES = (
    Fault(
        "other-database",
        "a SQLite file of something else",
        _database("CREATE TABLE songs (id)"),
        Refused("not an nsys"),
    ),
    Fault(
        "no-tables", "a SQLite file without tables", _database("PRAGMA user_version = 7"), Refused("it holds no tables")
    ),
    Fault("no-kernels", "an export without a kernel table", of_sql("DROP TABLE K!"), Refused(f"has no {KERNEL} table")),
    Fault("zero-kernels", "a kernel table without rows", of_sql("DELETE FROM K!"), Refused(f"empty {KERNEL} table")),
    Fault(
        "kernels-alone",
        "a kernel table and nothing else",
        of_sql(
            REBUILT.format("*"),
            *(
                f"DROP TABLE {name}"
                for name in (
                    "StringIds",
                    "CUPTI_ACTIVITY_KIND_RUNTIME",
                    "META_DATA_EXPORT",
                    "META_DATA_CAPTURE",
                    "TARGET_INFO_GPU",
                    "TARGET_INFO_CUDA_DEVICE",
                    "TARGET_INFO_CUDA_CONTEXT_INFO",
                    "CUDA_GRAPH_NODE_EVENTS",
                    "PROCESSES",
                )
            ),
        ),
        with_warning("a name id that StringIds lacks"),
    ),
    *(
        Fault(
            f"no-{name}",
            f"a kernel table without column {name}",
            of_sql(REBUILT.format(kept)),
            Refused(f"no column {name}"),
        )
        for name, kept in (
            ("start", '"end", shortName'),
            ("end", "start, shortName"),
            ("shortName", 'start, "end"'),
        )
    ),
    Fault(
        "no-node-ids",
        "a kernel table without graphNodeId",
        of_sql("ALTER TABLE K! DROP COLUMN graphNodeId", nodes=THREE),
        Right({"steps.source": "launch pattern", "steps.launches": 3, "steps.span_ms": 0.0565}),
    ),
    Fault(
        "no-ids",
        "a kernel table without device, process, stream and correlation ids",
        _without_columns("globalPid", "streamId", "correlationId", "deviceId"),
        Right({"steps.count": 1, "ledger.closure_ns": 0}),
    ),
    Fault(
        "no-grids",
        "a kernel table without grid and block sizes",
        _without_columns(*(f"{what}{axis}" for what in ("grid", "block") for axis in "XYZ")),
        WHOLE,
    ),
    Fault(
        "kernel-view",
        "a view in place of the kernel table",
        of_sql("ALTER TABLE K! RENAME TO kept; CREATE VIEW K! AS SELECT * FROM kept"),
        Refused("is a view, and nsys writes tables"),
    ),
    Fault("endless-view", "a view that never ends in place of the kernel table", of_sql(ENDLESS), Refused("is a view")),
    Fault(
        "circular",
        "StringIds as views of each other",
        of_sql(
            "DROP TABLE StringIds; CREATE VIEW StringIds AS SELECT * FROM n; CREATE VIEW n AS SELECT * FROM StringIds"
        ),
        Refused("StringIds is a view"),
    ),
    Fault(
        "unread-view",
        "circular views that no one reads",
        of_sql("CREATE VIEW one AS SELECT * FROM two; CREATE VIEW two AS SELECT * FROM one"),
        WHOLE,
    ),
    Fault("virtual", "a virtual table of a module that is not here", of_sql(VIRTUAL), WHOLE),
    Fault(
        "without-rowid",
        "a kernel table without row ids",
        of_sql(
            f"CREATE TABLE n ({WITHOUT_ROWID}, PRIMARY KEY (start, graphNodeId)) WITHOUT ROWID; INSERT INTO n SELECT "
            f"{WITHOUT_ROWID} FROM K!; DROP TABLE K!; ALTER TABLE n RENAME TO K!"
        ),
        WHOLE,
    ),
    Fault(
        "more-columns",
        "columns of a version to come",
        of_sql(
            "ALTER TABLE K! ADD COLUMN futureText TEXT DEFAULT 'x'; ALTER TABLE K! ADD COLUMN more REAL DEFAULT 0.5"
        ),
        WHOLE,
    ),
    Fault("quoted-table", "a table with quotes in its name", of_sql('CREATE TABLE "a""b; DROP TABLE K!" (x)'), WHOLE),
    Fault(
        "no-strings",
        "an export without StringIds",
        of_sql("DROP TABLE StringIds"),
        with_warning("that StringIds lacks"),
    ),
    Fault("no-api", "an export without API calls", of_sql("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME"), WHOLE),
    Fault(
        "no-gpu",
        "an export without a GPU table",
        of_sql("DROP TABLE TARGET_INFO_GPU"),
        with_warning("the DRAM peak of 'device 0' is unknown"),
    ),
    Fault(
        "metadata",
        "metadata that is NULL and bytes",
        of_sql("UPDATE META_DATA_EXPORT SET value = NULL; INSERT INTO META_DATA_EXPORT VALUES (x'ff00', x'fe')"),
        WHOLE,
    ),
)


def _set(column: str, value: str, where: str = "rowid = 6") -> Make:
    """One value of the second replay's second launch; NULL needs a table that allows it."""
    return of_sql(REBUILT.format("*"), f'UPDATE K! SET "{column}" = {value} WHERE {where}')


def _anatomy(*statements: str) -> Make:
    """An anatomy, which counts copies, of the small trace after SQL statements."""
    return lambda folder: ["anatomy", *of_sql(*statements)(folder)[1:]]


CUT = "step cut short"
VALUES = (
    Fault(
        "null-start",
        "NULL for the start of a launch",
        _set("start", "NULL"),
        Refused("column start, row 6 holds a null"),
    ),
    Fault("null-end", "NULL for the end of a launch", _set("end", "NULL"), Refused("column end, row 6 holds a null")),
    Fault("text-start", "text for a start", _set("start", "'soon'"), Refused("column start, row 6 holds a text value")),
    Fault("real-end", "a fraction for an end", _set("end", "1000.5"), Refused("column end, row 6 holds a real value")),
    Fault(
        "blob-name",
        "bytes for a name id",
        _set("shortName", "x'00ff'"),
        Refused("column shortName, row 6 holds a blob"),
    ),
    Fault("null-ids", "NULL for every device and process", _set("deviceId", "NULL, globalPid = NULL", "1"), WHOLE),
    Fault("wide-device", "a device id beyond 32 bits", _set("deviceId", "1 << 40"), Refused("which is no 32-bit id")),
    Fault(
        "zero-times",
        "a launch without times (start = end = 0)",
        _set("start", '0, "end" = 0'),
        without("launch without timestamps", CUT),
    ),
    Fault(
        "ends-first",
        "a launch that ends before it starts",
        _set("end", "5"),
        without("launch that ends before it starts", CUT),
    ),
    Fault(
        "negative",
        "a negative start",
        _set("start", "-5"),
        without("launch with a time before 0 or longer than an hour", CUT),
    ),
    Fault(
        "most-negative",
        "the smallest 64-bit start",
        _set("start", str(-LONGEST)),
        without("launch with a time before 0 or longer than an hour", CUT),
    ),
    Fault(
        "largest",
        "the largest 64-bit end",
        _set("end", str(LONGEST)),
        without("launch with a time before 0 or longer than an hour", CUT),
    ),
    Fault("all-zero", "no launch with times", _set("start", '0, "end" = 0', "1"), Refused("has usable timestamps")),
    Fault(
        "no-duration",
        "launches of no duration",
        _set("end", "start", "1"),
        Right({"steps.count": 6, "steps.duration_sum_ms": 0, "ledger.closure_ns": 0}),
    ),
    Fault(
        "one-launch",
        "a single launch",
        of_sql("DELETE FROM K! WHERE rowid > 1"),
        Right({"steps.count": 1, "steps.launches": 1, "steps.span_ms": 0.002}),
    ),
    Fault(
        "every-row-twice",
        "every row stored twice",
        of_sql("INSERT INTO K! SELECT * FROM K!"),
        Right({"steps.count": 6, "steps.launches": 8, "steps.span_ms": SPAN / 1e6, "ledger.closure_ns": 0}),
    ),
    Fault(
        "duplicate-strings",
        "two texts for each name id",
        of_sql(
            "CREATE TABLE n AS SELECT * FROM StringIds UNION ALL SELECT id, 'other' FROM StringIds",
            "DROP TABLE StringIds; ALTER TABLE n RENAME TO StringIds",
        ),
        WHOLE,
    ),
    Fault(
        "unknown-name-id",
        "a name id that StringIds lacks",
        _set("shortName", "999999, demangledName = 999999", "1"),
        with_warning("a name id that StringIds lacks"),
    ),
    Fault(
        "text-correlation",
        "text for the correlation id of an API call",
        of_sql("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = 'x'"),
        WHOLE,
    ),
    Fault(
        "text-api-start",
        "text for the start of an API call",
        of_sql("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = 'x'"),
        Refused("column start holds 'x', which is no integer"),
    ),
    Fault(
        "text-copy",
        "text for the bytes of a copy",
        _anatomy(
            'CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, "end", deviceId, globalPid, bytes)',
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 2, 0, 1, 'many'), (1, 2, 0, 1, 5)",
        ),
        Refused("CUPTI_ACTIVITY_KIND_MEMSET holds text, a fraction or nothing"),
    ),
    Fault(
        "null-range",
        "NULL for the start of an NVTX range",
        of_sql(
            'CREATE TABLE NVTX_EVENTS (start INT, "end" INT, text TEXT, globalTid INT)',
            "INSERT INTO NVTX_EVENTS VALUES (NULL, 5, 'token', 1)",
            options=("--step-nvtx", "token"),
        ),
        Refused("table NVTX_EVENTS holds"),
    ),
    Fault(
        "ranges-inside-out",
        "NVTX ranges that end before they start",
        of_sql(
            'CREATE TABLE NVTX_EVENTS (start INT, "end" INT, text TEXT, globalTid INT)',
            "INSERT INTO NVTX_EVENTS VALUES (5000000, 5, 'token', 1)",
            options=("--step-nvtx", "token"),
        ),
        Refused("no launch was issued inside the NVTX ranges"),
    ),
    Fault(
        "text-gpu",
        "text for the SM count of the GPU",
        of_sql("UPDATE TARGET_INFO_GPU SET smCount = 'many'"),
        Refused("holds text where nsys writes a number"),
    ),
    Fault(
        "negative-bandwidth",
        "a negative memory bandwidth of a GPU the device table lacks",
        of_sql("UPDATE TARGET_INFO_GPU SET memoryBandwidth = -5, name = 'odd'"),
        with_warning("the DRAM peak of 'odd' is unknown"),
    ),
    Fault(
        "null-gpu",
        "a GPU without name and bandwidth",
        of_sql("UPDATE TARGET_INFO_GPU SET name = NULL, memoryBandwidth = NULL, smCount = NULL"),
        with_warning("is unknown"),
    ),
)

NAMES = (
    Fault(
        "utf-8",
        "a kernel name that is no UTF-8",
        of_sql("UPDATE StringIds SET value = CAST(x'ff67fe' AS TEXT) WHERE value = 'gemv_q4'"),
        WHOLE,
    ),
    Fault("blob-text", "bytes for a kernel name", of_sql("UPDATE StringIds SET value = x'ff67fe'"), WHOLE),
    Fault(
        "nul",
        "a kernel name with a NUL",
        of_sql("UPDATE StringIds SET value = CAST(x'67006d' AS TEXT) WHERE value = 'gemv_q4'"),
        WHOLE,
    ),
    Fault(
        "escape",
        "a kernel name that steers the terminal",
        _named("evil\x1b[2J\x07"),
        _two("its control characters become �"),
    ),
    Fault("markup", "a kernel name with markup", _named("[bold red]x[/]"), _two("the name as it is")),
    Fault("empty-name", "an empty kernel name", _named("", ""), _two("the launch by its id or empty")),
    Fault(
        "long-name",
        "a kernel name of 512 KiB",
        _named("huge", "void ns::huge<" + "Tag<int>, " * 52_428 + "int>(int)"),
        _two("the name cut"),
    ),
    Fault("deep-name", "a kernel name of 20,000 nested templates", _named("deep", DEEP), _two("the name cut")),
    Fault("unbalanced", "a kernel name of brackets that never close", _named("odd", "<" * 5000 + "(" * 5000), _two()),
)

CASES = (*TABLES, *VALUES, *NAMES)
