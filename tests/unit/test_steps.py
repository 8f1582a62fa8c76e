"""Steps of generated traces: what is kept, what is left out and why, and that nothing is lost or mixed."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib.errors import NoDataError, RefusedError
from attrib.steps import Steps, find_steps
from attrib.trace import Trace, open_trace
from tests.helpers import nsysgen as gen
from tests.helpers.nsysgen import H200, Kernel, Node
from tests.helpers.recording import Recording, account, sequence

A, B, C, D = (Kernel(name, grid=(size, 1, 1)) for name, size in (("a", 8), ("b", 16), ("c", 32), ("d", 64)))
KERNELS = (A, B, C, D)


@pytest.fixture
def recording() -> Recording:
    return Recording.new()


NODES = st.lists(
    st.builds(Node, st.sampled_from(KERNELS), st.integers(0, 3000), gap=st.integers(-400, 400)), min_size=1, max_size=5
)
EVENTS = st.tuples(
    st.integers(0, 3),  # which graph
    st.sampled_from(["whole"] * 5 + ["cut", "other", "lost", "eager"]),
    st.integers(0, 4),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(NODES, min_size=4, max_size=4),
    st.lists(EVENTS, min_size=1, max_size=18),
    st.booleans(),
    st.booleans(),
)
def test_any_replays_are_kept_excluded_or_outside(
    plans: list[list[Node]], events: list[tuple[int, str, int]], two_processes: bool, two_devices: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        built = gen.Trace("2025.3")
        processes = [built.process(11), built.process(12 if two_processes else 11)]
        owners = [processes[0], processes[0], processes[1], processes[1]] if two_processes else [processes[0]] * 4
        devices = (0, 1, 0, 1) if two_devices else (0, 0, 0, 0)
        for process in processes[: 1 + two_processes]:
            for cuda_id in range(1 + two_devices):
                process.device(built.gpu(H200), cuda_id)
        graphs = [owner.graph(plan) for owner, plan in zip(owners, plans, strict=True)]
        at = 1_000_000
        for which, what, place in events:
            owner, graph, device = owners[which], graphs[which], devices[which]
            node = place % len(graph.nodes)
            odd = built.string("odd")
            override: dict[str, Any] = {
                "other": {node: {"shortName": odd, "demangledName": odd}},
                "lost": {node: {"start": 0, "end": 0}},
            }.get(what, {})
            if what == "eager":
                at = owner.launch(KERNELS[place % 4], at, 900, device=device)
            else:
                keep = node if what == "cut" else None
                at = owner.replay(graph, at, keep=keep, override=override, device=device)
            at += 10_000
        trace = open_trace(built.write(Path(folder) / "trace.sqlite"))
        if not trace.count("CUPTI_ACTIVITY_KIND_KERNEL"):
            return
        try:
            steps = find_steps(trace)
        except NoDataError as error:
            assert "usable timestamps" in str(error)  # noqa: PT017 - other outcomes are checked below
            assert not (trace.kernels.end > 0).any()
            return
        account(trace, steps)
        if steps.source == "graph replays":
            compare_with_groups(trace, steps)
        else:
            assert not any((trace.kernels.node[steps.rows.ravel()] >= 0).tolist())


def compare_with_groups(trace: Trace, steps: Steps) -> None:
    """Every kept step is one whole replay, no family of equal replays is larger, and the rest is counted."""
    kernels = trace.kernels
    groups: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for row in range(len(kernels.start)):
        process, device = int(kernels.processes[kernels.process[row]]), int(kernels.device[row])
        if kernels.node[row] >= 0 and (process, device) == (steps.process, steps.device) and kernels.end[row] > 0:
            groups[process, int(kernels.correlation[row]), int(kernels.node[row] >> 32)].append(row)

    def launch(row: int) -> tuple[Any, ...]:
        variant, variants = kernels.variant[row], kernels.variants
        shape = (*variants.grid[variant].tolist(), *variants.block[variant].tolist())
        return (int(kernels.node[row] & 0xFFFFFFFF), trace.names.full[variant], shape)

    families = Counter(tuple(sorted(launch(r) for r in rows)) for rows in groups.values())
    whole = {frozenset(rows) for rows in groups.values()}
    assert all(frozenset(rows.tolist()) in whole for rows in steps.rows)
    slow = steps.excluded.get("slow first step", 0)
    assert steps.count + slow == max(families.values())
    reasons = ("step cut short", "step with other launches", "replay of another graph")
    assert steps.count + slow + sum(steps.excluded.get(reason, 0) for reason in reasons) == len(groups)


STEP = [Node(A, 1000), Node(B, 3000, gap=50), Node(C, 500, gap=-200)]


def test_the_graph_with_the_most_replays_is_chosen_and_another_can_be(recording: Recording, tmp_path: Path) -> None:
    often, seldom = recording.process.graph(STEP), recording.process.graph([Node(D, 90_000), Node(D, 90_000)])
    for _ in range(4):
        recording.replay(seldom)
        recording.replay(often, 2)
    trace = recording.open(tmp_path)
    steps = find_steps(trace)
    assert (steps.count, steps.launches, steps.graphs) == (8, 3, (often.exec_id,))
    assert steps.excluded == {"replay of another graph": 4}
    assert steps.outside == 8
    (note,) = steps.warnings
    assert f"--graph {seldom.exec_id}" in note
    chosen = find_steps(trace, graph=seldom.exec_id)
    assert (chosen.count, chosen.launches, chosen.graphs) == (4, 2, (seldom.exec_id,))
    assert chosen.excluded == {"replay of another graph": 8}


def test_reinstantiated_graphs_of_one_sequence_are_one_family(recording: Recording, tmp_path: Path) -> None:
    first, second, other = (recording.process.graph(nodes) for nodes in (STEP, STEP, STEP[:2]))
    recording.replay(first, 3)
    recording.replay(second, 3)
    recording.replay(other, 4)
    steps = find_steps(recording.open(tmp_path))
    assert (steps.count, steps.graphs) == (6, (first.exec_id, second.exec_id))
    assert steps.excluded == {"replay of another graph": 4}


def test_positions_follow_the_nodes_where_overlap_swaps_launches(recording: Recording, tmp_path: Path) -> None:
    graph = recording.process.graph([Node(A, 1000), Node(B, 1000, gap=0)])
    recording.replay(graph, 3)
    swap = {0: {"start": recording.at + 40}, 1: {"start": recording.at + 10}}
    recording.replay(graph, override=swap)
    recording.replay(graph, 2)
    trace = recording.open(tmp_path)
    steps = find_steps(trace)
    assert steps.count == 6
    account(trace, steps)
    assert [sequence(trace, rows) for rows in steps.rows] == [["a", "b"]] * 6


def test_slow_first_steps_are_left_out_and_slow_later_ones_are_not(recording: Recording, tmp_path: Path) -> None:
    graph = recording.process.graph(STEP)
    recording.replay(graph, 2, scale=8)
    recording.replay(graph, 3)
    recording.replay(graph, scale=8)
    recording.replay(graph, 4)
    steps = find_steps(recording.open(tmp_path))
    assert steps.count == 8
    assert steps.excluded == {"slow first step": 2}


def test_two_steps_are_too_few_to_call_the_first_slow(recording: Recording, tmp_path: Path) -> None:
    graph = recording.process.graph(STEP)
    recording.replay(graph, scale=50)
    recording.replay(graph)
    steps = find_steps(recording.open(tmp_path))
    assert (steps.count, steps.excluded) == (2, {})


@pytest.mark.parametrize(("keep", "reason"), [(2, "step cut short"), (None, "step with other launches")])
def test_cut_and_deviating_steps_have_their_own_reasons(
    recording: Recording, keep: int | None, reason: str, tmp_path: Path
) -> None:
    graph = recording.process.graph(STEP)
    recording.replay(graph, 4)
    grid = {1: {"gridX": 17}} if keep is None else None
    recording.replay(graph, keep=keep, override=grid)
    steps = find_steps(recording.open(tmp_path))
    assert (steps.count, steps.excluded) == (4, {reason: 1})
    assert steps.outside == (keep or 3)


def test_a_replay_that_lacks_its_very_first_launch_is_not_like_the_others(recording: Recording, tmp_path: Path) -> None:
    """Node 0 with the first kernel of the trace is all zeros, which must count in what makes two replays equal."""
    graph = recording.process.graph([Node(A, 1000), Node(A, 1000)])
    recording.replay(graph, 3)
    recording.replay(graph, override={0: {"start": 0, "end": 0}})
    steps = find_steps(recording.open(tmp_path))
    assert (steps.count, steps.launches) == (3, 2)
    assert steps.excluded == {"launch without timestamps": 1, "step cut short": 1}


# --- a repeating pattern of eager launches

NOISE = tuple(Kernel(f"noise{i}") for i in range(6))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(KERNELS), min_size=2, max_size=6).filter(lambda p: 1 in Counter(p).values()),
    st.integers(4, 9),
    st.lists(st.sampled_from(NOISE), max_size=5, unique=True),
    st.lists(st.sampled_from(NOISE), max_size=5, unique=True),
)
def test_a_pattern_is_found_between_noise(
    pattern: list[Kernel], repeats: int, before: list[Kernel], after: list[Kernel]
) -> None:
    """A step begins at the pause before its first launch, whatever ran before and after."""
    recording = Recording.new()
    recording.eager(*before)
    for _ in range(repeats):
        recording.at += 40_000
        recording.eager(*pattern)
    recording.at += 40_000
    recording.eager(*after)
    with tempfile.TemporaryDirectory() as folder:
        trace = recording.open(Path(folder))
        steps = find_steps(trace)
        account(trace, steps)
        assert steps.source == "launch pattern"
        assert (steps.count, steps.launches) == (repeats, len(pattern))
        assert sequence(trace, steps.rows[0]) == [kernel.name for kernel in pattern]
        assert steps.outside == len(before) + len(after)


def test_a_pattern_that_starts_in_the_middle_of_a_step_loses_only_that_step(
    recording: Recording, tmp_path: Path
) -> None:
    recording.eager(B, C)
    for _ in range(6):
        recording.at += 40_000
        recording.eager(A, B, C)
    trace = recording.open(tmp_path)
    steps = find_steps(trace)
    assert (steps.count, steps.outside) == (6, 2)
    assert sequence(trace, steps.rows[0]) == ["a", "b", "c"]


def test_too_few_repeats_are_the_whole_trace(recording: Recording, tmp_path: Path) -> None:
    for _ in range(2):
        recording.eager(A, B, C)
    trace = recording.open(tmp_path)
    steps = find_steps(trace)
    assert (steps.source, steps.count, steps.launches, steps.outside) == ("whole trace", 1, 6, 0)
    assert any("whole trace" in note for note in steps.warnings)
    with pytest.raises(NoDataError, match=r"no launch pattern that repeats 3 times$"):
        find_steps(trace, source="pattern")


def test_the_whole_trace_on_request_has_no_warning(recording: Recording, tmp_path: Path) -> None:
    recording.replay(recording.process.graph(STEP), 5)
    steps = find_steps(recording.open(tmp_path), source="whole")
    assert (steps.source, steps.count, steps.launches, steps.warnings) == ("whole trace", 1, 15, ())


# --- what is refused


def test_what_matches_nothing_is_one_sentence(recording: Recording, tmp_path: Path) -> None:
    recording.replay(recording.process.graph(STEP), 4)
    recording.process.nvtx("token", recording.at, recording.at + 1)
    trace = recording.open(tmp_path)
    for options, text in (
        ({"graph": 77}, "has no replay of graph 77 on device 0"),
        ({"device": 5}, r"no launch ran on device 5 in process any; the trace has devices \[0\] and processes \[11\]"),
        ({"process": 99}, "no launch ran on device any in process 99"),
        ({"nvtx": "prefill"}, "no NVTX range matches 'prefill'; the trace has 'token'"),
        ({"nvtx": "("}, "is not a regular expression"),
    ):
        with pytest.raises(NoDataError, match=text):
            find_steps(trace, **options)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="'zzz' is not one of auto, graph, pattern, whole"):
        find_steps(trace, source="zzz")


def test_graph_source_without_replays_is_refused(recording: Recording, tmp_path: Path) -> None:
    recording.eager(A, B, A, B, A, B)
    with pytest.raises(NoDataError, match="no replay of any CUDA graph"):
        find_steps(recording.open(tmp_path), source="graph")


def test_device_and_process_choose(tmp_path: Path) -> None:
    built = gen.Trace("2025.3")
    first, second = built.process(11), built.process(12)
    for process in (first, second):
        for cuda_id in (0, 1):
            process.device(built.gpu(H200), cuda_id)
    graphs = {process.pid: process.graph(STEP) for process in (first, second)}
    for i in range(4):
        for process, device, scale in ((first, 0, 1), (first, 1, 2), (second, 0, 3), (second, 1, 5)):
            process.replay(graphs[process.pid], 1_000_000 * (i + 1) + 7 * device, device=device, scale=scale)
    trace = open_trace(built.write(tmp_path / "trace.sqlite"))
    for options, pid, device in (
        ({}, 12, 1),
        ({"process": 11}, 11, 1),
        ({"device": 0}, 12, 0),
        ({"process": 11, "device": 0}, 11, 0),
    ):
        steps = find_steps(trace, **options)  # type: ignore[arg-type]
        assert (steps.process, steps.device) == (gen.VM | pid << 24, device)
        assert steps.count == 4
        account(trace, steps)
    assert any("choose with --device and --process" in note for note in find_steps(trace).warnings)


def test_processes_stay_apart_where_the_device_is_unknown(tmp_path: Path) -> None:
    built = gen.Trace("2025.3")
    first, second = built.process(11), built.process(12)
    for process in (first, second):
        process.device(built.gpu(H200), 0)
        graph = process.graph(STEP)
        unknown = {i: {"deviceId": -1} for i in range(3)}
        for i in range(4):
            process.replay(graph, 1_000_000 * (i + 1), scale=process.pid - 10, override=unknown)
    trace = open_trace(built.write(tmp_path / "trace.sqlite"))
    steps = find_steps(trace)
    assert (steps.count, steps.process) == (4, gen.VM | 12 << 24)
    account(trace, steps)
