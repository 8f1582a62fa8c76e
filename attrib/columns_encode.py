"""Dictionary encoding of integer tuples that arrive in chunks, from several threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

Columns = Sequence[NDArray[np.int64]]


class TupleEncoder:
    """Gives each distinct row of a few integer columns a code that never changes afterwards.

    Rows are looked up by a 64-bit hash and then compared column by column, so a hash collision
    costs time, never a wrong code: a colliding dictionary is hashed again with other multipliers. Which code a
    row gets depends on the order of arrival; `ranked` does not.
    """

    def __init__(self, width: int) -> None:
        self._attempts = 0
        self._lock = Lock()
        self._dictionary = self._hashed(np.empty((0, width), np.int64))

    @property
    def tuples(self) -> NDArray[np.int64]:
        """(codes, width) the tuple of each code."""
        return self._dictionary.tuples

    def encode(self, columns: Columns) -> NDArray[np.int32]:
        """(rows,) codes of the rows of `columns`, which are `width` arrays of shape (rows,)."""
        codes, known = self._dictionary.find(columns)
        while not known.all():
            self._add([column[~known] for column in columns])
            codes, known = self._dictionary.find(columns)
        return codes

    def _add(self, columns: Columns) -> None:
        """Add rows of `columns`: one of each hash, which is all of them unless two collide."""
        with self._lock:
            dictionary = self._dictionary
            _, first = np.unique(_hash(columns, dictionary.multipliers), return_index=True)
            rows = [column[first] for column in columns]
            # Another thread may have added some of them meanwhile.
            new = ~dictionary.find(rows)[1]
            tuples = np.concatenate([dictionary.tuples, np.stack(rows, axis=1)[new]])
            self._dictionary = self._hashed(tuples)

    def ranked(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(codes,) rank of each code in ascending tuple order, and the (codes, width) tuples so ordered."""
        order = np.lexsort(self.tuples.T[::-1])
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        return rank, self.tuples[order]

    def _hashed(self, tuples: NDArray[np.int64]) -> _Dictionary:
        while True:
            multipliers = _multipliers(self._attempts, tuples.shape[1])
            self._attempts += 1
            hashes = _hash(list(tuples.T), multipliers)
            slots = np.argsort(hashes)
            hashes = hashes[slots]
            if bool((hashes[1:] != hashes[:-1]).all()):
                return _Dictionary(tuples, multipliers, hashes, slots)


@dataclass(frozen=True)
class _Dictionary:
    """Never changed once made: a thread may look up in one while another thread makes the next."""

    tuples: NDArray[np.int64]
    multipliers: NDArray[np.uint64]
    hashes: NDArray[np.uint64]
    """ascending"""
    slots: NDArray[np.intp]
    """code of each of `hashes`"""

    def find(self, columns: Columns) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(rows,) codes, and whether each row is in the dictionary; one that is not has no meaningful code."""
        rows = len(columns[0])
        if not len(self.tuples):
            return np.zeros(rows, np.int32), np.zeros(rows, np.bool_)
        position = np.searchsorted(self.hashes, _hash(columns, self.multipliers))
        codes = self.slots.take(position, mode="clip")
        known = np.ones(rows, np.bool_)
        for column, values in zip(columns, self.tuples.T, strict=True):
            # Codes are in range; "clip" is what spares take a second pass that checks it.
            known &= values.take(codes, mode="clip") == column
        return codes.astype(np.int32), known


def _multipliers(attempt: int, number: int) -> NDArray[np.uint64]:
    """Odd numbers without pattern. Odd, so that tuples that differ in one column only never collide."""
    sequence = np.arange(attempt * number + 1, (attempt + 1) * number + 1, dtype=np.uint64)
    sequence *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        sequence = (sequence ^ sequence >> np.uint64(shift)) * np.uint64(factor)
    return sequence ^ sequence >> np.uint64(31) | np.uint64(1)


def _hash(columns: Columns, multipliers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    total = np.zeros(len(columns[0]), np.uint64)
    for column, multiplier in zip(columns, multipliers, strict=True):
        # The shift brings the high half down: a product alone never lets a high bit reach a lower one.
        total ^= column.view(np.uint64)
        total *= multiplier
        total ^= total >> np.uint64(32)
    return total
