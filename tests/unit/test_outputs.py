"""No output ever replaces an input, whatever the input is a part of and by whatever name the output is given."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from attrib import cli
from tests.conftest import Attrib
from tests.helpers import parquet
from tests.helpers import persistent_step as ps
from tests.helpers.faults.case import state

Arguments = list[object]
COMMANDS: dict[str, Callable[[Path, Path], Arguments]] = {
    "census csv": lambda run, out: ["census", run, "--csv", out],
    "census plot": lambda run, out: ["census", run, "--plot", out],
    "stragglers csv": lambda run, out: ["stragglers", run, "--csv", out],
    "stragglers plot": lambda run, out: ["stragglers", run, "--plot", out],
    "anatomy csv": lambda run, out: ["anatomy", run, "--csv", out],
    "anatomy plot": lambda run, out: ["anatomy", run, run, "--plot", out],
    "compare csv": lambda run, out: ["compare", run.parent / "b.sqlite", run, "--csv", out],
    "compare plot": lambda run, out: ["compare", run, run.parent / "b.sqlite", "--plot", out],
    "gate junit": lambda run, out: ["gate", run.parent / "b.sqlite", "--against", run, "--junit", out],
    "report out": lambda run, out: ["report", run, "-o", out],
    "perfetto out": lambda run, out: ["perfetto", run, out],
    "fleet csv": lambda run, out: ["fleet", run.parent, "--workers", "1", "--csv", out],
    "scrub target": lambda run, out: ["scrub", run, out, "--force"],
    "runs trend plot": lambda run, out: ["runs", "trend", "step", "--runs", run, "--plot", out],
    "runs export out": lambda run, out: ["runs", "export", out, "--runs", run],
}
MORE: dict[str, Callable[[Path, Path], Arguments]] = {
    "compare devices": lambda run, out: ["compare", run, run, "--devices", "--csv", out],
    "gate run": lambda run, out: ["gate", run, "--against", run.parent / "b.sqlite", "--junit", out],
    "report against": lambda run, out: ["report", run.parent / "b.sqlite", "--against", run, "-o", out],
}
OF_RUNS_DB = ("runs trend plot", "runs export out")
FOLDERS = {"demo out", "record out", "doctor out", "ab out", "lever new out", "lever run out", "lever show out"}
"""Options that name a folder, in which every run and every file has a name of its own."""
READ = ("trace.sqlite", "manifest.json", "stages.json", "bench.json")


def commands(app: typer.Typer, prefix: str = "") -> Iterator[tuple[str, dict[str, inspect.Parameter]]]:
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        yield f"{prefix}{name}", dict(inspect.signature(command.callback).parameters)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        info: Any = group.typer_instance.info
        yield from commands(group.typer_instance, f"{prefix}{info.name} ")


def test_every_output_option_is_tried_here() -> None:
    outputs = ("csv", "plot", "junit", "out", "target")
    found = {f"{name} {option}" for name, options in commands(cli.app) for option in outputs if option in options}
    assert found == set(COMMANDS) | FOLDERS


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with everything that is read of one, beside another trace."""
    folder = tmp_path / "in" / "run"
    folder.mkdir(parents=True)
    ps.write(folder)
    (folder / "bench.json").write_text('{"windows": []}')
    ps.trace().write(folder.parent / "b.sqlite")
    return folder


def plain(path: Path, scratch: Path) -> Path:
    return path


def relative(path: Path, scratch: Path) -> Path:
    return Path(os.path.relpath(path))


def dotted(path: Path, scratch: Path) -> Path:
    return path.parent / ".." / path.parent.name / path.name


def through_a_link(path: Path, scratch: Path) -> Path:
    (scratch / "folder").symlink_to(path.parent)
    return scratch / "folder" / path.name


def linked(path: Path, scratch: Path) -> Path:
    (scratch / "link.csv").symlink_to(path)
    return scratch / "link.csv"


def hard_linked(path: Path, scratch: Path) -> Path:
    (scratch / "hard.csv").hardlink_to(path)
    return scratch / "hard.csv"


WAYS = (plain, relative, dotted, through_a_link, linked, hard_linked)


def refused(attrib: Attrib, arguments: Arguments, folder: Path) -> None:
    before = state(folder)
    assert "is an input and would be overwritten; give another name" in attrib(*arguments).refusal()
    assert state(folder) == before


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("command", sorted({**COMMANDS, **MORE}.keys() - set(OF_RUNS_DB) - {"scrub target"}))
def test_what_is_read_of_a_run_directory_stays(attrib: Attrib, run: Path, command: str, name: str) -> None:
    refused(attrib, {**COMMANDS, **MORE}[command](run, run / name), run.parent)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("command", ["census csv", "perfetto out", "gate junit", "compare plot"])
def test_by_whatever_name(
    attrib: Attrib, run: Path, tmp_path: Path, command: str, way: Callable[[Path, Path], Path]
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    refused(attrib, COMMANDS[command](run, way(run / "manifest.json", scratch)), tmp_path)


@pytest.mark.parametrize("way", [plain, through_a_link, hard_linked])
@pytest.mark.parametrize("table", ["StringIds", "CUPTI_ACTIVITY_KIND_KERNEL"])
@pytest.mark.parametrize("command", ["census csv", "anatomy plot", "perfetto out", "report out", "scrub target"])
def test_the_tables_of_a_parquet_export_stay(
    attrib: Attrib, run: Path, tmp_path: Path, command: str, table: str, way: Callable[[Path, Path], Path]
) -> None:
    folder = parquet.from_sqlite(run / "trace.sqlite", tmp_path / "t_pqtdir")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    refused(attrib, COMMANDS[command](folder, way(folder / f"{table}.parquet", scratch)), tmp_path)


@pytest.mark.parametrize("command", OF_RUNS_DB)
def test_the_history_stays(attrib: Attrib, run: Path, command: str) -> None:
    (run / "runs.db").write_bytes(b"")
    before = state(run)
    attrib(*COMMANDS[command](run, run / "runs.db"))
    assert state(run) == before


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--manifest", "manifest.json"),
        ("--manifest", "stages.json"),
        ("--rules", "rules.toml"),
        ("--bytes", "bytes.csv"),
        ("--model", "model.gguf"),
        ("--model", "m-00002-of-00002.gguf"),
    ],
)
@pytest.mark.parametrize("command", ["census", "stragglers", "anatomy", "report", "perfetto", "fleet"])
def test_what_an_option_names_stays_and_what_lies_beside_it(
    attrib: Attrib, run: Path, tmp_path: Path, command: str, option: str, name: str
) -> None:
    folder = tmp_path / "options"
    folder.mkdir()
    for file in ("manifest.json", "stages.json", "rules.toml", "bytes.csv", "model.gguf"):
        (folder / file).write_text("of an option")
    for place in (1, 2):
        (folder / f"m-0000{place}-of-00002.gguf").write_text("part")
    given = {"stages.json": "manifest.json", "m-00002-of-00002.gguf": "m-00001-of-00002.gguf"}.get(name, name)
    out = {"report": ["-o"], "perfetto": []}.get(command, ["--csv"])
    trace = run.parent / "b.sqlite"
    refused(attrib, [command, trace, *out, folder / name, option, folder / given], tmp_path)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["compare", "--bytes-b", "bytes.csv"], "bytes.csv"),
        (["compare", "--model-a", "model.gguf"], "model.gguf"),
        (["gate", "--rules", "rules.toml"], "rules.toml"),
    ],
)
def test_options_of_one_side(attrib: Attrib, run: Path, tmp_path: Path, arguments: list[str], name: str) -> None:
    (tmp_path / name).write_text("of an option")
    trace = run.parent / "b.sqlite"
    command, option, given = arguments
    sides = [trace, "--against", trace, "--junit"] if command == "gate" else [trace, trace, "--csv"]
    refused(attrib, [command, *sides, tmp_path / name, option, tmp_path / given], tmp_path)


@pytest.mark.parametrize("option", ["--csv", "--plot"])
def test_a_numbered_output_is_no_input(attrib: Attrib, run: Path, tmp_path: Path, option: str) -> None:
    numbered = ps.trace().write(tmp_path / "out-2.png")
    refused(attrib, ["census", numbered, run, option, tmp_path / "out.png"], tmp_path)


def test_what_sqlite_keeps_beside_a_trace_stays(attrib: Attrib, run: Path) -> None:
    log = run / "trace.sqlite-wal"
    log.write_bytes(b"")
    refused(attrib, ["census", run, "--csv", log], run.parent)


def test_other_files_of_a_run_directory_may_be_replaced(attrib: Attrib, run: Path) -> None:
    (run / "census.csv").write_text("old")
    assert attrib("census", run, "--csv", run / "census.csv").code == 0
    assert "persistent_step" not in (run / "census.csv").read_text()
    assert (run / "census.csv").read_text().startswith("site,")
