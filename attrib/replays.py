"""Which replays of CUDA graphs are the decode steps, from one value per replay. A leaf, pure numpy."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attrib.periods import MIN_REPEATS

GRAPH_SHIFT = 32
"""Graph-exec id = `graphNodeId` >> 32; below it is the node's number in the executable."""
NODE_MASK = (1 << GRAPH_SHIFT) - 1


@dataclass(frozen=True)
class Replays:
    """All replays, by (process, correlation, exec graph); arrays of shape (replays,)."""

    executable: NDArray[np.int64]
    signature: NDArray[np.uint64]
    """equal where a replay has the same nodes with the same kernels"""
    size: NDArray[np.int64]
    start: NDArray[np.int64]
    """ns, of the first launch"""
    span: NDArray[np.int64]
    """ns, to the end of the last launch"""
    correlation: NDArray[np.int64]
    process: NDArray[np.int64]


@dataclass(frozen=True)
class Chosen:
    """The replays that are steps, as indexes into Replays in start order, and their place among all of their graphs."""

    index: NDArray[np.int64]
    graphs: tuple[int, ...]
    place: NDArray[np.int64]
    of: int


def choose(found: Replays, graph: int | None, excluded: Counter[str], warnings: list[str]) -> Chosen | None:
    """The replays of the graph with the most replays of equal node sequence (ties: the longest in total).

    Re-instantiated graphs get new exec ids, so replays are told apart by their sequences. `graph` restricts the choice
    to one exec id; None where it has no replay. What is left out is counted in `excluded`.
    """
    executable, signature = found.executable, found.signature
    wanted = np.ones(len(executable), bool) if graph is None else executable == graph
    if not wanted.any():
        return None
    families, family, counts = np.unique(signature[wanted], return_inverse=True, return_counts=True)
    totals = np.bincount(family, weights=found.span[wanted], minlength=len(families))
    best = max(range(len(families)), key=lambda f: (int(counts[f]), float(totals[f])))
    heaviest = int(np.argmax(totals))
    chosen = np.flatnonzero(wanted & (signature == families[best]))
    graphs = tuple(int(g) for g in np.unique(executable[chosen]))
    if heaviest != best and totals[heaviest] > 2 * totals[best]:
        other = int(executable[np.flatnonzero(wanted & (signature == families[heaviest]))[0]])
        warnings.append(f"graph {other} takes more time with fewer replays; choose it with --graph {other}")
    of_graph = np.isin(executable, graphs)
    for one in np.flatnonzero(of_graph & (signature != families[best])):
        cut = found.size[one] < found.size[chosen[0]]
        excluded["step cut short" if cut else "step with other launches"] += 1
    other_graphs = int(np.count_nonzero(~of_graph))
    if other_graphs:
        excluded["replay of another graph"] += other_graphs
    _warn_of_company(found, counts, warnings)
    chosen = chosen[np.argsort(found.start[chosen], kind="stable")]
    begins = np.sort(found.start[of_graph])
    return Chosen(chosen, graphs, np.searchsorted(begins, found.start[chosen]), len(begins))


def _warn_of_company(found: Replays, counts: NDArray[np.int64], warnings: list[str]) -> None:
    """Say when a step may be more than one replay: graphs that take turns, or one launch of several graphs."""
    if len(counts) > 1 and np.count_nonzero(counts == counts.max()) > 1 and counts.max() >= MIN_REPEATS:
        warnings.append("another graph is replayed as often: a step may be several replays (see --graph, --step-nvtx)")
    correlation, process = found.correlation, found.process
    same = (correlation[1:] == correlation[:-1]) & (process[1:] == process[:-1])
    if np.any(same & (correlation[1:] >= 0)):
        warnings.append("one graph launch holds nodes of several graphs (child graphs): they count as replays of each")
