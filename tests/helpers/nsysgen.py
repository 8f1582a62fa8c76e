"""Writes nsys SQLite exports from a description of what ran, in the schema of a chosen nsys version.

    trace = Trace("2025.3")
    process = trace.process(pid=100)
    process.device(trace.gpu(H200))
    graph = process.graph([Node(Kernel("gemv", grid=(64, 1, 1)), duration=4000), Node(NORM, 1500, gap=-200)])
    t = 1_000_000
    for _ in range(8):
        t = process.replay(graph, at=t) + 20_000
    trace.write(path)

All times are ns. Tables appear only when something was put in them, as nsys does; columns a row does not name
are NULL, or zero where the export declares them NOT NULL.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers import nsysgen_schema as names
from tests.helpers.nsysgen_schema import VERSIONS, Schema

Dim3 = tuple[int, int, int]
VM = 1 << 48  # globalPid = VM | pid << 24, globalTid = globalPid | tid
NVTX_PUSH_POP = 59
_API_RUNTIME, _API_DRIVER, _NODE_CREATION = 0, 1, 77


@dataclass(frozen=True)
class Kernel:
    """A kernel as a launch shows it; `demangled` None means `name(float *)`, `name_id` replaces both ids."""

    name: str
    demangled: str | None = None
    grid: Dim3 = (1, 1, 1)
    block: Dim3 = (256, 1, 1)
    registers: int = 32
    name_id: int | None = None


@dataclass(frozen=True)
class Node:
    """One graph node: starts `gap` ns after the node before it ended (negative: overlaps it)."""

    kernel: Kernel
    duration: int
    gap: int = 0
    stream: int = 7


@dataclass(frozen=True)
class Gpu:
    """What TARGET_INFO_GPU says of a device; bandwidth in bytes/s, compute as (major, minor)."""

    name: str
    sms: int
    bandwidth: int
    warps_per_sm: int
    compute: tuple[int, int]
    chip: str
    memory: int
    l2: int


H200 = Gpu("NVIDIA H200", 132, 4_814_304_000_000, 64, (9, 0), "GH100", 150_109_880_320, 62_914_560)
GB10 = Gpu("NVIDIA GB10", 48, 273_000_000_000, 48, (12, 1), "GB10", 128_524_091_392, 25_165_824)


@dataclass(frozen=True)
class Graph:
    """An instantiated graph; node i of the executable is `graphNodeId` = exec_id << 32 | i."""

    exec_id: int
    nodes: tuple[Node, ...]


@dataclass
class Trace:
    """Rows to be written, by table. `capture_mode` is the graph mode the capture metadata states."""

    schema: str = "2025.3"
    capture_mode: str = "Node"
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)
    _next_grid: int = 1
    _gpus: int = 0

    @property
    def version(self) -> Schema:
        """The schema rows are written in."""
        return VERSIONS[self.schema]

    def add(self, table: str, **columns: Any) -> None:
        """One raw row; columns the version does not have are left out when the file is written."""
        self.rows.setdefault(table, []).append(columns)

    def string(self, text: str) -> int:
        """The id of a string in StringIds."""
        return self.strings.setdefault(text, len(self.strings) + 1)

    def grid_id(self) -> int:
        """The next launch number."""
        self._next_grid += 1
        return self._next_grid - 1

    def gpu(self, spec: Gpu, cuda_id: int | None = None) -> int:
        """A GPU of the machine; returns its id in TARGET_INFO_GPU. `cuda_id` is its CUDA ordinal."""
        gpu_id = self._gpus
        self._gpus += 1
        major, minor = spec.compute
        self.add(
            names.GPU,
            vmId=VM,
            id=gpu_id,
            name=spec.name,
            busLocation=f"0000:{gpu_id + 1:02x}:00.0",
            isDiscrete=1,
            l2CacheSize=spec.l2,
            totalMemory=spec.memory,
            memoryBandwidth=spec.bandwidth,
            clockRate=1_980_000_000,
            smCount=spec.sms,
            uuid="GPU-00000000-0000-0000-0000-000000000000",
            chipName=spec.chip,
            cuDevice=gpu_id if cuda_id is None else cuda_id,
            maxRegistersPerSm=65536,
            threadsPerWarp=32,
            maxWarpsPerSm=spec.warps_per_sm,
            maxBlocksPerSm=32,
            maxThreadsPerBlock=1024,
            computeMajor=major,
            computeMinor=minor,
            smMajor=major,
            smMinor=minor,
        )
        return gpu_id

    def process(self, pid: int = 100, name: str = "bench") -> Process:
        """A process with one thread, number `pid`."""
        process = Process(self, pid)
        if "PROCESSES" in self.version.tables:
            self.add("PROCESSES", globalPid=process.global_pid, pid=pid, name=name)
        return process

    def write(self, path: Path, *, reverse: bool = False) -> Path:
        """Write the export; `reverse` stores rows last first, as nothing promises an order."""
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as db:
            tables = {**self._fixed_rows(), **self.rows}
            for table, rows in tables.items():
                self._write_table(db, table, rows[::-1] if reverse else rows)
        db.close()
        return path

    def _fixed_rows(self) -> dict[str, list[dict[str, Any]]]:
        major, minor, micro = self.version.version.split(".")
        metadata = {
            "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
            "EXPORT_PRODUCT_VERSION": self.version.product,
            "EXPORT_SCHEMA_VERSION": self.version.version,
            "EXPORT_SCHEMA_VERSION_MAJOR": major,
            "EXPORT_SCHEMA_VERSION_MINOR": minor,
            "EXPORT_SCHEMA_VERSION_MICRO": micro,
        }
        capture = {"CAPTURE_EVENT_TYPE": "Cuda", "PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE": self.capture_mode}
        rows = {self.version.metadata: _pairs(metadata)}
        if "META_DATA_CAPTURE" in self.version.tables:
            rows["META_DATA_CAPTURE"] = _pairs(capture)
        rows["StringIds"] = [{"id": i, "value": text} for text, i in self.strings.items()]
        return rows

    def _write_table(self, db: sqlite3.Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if table not in self.version.tables:
            raise KeyError(f"nsys {self.schema} exports have no table {table}")
        db.execute(self.version.ddl(table))
        columns = self.version.columns(table)
        zero = [_zero(declared) for declared in self.version.tables[table].split()]
        db.executemany(
            f'INSERT INTO "{table}" VALUES ({",".join("?" * len(columns))})',
            ([row.get(c, z) for c, z in zip(columns, zero, strict=True)] for row in rows),
        )


def _pairs(items: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in items.items()]


def _zero(declared: str) -> Any:
    if not declared.endswith("!"):
        return None
    return "[]" if ":TEXT" in declared else 0


@dataclass
class Process:
    """What one process did. Correlation ids count from 1 in each, so they repeat across processes."""

    trace: Trace
    pid: int
    _correlation: int = 0
    _graphs: int = 0

    @property
    def global_pid(self) -> int:
        """globalPid of its GPU rows."""
        return VM | self.pid << 24

    @property
    def global_tid(self) -> int:
        """globalTid of its one thread."""
        return self.global_pid | self.pid & 0xFFFFFF

    def correlate(self) -> int:
        """The next correlation id."""
        self._correlation += 1
        return self._correlation

    def device(self, gpu_id: int, cuda_id: int = 0) -> None:
        """Declare that this process's device `cuda_id` is the GPU `gpu_id`."""
        tables = self.trace.version.tables
        if names.CUDA_DEVICE in tables:
            self.trace.add(names.CUDA_DEVICE, gpuId=gpu_id, cudaId=cuda_id, pid=self.pid)
        if names.CONTEXT in tables:
            self.trace.add(
                names.CONTEXT,
                nullStreamId=7,
                vmId=1,
                processId=self.pid,
                deviceId=cuda_id,
                contextId=cuda_id + 1,
            )

    def api(self, name: str, start: int, end: int, correlation: int | None = None) -> int:
        """A runtime (`cuda…`) or driver (`cu…`) call; returns its correlation id."""
        correlation = self.correlate() if correlation is None else correlation
        self.trace.add(
            names.RUNTIME,
            start=start,
            end=end,
            eventClass=_API_RUNTIME if name.startswith("cuda") else _API_DRIVER,
            globalTid=self.global_tid,
            correlationId=correlation,
            nameId=self.trace.string(name),
        )
        return correlation

    def graph(self, nodes: Sequence[Node], at: int = 1000) -> Graph:
        """Capture and instantiate a graph: creation rows of the captured graph and of its executable."""
        captured, executable = self._graphs + 1, self._graphs + 2
        self._graphs += 2
        table = self.trace.version.node_table
        if table is not None:
            text = self.trace.string("Graph Node Creation")
            for graph_id, origin in ((captured, None), (executable, captured)):
                for i in range(len(nodes)):
                    self.trace.add(
                        table,
                        start=at + i,
                        end=at + i,
                        eventClass=_NODE_CREATION,
                        globalTid=self.global_tid,
                        nameId=text,
                        graphNodeId=graph_id << 32 | i,
                        originalGraphNodeId=None if origin is None else origin << 32 | i,
                    )
        return Graph(executable, tuple(nodes))

    def replay(
        self,
        graph: Graph,
        at: int,
        *,
        scale: float = 1,
        keep: int | None = None,
        override: Mapping[int, Mapping[str, Any]] | None = None,
        device: int = 0,
        call: str = "cudaGraphLaunch_v10000",
    ) -> int:
        """One replay starting at `at`; returns the end of its last node.

        `scale` stretches every duration, `keep` records only the first nodes (a capture that stopped), and
        `override` replaces columns of single nodes, for example `{3: {"start": 0, "end": 0}}`.
        """
        correlation = self.api(call, at - 9000, at - 4000)
        end = at
        for i, node in enumerate(graph.nodes[:keep]):
            start = end + node.gap if i else at
            end = start + round(node.duration * scale)
            row = {
                "deviceId": device,
                "streamId": node.stream,
                "correlationId": correlation,
                "graphNodeId": graph.exec_id << 32 | i,
            }
            self._kernel(node.kernel, **{"start": start, "end": end, **row, **(override or {}).get(i, {})})
        return end

    def replay_unseen(self, graph: Graph, at: int, duration: int) -> int:
        """A replay as graph-level capture records it: one GRAPH_TRACE row and no kernels."""
        correlation = self.api("cudaGraphLaunch_v10000", at - 9000, at - 4000)
        self.trace.add(
            names.GRAPH_TRACE,
            start=at,
            end=at + duration,
            contextId=1,
            streamId=7,
            correlationId=correlation,
            globalPid=self.global_pid,
            graphId=graph.exec_id - 1,
            graphExecId=graph.exec_id,
        )
        return at + duration

    def launch(self, kernel: Kernel, at: int, duration: int, *, stream: int = 7, device: int = 0) -> int:
        """An eager launch; returns its end. A negative duration gives a row that ends before it starts."""
        correlation = self.api("cudaLaunchKernel_v7000", at - 6000, at - 3000)
        end = at + duration
        where = {"deviceId": device, "streamId": stream, "correlationId": correlation}
        self._kernel(kernel, start=at, end=end, **where)
        return end

    def _kernel(self, kernel: Kernel, **columns: Any) -> None:
        demangled = kernel.demangled if kernel.demangled is not None else f"{kernel.name}(float *)"
        text, short = kernel.name_id, kernel.name_id
        if text is None or short is None:
            text, short = self.trace.string(demangled), self.trace.string(kernel.name)
        row: dict[str, Any] = {
            "contextId": columns["deviceId"] + 1,
            "globalPid": self.global_pid,
            "demangledName": text,
            "shortName": short,
            "mangledName": text,
            "launchType": 1,
            "registersPerThread": kernel.registers,
            **dict(zip(("gridX", "gridY", "gridZ"), kernel.grid, strict=True)),
            **dict(zip(("blockX", "blockY", "blockZ"), kernel.block, strict=True)),
            "gridId": self.trace.grid_id(),
        }
        self.trace.add(names.KERNEL, **{**row, **columns})

    def memcpy(self, at: int, duration: int, nbytes: int, kind: int = 1) -> int:
        """A copy (`kind` 1 host to device, 2 device to host, 8 device to device); returns its end."""
        return self._copy(names.MEMCPY, "cudaMemcpyAsync_v3020", at, duration, bytes=nbytes, copyKind=kind)

    def memset(self, at: int, duration: int, nbytes: int) -> int:
        """A fill; returns its end."""
        return self._copy(names.MEMSET, "cudaMemsetAsync_v3020", at, duration, bytes=nbytes, value=0)

    def _copy(self, table: str, call: str, at: int, duration: int, **columns: int) -> int:
        row = {
            "start": at,
            "end": at + duration,
            "contextId": 1,
            "streamId": 7,
            "correlationId": self.api(call, at - 5000, at - 2000),
            "globalPid": self.global_pid,
        }
        self.trace.add(table, **row, **columns)
        return at + duration

    def nvtx(self, text: str, start: int, end: int | None, *, by_id: bool = False) -> None:
        """A push/pop range with its text inline or, `by_id`, in StringIds; `end` None was never closed."""
        self.trace.add(
            names.NVTX,
            start=start,
            end=end,
            eventType=NVTX_PUSH_POP,
            globalTid=self.global_tid,
            text=None if by_id else text,
            textId=self.trace.string(text) if by_id else None,
            domainId=0,
        )
