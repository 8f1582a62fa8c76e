"""`attrib rules`: shares by hand, proposals that work when pasted, tables that fit."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from rich.cells import cell_len

from attrib import rules
from attrib.rulecheck import LINE, Share, Unmatched
from attrib.trace import open_trace
from tests.conftest import Attrib
from tests.helpers import data
from tests.helpers.nsysgen import H200, Kernel, Trace

LAUNCHES = [
    (Kernel("nvjet_hsh_64x8_64x16_4x1_v_bz_TNT", "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT"), 6000),
    (Kernel("rms_norm_kernel", "void vllm::rms_norm_kernel<c10::BFloat16>(T1 *)"), 1000),
    (Kernel("my_rms_norm"), 500),
    (Kernel("secret", "void ns::secret<(int)1>(float *)"), 1000),
    (Kernel("secret", "void ns::secret<(int)2>(float *)"), 1500),
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """10,000 ns of kernels, and one launch that ends before it starts."""
    made = Trace("2025.3")
    process = made.process()
    process.device(made.gpu(H200))
    at = 1_000_000
    for kernel, duration in LAUNCHES:
        at = process.launch(kernel, at, duration) + 100
    process.launch(Kernel("secret"), at, -10)
    return made.write(tmp_path / "trace.sqlite")


def test_shares_by_hand(attrib: Attrib, trace: Path) -> None:
    found = attrib("rules", "check", trace, "--json").json()
    assert found["matched_pct_of_kernel_time"] == pytest.approx(70)
    assert (found["total"]["launches"], found["total"]["ms"]) == (5, pytest.approx(0.01))
    percent = {name: share["pct_of_kernel_time"] for name, share in found["files"].items()}
    assert percent == pytest.approx({"vllm": 10, "pytorch": 60, "words alone": 5, "nothing": 25})
    percent = {name: share["pct_of_kernel_time"] for name, share in found["categories"].items()}
    assert list(percent) == ["weight streaming", "other", "norm"]
    assert percent == pytest.approx({"weight streaming": 60, "other": 25, "norm": 15})
    assert found["streams"] == {"vllm": 1, "pytorch": 1}


def test_the_largest_unknown_kernel_comes_first(attrib: Attrib, trace: Path) -> None:
    unmatched = attrib("rules", "check", trace, "--json").json()["unmatched"]
    assert [(one["function"], one["category"], one["launches"]) for one in unmatched] == [
        ("ns::secret", "other", 2),
        ("my_rms_norm", "norm", 1),
    ]
    assert unmatched[0]["pct_of_kernel_time"] == pytest.approx(25)
    assert len(attrib("rules", "check", trace, "--top", "1", "--json").json()["unmatched"]) == 1


def test_proposals_work_when_pasted(attrib: Attrib, trace: Path, tmp_path: Path) -> None:
    unmatched = attrib("rules", "check", trace, "--json").json()["unmatched"]
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "mine"\n' + "\n".join(one["rule"] for one in unmatched).replace('"other"', '"attention"'))
    found = attrib("rules", "check", trace, "--rules", mine, "--json").json()
    assert found["matched_pct_of_kernel_time"] == pytest.approx(100)
    assert found["files"]["mine"]["pct_of_kernel_time"] == pytest.approx(30)
    assert found["unmatched"] == []
    assert "Every kernel is known" in attrib("rules", "check", trace, "--rules", mine).out
    rows = attrib("anatomy", trace, "--rules", mine, "--json").json()["categories"]
    assert {row["category"]: row["launches"] for row in rows}["attention"] == 2


def test_a_proposal_escapes_what_toml_and_patterns_read(tmp_path: Path) -> None:
    made = Trace("2025.3")
    process = made.process()
    for demangled in ("odd'name\"<(int)1>(int)", "a.b+c[d](int)", "back\\slash(int)"):
        process.launch(Kernel("odd", demangled), 1_000_000, 100)
    from attrib.rulecheck import check

    for one in check(open_trace(made.write(tmp_path / "t.sqlite"))).unmatched:
        book = rules.parse(f'name = "x"\n{one.proposal}', "x.toml")
        assert book.kernel(one.function, one.example) is not None
        assert book.kernel(one.function + "x", one.example) is None


@pytest.mark.parametrize("name", data.NAMES)
def test_check_of_every_recorded_trace_fits(attrib: Attrib, name: str) -> None:
    outcome = attrib("rules", "check", data.trace(name))
    if outcome.code:
        assert name == "not-an-export"
        return
    assert max(cell_len(line) for line in outcome.out.splitlines()) <= 100
    assert "…  " not in outcome.out.partition("largest that no rule knows")[2].partition("\n")[0]


def test_a_training_step_is_known_whole(attrib: Attrib) -> None:
    """PyTorch on two GPUs: attention, collectives and library kernels, each from a file of its own."""
    found = attrib("rules", "check", data.trace("train-2gpu-before-2026.2"), "--json").json()
    assert found["matched_pct_of_kernel_time"] == pytest.approx(100)
    assert set(found["files"]) == {"flash-attention", "nccl", "pytorch"}


def test_list_names_every_file(attrib: Attrib) -> None:
    rows = attrib("rules", "list", "--json").json()["rules"]
    assert [row["name"] for row in rows] == [book.name for book in rules.builtin_rules()]
    assert {row["name"] for row in rows if row["streams"]} == {"llama.cpp", "vllm", "pytorch"}
    text = attrib("rules", "list").out
    assert all(row["name"] in text for row in rows)
    assert max(len(line) for line in text.splitlines()) <= 100


IMPOSSIBLE = {
    "no times": (0, 0),
    "ends before it starts": (1_000_000, 999_995),
    "before 0": (-(2**40), 1_000_000),
    "2^61 ns": (1_000_000, 2**61),
    "a day": (1_000_000, 86_400 * 10**9),
    "before the first API call": (10, 20),
}


def with_times(path: Path, times: Sequence[tuple[int, int]]) -> Path:
    """A launch for each of the times, which no launch of a program need be able to have."""
    made = Trace("2025.3")
    process = made.process()
    process.device(made.gpu(H200))
    for place in range(len(times)):
        process.launch(Kernel("k"), 1_000_000 + 1000 * place, 500)
    trace = made.write(path)
    with closing(sqlite3.connect(trace)) as db:
        for place, (start, end) in enumerate(times, start=1):
            db.execute(
                'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = ?, "end" = ? WHERE rowid = ?', (start, end, place)
            )
        db.commit()
    return trace


@pytest.mark.parametrize("times", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_times_that_cannot_be_are_refused_as_a_census_refuses_them(
    attrib: Attrib, tmp_path: Path, times: tuple[int, int]
) -> None:
    trace = with_times(tmp_path / "t.sqlite", [times, times])
    said = attrib("census", trace).refusal()
    assert "of 2 launches none has usable timestamps" in said
    assert attrib("rules", "check", trace).refusal() == said


@pytest.mark.parametrize("times", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_times_that_cannot_be_are_left_out_and_counted(attrib: Attrib, tmp_path: Path, times: tuple[int, int]) -> None:
    good = [(1_000_000 + 1000 * place, 1_000_500 + 1000 * place) for place in range(3)]
    trace = with_times(tmp_path / "t.sqlite", [*good, times])
    excluded = attrib("census", trace, "--json").json()["steps"]["excluded"]
    assert sum(excluded.values()) == 1
    found = attrib("rules", "check", trace, "--json").json()
    assert (found["total"]["launches"], found["total"]["ms"]) == (3, pytest.approx(0.0015))
    assert found["excluded"] == excluded
    assert f"note: left out: 1 × {next(iter(excluded))}" in attrib("rules", "check", trace).out
    if times[1] > 10**12:
        span = attrib("compare", trace, trace, "--devices", "--json").json()["devices"][0]["a"]["span_ms"]
        assert span == pytest.approx(0.0025)


@pytest.mark.parametrize("known", [True, False], ids=["a known kernel", "an unknown kernel"])
def test_launches_that_took_no_time_have_no_share(attrib: Attrib, tmp_path: Path, known: bool) -> None:
    made = Trace("2025.3")
    process = made.process()
    process.device(made.gpu(H200))
    name = "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT" if known else "secret"
    for place in range(5):
        process.launch(Kernel(name, name), 1_000_000 + place * 1000, 0)
    trace = made.write(tmp_path / "t.sqlite")
    found = attrib("rules", "check", trace, "--json").json()
    assert found["matched_pct_of_kernel_time"] is None
    assert {share["pct_of_kernel_time"] for share in found["files"].values()} == {None}
    assert found["total"]["launches"] == 5
    shown = attrib("rules", "check", trace)
    assert shown.code == 0
    assert "– % of kernel time is known" in shown.out


LONG = {
    "letters": "k" * 5000,
    "parts": "::".join(f"namespace_{i}" for i in range(400)),
    "escapes": "(.*)+[]{}^$|\\" * 300,
    "quotes": "'\"\\" * 900,
    "wide": "核" * 3000,
    "one too many": "k" * 87,
}


@pytest.mark.parametrize("function", LONG.values(), ids=LONG)
def test_a_long_name_is_proposed_by_its_begin_and_end(function: str) -> None:
    one = Unmatched(function, function, "norm", Share(1, 1e-6, 1))
    assert max(len(line) for line in one.proposal.splitlines()) <= LINE
    book = rules.parse(f'name = "x"\n{one.proposal}', "x.toml")
    assert book.kernel(function, function) is not None
    assert book.kernel(function[:20], function) is None
    assert book.kernel(f"x{function}", function) is None


def test_a_name_that_fits_is_proposed_whole() -> None:
    one = Unmatched("k" * 84, "", "norm", Share(1, 1e-6, 1))
    assert f"function = '^{'k' * 84}$'" in one.proposal


@pytest.mark.parametrize("columns", [60, 100, 200])
def test_the_table_of_unknown_kernels_keeps_its_heads(
    tmp_path: Path, attrib: Attrib, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    made = Trace("2025.3")
    process = made.process()
    process.device(made.gpu(H200))
    at = 1_000_000
    for function in LONG.values():
        at = process.launch(Kernel("k", f"{function}(int)"), at, 10**9) + 10
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = attrib("rules", "check", made.write(tmp_path / "t.sqlite")).out.splitlines()
    head = next(line for line in lines if line.startswith("largest that no rule knows"))
    assert head.split()[-6:] == ["words", "say", "launches", "ms", "%", "time"]
    paste = lines.index("Rules to paste into a file for --rules:")
    assert max(map(cell_len, lines[:paste])) <= 100
