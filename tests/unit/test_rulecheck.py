"""`attrib rules`: shares by hand, proposals that work when pasted, tables that fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from attrib import rules
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
    table, _, _ = outcome.out.partition("Rules to paste")
    assert max(len(line) for line in table.splitlines()) <= 100


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


def test_a_trace_without_usable_times_is_refused(attrib: Attrib, tmp_path: Path) -> None:
    made = Trace("2025.3")
    made.process().launch(Kernel("k"), 1_000_000, -5)
    assert "usable timestamps" in attrib("rules", "check", made.write(tmp_path / "t.sqlite")).refusal()
