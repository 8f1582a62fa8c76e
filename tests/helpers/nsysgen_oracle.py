"""Expected numbers by another route: plain SQL rows and Python integers, none of the toolkit's code.

Launch boundaries cut a step into segments, and a segment belongs to the first launch, in start order, that
covers it. The toolkit gets the same from a running maximum of ends; the two share nothing.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """One kernel row with its names resolved; times in ns."""

    start: int
    end: int
    pid: int
    correlation: int
    node: int | None
    short: str
    demangled: str
    grid: tuple[int, int, int]

    @property
    def duration(self) -> int:
        """End minus start."""
        return self.end - self.start


def rows(path: Path) -> list[Row]:
    """Every kernel row in start order."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        found = db.execute(
            'SELECT k.start, k."end", k.globalPid, k.correlationId, k.graphNodeId, s.value, d.value, '
            "k.gridX, k.gridY, k.gridZ FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "JOIN StringIds s ON s.id = k.shortName JOIN StringIds d ON d.id = k.demangledName"
        ).fetchall()
    db.close()
    return sorted(Row(s, e, pid, c, n, short, full, (x, y, z)) for s, e, pid, c, n, short, full, x, y, z in found)


def replays(path: Path) -> list[list[Row]]:
    """Graph replays, each in start order, by the start of their first launch."""
    groups: dict[tuple[int, int, int], list[Row]] = defaultdict(list)
    for row in rows(path):
        if row.node is not None:
            groups[row.pid, row.node >> 32, row.correlation].append(row)
    return sorted(groups.values(), key=lambda group: group[0].start)


def exclusive(launches: Sequence[tuple[int, int]]) -> list[int]:
    """Exclusive ns of launches (start, end) given in start order.

    Each segment between two boundaries is credited to the earliest launch that covers it.
    """
    cuts = sorted({t for launch in launches for t in launch})
    index = {t: i for i, t in enumerate(cuts)}
    taken = [False] * len(cuts)
    result = []
    for start, end in launches:
        own = 0
        for i in range(index[start], index[end]):
            if not taken[i]:
                taken[i] = True
                own += cuts[i + 1] - cuts[i]
        result.append(own)
    return result


def span(launches: Sequence[tuple[int, int]]) -> int:
    """Latest end minus first start, ns."""
    return max(end for _, end in launches) - min(start for start, _ in launches)


def intervals(step: Sequence[Row]) -> list[tuple[int, int]]:
    """(start, end) of every launch of a step."""
    return [(row.start, row.end) for row in step]
