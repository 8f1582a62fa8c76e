"""The ranking: by time that class rate would give back, never by GB/s; nothing is ranked that has no rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from attrib import api
from attrib.errors import NoDataError
from tests.helpers import small_step
from tests.helpers.nsysgen import Gpu, Node
from tests.helpers.small_step import DOWN, HEAD, Part

NS = 1e-9


def table(folder: Path, text: str) -> Path:
    path = folder / "bytes.csv"
    path.write_text(text)
    return path


def test_the_slower_site_with_less_to_give_back_comes_last(tmp_path: Path) -> None:
    """100 GB/s for 1 µs gives back 0.55 µs at 222.5; 200 GB/s for 100 µs gives back 10.1 µs."""
    parts = (
        Part(Node(DOWN, 1000), "attn_k/q4_K", 0, 100_000),
        Part(Node(HEAD, 100_000), "output/q6_K", None, 20_000_000),
    )
    trace, manifest = small_step.write(tmp_path, parts, scales=(1, 1, 1))
    found = api.stragglers(trace, manifest=manifest)
    assert [row.site for row in found.rows] == ["output/q6_K", "attn_k/q4_K"]
    expected = [100_000 - 20_000_000 / 222.5, 1000 - 100_000 / 222.5]
    assert [row.recoverable / NS for row in found.rows] == pytest.approx(expected)
    assert found.recoverable / NS == pytest.approx(sum(expected))
    document = found.to_json()
    assert document["schema"] == "attrib.stragglers/1"
    assert document["recoverable_ms"] == pytest.approx(sum(expected) * 1e-6)
    assert document["recoverable_pct_of_span"] == pytest.approx(100 * sum(expected) / 101_000)
    assert [entry["site"] for entry in document["stragglers"]] == ["output/q6_K", "attn_k/q4_K"]
    assert found.describe().startswith("2 sites stream below the class: output/q6_K (200 GB/s), attn_k/q4_K (100 GB/s)")


def test_one_straggler_is_spoken_of_in_the_singular(tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path)
    text = api.stragglers(trace, "226:232", manifest=manifest).describe()
    assert text.startswith("1 site streams below the class: output/q6_K (225 GB/s); at class rate the step would lose")


def test_no_straggler_is_an_answer(tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path)
    found = api.stragglers(trace, "100:110", manifest=manifest)
    assert (found.rows, found.recoverable) == ((), 0)
    assert found.describe() == "No site streams below the class."
    assert found.to_json()["stragglers"] == []
    assert len(found.to_pandas()) == 0


def test_sites_of_one_name_keep_their_own_numbers(tmp_path: Path) -> None:
    """A table without site names: one kernel, two grids with two types. Both rows carry the kernel's label."""
    nodes = [Node(DOWN, 10_000), Node(DOWN.__class__(DOWN.name, DOWN.demangled, (640, 1, 1)), 5000)]
    trace, _ = small_step.write(tmp_path, [Part(node, "") for node in nodes])
    text = "kernel,grid,bytes,quant\ngemv_q4,5120,2000000,q4_K\ngemv_q4,640,500000,q6_K\n"
    found = api.stragglers(trace, table=table(tmp_path, text))
    entries = found.to_json()["stragglers"]
    assert [(entry["site"], entry["quant"], entry["bytes"]) for entry in entries] == [
        ("gemv_q4<12>", "q6_K", 500_000),
        ("gemv_q4<12>", "q4_K", 2_000_000),
    ]


def test_without_bytes_or_class_there_is_no_ranking(tmp_path: Path) -> None:
    trace, _ = small_step.write(tmp_path)
    with pytest.raises(NoDataError, match="no launch has known weight bytes"):
        api.stragglers(trace)
    nobody = Gpu("Nonesuch", 1, 0, 1, (1, 0), "X", 1, 1)
    hidden = (Part(Node(HEAD, 20_000), ""), Part(Node(DOWN, 5000, gap=-19_000), ""))
    trace, _ = small_step.write(tmp_path, hidden, gpu=nobody)
    with pytest.raises(NoDataError, match="no class is known for this device"):
        api.stragglers(trace, table=table(tmp_path, "kernel,bytes\ngemv_q4,5000\n"))
