"""attrib runs: list, show, trend, export, and runs.db as Datasette serves it."""

from __future__ import annotations

import asyncio
import csv
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasette.app import Datasette

from attrib import runs, runs_history, runs_schema, store
from attrib.runs_plots import plot_trend
from tests.conftest import Attrib
from tests.helpers.runs_writer import run_row, site_row

# (run, recorded, anchor, build, hash, tok/s, GB/s of ffn_up)
HISTORY = (
    ("r1", "20260101T000000Z", "14b:tg128", "reference", "aaaa1111", 150.0, 1000.0),
    ("r2", "20260102T000000Z", "14b:tg128", "reference", "aaaa1111", 152.0, 1010.0),
    ("r3", "20260103T000000Z", "14b:tg128", "reference", "aaaa1111", 151.0, 1200.0),
    ("r4", "20260104T000000Z", "14b:tg128", "fast", "bbbb2222", 170.0, 1515.0),
    ("r5", "20260105T000000Z", "14b:@3254", "fast", "bbbb2222", 120.0, 1500.0),
    ("r6", "20260106T000000Z", "14b:tg128", "fast", "cccc3333", 160.0, 1212.0),
)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for name, when, anchor, build, build_hash, speed, rate in HISTORY:
        row = run_row(
            name, recorded_utc=when, anchor=anchor, build=build, build_hash=build_hash, tok_per_s=speed, step_gbps=rate
        )
        sites = [
            site_row("ffn_up/q4_K", gbps=rate, ms_per_step=1000 / rate, straggler=rate < 1300),
            site_row("rms_norm", quant=None, bytes=None, gbps=None, class_gbps=None, recoverable_ms=None,
                     straggler=False, ms_per_step=0.3),
        ]  # fmt: skip
        runs.append(folder, row, sites)
    return folder


def test_list(attrib: Attrib, history: Path) -> None:
    def ids(*options: object) -> list[str]:
        return [run["id"] for run in attrib("runs", "list", "--runs", history, "--json", *options).json()["runs"]]

    assert ids() == ["r6", "r5", "r4", "r3", "r2", "r1"]
    assert ids("--anchor", "14b:@3254") == ["r5"]
    assert ids("--build", "fast") == ["r6", "r5", "r4"]
    assert ids("--build", "cccc") == ["r6"]
    assert ids("--limit", 2) == ["r6", "r5"]
    assert ids("--device", "another") == []
    shown = attrib("runs", "list", "--runs", history)
    assert shown.code == 0
    assert [line.split()[0] for line in shown.out.splitlines()] == ["run", "r6", "r5", "r4", "r3", "r2", "r1"]
    assert max(map(len, shown.out.splitlines())) <= 100


def test_show(attrib: Attrib, history: Path) -> None:
    found = attrib("runs", "show", "--runs", history, "--json").json()
    assert (found["schema"], found["id"], found["tok_per_s"]) == ("attrib.run/1", "r6", 160.0)
    assert [site["site"] for site in found["sites"]] == ["ffn_up/q4_K", "rms_norm"]
    assert found["sites"][1]["gbps"] is None
    shown = attrib("runs", "show", "r1", "--runs", history).out
    assert "150.00 tok/s untraced" in shown
    assert "below class" in shown
    assert "6 runs start with 'r'; there are r1, r2, r3" in attrib("runs", "show", "r", "--runs", history).refusal()
    assert "no run is called 'x'; there are r6, r5, r4" in attrib("runs", "show", "x", "--runs", history).refusal()


def test_trend_by_hand(attrib: Attrib, history: Path, tmp_path: Path) -> None:
    chart = tmp_path / "trend.svg"
    arguments = ("runs", "trend", "ffn_up/q4_K", "--runs", history)
    found = attrib(*arguments, "--anchor", "14b:tg128", "--plot", chart, "--json").json()
    builds = found["builds"]
    assert [(b["build"], b["build_hash"], b["runs"]) for b in builds] == [
        ("reference", "aaaa1111", 3), ("fast", "bbbb2222", 1), ("fast", "cccc3333", 1),
    ]  # fmt: skip
    # medians, not means: 1010 of 1000, 1010, 1200
    assert [b["gbps"] for b in builds] == [1010, 1515, 1212]
    assert (builds[0]["low_gbps"], builds[0]["high_gbps"]) == (1000, 1200)
    assert builds[0]["ms_per_step"] == pytest.approx(1000 / 1010)
    assert [b["change_pct"] for b in builds] == [None, pytest.approx(50), pytest.approx(-20)]
    assert found["warnings"] == [
        "fewer than 3 runs of fast bbbb2222, fast cccc3333: a change may be noise; `attrib ab` measures one"
    ]
    assert "ffn_up/q4_K over builds" in chart.read_text(encoding="utf-8")
    shown = attrib(*arguments).out
    assert "-20.0 %" in shown
    assert "anchor 14b:tg128, that of the newest run; --anchor chooses among 14b:@3254 too" in " ".join(shown.split())


def test_trend_of_the_step_and_of_a_site_without_bytes(attrib: Attrib, history: Path, tmp_path: Path) -> None:
    step = attrib("runs", "trend", "step", "--runs", history, "--anchor", "14b:tg128", "--json").json()
    assert [b["gbps"] for b in step["builds"]] == [1010, 1515, 1212]
    assert [b["ms_per_step"] for b in step["builds"]] == [6.8, 6.8, 6.8]
    norm = runs_history.trend(history, "rms_norm", "14b:tg128")
    assert [(b.gbps, b.ms_per_step, b.change_pct) for b in norm.builds] == [(None, 0.3, None)] * 3
    plot_trend(norm, str(tmp_path / "norm.svg"))
    assert "ms per step" in (tmp_path / "norm.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("nope",), "no run has a site 'nope'; there are step, ffn_up/q4_K, rms_norm"),
        (("rms_norm", "--anchor", "7b:tg128"), "has anchor '7b:tg128'; there are 14b:@3254, 14b:tg128"),
        (("rms_norm", "--device", "GB10"), "has device 'GB10'; there are NVIDIA H200"),
        (("rms_norm", "--plot", "chart.doc"), ".doc"),
    ],
)
def test_trends_that_are_refused(attrib: Attrib, history: Path, options: tuple[str, ...], text: str) -> None:
    assert text in attrib("runs", "trend", *options, "--runs", history).refusal()


NUMBERS = [name for name, (kind, _) in runs_schema.KINDS.items() if kind == "a number"]
OF_RUNS = [name for name in NUMBERS if name in runs_schema.RUNS]
OF_SITES = [name for name in NUMBERS if name not in OF_RUNS or name in runs_schema.SITES]


def put(folder: Path, table: str, column: str, value: object) -> None:
    key = "id = 'r6'" if table == "runs" else "run = 'r6' AND site = 'ffn_up/q4_K'"
    with closing(sqlite3.connect(folder / store.DATABASE)) as db:
        db.execute(f"UPDATE {table} SET {column} = ? WHERE {key}", (value,))
        db.commit()


@pytest.mark.parametrize("value", ["fast", "", b"\xff\x00"])
@pytest.mark.parametrize("column", OF_RUNS)
def test_a_number_of_a_run_that_is_none_is_named(attrib: Attrib, history: Path, column: str, value: object) -> None:
    put(history, "runs", column, value)
    before = (history / store.DATABASE).read_bytes()
    said = f"runs.db: {column} of run r6 is {value!r} and not a number; correct it there, or delete the run"
    for arguments in (["list"], ["show", "r6"], ["list", "--json"], ["show", "--json"]):
        assert said in attrib("runs", *arguments, "--runs", history).refusal()
    assert attrib("runs", "show", "r5", "--runs", history).code == 0
    assert (history / store.DATABASE).read_bytes() == before


@pytest.mark.parametrize("value", ["fast", b"\xff"])
@pytest.mark.parametrize("column", OF_SITES)
def test_a_number_of_a_site_that_is_none_is_named(attrib: Attrib, history: Path, column: str, value: object) -> None:
    put(history, "sites", column, value)
    said = f"runs.db: {column} of run r6 is {value!r} and not a number; correct it there, or delete the run"
    for arguments in (["show", "r6"], ["show", "--json"]):
        assert said in attrib("runs", *arguments, "--runs", history).refusal()
    if column in ("gbps", "ms_per_step", "class_gbps"):
        assert said in attrib("runs", "trend", "ffn_up/q4_K", "--runs", history).refusal()
    assert attrib("runs", "list", "--runs", history).code == 0


@pytest.mark.parametrize("column", ["anchor", "device", "build", "build_hash", "recorded_utc"])
def test_text_of_a_run_that_is_none_is_named(attrib: Attrib, history: Path, column: str) -> None:
    put(history, "runs", column, b"\x00")
    assert f"{column} of run r6 is" in attrib("runs", "list", "--runs", history).refusal()
    assert f"{column} of run r6 is" in attrib("runs", "trend", "step", "--runs", history).refusal()


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), -5, 0, 2**62])
@pytest.mark.parametrize("column", ["tok_per_s", "step_gbps", "traced_span_ms"])
def test_numbers_that_mislead_nobody_are_shown(
    attrib: Attrib, history: Path, tmp_path: Path, column: str, value: float
) -> None:
    put(history, "runs", column, value)
    for arguments in (["list"], ["show"], ["trend", "step"], ["trend", "step", "--plot", tmp_path / "t.svg"]):
        assert attrib("runs", *arguments, "--runs", history).code == 0
    assert attrib("runs", "list", "--runs", history, "--json").json()["runs"][0]["id"] == "r6"


def test_text_that_is_no_utf8_is_still_a_row(attrib: Attrib, history: Path) -> None:
    with closing(sqlite3.connect(history / store.DATABASE)) as db:
        db.execute("UPDATE runs SET build = CAST(x'ff41' AS TEXT) WHERE id = 'r6'")
        db.commit()
    assert attrib("runs", "list", "--runs", history, "--json").json()["runs"][0]["build"] == "\ufffdA"


def test_columns_of_the_users_own_are_left_alone(attrib: Attrib, history: Path) -> None:
    with closing(sqlite3.connect(history / store.DATABASE)) as db:
        db.executescript("ALTER TABLE runs ADD COLUMN mood; UPDATE runs SET mood = 5 WHERE id = 'r6'")
    assert attrib("runs", "show", "--runs", history, "--json").json()["mood"] == 5


def test_text_among_numbers_goes_to_csv_alone(attrib: Attrib, history: Path, tmp_path: Path) -> None:
    put(history, "sites", "gbps", "fast")
    refused = attrib("runs", "export", tmp_path / "t.parquet", "--runs", history).refusal()
    assert "column gbps of site_history holds text among numbers" in refused
    assert list(tmp_path.glob("*.parquet")) == []
    assert attrib("runs", "export", tmp_path / "t.csv", "--runs", history).code == 0
    assert "fast" in (tmp_path / "t.csv").read_text()


@pytest.mark.parametrize("limit", ["0", "-1", "1000001", str(2**63), str(2**64), "9" * 400, "many"])
def test_a_limit_out_of_range_is_the_limits_fault(attrib: Attrib, history: Path, limit: str) -> None:
    found = attrib("runs", "list", "--limit", limit, "--runs", history)
    assert found.code == 2
    assert "--limit" in found.err
    assert "move it away" not in found.err


@pytest.mark.parametrize("table", runs_schema.EXPORTED)
def test_exports_hold_the_same_rows(attrib: Attrib, history: Path, tmp_path: Path, table: str) -> None:
    parquet, text = tmp_path / "t.parquet", tmp_path / "t.csv"
    for path in (parquet, text):
        found = attrib("runs", "export", path, "--table", table, "--runs", history, "--json").json()
        assert (found["table"], found["out"]) == (table, str(path))
    with store.reading(history) as db:
        wanted = [dict(row) for row in db.execute(f"SELECT * FROM {table}")]
    assert found["rows"] == len(wanted)
    assert pq.read_table(parquet).to_pylist() == wanted
    with text.open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert read == [{key: "" if v is None else str(v) for key, v in row.items()} for row in wanted]


def test_exports_that_are_refused(attrib: Attrib, history: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    for arguments, text in (
        ((out, "--table", "sqlite_master"), "--table 'sqlite_master' is not one of runs, sites"),
        ((tmp_path / "t.xlsx",), "is neither .parquet nor .csv"),
        ((history / "runs.db",), "is an input and would be overwritten"),
    ):
        assert text in attrib("runs", "export", *arguments, "--runs", history).refusal()
    assert not out.exists()
    assert "has no runs.db" in attrib("runs", "export", out, "--runs", tmp_path).refusal()


def test_latest_runs_and_stragglers(history: Path) -> None:
    with store.reading(history) as db:
        assert [tuple(r) for r in db.execute("SELECT anchor, id FROM latest_runs")] == [
            ("14b:@3254", "r5"), ("14b:tg128", "r6"),
        ]  # fmt: skip
        assert [tuple(r) for r in db.execute("SELECT run, site FROM latest_stragglers")] == [("r6", "ffn_up/q4_K")]
        by_build = db.execute(
            "SELECT runs, min_gbps, max_gbps, mean_gbps FROM site_by_build "
            "WHERE site = 'ffn_up/q4_K' AND anchor = '14b:tg128'"
        )
        assert [tuple(r) for r in by_build] == [(3, 1000, 1200, 1070), (1, 1515, 1515, 1515), (1, 1212, 1212, 1212)]


def test_datasette_serves_every_table_and_view(history: Path) -> None:
    async def fetched() -> dict[str, list[dict[str, Any]]]:
        served = Datasette([str(history / store.DATABASE)])
        await served.invoke_startup()
        pages = {}
        for name in runs_schema.EXPORTED:
            answer = await served.client.get(f"/runs/{name}.json?_shape=array&_size=max")
            assert answer.status_code == 200, (name, answer.text)
            pages[name] = answer.json()
            page = await served.client.get(f"/runs/{name}")
            assert page.status_code == 200, name
        return pages

    pages = asyncio.run(fetched())
    assert {row["id"] for row in pages["latest_runs"]} == {"r5", "r6"}
    assert len(pages["site_history"]) == 2 * len(HISTORY)
    assert len(pages["runs"]) == len(HISTORY)
