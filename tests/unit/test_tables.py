"""Tables in a pipe: every line fits 100 columns, unknown is a dash, and nothing is markup."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from attrib import api, tables
from tests.conftest import Attrib
from tests.helpers import data, small_step
from tests.helpers.nsysgen import Kernel, Node
from tests.helpers.small_step import PARTS, Part

MODELS = {"14b": "qwen2.5-14b:q4_k_m", "7b": "qwen2.5-7b:q4_k_m"}
TRACES = [name for name in data.NAMES if name != "not-an-export"]


def fits(text: str) -> None:
    for line in text.splitlines():
        assert cell_len(line) <= tables.WIDTH, line


def options(name: str) -> tuple[str, ...]:
    """The model of llama.cpp's traces; the others are read without bytes."""
    size = next((size for size in MODELS if name.startswith(f"llama.cpp-{size}")), None)
    return ("--model", MODELS[size]) if size else ()


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("command", ["census", "stragglers", "anatomy", "info"])
def test_no_line_is_wider_than_100_columns(attrib: Attrib, name: str, command: str) -> None:
    outcome = attrib(command, data.trace(name), *(options(name) if command != "info" else ()))
    fits(outcome.out)
    assert outcome.code == 0 or outcome.refusal()


@pytest.mark.parametrize("name", ["llama.cpp-14b-tg16-h200", "train-2gpu-after-2026.2", "cloverleaf-a100-2024.5"])
@pytest.mark.parametrize("by", ["kernel", "layer"])
def test_every_grouping_fits(attrib: Attrib, name: str, by: str) -> None:
    outcome = attrib("census", data.trace(name), "--by", by, *options(name))
    assert outcome.code == 0
    fits(outcome.out)


def test_a_growth_pair_fits(attrib: Attrib) -> None:
    names = ("llama.cpp-14b-tg16-h200", "llama.cpp-14b-d3254-tg16-h200")
    outcome = attrib("anatomy", *map(data.trace, names), "--model", MODELS["14b"])
    fits(outcome.out)
    (line,) = (line for line in outcome.out.splitlines() if line.startswith("attention") and "+" in line)
    assert line.split() == ["attention", "0.226", "0.704", "+0.478"]


def test_long_names_and_brackets_in_names(attrib: Attrib, tmp_path: Path) -> None:
    """Names may hold anything: rich's markup, other alphabets, grids that must survive the cut."""
    odd = Kernel("[bold]x[/bold]", f"void [bold]{'y' * 90}<[/]>(int)", grid=(65_535, 65_535, 65_535))
    wide = Kernel("行列" * 40, "行列" * 40)
    trace, _ = small_step.write(tmp_path, (*PARTS, Part(Node(odd, 5000), ""), Part(Node(wide, 5000), "")))
    for by in ("site", "kernel"):
        outcome = attrib("census", trace, "--by", by, "--anchor", "a" * 150, "--build", "[red]b")
        assert outcome.code == 0
        fits(outcome.out)
        assert "[red]b" in outcome.out
    assert "[65535×65535×65535]" in outcome.out
    assert "[bold]" in outcome.out


def test_unknown_is_a_dash_and_never_zero(attrib: Attrib, tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path)
    lines = attrib("census", trace, "--manifest", manifest).out.splitlines()
    (norm,) = (line for line in lines if line.startswith("rms_norm"))
    assert norm.split() == ["rms_norm", "1", "–", "2.00", "2.00", "–", "–", "–", "–", "0.002", "6.7"]
    (down,) = (line for line in lines if line.startswith("ffn_down"))
    expected = ["ffn_down/q4_K", "2", "2.0", "8.75", "9.00", "228.6", "222.2", "84", "222.5", "58.3"]
    assert [*down.split()[:9], down.split()[10]] == expected


def test_marks_and_their_legend(attrib: Attrib, tmp_path: Path) -> None:
    parts = (
        PARTS[0],
        replace(PARTS[1], site="a/q4_K", weight_bytes=3_000_000),
        replace(PARTS[2], site="b/q4_K", node=Node(small_step.DOWN, 8000, gap=-5000)),
        replace(PARTS[3], weight_bytes=1_000_000),
    )
    trace, manifest = small_step.write(tmp_path, parts)
    out = attrib("census", trace, "--manifest", manifest).out
    marks = {line.split()[0]: line.rstrip()[-1] for line in out.splitlines() if line[:2] in ("a/", "b/", "ou")}
    assert marks == {"a/q4_K": "!", "b/q4_K": "†", "output/q6_K": "◄"}
    assert "◄ under the class; † exclusive rate above the peak by overlap; ! impossible rate" in out


@pytest.mark.parametrize(
    ("value", "digits", "text"), [(1234.5678, 1, "1,234.6"), (0.0, 3, "0.000"), (float("nan"), 1, "–")]
)
def test_numbers(value: float, digits: int, text: str) -> None:
    assert tables.number(value, digits) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(1789.4e9, "1,789"), (999.94e9, "999.9"), (23e9, "23.0"), (float("nan"), "–")]
)
def test_rates(rate: float, text: str) -> None:
    assert tables.rate(rate) == text


def test_no_escape_sequence_goes_into_a_pipe(attrib: Attrib) -> None:
    for command in ("census", "stragglers", "anatomy"):
        assert "\x1b" not in attrib(command, data.trace("llama.cpp-14b-tg16-h200"), "--model", MODELS["14b"]).out


@pytest.mark.parametrize(
    ("by", "heading", "noun"),
    [
        ("site", "site", "sites"),
        ("kernel", "kernel and grid", "kernels"),
        ("layer", "site of a layer", "sites of layers"),
    ],
)
def test_the_first_column_says_what_the_rows_are(attrib: Attrib, by: str, heading: str, noun: str) -> None:
    trace = data.trace("llama.cpp-14b-tg16-h200")
    census = attrib("census", trace, "--model", MODELS["14b"], "--by", by).out
    assert any(line.startswith(f"{heading} ") and line.split()[-1] == "%span" for line in census.splitlines())
    ranking = attrib("stragglers", trace, "--model", MODELS["14b"], "--by", by).out
    fits(ranking)
    assert any(line.split()[:1] == ["#"] and f"# {heading} " in line for line in ranking.splitlines())
    assert f" {noun} stream below the class: " in ranking
    assert f" {noun}, " in repr(api.census(trace, model=MODELS["14b"], by=by))


@pytest.mark.parametrize("name", ["llama.cpp-14b-d3254-tg16-h200", "llama.cpp-7b-d1641-tg16-h200"])
@pytest.mark.parametrize("by", ["site", "kernel", "layer"])
def test_no_number_of_a_ranking_is_cut(attrib: Attrib, name: str, by: str) -> None:
    ranking = attrib("stragglers", data.trace(name), "--by", by, *options(name)).out
    rows = [line.split() for line in ranking.splitlines() if re.match(r" *\d+ \S.* \d+\.\d{3}$", line)]
    assert rows
    assert not any("…" in cell for row in rows for cell in row[-8:])
    assert "recoverable ms" in ranking


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.000"), (-0.0, "0.000"), (-0.0004, "0.000"), (0.0004, "0.000"), (-0.001, "-0.001"), (1.5, "+1.500"),
     (1234.5, "+1,234.500"), (math.nan, "–")],
)  # fmt: skip
def test_a_growth_that_rounds_to_nothing_has_no_sign(value: float, text: str) -> None:
    assert tables._signed(value) == text


@pytest.mark.parametrize("value", [-0.0, -1e-9, -0.04])
def test_no_number_is_a_zero_below_zero(value: float) -> None:
    assert tables.number(value) == "0.0"
