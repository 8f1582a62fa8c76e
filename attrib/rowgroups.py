"""Kernel rows taken and grouped without copying what need not be copied. A leaf, pure numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Groups:
    """Row numbers cut into consecutive groups: group g is `rows[begin[g]:begin[g + 1]]`."""

    rows: NDArray[np.int64]
    begin: NDArray[np.int64]

    def sizes(self) -> NDArray[np.int64]:
        """(groups,) rows of each group."""
        return np.diff(self.begin)

    def matrix(self, chosen: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """(chosen, size) rows of the chosen groups, all of which have this size."""
        begin = self.begin[:-1][chosen]
        if np.all(np.diff(begin) == size):  # neighbours: a view, where picking would copy every row id
            return self.rows[begin[0] : begin[-1] + size].reshape(len(chosen), size)
        picked: NDArray[np.int64] = self.rows[begin[:, None] + np.arange(size)]
        return picked


def take(column: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """`column[rows]` for distinct rows, without a copy when they are a run of neighbours in order."""
    run = neighbours(rows)
    return column[rows] if run is None else column[run]


def neighbours(rows: NDArray[np.int64]) -> slice | None:
    """The slice that distinct rows are, None where they are no run of neighbours in order."""
    if not len(rows) or int(rows[-1]) - int(rows[0]) != len(rows) - 1 or np.any(rows[1:] < rows[:-1]):
        return None
    return slice(int(rows[0]), int(rows[-1]) + 1)


def group(rows: NDArray[np.int64], keys: Sequence[NDArray[np.int64]]) -> Groups:
    """Group rows by equal keys, groups by first appearance of their key in sorted order, rows in start order."""
    if not _sorted(keys):
        order = np.lexsort(tuple(reversed(keys)))
        rows, keys = rows[order], [key[order] for key in keys]
    change = np.zeros(len(rows), bool)
    change[:1] = True
    for key in keys:
        change[1:] |= key[1:] != key[:-1]
    return Groups(rows, np.append(np.flatnonzero(change), len(rows)))


def _sorted(keys: Sequence[NDArray[np.int64]]) -> bool:
    """Whether the rows are in ascending order of the key tuple already, which saves sorting millions of rows."""
    tied = np.ones(max(len(keys[0]) - 1, 0), bool)
    for key in keys:
        if np.any(tied & (key[1:] < key[:-1])):
            return False
        tied &= key[1:] == key[:-1]
    return True


def signatures(groups: Groups, place: NDArray[np.int64], variant: NDArray[np.int32]) -> NDArray[np.uint64]:
    """(groups,) 64-bit hash of the multiset of (place, variant) in each group, equal whatever the order of rows.

    `place` has one value per grouped row and is used up; `variant` has one per kernel row.
    """
    place <<= 24
    place |= take(variant, groups.rows)
    mixed = place.view(np.uint64)
    mixed += np.uint64(1)  # zero would hash to zero, and a step would equal one that lacks that launch
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return np.add.reduceat(mixed, groups.begin[:-1])
