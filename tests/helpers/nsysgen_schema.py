"""Tables and columns of nsys SQLite exports by version, for the trace generator.

Source: `PRAGMA table_info` of the recorded exports in tests/data; the graph tables that none of them holds
(`CUPTI_ACTIVITY_KIND_GRAPH_TRACE`, the graph rows of `CUDA_GRAPH_EVENTS`) follow the columns nsys documents.
2022.4 is told by the names in its exporter library, and `documented` by the CREATE TABLE statements of a user guide.
Versions between two known ones stand here twice: with the columns both neighbours have and with all that either has.
A column is written `name`, `name!` when declared NOT NULL, `name:TEXT` or `name:TEXT!` when not an integer.
"""

from __future__ import annotations

from dataclasses import dataclass

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
NODE_EVENTS = "CUDA_GRAPH_NODE_EVENTS"
GRAPH_EVENTS = "CUDA_GRAPH_EVENTS"
NVTX = "NVTX_EVENTS"
GPU = "TARGET_INFO_GPU"
CUDA_DEVICE = "TARGET_INFO_CUDA_DEVICE"
CONTEXT = "TARGET_INFO_CUDA_CONTEXT_INFO"

_GRAPH_ROWS = "start! end! eventClass! globalTid nameId! graphId! originalGraphId graphExecId"
_NODE_ROWS = "start! end! eventClass! globalTid nameId! graphNodeId! originalGraphNodeId"
_GRAPH_TRACE = """
    start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid graphId! graphExecId!
"""
_KERNEL_HEAD = """
    start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid demangledName!
"""
_KERNEL_TAIL = """
    shortName! mangledName launchType cacheConfig registersPerThread! gridX! gridY! gridZ! blockX!
    blockY! blockZ! staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! localMemoryTotal!
    gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig
"""
_KERNEL_2026 = """
    qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY clusterZ
    clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters
    sharedMemoryRequestedPercentage tensorSizeMinusOneElements:TEXT!
"""
_KERNEL_TRIMMED = """
    start end deviceId streamId correlationId shortName demangledName gridX gridY gridZ blockX blockY blockZ
"""
_MEMCPY = """
    start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid bytes!
    copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId
    migrationCause graphNodeId virtualAddress
"""
_MEMSET = """
    start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid value! bytes!
    graphNodeId memKind
"""
_NVTX = """
    start! end eventType! rangeId category color text:TEXT globalTid endGlobalTid textId domainId
    uint64Value int64Value doubleValue:REAL uint32Value int32Value floatValue:REAL jsonTextId
    jsonText:TEXT
"""
_GPU = """
    vmId! id! name:TEXT busLocation:TEXT isDiscrete l2CacheSize totalMemory memoryBandwidth
    clockRate smCount pwGpuId uuid:TEXT luid chipName:TEXT cuDevice ctxswDevPath:TEXT
    ctrlDevPath:TEXT revision nodeMask constantMemory maxIPC maxRegistersPerBlock maxShmemPerBlock
    maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm threadsPerWarp asyncEngines maxWarpsPerSm
    maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY
    maxGridDimZ computeMajor computeMinor smMajor smMinor
"""
_STREAM = "streamId! hwId! vmId! processId! contextId! priority! flag!"
_COMMON = {
    "StringIds": "id! value:TEXT!",
    "PROCESSES": "globalPid pid name:TEXT",
    "ThreadNames": "nameId! priority globalTid",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "TARGET_INFO_CUDA_STREAM": _STREAM,
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:TEXT! name:TEXT! nameEnum! value:TEXT!",
    RUNTIME: "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId",
    NVTX: _NVTX,
    GPU: _GPU,
}
_MODERN = _COMMON | {
    "META_DATA_EXPORT": "name:TEXT! value:TEXT",
    "META_DATA_CAPTURE": "name:TEXT! value:TEXT",
    "DIAGNOSTIC_EVENT": "timestamp! timestampType! source! severity! text:TEXT! globalPid",
    CONTEXT: "nullStreamId! hwId! vmId! processId! deviceId! contextId! parentContextId isGreenContext",
    KERNEL: f"{_KERNEL_HEAD} {_KERNEL_TAIL}",
    MEMCPY: _MEMCPY,
    MEMSET: _MEMSET,
    GRAPH_TRACE: _GRAPH_TRACE,
}
_NODES_APART = {NODE_EVENTS: _NODE_ROWS, GRAPH_EVENTS: _GRAPH_ROWS}
_DEVICE_ROWS = {CUDA_DEVICE: "gpuId cudaId! pid!"}


def _without_green(columns: str) -> str:
    return columns.replace("greenContextId", "")


@dataclass(frozen=True)
class Schema:
    """One export version: its version strings and the columns of every table it may hold."""

    product: str
    version: str
    tables: dict[str, str]

    @property
    def metadata(self) -> str:
        """The table of export metadata, whose name changed between versions."""
        return "META_DATA_EXPORT" if "META_DATA_EXPORT" in self.tables else "EXPORT_META_DATA"

    @property
    def node_table(self) -> str | None:
        """Where graph node creations go; `CUDA_GRAPH_EVENTS` held them up to 3.7."""
        if NODE_EVENTS in self.tables:
            return NODE_EVENTS
        return GRAPH_EVENTS if GRAPH_EVENTS in self.tables else None

    @property
    def has_node_rows(self) -> bool:
        """Whether creations of graph nodes tell which node they are of."""
        return self.node_table is not None and "graphNodeId" in self.columns(self.node_table)

    def columns(self, table: str) -> tuple[str, ...]:
        """Column names of a table, in export order."""
        return tuple(c.rstrip("!").split(":")[0] for c in self.tables[table].split())

    def ddl(self, table: str) -> str:
        """The CREATE TABLE statement of a table."""
        return f'CREATE TABLE "{table}" ({", ".join(_declare(table, c) for c in self.tables[table].split())})'


def _declare(table: str, column: str) -> str:
    required = column.endswith("!")
    name, _, kind = column.rstrip("!").partition(":")
    key = " PRIMARY KEY" if (table, name) == ("StringIds", "id") else ""
    return f'"{name}" {kind or "INTEGER"}{" NOT NULL" if required else ""}{key}'


SCHEMAS: dict[str, Schema] = {
    "2022.2": Schema(
        "2022.2.1.31",
        "2.9.1",
        _COMMON
        | {
            "EXPORT_META_DATA": "name:TEXT! value:TEXT",
            "TARGET_INFO_SYSTEM_ENV": "globalVid! devStateName:TEXT! name:TEXT! nameEnum! value:TEXT!",
            KERNEL: _without_green(f"{_KERNEL_HEAD} {_KERNEL_TAIL}"),
            MEMCPY: _without_green(_MEMCPY) + " name:TEXT",
            MEMSET: _without_green(_MEMSET),
            RUNTIME: f"{_COMMON[RUNTIME]} name:TEXT",
            GRAPH_EVENTS: _NODE_ROWS,
        },
    ),
    "2023.4": Schema("2023.4.4.54", "3.7.2", _MODERN | {GRAPH_EVENTS: _NODE_ROWS}),
    "2024.5": Schema("2024.5.1.113", "3.13.2", _MODERN | _NODES_APART),
    "2025.3": Schema("2025.3.2.0", "3.20.3", _MODERN | _NODES_APART | _DEVICE_ROWS | {MEMCPY: f"{_MEMCPY} copyCount"}),
    "2026.1-trimmed": Schema(
        "2026.1.1.204",
        "3.24.14",
        {
            "META_DATA_EXPORT": "name:TEXT value:TEXT",
            "StringIds": "id value:TEXT",
            KERNEL: _KERNEL_TRIMMED,
            MEMCPY: "start end deviceId streamId correlationId copyKind bytes",
            RUNTIME: "start end correlationId globalTid nameId",
            GPU: "id name:TEXT",
        },
    ),
    "2026.2": Schema(
        "2026.2.1.210",
        "3.25.0",
        _MODERN
        | _NODES_APART
        | _DEVICE_ROWS
        | {
            KERNEL: f"{_KERNEL_HEAD} {_KERNEL_TAIL} {_KERNEL_2026}",
            MEMCPY: f"{_MEMCPY} copyCount",
            NVTX: f"{_NVTX} binaryData:TEXT",
        },
    ),
}


def _names(columns: str) -> list[str]:
    return [c.rstrip("!").split(":")[0] for c in columns.split()]


def _between(older: Schema, newer: Schema, product: str, most: bool) -> Schema:
    """Tables and columns that two versions share, or with `most` all that either has."""

    def columns(table: str) -> str:
        old, new = older.tables.get(table, ""), newer.tables.get(table, "")
        if most:
            added = zip(new.split(), _names(new), strict=True)
            return " ".join([*old.split(), *(column for column, name in added if name not in _names(old))])
        return " ".join(c for c, n in zip(old.split(), _names(old), strict=True) if n in _names(new))

    either = older.tables | newer.tables
    both = {table: columns(table) for table in either if table in older.tables and table in newer.tables}
    tables = {table: columns(table) for table in either} if most else both | {older.metadata: either[older.metadata]}
    return Schema(product, newer.version, tables)


_PLAIN = {
    RUNTIME: _COMMON[RUNTIME],
    MEMCPY: _without_green(_MEMCPY),
}
SCHEMA_2022_4 = Schema("2022.4.2.1", "3.0.0", SCHEMAS["2022.2"].tables | _PLAIN)
_DOCUMENTED = {
    KERNEL: _without_green(f"{_KERNEL_HEAD} {_KERNEL_TAIL}"),
    MEMCPY: _without_green(_MEMCPY),
    MEMSET: _without_green(_MEMSET),
    GRAPH_EVENTS: _GRAPH_ROWS.replace("graphId!", "graphId"),
}
_WIDER = {table: f"futureId {columns} futureText:TEXT" for table, columns in SCHEMAS["2026.2"].tables.items()}
_BOUNDS = {
    "2023.1-2023.3": (SCHEMA_2022_4, SCHEMAS["2023.4"]),
    "2024.1-2024.4": (SCHEMAS["2023.4"], SCHEMAS["2024.5"]),
    "2024.6-2025.2": (SCHEMAS["2024.5"], SCHEMAS["2025.3"]),
    "2025.4-2026.1": (SCHEMAS["2025.3"], SCHEMAS["2026.2"]),
}
VERSIONS: dict[str, Schema] = {
    **SCHEMAS,
    "2022.4": SCHEMA_2022_4,
    "documented": Schema("documented", "3.12.0", SCHEMAS["2024.5"].tables | _DOCUMENTED),
    **{
        f"{version} {word}": _between(*bounds, f"{version} {word}", word == "most")
        for version, bounds in _BOUNDS.items()
        for word in ("least", "most")
    },
    "later": Schema("later", "4.0.0", _WIDER),
}
"""Every schema the generator writes: recorded ones, what lies between them, and columns no version has yet."""
