"""Write docs/faults.md by running every case of the fault matrix: `python docs/generate_faults.py`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.helpers.faults.case import Fault, judge, row  # noqa: E402 - the tests lie beside docs/
from tests.helpers.faults.matrix import CASES, SECTIONS  # noqa: E402

PATH = Path(__file__).with_name("faults.md")
HEAD = f"""# Fault matrix

Written by `python docs/generate_faults.py`, which runs the cases of `tests/helpers/faults`; a test runs them again and
compares every row. Each of the {len(CASES)} inputs gives the right answer or is refused with one sentence and exit code
2. None gives a traceback, none is changed by a byte, and nothing is left beside it.

The trace behind most cases is six replays of a graph of four launches on a GB10: a step spans 94,300 ns, of which
500 ns are idle. "…" stands for words of SQLite, Python or another library.
"""


def outcome(case: Fault) -> str:
    """What a case says, run in a folder of its own that every user may read."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        Path(folder).chmod(0o755)
        return judge(case, Path(folder))


def render() -> str:
    """The whole page."""
    sections = [HEAD]
    for title, (about, cases) in SECTIONS.items():
        rows = [row(case, outcome(case)) for case in cases]
        sections.append("\n".join([f"## {title}", "", about, "", "| input | outcome |", "|---|---|", *rows]) + "\n")
    return "\n".join(sections)


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
