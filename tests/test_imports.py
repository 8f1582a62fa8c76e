"""What importing the package and asking for help cost: nothing heavy is loaded before it is needed."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

HEAVY = ("pandas", "matplotlib", "numpy", "scipy", "gguf", "sqlite_utils", "duckdb", "cuda")
PROGRAM = Path(sys.executable).with_name("attrib")


def loaded(code: str) -> set[str]:
    """Heavy modules that a fresh interpreter has loaded after running the code."""
    script = f"{code}\nimport sys\nsys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_the_check_sees_a_heavy_module() -> None:
    assert loaded("import numpy") == {"numpy"}


@pytest.mark.parametrize(
    "code",
    [
        "import attrib",
        "import attrib.cli",
        "import sys, attrib.cli\nsys.argv = ['attrib', '--help']\n"
        "try:\n    attrib.cli.main()\nexcept SystemExit:\n    pass",
        "import sys, attrib.cli\nsys.argv = ['attrib', 'census', '--help']\n"
        "try:\n    attrib.cli.main()\nexcept SystemExit:\n    pass",
    ],
    ids=["package", "command line", "help", "help of a command"],
)
def test_nothing_heavy_is_loaded(code: str) -> None:
    assert loaded(code) == set()


def test_reading_a_trace_needs_neither_pandas_nor_matplotlib() -> None:
    assert loaded("import attrib\nattrib.census, attrib.stragglers, attrib.anatomy, attrib.open") <= {"numpy"}


def test_help_starts_at_once() -> None:
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        done = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True)
        times.append(time.perf_counter() - begin)
        assert "census" in done.stdout
    assert statistics.median(times) <= 0.3


def test_functions_stay_functions_whatever_was_imported() -> None:
    code = (
        "import attrib\n"
        "from attrib.census import Census\n"
        "import attrib.stragglers, attrib.anatomy\n"
        "from attrib.anatomy import anatomy as inner\n"
        "for name in ('census', 'stragglers', 'anatomy', 'open'):\n"
        "    found = getattr(attrib, name)\n"
        "    assert type(found).__name__ == 'function', (name, found)\n"
        "    assert found.__module__ == 'attrib.api', found.__module__\n"
        "assert Census.__name__ == 'Census' and inner.__module__ == 'attrib.anatomy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
