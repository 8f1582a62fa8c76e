"""The command line beyond its tables: several traces, CSV and chart files, options that contradict, usage errors."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from attrib import api
from attrib.cli import app as attrib_app
from engine.cli import app as engine_app
from tests.conftest import Attrib
from tests.helpers import data, small_step

MODEL = "qwen2.5-14b:q4_k_m"
TRACE = "llama.cpp-14b-tg16-h200"


@pytest.fixture
def step(tmp_path: Path) -> tuple[Path, str, Path]:
    folder = tmp_path / "step"
    folder.mkdir()
    trace, manifest = small_step.write(folder)
    return trace, "--manifest", manifest


@pytest.mark.parametrize("command", ["census", "stragglers", "anatomy"])
def test_csv_holds_what_json_says(attrib: Attrib, command: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    document = attrib(command, data.trace(TRACE), "--model", MODEL, "--json", "--csv", path).json()
    rows = document[{"census": "sites", "stragglers": "stragglers", "anatomy": "categories"}[command]]
    with path.open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(rows) > 3
    for line, row in zip(read, rows, strict=True):
        assert list(line) == list(row)
        for key, value in row.items():
            if value is None:
                assert line[key] == ""
            elif type(value) in (int, float):
                assert float(line[key]) == pytest.approx(value, rel=1e-12)
            else:
                assert line[key] == str(value)


def test_several_traces_get_numbered_files(attrib: Attrib, step: tuple[Path, str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    outcome = attrib("census", step[0], step[0], *step[1:], "--csv", out / "c.csv", "--plot", out / "c.svg")
    assert outcome.code == 0
    assert sorted(p.name for p in out.iterdir()) == ["c-1.csv", "c-1.svg", "c-2.csv", "c-2.svg"]
    assert outcome.out.count("Census of trace.sqlite") == 2


def test_a_growth_pair_is_one_chart(attrib: Attrib, step: tuple[Path, str, Path], tmp_path: Path) -> None:
    outcome = attrib("anatomy", step[0], step[0], *step[1:], "--plot", tmp_path / "g.svg")
    assert outcome.code == 0
    assert "Growth: span 0.030 → 0.030 ms (0.000 ms)" in outcome.out
    assert (tmp_path / "g.svg").exists()


def test_labels_reach_title_and_json(attrib: Attrib, step: tuple[Path, str, Path]) -> None:
    given = ("--anchor", "14b:@7", "--build", "mine")
    document = attrib("census", *step, *given, "--json").json()
    assert (document["anchor"], document["build"], document["model"]) == ("14b:@7", "mine", "tiny")
    assert "NVIDIA GB10 · tiny · mine · 14b:@7" in attrib("anatomy", *step, *given).out


REFUSED = {
    ("--model", "qwen2.5-14b", "--manifest", "m.json"): "one source only, and model and manifest were given",
    ("--model", "gpt-9"): "model 'gpt-9' is not built in",
    ("--model", "none.gguf"): "none.gguf cannot be read",
    ("--bytes", "none.csv"): "none.csv cannot be read",
    ("--rules", "none.toml"): "cannot be read",
    ("--model", "qwen2.5-14b", "--rules", "none.toml"): "none.toml cannot be read",
    ("--graph", "77"): "has no replay of graph 77",
    ("--device", "5"): "no launch ran on device 5",
    ("--process", "5"): "no launch ran on device any in process 5",
    ("--nvtx", "zzz"): "no NVTX range matches 'zzz'",
    ("--steps", "zzz"): "--steps 'zzz' is not one of auto, graph, pattern, whole",
}


@pytest.mark.parametrize("options", REFUSED)
@pytest.mark.parametrize("command", ["census", "stragglers", "anatomy"])
def test_refusals_are_one_sentence(
    attrib: Attrib, command: str, options: tuple[str, ...], step: tuple[Path, str, Path]
) -> None:
    text = attrib(command, step[0], *options).refusal()
    assert text.startswith("attrib: ")
    assert REFUSED[options] in text


@pytest.mark.parametrize("text", ["225:220", "fast", "1", ""])
def test_a_class_that_is_none_is_refused(attrib: Attrib, text: str, step: tuple[Path, str, Path]) -> None:
    assert "is not LO:HI in GB/s" in attrib("census", *step, "--class", text).refusal()


def test_kv_below_one_is_a_usage_error(attrib: Attrib, step: tuple[Path, str, Path]) -> None:
    outcome = attrib("census", *step, "--kv", "0")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--kv" in outcome.err


def test_no_trace_and_no_command(attrib: Attrib) -> None:
    assert attrib("census").code == 2
    assert attrib("nonesuch").code == 2


def test_version(attrib: Attrib) -> None:
    from importlib.metadata import version

    outcome = attrib("--version")
    assert (outcome.code, outcome.out.strip()) == (0, f"attrib {version('attrib')}")
    engine = CliRunner().invoke(engine_app, ["--version"])
    assert (engine.exit_code, engine.output.strip()) == (0, f"engine {version('attrib')}")


@pytest.mark.parametrize("program", [attrib_app, engine_app], ids=["attrib", "engine"])
def test_completion_can_be_installed(program: typer.Typer) -> None:
    assert "--install-completion" in CliRunner().invoke(program, ["--help"]).output


@pytest.mark.parametrize("reader", ["pages", "sqlite"])
def test_every_reader_gives_the_same_document(attrib: Attrib, reader: str) -> None:
    plain = attrib("census", data.trace(TRACE), "--model", MODEL, "--json").json()
    assert attrib("census", data.trace(TRACE), "--model", MODEL, "--json", "--reader", reader).json() == plain


def test_the_command_line_is_the_api(attrib: Attrib, step: tuple[Path, str, Path]) -> None:
    trace, _, manifest = step
    for command, result in (
        ("census", api.census(trace, manifest=manifest)),
        ("stragglers", api.stragglers(trace, manifest=manifest)),
        ("anatomy", api.anatomy(trace, manifest=manifest)),
    ):
        assert attrib(command, *step, "--json").json() == result.to_json()


def test_an_ascii_terminal_shows_question_marks_and_no_traceback(tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path)
    command = [sys.executable, "-m", "attrib", "census", str(trace), "--manifest", str(manifest)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0
    assert "ffn_down/q4_K" in done.stdout
    assert done.stderr == ""


def test_a_reader_that_leaves_is_no_failure(tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path)
    command = [sys.executable, "-m", "attrib", "census", str(trace), "--manifest", str(manifest)]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
