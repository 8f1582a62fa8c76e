"""attrib fleet: which traces, which rank, which outlier; bad files, lost workers, Ctrl-C, flat memory."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
from distributed import LocalCluster
from hypothesis import given
from hypothesis import strategies as st

from attrib import fleet_files, fleet_spread
from attrib.attribution import Options
from attrib.errors import NoDataError, RefusedError
from attrib.fleet import fleet
from attrib.fleet_cluster import measure_all
from attrib.fleet_files import find, host_of, rank_in
from attrib.fleet_spread import FEWEST, Member, cohorts, missing_ranks, spread
from attrib.fleet_work import measure
from attrib.trace import open_trace
from tests.conftest import Attrib
from tests.helpers import data, small_step

MODEL = "qwen2.5-14b:q4_k_m"
RECORDED = "llama.cpp-14b-tg16-h200"


# ---------------------------------------------------------------- arithmetic


def test_the_outlier_rule_by_hand() -> None:
    found = spread([10.0, 10.1, 9.9, 10.2, 12.0])
    assert (found.median, found.low, found.high) == (10.1, 9.9, 12.0)
    assert found.mad == pytest.approx(0.1)  # of 0.1, 0, 0.2, 0.1, 1.9
    assert found.scores[4] == pytest.approx(1.9 / (1.4826 * 0.1))
    assert found.outliers() == [4]
    assert found.pct == pytest.approx(100 * 2.1 / 10.1)


def test_members_alike_to_the_last_digit_make_no_outlier_of_a_nanosecond() -> None:
    assert spread([6.5, 6.5, 6.5, 6.5, 6.500001]).outliers() == []
    assert spread([6.5, 6.5, 6.5, 6.5, 6.53]).outliers() == [4]  # 0.46 % against 3.5 × 0.1 %


def test_too_few_members_have_no_outlier() -> None:
    assert spread([1.0, 1.0, 9.0][: FEWEST - 1]).outliers() == []
    assert spread([0.0] * 5).scores == (0.0,) * 5


@given(st.lists(st.floats(0.5, 2), min_size=FEWEST, max_size=20), st.floats(0.01, 100))
def test_scores_do_not_depend_on_the_unit(values: list[float], unit: float) -> None:
    scores = spread(values).scores
    assert spread([unit * value for value in values]).scores == pytest.approx(scores, rel=1e-6, abs=1e-6)
    assert statistics.median(scores) == pytest.approx(0, abs=1e-6)


def member(rank: int | None, span: float, group: str = "", **changes: Any) -> Member:
    sites = {"a": {"ms_per_step": span / 2}, "b": {"ms_per_step": 1.0}}
    fields = {"device": "H200", "launches": 900, "span_ms": span, "sites": sites} | changes
    return Member(f"/t/{group}/rank{rank}.sqlite", group, rank, None, **fields)


def test_cohorts_compare_what_should_be_alike() -> None:
    spans = [6.0, 6.01, 5.99, 6.02, 7.5]
    found = cohorts([*(member(i, s) for i, s in enumerate(spans)), member(0, 40.0, device="GB10")])
    assert [(c.device, len(c.members)) for c in found] == [("H200", 5), ("GB10", 1)]
    assert [m.label for m in found[0].outliers()] == ["rank 4"]
    assert [(s.site, s.slowest, s.outliers) for s in found[0].sites] == [
        ("a", "rank 4", ("rank 4",)), ("b", "", ()),
    ]  # fmt: skip
    assert found[0].sites[0].behind_ms == pytest.approx((7.5 - 6.01) / 2)
    assert found[0].notes == ()


def test_cohorts_say_what_makes_them_doubtful() -> None:
    (found,) = cohorts([member(0, 6.0, build="x"), member(0, 6.0, build="y"), member(1, 6.0, launches=800)])
    assert found.notes == (
        "steps of 800, 900 launches: not all members run the same program",
        "builds differ: x, y",
        "rank 0 more than once",
    )


def test_missing_ranks() -> None:
    members = [member(0, 1.0, "n1"), member(3, 1.0, "n1"), member(1, 1.0, "n2"), Member("/x", "n2", 0, "damaged")]
    assert missing_ranks(members) == {"n1": [1, 2], "n2": [2, 3]}
    assert missing_ranks(members, ranks=2) == {"n1": [1]}
    assert missing_ranks([member(None, 1.0)], ranks=4) == {}


# ---------------------------------------------------------------- files


def test_which_files_are_traces(tmp_path: Path) -> None:
    for name in (
        "n1/rank0.sqlite", "n1/rank1.sqlite.xz", "n1/rank1.nsys-rep", "n1/rank2.nsys-rep", "n1/notes.txt",
        "n1/.recording-x/trace.sqlite", "n2/rank_0/trace.sqlite", "n2/rank_0/census.csv", "n2/RANK.1_pqtdir/x.parquet",
        "runs.db",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [(f.path.relative_to(tmp_path).as_posix(), f.group, f.rank) for f in find([str(tmp_path)])]
    assert found == [
        ("n1/rank0.sqlite", "n1", 0), ("n1/rank1.sqlite.xz", "n1", 1), ("n1/rank2.nsys-rep", "n1", 2),
        ("n2/rank_0", "n2", 0), ("n2/RANK.1_pqtdir", "n2", 1),
    ]  # fmt: skip
    both = find([f"{tmp_path}/*/rank*0*", str(tmp_path / "n1/rank0.sqlite")])
    assert [(f.path.name, f.rank) for f in both] == [("rank0.sqlite", 0), ("rank_0", 0)]
    assert find([f"{tmp_path}/n1/rank0.sqlite"])[0].rank == 0


def test_ranks_in_folders_do_not_make_groups(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}" / "decode.sqlite").touch()
    assert [(f.group, f.rank) for f in find([str(tmp_path)])] == [("", 0), ("", 1)]
    assert [(f.group, f.rank) for f in find([str(tmp_path / "rank1")])] == [("", 1)]


def test_a_rank_pattern_of_ones_own(tmp_path: Path) -> None:
    for name in ("tp3_pp1.sqlite", "tp4_pp0.sqlite"):
        (tmp_path / name).touch()
    assert [f.rank for f in find([str(tmp_path)])] == [None, None]
    assert [f.rank for f in find([str(tmp_path)], r"tp(\d+)")] == [3, 4]
    with pytest.raises(RefusedError, match=r"--rank-pattern '\(' is not a regular expression"):
        find([str(tmp_path)], "(")
    with pytest.raises(RefusedError, match="has no group; put the rank's digits in parentheses"):
        find([str(tmp_path)], "rank")
    with pytest.raises(NoDataError, match="holds no trace"):
        find([f"{tmp_path}/*.parquet"])


def with_metadata(path: Path, environment: dict[str, str], host: str) -> Path:
    """The trace with what nsys writes of a launcher's environment and of the machine."""
    with closing(sqlite3.connect(path)) as db:
        db.executemany(
            "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', ?)",
            [(f'{name}="{value}"',) for name, value in environment.items()],
        )
        db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid, devStateName, name, nameEnum, value)")
        db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, '', 'Hostname', 0, ?)", (host,))
        db.commit()
    return path


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({"HOME": "/root", "OMPI_COMM_WORLD_RANK": "5"}, 5),
        ({"SLURM_PROCID": "7", "RANK": "3"}, 3),
        ({"RANK": "three", "PMI_RANK": "2"}, 2),
        ({"LOCAL_RANK": "1"}, None),
        ({}, None),
    ],
)
def test_the_rank_and_the_machine_that_the_trace_says(
    tmp_path: Path, environment: dict[str, str], rank: int | None
) -> None:
    trace = open_trace(with_metadata(small_step.write(tmp_path)[0], environment, "node17"))
    assert (rank_in(trace), host_of(trace)) == (rank, "node17")


# ---------------------------------------------------------------- one trace


def test_a_bad_file_is_a_reason() -> None:
    good = measure(str(data.trace(RECORDED)), Options(model=MODEL), None)
    assert good["reason"] is None
    assert (good["steps"], good["launches"]) == (16, 918)
    bad = measure(str(data.trace("not-an-export")), Options(), None)
    assert bad["reason"].startswith("not-an-export.sqlite is a SQLite file but not an nsys export")
    assert "unexpected AttributeError" in measure(str(data.trace(RECORDED)), Options(model=3), None)["reason"]  # type: ignore[arg-type]


def test_memory_does_not_grow_with_the_traces_read() -> None:
    code = (
        "import sys\nfrom attrib.fleet_work import measure, peak_bytes\nfrom attrib.attribution import Options\n"
        f"for _ in range(12):\n    measure(sys.argv[1], Options(model={MODEL!r}), None)\n    print(peak_bytes())"
    )
    trace = str(data.packed(RECORDED))
    done = subprocess.run([sys.executable, "-c", code, trace], capture_output=True, text=True, check=True)
    peaks = [int(line) for line in done.stdout.split()]
    assert len(peaks) == 12
    assert peaks[-1] <= 1.05 * peaks[2]


# ---------------------------------------------------------------- the cluster


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def night(tmp_path: Path) -> Path:
    """Five ranks of which rank 4 is slow and rank 2 missing, and a damaged file for rank 5."""
    for rank in (0, 1, 3, 4):
        folder = tmp_path / "fleet" / f"rank{rank}"
        folder.mkdir(parents=True)
        small_step.write(folder, scales=(1.3, 1.3, 1.3) if rank == 4 else (1.0, 1.0 + rank / 1000, 1.0))
    (tmp_path / "fleet" / "rank5.sqlite").write_bytes(b"SQLite format 3\0 and then nothing")
    return tmp_path / "fleet"


def test_the_fleet_names_outliers_missing_ranks_and_bad_files(
    attrib: Attrib, night: Path, address: str, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.csv"
    found = attrib("fleet", night, "--scheduler", address, "--csv", rows, "--json").json()
    assert (found["traces"], found["read"], found["missing_ranks"]) == (5, 4, {"": [2]})
    assert [m["rank"] for m in found["members"]] == [0, 1, 3, 4, 5]
    assert [m["rank"] for m in found["members"] if m["outlier"]] == [4]
    spans = [m["span_ms"] for m in found["members"]]
    assert spans[4] is None
    assert spans[:4] == pytest.approx(
        [0.030, 0.030, 0.030, 0.039]
    )  # scale 1.3 of 30 µs; gaps and overlaps are not scaled
    assert found["members"][3]["of_median_pct"] == pytest.approx(30)
    assert "rank5.sqlite is cut short" in found["members"][4]["reason"]
    (cohort,) = found["cohorts"]
    assert cohort["outliers"] == ["rank 4"]
    assert {site["slowest"] for site in cohort["sites"]} == {"rank 4"}
    assert found["warnings"] == [
        "OUTLIER rank 4: span 0.039 ms, +30.0 % of the median",
        "MISSING rank 2: no trace stands for it",
        "1 of 5 traces gave no census; the rows say why",
    ]
    with rows.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["rank"] for line in lines] == ["0", "1", "3", "4", "5"]
    assert float(lines[3]["ffn_down/q4_K ms"]) == pytest.approx(1.3 * 0.018 - 0.0005)

    shown = attrib("fleet", night, "--scheduler", address, "--ranks", 8)
    assert shown.code == 0
    assert "OUTLIER" in shown.out
    assert "no census of rank5.sqlite: " in shown.out
    assert "MISSING rank 2, 6, 7: no trace stands for it" in shown.out
    assert "outlier: |x - median| / max(1.4826 x MAD, 0.1% of median) > 3.5" in shown.out
    tables = [line for line in shown.out.splitlines() if not line.startswith(("no census", "outlier:", "note:"))]
    assert max(map(len, tables)) <= 120  # as wide as the test's terminal


def test_no_trace_can_be_read(attrib: Attrib, night: Path, address: str) -> None:
    said = attrib("fleet", night / "rank5.sqlite", "--scheduler", address).refusal()
    assert "of 1 trace none could be read; the first: rank5.sqlite is cut short" in said


def test_no_scheduler_answers(attrib: Attrib, night: Path) -> None:
    said = attrib("fleet", night, "--scheduler", "no-such-protocol://127.0.0.1:1").refusal()
    assert "no Dask scheduler answers at 'no-such-protocol://127.0.0.1:1'" in said


def test_without_dask(attrib: Attrib, night: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "pip install 'attrib[fleet]'" in attrib("fleet", night).refusal()


def copies(folder: Path, number: int) -> list[str]:
    folder.mkdir()
    names = [str(folder / f"rank{rank}.sqlite.xz") for rank in range(number)]
    for name in names:
        shutil.copyfile(data.packed(RECORDED), name)
    return names


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Dask's worker processes; the resource tracker that multiprocessing starts too is none."""
    found = []
    for child in process.children(recursive=True):
        try:
            if any("spawn_main" in part for part in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_lost_worker_is_replaced_and_its_trace_read_again(tmp_path: Path) -> None:
    paths = copies(tmp_path / "f", 24)
    killed: list[int] = []

    def kill_one(done: int, of: int) -> None:
        if done == 2:
            # those of the module's own cluster are children of this process too, so: the youngest
            victim = max(workers_of(psutil.Process()), key=lambda worker: worker.create_time())
            killed.append(victim.pid)
            victim.kill()

    found = measure_all(paths, Options(model=MODEL), None, 2, progress=kill_one)
    assert len(killed) == 1
    assert [row["reason"] for row in found.rows] == [None] * len(paths)
    assert {row["span_ms"] for row in found.rows} == {found.rows[0]["span_ms"]}
    assert found.lost_workers >= 1


def test_a_trace_that_costs_every_worker_is_a_row(tmp_path: Path) -> None:
    """With no lost worker allowed, what was under way on the killed one is given up, and everything else is read."""
    paths = copies(tmp_path / "f", 8)

    def kill_one(done: int, of: int) -> None:
        if done == 1:
            max(workers_of(psutil.Process()), key=lambda worker: worker.create_time()).kill()

    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        found = measure_all(paths, Options(model=MODEL), None, 1, progress=kill_one)
    lost = [row for row in found.rows if row["reason"] is not None]
    assert 1 <= len(lost) < len(paths)
    assert {row["reason"] for row in lost} == {
        "every worker that read it was lost (1 times): it may need more memory than a worker has"
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("after_s", [0.0, 2.0], ids=["while it starts", "while it reads"])
def test_a_polite_end_leaves_no_file_and_no_process(tmp_path: Path, after_s: float, number: signal.Signals) -> None:
    """As a terminal does it: Ctrl-C goes to the workers too; `kill` and a closed terminal reach the program alone."""
    copies(tmp_path / "f", 200)
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-c", "from attrib.cli import main; main()", "fleet", str(tmp_path / "f")]
    command += ["--model", MODEL, "--workers", "1", "--csv", str(out / "rows.csv")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        parent = psutil.Process(process.pid)
        while not (workers := workers_of(parent)):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(after_s)
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "Traceback" not in errors, errors
    assert list(out.iterdir()) == []
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []


def test_the_one_trace_of_a_folder_says_its_rank_itself(tmp_path: Path, address: str) -> None:
    folder = tmp_path / "f"
    for place, rank in (("a", "11"), ("b", "12")):
        (folder / place).mkdir(parents=True)
        with_metadata(small_step.write(folder / place)[0], {"RANK": rank}, f"node{rank}")
    found = fleet([str(folder)], scheduler=address)
    assert [(m.group, m.rank, m.host) for m in found.members] == [("", 11, "node11"), ("", 12, "node12")]
    assert fleet_spread.RULE in found.to_json()["outlier_rule"]
    assert fleet_files.RANK_PATTERN == r"rank[-_.]?(\d+)"
