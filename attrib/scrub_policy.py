"""What a scrubbed export may hold: tables, columns and the text each text column may carry. A leaf.

This is an allow-list. A table or column that is not named here does not reach the copy, so whatever a later nsys
version adds stays out until someone decides that it tells nothing about a person or a machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_EVENT = "start end deviceId contextId greenContextId streamId correlationId globalPid"
_CREATION = "start end eventClass globalTid nameId graphNodeId originalGraphNodeId graphId originalGraphId graphExecId"


@dataclass(frozen=True)
class TablePolicy:
    """One allowed table.

    `numbers` are copied where the stored value is a number. `strings` are ids into StringIds with the role of the
    text. `texts` are text columns with the pattern their whole value must match, else it is removed.
    """

    numbers: tuple[str, ...]
    strings: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, re.Pattern[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class PairsPolicy:
    """A table of (name, value) rows: the names that stay, each with the pattern of its value."""

    names: Mapping[re.Pattern[str], re.Pattern[str]]
    numbers: tuple[str, ...] = ()


def _pairs(names: Mapping[str, str], numbers: str = "") -> PairsPolicy:
    return PairsPolicy({re.compile(n): re.compile(v) for n, v in names.items()}, tuple(numbers.split()))


def _table(
    numbers: str, strings: Mapping[str, str] | None = None, texts: Mapping[str, str] | None = None
) -> TablePolicy:
    patterns = {column: re.compile(pattern) for column, pattern in (texts or {}).items()}
    return TablePolicy(tuple(numbers.split()), strings or {}, patterns)


KERNEL_NAME, API_NAME, RANGE_TEXT = "kernel name", "API name", "NVTX text"
_EXPORT_META = {
    r"EXPORT_PRODUCT_NAME": r"NVIDIA Nsight Systems",
    r"EXPORT_(PRODUCT|SCHEMA)_VERSION(_MAJOR|_MINOR|_MICRO)?": r"[0-9.]{1,24}",
}

NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"

TABLES: dict[str, TablePolicy] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": _table(
        f"{_EVENT} launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ "
        "staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted "
        "graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX "
        "clusterY clusterZ clusterSchedulingPolicy maxPotentialClusterSize maxActiveClusters "
        "sharedMemoryRequestedPercentage",
        {"demangledName": KERNEL_NAME, "shortName": KERNEL_NAME, "mangledName": KERNEL_NAME},
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": _table(
        f"{_EVENT} bytes copyKind deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId "
        "migrationCause graphNodeId copyCount"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": _table(f"{_EVENT} value bytes graphNodeId memKind"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": _table(
        "start end eventClass globalTid correlationId returnValue", {"nameId": API_NAME}
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": _table(f"{_EVENT} syncType eventId deprecatedSyncType eventSyncId"),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": _table(f"{_EVENT} eventId eventSyncId"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _table(f"{_EVENT} graphId graphExecId"),
    "CUDA_GRAPH_NODE_EVENTS": _table(_CREATION, {"nameId": API_NAME}),
    "CUDA_GRAPH_EVENTS": _table(_CREATION, {"nameId": API_NAME}),
    "PROFILER_OVERHEAD": _table("start end globalTid returnValue overheadType", {"nameId": API_NAME}),
    "PROCESSES": _table("globalPid pid"),
    "ANALYSIS_DETAILS": _table("globalVid duration startTime stopTime"),
    NVTX: _table(
        "start end eventType rangeId category color globalTid endGlobalTid domainId uint64Value int64Value "
        "doubleValue uint32Value int32Value floatValue",
        {"textId": RANGE_TEXT},
        {"text": r"(?s).*"},
    ),
    "TARGET_INFO_GPU": _table(
        "vmId id isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount cuDevice revision nodeMask "
        "constantMemory maxIPC maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm "
        "maxRegistersPerSm threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX "
        "maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor",
        texts={
            "name": r"[\w .()+-]{1,64}",
            "chipName": r"[A-Z]{1,3}[0-9A-Zx]{1,6}",
            "busLocation": r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]",
        },
    ),
    "TARGET_INFO_CUDA_DEVICE": _table("gpuId cudaId pid"),
    "TARGET_INFO_CUDA_CONTEXT_INFO": _table(
        "nullStreamId hwId vmId processId deviceId contextId parentContextId isGreenContext"
    ),
    "TARGET_INFO_CUDA_NULL_STREAM": _table("streamId hwId vmId processId deviceId contextId"),
    "TARGET_INFO_CUDA_STREAM": _table("streamId hwId vmId processId contextId priority flag"),
}

PAIRS: dict[str, PairsPolicy] = {
    "META_DATA_EXPORT": _pairs(_EXPORT_META),
    "EXPORT_META_DATA": _pairs(_EXPORT_META),
    "META_DATA_CAPTURE": _pairs(
        {
            r"(PROCESS_[0-9]+:)?CUDA_GRAPH_TRACE_OPTIONS:MODE": r"[A-Z]?[a-z]{1,8}",
            r"(PROCESS_[0-9]+:)?COLLECT_(CUDA|NVTX)_TRACE": r"true|false",
        }
    ),
    "TARGET_INFO_SYSTEM_ENV": _pairs(
        {
            r"CpuArchitecture": r"x86_64|aarch64|ppc64le",
            r"NvDriverVersion": r"[0-9.]{1,16}",
            r"CudaDriverVersion": r"[0-9]{1,8}",
        },
        "globalVid nameEnum",
    ),
}

REASONS: dict[str, str] = {
    "TARGET_INFO_SYSTEM_ENV": "environment, host and user",
    "TARGET_INFO_PROCESS": "command lines",
    "TARGET_INFO_SESSION_START_TIME": "date",
    "ThreadNames": "thread names",
    "DIAGNOSTIC_EVENT": "diagnostic texts",
    "ProcessStreams": "program output",
    "COMPOSITE_EVENTS": "CPU samples",
    "SCHED_EVENTS": "CPU scheduling",
    "SAMPLING_CALLCHAINS": "call chains",
    "CUDA_CALLCHAINS": "call chains",
    "OSRT_CALLCHAINS": "call chains",
    "OSRT_API": "operating system calls",
    "META_DATA_CAPTURE": "capture settings and session",
    "META_DATA_EXPORT": "export date and settings",
    "EXPORT_META_DATA": "export date and settings",
    STRINGS: "paths, command lines and unused strings",
    "PROCESSES": "process names",
    "TARGET_INFO_GPU": "GPU UUIDs and device paths",
}
UNKNOWN_REASON = "not on the list of tables that may stay"
