"""Nouns agree with their numbers, in every message."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attrib.words import counted

SOURCES = sorted((Path(__file__).resolve().parents[2] / "attrib").rglob("*.py"))
NOUNS = (
    "blocks", "bytes", "categories", "columns", "counters", "devices", "files", "functions", "graphs", "kernels",
    "lanes", "launches", "layers", "nodes", "pairs", "processes", "ranges", "ranks", "replays", "rows", "rules", "runs",
    "sites", "stages", "steps", "tables", "traces", "units", "variants", "warps", "windows",
)  # fmt: skip
AFTER_A_NUMBER = re.compile(rf"^ (?:[\w-]+ )?(?:{'|'.join(NOUNS)})\b(?!/)|^ [\w-]+\(s\)")
A_LIST = (".join(", ".tolist(")


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (0, ("step",), "0 steps"),
        (1, ("step",), "1 step"),
        (2, ("launch",), "2 launches"),
        (1, ("launch",), "1 launch"),
        (3, ("process",), "3 processes"),
        (1234, ("row",), "1,234 rows"),
        (1, ("category", "categories"), "1 category"),
        (2, ("category", "categories"), "2 categories"),
        (1, ("site is", "sites are"), "1 site is"),
    ],
)
def test_counted(number: int, words: tuple[str, ...], said: str) -> None:
    assert counted(number, *words) == said


def uncounted(text: str) -> Iterator[str]:
    """Values of formatted strings that a plural follows whatever the value is; constants are known to be several."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            if (
                isinstance(value, ast.FormattedValue)
                and isinstance(after, ast.Constant)
                and AFTER_A_NUMBER.match(str(after.value))
                and not ast.unparse(value.value).isupper()
                and not any(word in ast.unparse(value.value) for word in A_LIST)
            ):
                yield f"{ast.unparse(value.value)}{after.value}"


def test_the_check_finds_a_plural_after_any_number() -> None:
    assert list(uncounted('f"{n} steps"')) == ["n steps"]
    assert list(uncounted('f"{n:,} weight rows are"')) == ["n weight rows are"]
    assert list(uncounted('f"{n} step(s)"')) == ["n step(s)"]
    assert not list(uncounted("""f"{counted(n, 'step')} of it, {MIN_STEPS} steps" """))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_number_agrees_with_its_noun(path: Path) -> None:
    assert list(uncounted(path.read_text(encoding="utf-8"))) == []


def test_hints_name_options_as_the_help_does() -> None:
    """`--nvtx` is an older spelling of `--step-nvtx`; bytes come from a manifest too."""
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        old = [line for line in text.splitlines() if re.search(r"(?<!-)--nvtx\b", line) and "typer.Option(" not in line]
        assert not old, path
        assert not re.search(r"pass --model or --bytes(?! or --manifest)", text), path
