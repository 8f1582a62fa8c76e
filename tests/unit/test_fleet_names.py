"""What a fleet makes of names: those that are no text, folders of tables, numbers that are no ranks, equal members."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import pytest

from attrib import cli_fleet, fleet_files, fleet_spread
from attrib.fleet_files import find
from attrib.fleet_spread import Member, cohorts
from tests.conftest import Attrib
from tests.helpers import parquet, small_step
from tests.helpers import persistent_step as ps

ODD = os.fsdecode(b"rank1-\xff\xfe.sqlite")


@pytest.mark.parametrize(
    "names",
    [
        ("rank0.sqlite", ODD, "rank2.sqlite"),
        (f"{os.fsdecode(bytes([0xE9]))}/rank0.sqlite", "n/rank1.sqlite", "n/rank2.sqlite"),
        ("rank0 ✓.sqlite", "rank1\nx.sqlite", "rank2\t'\".sqlite"),
    ],
    ids=["a file", "a folder", "odd text"],
)
@pytest.mark.parametrize("bad", [False, True], ids=["sound", "damaged"])
def test_a_name_that_is_no_text_is_a_row(attrib: Attrib, tmp_path: Path, names: tuple[str, ...], bad: bool) -> None:
    folder = tmp_path / "f"
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        ps.trace().write(path)
    if bad:
        (folder / names[1]).write_bytes(b"damaged")
    out = tmp_path / "rows.csv"
    found = attrib("fleet", folder, "--workers", "1", "--csv", out, "--json").json()
    rows = {row["trace"]: row for row in found["members"]}
    assert len(rows) == len(names)
    for place, name in enumerate(names):
        row = rows[str(folder / name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")]
        assert row["rank"] == place
        assert (row["reason"] is None) is not (bad and place == 1)
    assert len(list(csv.reader(out.read_text().splitlines()))) >= len(names)
    shown = attrib("fleet", folder, "--workers", "1")
    assert (shown.code, shown.err) == (0, "")
    assert ("\\xff" in shown.out) is (ODD in names)


@pytest.mark.parametrize("option", ["--rules", "--model", "--manifest"])
def test_an_option_may_have_an_odd_name_too(attrib: Attrib, tmp_path: Path, option: str) -> None:
    trace, manifest = small_step.write(tmp_path)
    given = tmp_path / os.fsdecode(b"\xff.gguf")
    shutil.copyfile(manifest, given)
    found = attrib("fleet", trace, option, given, "--workers", "1")
    if option == "--manifest":
        assert found.code == 0
    else:
        assert "none could be read" in found.refusal()


def test_parquet_exports_are_traces_whatever_their_folder_is_called(attrib: Attrib, tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    trace, _ = small_step.write(tmp_path)
    for name in ("rank0_pqtdir", "rank1", "rank2.parquet", "rank3_pqtdir"):
        parquet.from_sqlite(trace, folder / name)
    (folder / "rank3.nsys-rep").write_bytes(b"the report of that export")
    (folder / "notes").mkdir()
    found = attrib("fleet", folder, "--workers", "1", "--json").json()
    assert [(row["rank"], row["reason"], Path(row["trace"]).name) for row in found["members"]] == [
        (0, None, "rank0_pqtdir"), (1, None, "rank1"), (2, None, "rank2.parquet"), (3, None, "rank3_pqtdir"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spans_ms", "slowest"),
    [
        ([1.0, 1.0, 1.0, 1.0], ""),
        ([1.0], "rank 0"),
        ([1.0, 1.0], ""),
        ([1.0, 2.0, 2.0, 1.0], ""),
        ([1.0, 2.0, 3.0, 3.0], ""),
        ([1.0, 2.0, 3.0, 4.0], "rank 3"),
        ([4.0, 2.0, 3.0, 4.0 - 1e-9], "rank 0"),
    ],
)
def test_the_slowest_is_one_member_alone(spans_ms: list[float], slowest: str) -> None:
    members = [
        Member(str(rank), "", rank, None, span_ms=ms, sites={"a": {"ms_per_step": ms}})
        for rank, ms in enumerate(spans_ms)
    ]
    [found] = cohorts(members)
    assert [site.slowest for site in found.sites] == [slowest]


def test_equal_ranks_name_no_slowest(attrib: Attrib, tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    (tmp_path / "f").mkdir()
    for rank in range(4):
        shutil.copyfile(trace, tmp_path / "f" / f"rank{rank}.sqlite")
    found = attrib("fleet", tmp_path / "f", "--workers", "1", "--json").json()
    assert {site["slowest"] for site in found["cohorts"][0]["sites"]} == {None}
    lines = attrib("fleet", tmp_path / "f", "--workers", "1").out.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("site "))
    assert "rank 0" not in "\n".join(lines[start : start + 8])


@pytest.mark.parametrize("digits", ["20261130", "100000", "9" * 30, "9" * 200])
def test_a_date_in_a_name_is_no_rank(tmp_path: Path, digits: str) -> None:
    (tmp_path / f"rank{digits}.sqlite").touch()
    assert [one.rank for one in find([str(tmp_path)])] == [None]
    assert fleet_files.MOST_RANKS == cli_fleet.MOST_RANKS


@pytest.mark.parametrize("ranks", ["0", "100001", str(2**63)])
def test_more_ranks_than_there_can_be_are_refused(attrib: Attrib, tmp_path: Path, ranks: str) -> None:
    trace, _ = small_step.write(tmp_path)
    assert attrib("fleet", trace, "--ranks", ranks).code == 2


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([2], "2"), ([2, 3], "2, 3"), ([2, 3, 4], "2–4"), ([0, 2, 3, 4, 5, 9, 10], "0, 2–5, 9, 10")],
)
def test_neighbours_are_a_span(numbers: list[int], text: str) -> None:
    assert fleet_spread.spans(numbers) == text
