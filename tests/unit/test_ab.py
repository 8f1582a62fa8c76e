"""`attrib ab` end to end with an engine that times nothing: verdicts, refusals, guards, builds, sites."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from attrib.ab import parse_bar
from attrib.errors import RefusedError
from tests.conftest import Attrib, Outcome
from tests.helpers import fake_ab as fake
from tests.helpers import fake_tools

AB = ("ab", "--anchor", "14b:tg128", "--base", "reference", "--processes", 1)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = fake.engine_here(tmp_path / "work", monkeypatch)
    fake.quiet_gpu(monkeypatch)
    return folder


def said(outcome: Outcome) -> str:
    """The sentence of a refusal, without the lines that tell the progress."""
    assert (outcome.code, outcome.out) == (2, ""), (outcome.code, outcome.out, outcome.err)
    [line] = [line for line in outcome.err.splitlines() if line.startswith("attrib: ")]
    return line


# ---------------------------------------------------------------- verdicts


def test_a_faster_build(attrib: Attrib, work: Path) -> None:
    document = attrib(*AB, "--new", "better", "--pairs", 5, "--json").json()
    [leg] = document["anchors"]
    assert (leg["verdict"], leg["sep"], leg["bar_met"], leg["pairs"]) == ("faster", 1, True, 5)
    assert leg["change_pct"] == pytest.approx(2.0, abs=0.2)
    assert leg["low_pct"] <= leg["change_pct"] <= leg["high_pct"]
    assert leg["bar_pct"] == pytest.approx(0.4)
    assert leg["noise_floor_pct"] is None
    assert document["base"] == {"build": "reference", "hash": "a" * 16}
    assert document["new"] == {"build": "better", "hash": "b" * 16}
    assert (document["device"], document["aa"], len(document["windows"])) == (fake.DEVICE, False, 10)
    assert document["windows"][0]["environment"]["sm_mhz"] == 1980
    assert any("no noise floor is stored for 14b:tg128" in note for note in document["notes"])
    with closing(sqlite3.connect(work / "runs" / "runs.db")) as db:
        row = db.execute("SELECT id, anchor, base, new, verdict, pairs FROM experiments").fetchone()
    assert row == (Path(document["journal"]).stem, "14b:tg128", "reference", "better", "faster", 5)


def test_a_slower_build_and_what_is_printed(attrib: Attrib, work: Path) -> None:
    outcome = attrib(
        "ab", "--anchor", "14b:tg128", "--base", "better", "--new", "reference", "--pairs", 5, "--processes", 1
    )
    assert outcome.code == 0
    for text in (
        "14b:tg128: slower",
        "SEP yes, slower",
        "Mann–Whitney p = 0.0079",
        "bar 0.4 %",
        "10 windows (0 disturbed)",
    ):
        assert text in outcome.out, text
    assert "better bbbbbbbb → reference aaaaaaaa, NVIDIA H200" in outcome.out


def test_too_few_pairs_give_no_verdict(attrib: Attrib, work: Path) -> None:
    outcome = attrib(*AB, "--new", "better", "--pairs", 2)
    assert "14b:tg128: no verdict" in outcome.out
    assert "2 pairs give no verdict" in outcome.out


def test_a_disturbed_window_is_told(attrib: Attrib, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = fake.quiet_gpu(monkeypatch)
    described = fake.Nvml.nvmlDeviceGetMemoryInfo

    def first_is_crowded(self: fake.Nvml, handle: str) -> object:
        gpu.used = (40 << 30) if len(fake.calls(work)) == 1 else 0
        return described(self, handle)

    monkeypatch.setattr(fake.Nvml, "nvmlDeviceGetMemoryInfo", first_is_crowded)
    document = attrib(*AB, "--new", "better", "--pairs", 1, "--json").json()
    assert [window["disturbed"] for window in document["windows"]] == [
        [],
        ["42.9 GB of the GPU's memory in use by others"],
        [],
    ]
    assert any(note.startswith("disturbed and measured again, 1 window: ") for note in document["notes"])


def test_a_restart_is_told(attrib: Attrib, work: Path) -> None:
    fake.configure(work, fails_at=2)
    assert "no NVIDIA GPU" in said(attrib(*AB, "--new", "better", "--pairs", 2))
    fake.configure(work)
    document = attrib(*AB, "--new", "better", "--pairs", 2, "--json").json()
    assert any(note.startswith("1 of the pairs span a restart") for note in document["notes"])
    assert len(document["windows"]) == 4


def test_several_processes_a_side_are_one_pair(attrib: Attrib, work: Path) -> None:
    options = ("ab", "--anchor", "14b:tg128", "--base", "reference", "--new", "better", "--pairs", 5)
    document = attrib(*options, "--json").json()
    [leg] = document["anchors"]
    assert (leg["pairs"], leg["processes"], leg["verdict"], leg["sep"]) == (5, 3, "faster", 1)
    assert [(x["pair"], x["turn"]) for x in document["windows"]][::2] == [(p, t) for p in range(5) for t in range(3)]
    assert leg["p_permutation"] < 1e-3
    outcome = attrib(*options, "--processes", 2)
    assert "median of 5 pairs of 2 a side +1.99 %" in outcome.out
    assert "permutation p = 0.00026" in outcome.out  # 2 of 6^5 deals


# ---------------------------------------------------------------- noise


def test_the_noise_floor_is_stored_and_refuses_a_bar_under_it(attrib: Attrib, work: Path) -> None:
    fake.configure(work, wobble=0.01)
    outcome = attrib(*AB, "--aa", "--pairs", 5)
    assert outcome.code == 0, outcome.err
    assert "a bar of 0.4 % needs" in " ".join(outcome.out.split())
    refusal = said(attrib(*AB, "--new", "better", "--pairs", 5))
    assert "under the noise floor" in refusal
    needed = int(refusal.split("--pairs ")[1].split()[0])
    assert needed > 5
    assert f"needs {needed} pairs" in outcome.out
    assert len(fake.calls(work)) == 11  # ten of the A/A, one that told the device
    assert "no verdict" in attrib(*AB, "--new", "better", "--pairs", 2).out
    document = attrib(*AB, "--new", "better", "--pairs", 5, "--bar", "20%", "--json").json()
    assert 4 < document["anchors"][0]["noise_floor_pct"] < 20


def test_an_aa_run_tells_no_difference(attrib: Attrib, work: Path) -> None:
    document = attrib(*AB, "--aa", "--pairs", 6, "--json").json()
    assert document["aa"] is True
    assert document["base"] == document["new"]
    [leg] = document["anchors"]
    assert leg["verdict"] == "no difference"
    rates = [window["tok_per_s"] for window in document["windows"]]
    assert document["noise"]["sd_pct"] > 0
    assert document["noise"]["floor_pct"] == pytest.approx(leg["noise_floor_pct"])
    assert max(rates) < 101


# ---------------------------------------------------------------- guards


def test_a_guard_that_holds_and_one_that_breaks(attrib: Attrib, work: Path) -> None:
    options = (*AB, "--new", "better", "--pairs", 5, "--guard", "14b:pp512")
    document = attrib(*options, "--json").json()
    target, guard = document["anchors"]
    assert (target["guard"], guard["guard"], guard["broken"], guard["verdict"]) == (False, True, False, "faster")
    fake.configure(work, prompt_factor={"better": 0.9})
    outcome = attrib(*options)
    assert outcome.code == 1
    assert "guard 14b:pp512: slower" in outcome.out
    assert "\n14b:tg128: faster" in outcome.out


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--new", "same"), "reference and same are the same build (aaaaaaaaaaaaaaaa)"),
        (("--new", "none"), "build 'none' does not exist; there are reference, better, same"),
        ((), "give either --new BUILD, or --aa"),
        (("--new", "better", "--aa"), "give either --new BUILD, or --aa"),
        (("--new", "better", "--bar", "0.4"), "bar '0.4' is not a gain in percent"),
        (("--new", "better", "--pairs", "0"), "--pairs 0 is outside 1 to 500"),
        (("--new", "better", "--processes", "7"), "--processes 7 is outside 1 to 6 a side of a pair"),
        (("--aa", "--pairs", "4"), "4 pairs tell no noise floor"),
        (("--new", "better", "--guard", "14B:tg128"), "an anchor is named twice"),
        (("--new", "better", "--guard", "14b"), "is not MODEL:ANCHOR"),
        (("--new", "git:HEAD"), "git cannot check out 'HEAD' here"),
    ],
)
def test_what_is_refused(attrib: Attrib, work: Path, options: tuple[str, ...], text: str) -> None:
    assert text in said(attrib(*AB, *options))
    assert fake.calls(work) == []
    assert not (work / "runs").exists()


def test_a_site_needs_decode_steps(attrib: Attrib, work: Path) -> None:
    refusal = said(attrib("ab", "--anchor", "14b:pp512", "--base", "reference", "--new", "better", "--site", "x"))
    assert "--site needs an anchor of decode steps" in refusal


@pytest.mark.parametrize(("text", "bar"), [("0.4%", 0.004), (" +2 % ", 0.02), ("0.25%", 0.0025)])
def test_bars(text: str, bar: float) -> None:
    assert parse_bar(text) == pytest.approx(bar)


@pytest.mark.parametrize("text", ["0%", "100%", "-1%", "x", "", "0.4", "nan%"])
def test_what_is_no_bar(text: str) -> None:
    with pytest.raises(RefusedError, match="in percent"):
        parse_bar(text)


# ---------------------------------------------------------------- revisions


def test_a_git_revision_against_the_tree(attrib: Attrib, work: Path) -> None:
    fake.configure(work, builds={"reference": [95.0, "dddddddddddddddd"]})
    fake.commit(work, "before")
    fake.configure(work)
    options = ("ab", "--anchor", "14b:tg128", "--new", "reference", "--pairs", 5, "--processes", 1)
    document = attrib(*options, "--base", "git:before", "--json").json()
    assert document["base"] == {"build": "git:before", "hash": "d" * 16}
    assert document["anchors"][0]["change_pct"] == pytest.approx(100 * (100 / 95 - 1), abs=0.3)
    listed = subprocess.run(["git", "worktree", "list"], cwd=work, capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == 1
    assert "build 'better' does not exist; there are reference" in said(attrib(*options, "--base", "git:before:better"))
    assert "git cannot check out 'nowhere'" in said(attrib(*options, "--base", "git:nowhere"))
    fake.git(work, "rm", "-rqf", "--cached", "engine")
    fake.git(work, "commit", "-q", "-m", "empty", "--allow-empty")
    assert "revision HEAD has no engine folder" in said(attrib(*options, "--base", "git:HEAD"))


# ---------------------------------------------------------------- sites


@pytest.fixture
def traced(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working nsys whose recordings have 16 steps."""
    with monkeypatch.context() as kept:
        fake_tools.install(tmp_path / "tools", kept)
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools' / 'bin'}:/usr/bin:/bin")
    monkeypatch.delenv("ATTRIB_NSYS", raising=False)
    monkeypatch.setenv("FAKE_TRACE", str(fake_tools.decode_trace(steps=16).write(tmp_path / "source.sqlite")))
    fake.configure(work, manifest=str(fake_tools.write_manifest(tmp_path / "source.json")))
    return work


def test_a_site_is_traced_once_a_side(attrib: Attrib, traced: Path) -> None:
    options = (*AB, "--new", "better", "--pairs", 2)
    site = attrib(*options, "--site", "attn_q/q4_K", "--json").json()["site"]
    assert site["base"]["gbps"] == site["new"]["gbps"] == pytest.approx(3000)
    assert (site["delta_ms"], site["change_pct"]) == (0, 0)
    assert "one capture each" in site["note"]
    assert sum("--traced" in line for line in fake.calls(traced)) == 2
    outcome = attrib(*options, "--site", "attn_q/q4_K")
    assert "site attn_q/q4_K: 3000 GB/s → 3000 GB/s, 30.00 → 30.00 µs a launch, +0.00 %" in outcome.out


def test_an_unknown_site_names_the_known_ones_and_loses_no_window(attrib: Attrib, traced: Path) -> None:
    refusal = said(attrib(*AB, "--new", "better", "--pairs", 2, "--site", "attn_v"))
    assert "has no site 'attn_v' at 14b:tg128; there are" in refusal
    assert "output/q6_K" in refusal
    timed = len([line for line in fake.calls(traced) if "--traced" not in line])
    assert attrib(*AB, "--new", "better", "--pairs", 2).code == 0
    assert len([line for line in fake.calls(traced) if "--traced" not in line]) == timed
