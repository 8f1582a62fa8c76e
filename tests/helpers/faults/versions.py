"""The same six replays in the tables and columns of every nsys version."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.faults.case import Fault, Make, Right
from tests.helpers.faults.small import GEMV, NORM, WHOLE, census, write
from tests.helpers.nsysgen import Kernel, Node
from tests.helpers.nsysgen_schema import KERNEL, VERSIONS

THREE = (Node(NORM, 2000), Node(GEMV, 50_000, gap=300), Node(Kernel("argmax"), 4000, gap=200))
# without graph nodes a step is what repeats, and the four launches repeat after two
PATTERN = Right({"steps.source": "launch pattern", "steps.count": 6, "steps.launches": 3, "steps.span_ms": 0.0565})


def _make(version: str) -> Make:
    def make(folder: Path) -> list[object]:
        nodes = {} if _has_nodes(version) else {"nodes": THREE}
        return census(write(folder / "trace.sqlite", version, **nodes))

    return make


def _has_nodes(version: str) -> bool:
    return "graphNodeId" in VERSIONS[version].columns(KERNEL)


def _what(version: str) -> str:
    span, _, bound = version.partition(" ")
    if bound:
        return f"nsys {span}, {'all that either neighbour has' if bound == 'most' else 'what its neighbours share'}"
    if version == "documented":
        return "the schema of a user guide: node rows in a table of their own, no green context in kernel rows"
    if version == "later":
        return "tables with columns that no version has yet"
    found = VERSIONS[version]
    return f"nsys {found.product}, schema {found.version}" + (" (trimmed)" if "trimmed" in version else "")


CASES = tuple(
    Fault(
        f"nsys-{version.replace(' ', '-')}", _what(version), _make(version), WHOLE if _has_nodes(version) else PATTERN
    )
    for version in sorted(VERSIONS)
)
