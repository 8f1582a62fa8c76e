"""Dictionary encoding of integer tuples that arrive in chunks."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TupleEncoder:
    """Gives each distinct row of a few integer columns a code, in order of first appearance.

    Rows are looked up by a 64-bit multiplicative hash and then compared column by column, so a hash collision
    costs time, never a wrong code: colliding dictionaries are rehashed with other multipliers.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._rng = np.random.default_rng(0)
        self._table = np.empty((0, width), np.int64)
        self._rehash()

    def encode(self, columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int32]:
        """(rows,) codes of the rows of `columns`, `width` arrays of shape (rows,)."""
        codes, known = self._lookup(columns)
        if not known.all():
            new = ~known
            rows = np.stack([column[new] for column in columns], axis=1)
            self._add(rows)
            codes, _ = self._lookup(columns)
        return codes

    def ranked(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """(n,) rank of each code in ascending tuple order, and the (n, width) tuples in that order."""
        order = np.lexsort(self._table.T[::-1])
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        return rank, self._table[order]

    def _add(self, rows: NDArray[np.int64]) -> None:
        distinct, first = np.unique(rows, axis=0, return_index=True)
        self._table = np.concatenate([self._table, distinct[np.argsort(first)]])
        self._rehash()

    def _rehash(self) -> None:
        while True:
            self._multipliers = self._rng.integers(0, 2**63, self._width, np.uint64) * np.uint64(
                2
            ) + np.uint64(1)
            hashes = self._hash(list(self._table.T))
            self._slots = np.argsort(hashes).astype(np.int32)
            self._hashes = hashes[self._slots]
            if len(hashes) < 2 or bool((self._hashes[1:] != self._hashes[:-1]).all()):
                return

    def _hash(self, columns: Sequence[NDArray[np.int64]]) -> NDArray[np.uint64]:
        total = np.zeros(len(columns[0]), np.uint64)
        for column, multiplier in zip(columns, self._multipliers, strict=True):
            total += column.view(np.uint64) * multiplier
        return total

    def _lookup(self, columns: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        if not len(self._table):
            return np.zeros(len(columns[0]), np.int32), np.zeros(len(columns[0]), np.bool_)
        position = np.searchsorted(self._hashes, self._hash(columns))
        codes = self._slots[np.minimum(position, len(self._slots) - 1)]
        known = np.ones(len(codes), np.bool_)
        for column, values in zip(columns, self._table.T, strict=True):
            known &= values[codes] == column
        return codes, known
