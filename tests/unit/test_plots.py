"""Charts: whole files with units, device, build, anchor and date on them; nothing left where one cannot be drawn."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date
from functools import cache
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from attrib import api, plots
from attrib.attribution import Attribution
from attrib.errors import NoDataError, RefusedError
from tests.conftest import Attrib
from tests.helpers import data, small_step
from tests.helpers.nsysgen import H200, Kernel, Trace

SHORT, LONG = "llama.cpp-14b-tg16-h200", "llama.cpp-14b-d3254-tg16-h200"
MODEL = "qwen2.5-14b:q4_k_m"
PNG_MAGIC, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"


@cache
def attribution(name: str = SHORT) -> Attribution:
    return api.attribution(data.trace(name), model=MODEL, anchor="14b:tg16", build="somebuild 1234")


CHARTS: dict[str, Callable[[Path], None]] = {
    "census": lambda path: api.census(attribution()).plot(str(path)),
    "stragglers": lambda path: api.stragglers(attribution()).plot(str(path)),
    "anatomy": lambda path: api.anatomy(attribution()).plot(str(path)),
    "growth": lambda path: plots.plot_anatomy(
        [api.anatomy(attribution()), api.anatomy(attribution(LONG))], str(path), ["tg16", "d3254"]
    ),
}
SAID = {
    "census": ("effective GB/s", "ffn_gate_up/q4_K ×48", "1,789", "1.100 ms/step to recover", "attn_k/q4_K ×48"),
    "stragglers": ("effective GB/s", "2.43 ms/step recoverable", "0.498 ms/step to recover", "output/q6_K ×1"),
    "anatomy": ("exclusive time per step, ms", "launches per step", "6.510 ms", "81.9 %", "289 (109 < 2 µs)"),
    "growth": ("6.510 ms", "6.937 ms", "+0.427 ms/step", "tg16", "d3254", "10.2 %"),
}


@pytest.mark.parametrize("chart", CHARTS)
def test_a_chart_is_whole_and_says_what_it_shows(chart: str, tmp_path: Path) -> None:
    png, svg = tmp_path / "chart.png", tmp_path / "chart.SVG"
    CHARTS[chart](png)
    CHARTS[chart](svg)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["chart.SVG", "chart.png"]
    content = png.read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert content.startswith(PNG_MAGIC)
    assert content.endswith(PNG_END)
    assert width > 1000
    assert height > 400
    text = svg.read_text(encoding="utf-8")  # matplotlib keeps each text as a comment beside its glyphs
    assert ElementTree.fromstring(text).tag.endswith("svg")
    common = ("NVIDIA H200", MODEL, "somebuild 1234", "14b:tg16", "steps: 16", date.today().isoformat())
    for wanted in (*common, *SAID[chart]):
        assert wanted in text or escape(wanted) in text, wanted


def test_pdf(tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path)
    api.census(trace, manifest=manifest).plot(str(tmp_path / "c.pdf"))
    content = (tmp_path / "c.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert content.rstrip().endswith(b"%%EOF")


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts of the figure whose boxes overlap by more than a pixel."""
    canvas = figure.canvas
    canvas.draw()
    renderer = canvas.get_renderer()  # type: ignore[attr-defined]
    shown = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]  # type: ignore[attr-defined]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in shown]
    return [
        (one, other)
        for i, (one, a) in enumerate(boxes)
        for other, b in boxes[i + 1 :]
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]


@pytest.mark.parametrize("chart", [*CHARTS, "irregular"])
def test_no_text_lies_on_another(chart: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []

    def keep(figure: Figure, path: str) -> None:
        FigureCanvasAgg(figure)
        drawn.append(figure)

    monkeypatch.setattr(plots, "save_figure", keep)
    irregular = {"irregular": lambda path: api.anatomy(data.trace("train-2gpu-after-2026.2")).plot(str(path))}
    {**CHARTS, **irregular}[chart](tmp_path / "chart.png")
    assert overlaps(drawn[0]) == []


@pytest.mark.parametrize("name", ["chart.txt", "chart", "chart.jpeg", ".png"])
def test_an_unknown_ending_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"a chart is written as \.png, \.svg, \.pdf"):
        api.anatomy(attribution()).plot(str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_or_a_file(tmp_path: Path, attrib: Attrib) -> None:
    (tmp_path / "file").write_text("")
    for where in (tmp_path / "none" / "c.png", tmp_path / "file" / "c.png"):
        text = attrib("stragglers", data.trace(SHORT), "--model", MODEL, "--plot", where).refusal()
        assert "c.png cannot be written" in text
    (tmp_path / "c.png").mkdir()
    assert "Is a directory" in attrib("anatomy", data.trace(SHORT), "--plot", tmp_path / "c.png").refusal()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c.png", "file"]


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("attrib.files.os.open", denied)  # a user who may write everywhere meets none
    with pytest.raises(RefusedError, match=r"c\.png cannot be written: Permission denied"):
        api.anatomy(attribution()).plot(str(tmp_path / "c.png"))


def test_a_failed_drawing_leaves_the_old_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "c.png"
    target.write_text("old")

    def fail(self: Figure, path: Path, **_: object) -> None:
        Path(path).write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(RefusedError, match=r"c\.png cannot be written: No space left"):
        api.anatomy(attribution()).plot(str(target))
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["old"]


TIMES = {
    "no durations": [(1_000_000 + 1000 * place, 0) for place in range(5)],
    "one time": [(1_000_000, 0)] * 5,
    "one launch of no duration": [(1_000_000, 0)],
    "one ns": [(1_000_000, 1)],
    "an hour": [(1_000_000, 3_600_000_000_000)],
    "all at once": [(1_000_000, 500)] * 5,
}
NO_STEP = "every launch begins and ends at one time, so there is no step to draw"


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
def test_times_at_the_edge_are_drawn_without_a_warning(
    attrib: Attrib, tmp_path: Path, times: list[tuple[int, int]]
) -> None:
    """Warnings are errors here."""
    made = Trace("2025.3")
    process = made.process()
    process.device(made.gpu(H200))
    for at, duration in times:
        process.launch(Kernel("gemv_q4"), at, duration)
    trace = made.write(tmp_path / "t.sqlite")
    sound, _ = small_step.write(tmp_path)
    chart = tmp_path / "c.svg"
    found = attrib("anatomy", trace, "--plot", chart)
    if len({at for at, _ in times}) == 1 and not any(duration for _, duration in times):
        assert found.refusal() == f"attrib: {NO_STEP}"
        assert not chart.exists()
    else:
        assert (found.code, found.err) == (0, "")
        assert chart.exists()
    for arguments in (
        ["anatomy", trace, sound, "--plot", chart],
        ["compare", trace, sound, "--force", "--plot", chart],
        ["compare", trace, trace, "--plot", chart],
        ["report", trace, "-o", tmp_path / "r.html"],
    ):
        found = attrib(*arguments)
        assert (found.code, found.err) == (0, "")


def test_nothing_to_draw_is_one_sentence(tmp_path: Path) -> None:
    trace, manifest = small_step.write(tmp_path)
    with pytest.raises(NoDataError, match="no site has known bytes"):
        api.census(trace).plot(str(tmp_path / "c.png"))
    with pytest.raises(NoDataError, match="no straggler to draw"):
        api.stragglers(trace, "1:2", manifest=manifest).plot(str(tmp_path / "c.png"))
    assert not (tmp_path / "c.png").exists()
