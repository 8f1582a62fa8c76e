"""What nsys traces do: the cases that real exports showed, each in its smallest form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.helpers import data
from tests.helpers.faults.case import SECRET, Fault, Make, Refused, Right
from tests.helpers.faults.small import GEMV, NORM, SPAN, WHOLE, census, replayed, started, without, write
from tests.helpers.nsysgen import GB10, H200, Graph, Kernel, Node, Process, Trace

Build = Callable[[Trace, Process, Graph], object]


def _traced(build: Build, *options: object, capture_mode: str = "Node") -> Make:
    """A trace of one process that does what `build` says."""

    def make(folder: Path) -> list[object]:
        trace, process, graph = started(capture_mode=capture_mode)
        build(trace, process, graph)
        return census(trace.write(folder / "trace.sqlite"), *options)

    return make


def _then(build: Callable[[Process, Graph, int], object], before: int = 5) -> Make:
    """Some replays, then what `build` adds after them."""
    return _traced(lambda _, process, graph: build(process, graph, replayed(process, graph, before)))


def _unseen(trace: Trace, process: Process, graph: Graph) -> None:
    for i in range(5):
        process.replay_unseen(graph, 1_000_000 * (i + 1), SPAN)


def _captured_calls(trace: Trace, process: Process, graph: Graph) -> None:
    """Launches inside a stream capture: calls that no kernel follows."""
    for i in range(4):
        process.api("cudaLaunchKernel_v7000", 10_000 * i, 10_000 * i + 3000)
    replayed(process, graph)


def _driver_calls(trace: Trace, process: Process, graph: Graph) -> None:
    at = 1_000_000
    for _ in range(6):
        at = process.replay(graph, at, call="cuGraphLaunch") + 20_000


def _before_the_calls(trace: Trace, process: Process, graph: Graph) -> None:
    replayed(process, graph)
    trace.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["start"] = 10
    trace.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0]["end"] = 2010


def _ranges(by_id: bool) -> Make:
    def build(trace: Trace, process: Process, graph: Graph) -> None:
        at = 1_000_000
        for i in range(5):
            end = process.launch(GEMV, process.launch(NORM, at, 2000) + 100, 7000)
            process.nvtx(f"token {i}", at - 10_000, end + 5000, by_id=by_id)
            at = end + 50_000
        process.nvtx("token never closed", at, None)

    return _traced(build, "--step-nvtx", "token")


TOKENS = Right({"steps.count": 5, "steps.launches": 2, "steps.span_ms": 0.0091, "steps.idle_ms": 0.0001})


def _two_processes(folder: Path) -> list[object]:
    """The same correlation and graph ids at the same times; the second takes three times as long."""
    trace = Trace("2026.2")
    for pid, scale in ((11, 1), (12, 3)):
        process = trace.process(pid)
        process.device(trace.gpu(H200))
        graph = process.graph([Node(NORM, 2000), Node(GEMV, 50_000, gap=300)])
        for i in range(6):
            process.replay(graph, 1_000_000 * (i + 1) + pid, scale=scale)
    return census(trace.write(folder / "trace.sqlite"))


def _second_gpu(folder: Path) -> list[object]:
    trace = Trace("2025.3")
    process = trace.process()
    trace.gpu(H200, cuda_id=1)
    process.device(trace.gpu(GB10, cuda_id=0))
    replayed(process, process.graph([Node(NORM, 2000), Node(GEMV, 50_000, gap=300)]))
    return census(trace.write(folder / "trace.sqlite"))


def _instances(folder: Path) -> list[object]:
    nodes = [Node(Kernel("gemv", f"void gemv<(int){i}>(float *)"), 1000) for i in range(30)]
    return census(write(folder / "trace.sqlite", nodes=nodes))


def _secret(folder: Path) -> list[object]:
    trace, process, graph = started()
    replayed(process, graph)
    trace.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value=SECRET, devStateName="Host")
    trace.string(f"/home/{SECRET}/bench")
    trace.string("/usr/bin/env")
    return ["scrub", trace.write(folder / "trace.sqlite"), folder / "shared.sqlite", "--json"]


def _recorded(name: str) -> Make:
    def make(folder: Path) -> list[object]:
        path = folder / "trace.sqlite"
        path.write_bytes(data.trace(name).read_bytes())
        return census(path)

    return make


def _other_kernel(process: Process, graph: Graph, at: int) -> None:
    other = process.trace.string("something_else")
    process.replay(graph, at, override={2: {"shortName": other, "demangledName": other}})


def _unheard_of(folder: Path) -> list[object]:
    trace, process, graph = started()
    trace.rows["TARGET_INFO_GPU"][0].update(name="NVIDIA Unheard Of", memoryBandwidth=10**12)
    replayed(process, graph)
    return census(trace.write(folder / "trace.sqlite"))


CASES = (
    Fault("nvtx-inline", "NVTX texts in the row, a range that was never closed", _ranges(by_id=False), TOKENS),
    Fault("nvtx-interned", "NVTX texts in StringIds", _ranges(by_id=True), TOKENS),
    Fault("driver-calls", "driver calls among the runtime calls", _traced(_driver_calls), WHOLE),
    Fault("captured-calls", "captured launches: a call and no kernel", _traced(_captured_calls), WHOLE),
    Fault(
        "two-processes",
        "correlation ids that repeat in another process",
        _two_processes,
        Right({"steps.count": 6, "steps.launches": 2, "steps.span_ms": 0.1563, "warnings~": "process 12"}),
    ),
    Fault(
        "graph-mode",
        "graphs traced as a whole",
        _traced(_unseen, capture_mode="Graph"),
        Refused("--cuda-graph-trace=node"),
    ),
    Fault(
        "graph-mode-eager",
        "graphs traced as a whole, and some eager launches",
        _traced(
            lambda trace, process, graph: (_unseen(trace, process, graph), process.launch(NORM, 500_000, 2000)),
            capture_mode="Graph",
        ),
        Right({"warnings~": "use --cuda-graph-trace=node"}),
    ),
    Fault(
        "incomplete",
        "a capture cut short: 49 graph nodes made, one kernel recorded",
        _recorded("incomplete-capture"),
        Right({"warnings~": "incomplete capture: 49 graph nodes were created and 1 kernel recorded"}),
    ),
    Fault(
        "before-api",
        "a launch before the first API call",
        _traced(_before_the_calls),
        without("launch before the first API call", "step cut short"),
    ),
    Fault(
        "slow-first",
        "a first step ten times slower",
        _traced(
            lambda _, process, graph: replayed(process, graph, 5, process.replay(graph, 1_000_000, scale=10) + 20_000)
        ),
        without("slow first step"),
    ),
    Fault(
        "cut-last",
        "a last step cut short",
        _then(lambda process, graph, at: process.replay(graph, at, keep=2)),
        without("step cut short"),
    ),
    Fault("other-kernel", "a step with another kernel", _then(_other_kernel), without("step with other launches")),
    Fault(
        "second-gpu",
        "the GPU that ran is not the first in the table",
        _second_gpu,
        Right({"device.name": "NVIDIA GB10", "steps.count": 6}),
    ),
    Fault(
        "instances",
        "one short name for 30 template instances",
        _instances,
        Right({"steps.launches": 30, "steps.span_ms": 0.03}),
    ),
    Fault("unsorted", "rows in no order", lambda folder: census(write(folder / "trace.sqlite", reverse=True)), WHOLE),
    Fault(
        "node-creation",
        "a replay of a graph that was made long before",
        _traced(lambda trace, process, graph: (trace.rows.pop("CUDA_GRAPH_NODE_EVENTS"), replayed(process, graph))),
        WHOLE,
    ),
    Fault("unknown-gpu", "a GPU that the device table does not know", _unheard_of, WHOLE),
    Fault(
        "secrets",
        "an export with the names of a host and a user, scrubbed",
        _secret,
        Right({}, "a copy without them"),
        output="shared.sqlite",
    ),
)
