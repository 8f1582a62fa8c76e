"""The whole fault matrix by section, in the order of docs/faults.md."""

from __future__ import annotations

from tests.helpers.faults import beside, design, files, rows, versions
from tests.helpers.faults.case import Fault

SECTIONS: dict[str, tuple[str, tuple[Fault, ...]]] = {
    "What real traces do": (
        "Each was seen in an export of a real run; here it is in its smallest form.",
        design.CASES,
    ),
    "Versions of nsys": (
        "The same replays in the tables and columns of each version. Versions between two whose columns are known are "
        "read twice: with the columns that both neighbours have, and with all that either has.",
        versions.CASES,
    ),
    "Files": ("Damaged, of another kind, out of reach, or left half-written.", files.CASES),
    "Tables, values and names": ("Databases that hold what nsys does not write.", rows.CASES),
    "Files beside a trace": (
        "Manifests, byte tables, rule files and models that are damaged or belong to another run.",
        beside.CASES,
    ),
}
CASES = tuple(case for _, cases in SECTIONS.values() for case in cases)
