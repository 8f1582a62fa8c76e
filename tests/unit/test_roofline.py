"""Classes: parsed, chosen from the right source, and fitted so that no site beats the line."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attrib.device import Band, Device, Roofline, lookup
from attrib.errors import RefusedError
from attrib.measured import FILE, config_path, load_roofline, store_roofline
from attrib.roofline import RateClass, choose, fit, parse_band

GIGA = 1e9
US = 1e-6
POINTS = [(4e6, 6.5 * US, 48), (64e6, 36.5 * US, 48), (640e6, 324.5 * US, 1)]  # 4.5 µs + bytes / 2000 GB/s
GB10, H200, B200 = lookup("NVIDIA GB10"), lookup("NVIDIA H200"), lookup("NVIDIA B200")


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Measured rooflines of this machine are not these tests'."""
    monkeypatch.setenv("ATTRIB_CONFIG_DIR", str(tmp_path))
    return tmp_path / FILE


def test_a_roofline_by_hand() -> None:
    found = RateClass("table", Roofline(3.5 * US, 4400 * GIGA))
    seconds = found.seconds(np.array([0.0, 4.4e6, 44e6, 638.7e6]))
    assert seconds == pytest.approx(np.array([3.5, 4.5, 13.5, 148.65909]) * US, rel=1e-7)
    assert found.expected(4.4e6) == pytest.approx(4.4e6 / (4.5 * US))  # 977.8 GB/s, a fifth of the bandwidth
    lo, hi = found.band(44e6)
    assert (lo, hi) == pytest.approx((0.97 * 44e6 / (13.5 * US), 1.03 * 44e6 / (13.5 * US)))
    assert found.describe() == "3.50 µs + bytes / 4400 GB/s (table)"


def test_a_band_is_the_same_at_every_size() -> None:
    found = RateClass("given", Band(220 * GIGA, 225 * GIGA))
    assert found.band(1.0) == found.band(1e9) == (220 * GIGA, 225 * GIGA)
    assert found.expected(4.587520e6) == pytest.approx(222.5 * GIGA)
    assert found.seconds(np.array([4_587_520.0]))[0] == pytest.approx(20.61807 * US, rel=1e-6)
    assert found.describe() == "220–225 GB/s (given)"


@pytest.mark.parametrize("text", ["220:225", " 220 : 225 ", "220.0:225.00"])
def test_bands_that_parse(text: str) -> None:
    assert parse_band(text) == Band(220 * GIGA, 225 * GIGA)
    assert parse_band("5:5") == Band(5 * GIGA, 5 * GIGA)


@pytest.mark.parametrize(
    "text", ["", "220", "225:220", "0:5", "-1:5", "a:b", "1:2:3", ".:5", "1..2:3", "nan:nan", "1:inf", "220-225", "Fit"]
)
def test_bands_that_do_not(text: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        choose(text, GB10, "NVIDIA GB10", POINTS)
    message = str(refusal.value)
    assert repr(text) in message
    assert "220:225" in message
    assert "table, measured, fit" in message


def source(given: str | None, device: Device | None = B200, name: str = "NVIDIA B200", points: object = POINTS) -> str:
    found = choose(given, device, name, points)  # type: ignore[arg-type]
    return found.source if found is not None else "none"


def test_sources_in_order() -> None:
    """Given, then the table, then measured on the device, then a fit; each can be asked for by name."""
    assert source("200:210", GB10, "NVIDIA GB10") == "given"
    assert source(None) == "fit to this trace"
    store_roofline("NVIDIA B200", 2 * US, 7000 * GIGA, "2026-01-02T03:04:05Z")
    store_roofline("NVIDIA GB10", 1 * US, 230 * GIGA, "2026-01-02T03:04:05Z")
    assert source(None) == "measured on the device, 2026-01-02"
    assert source(None, GB10, "NVIDIA GB10") == "device table, GB10"
    assert source("measured", GB10, "NVIDIA GB10") == "measured on the device, 2026-01-02"
    assert source("fit", GB10, "NVIDIA GB10") == "fit to this trace"
    assert source("table", H200, "NVIDIA H200") == "device table, H200"
    assert source(None, None, "Nonesuch", []) == "none"
    found = choose(None, B200, "NVIDIA B200", POINTS)
    assert found is not None
    assert found.rate == Roofline(2 * US, 7000 * GIGA)


def test_a_source_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RefusedError, match="device table has no class for 'NVIDIA B200'"):
        source("table")
    with pytest.raises(RefusedError, match="no roofline of 'NVIDIA B200' is stored; run `attrib roofline`"):
        source("measured")
    with pytest.raises(RefusedError, match="no class can be fitted"):
        source("fit", points=[])


def test_the_table_holds_the_recorded_classes() -> None:
    assert GB10 is not None
    assert H200 is not None
    assert GB10.rate == Band(220 * GIGA, 225 * GIGA)
    assert H200.rate == Roofline(pytest.approx(3.5 * US), pytest.approx(4400 * GIGA))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": "attrib.rooflines/9", "devices": {}}',
        '{"schema": "attrib.rooflines/1", "devices": []}',
        '{"schema": "attrib.rooflines/1", "devices": {"NVIDIA B200": {"t0_s": 1}}}',
        '{"schema": "attrib.rooflines/1", "devices": {"NVIDIA B200": []}}',
        '{"schema": "attrib.rooflines/1", "devices": {"NVIDIA B200": '
        '{"t0_s": -1, "bytes_per_s": 1, "measured_at": ""}}}',
        '{"schema": "attrib.rooflines/1", "devices": {"NVIDIA B200": '
        '{"t0_s": 1, "bytes_per_s": "x", "measured_at": ""}}}',
    ],
)
def test_a_damaged_roofline_file_is_refused(config: Path, text: str) -> None:
    config.write_text(text)
    with pytest.raises(RefusedError):
        source(None)
    assert source("1:2") == "given"  # what needs no file does not read it


def test_rooflines_are_kept_beside_each_other(config: Path) -> None:
    assert config_path() == config
    assert load_roofline("A") is None
    store_roofline("A", 1 * US, 1 * GIGA, "2026-01-01T00:00:00Z", {"points": [1, 2]})
    store_roofline("B", 0.0, 2 * GIGA, "2026-01-02T00:00:00Z")
    store_roofline("A", 3 * US, 3 * GIGA, "2026-01-03T00:00:00Z")
    assert load_roofline("A") == (3 * US, 3 * GIGA, "2026-01-03T00:00:00Z")
    assert load_roofline("B") == (0.0, 2 * GIGA, "2026-01-02T00:00:00Z")
    for t0, bandwidth in ((-1e-9, 1.0), (0.0, 0.0), (float("nan"), 1.0), (0.0, float("inf"))):
        with pytest.raises(RefusedError, match="impossible for 'A'"):
            store_roofline("A", t0, bandwidth, "now")
    assert load_roofline("A") == (3 * US, 3 * GIGA, "2026-01-03T00:00:00Z")


def test_where_the_file_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ATTRIB_CONFIG_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert config_path() == tmp_path / "xdg" / "attrib" / FILE
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert config_path() == tmp_path / "home" / ".config" / "attrib" / FILE


# --- the fit


def test_a_fit_by_hand() -> None:
    """On the line 4.5 µs + bytes / 2000 GB/s, with a fourth site well above it that changes nothing."""
    found = fit([*POINTS, (64e6, 90 * US, 24)])
    assert found is not None
    assert (found.t0 / US, found.bandwidth / GIGA) == pytest.approx((4.5, 2000), rel=1e-9)


def test_one_site_is_its_own_class() -> None:
    assert fit([(5e6, 2 * US, 7)]) == Roofline(0.0, pytest.approx(2500 * GIGA))  # type: ignore[arg-type]


def test_a_fit_never_has_a_negative_t0() -> None:
    """The small matrix is faster per byte than the large one: the line through both would start below zero."""
    found = fit([(1e6, 1 * US, 1), (10e6, 20 * US, 1)])
    assert found == Roofline(0.0, pytest.approx(1000 * GIGA))  # type: ignore[arg-type]


def test_nothing_to_fit() -> None:
    assert fit([]) is None
    assert fit([(0.0, 1.0, 1), (1e6, 0.0, 1)]) is None


SIZES = st.floats(1e5, 1e9)
SITES = st.lists(st.tuples(SIZES, st.floats(1e-7, 1e-2), st.integers(1, 100)), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(SITES)
def test_no_site_beats_the_fitted_line_and_no_line_is_closer(points: list[tuple[float, float, int]]) -> None:
    found = fit(points)
    assert found is not None
    assert found.t0 >= 0
    assert found.bandwidth > 0

    def below(t0: float, slope: float) -> bool:
        return all(t0 + slope * nbytes <= seconds * (1 + 1e-9) for nbytes, seconds, _ in points)

    def total(t0: float, slope: float) -> float:
        return sum(launches * (t0 + slope * nbytes) for nbytes, _, launches in points)

    assert below(found.t0, 1 / found.bandwidth)
    others = [(0.0, min(seconds / nbytes for nbytes, seconds, _ in points))]
    for (x0, y0, _), (x1, y1, _) in combinations(points, 2):
        if x0 != x1:
            slope = (y1 - y0) / (x1 - x0)
            if slope > 0 and y0 - slope * x0 >= 0 and below(y0 - slope * x0, slope):
                others.append((y0 - slope * x0, slope))
    best = max(total(*line) for line in others)
    assert total(found.t0, 1 / found.bandwidth) >= best * (1 - 1e-6)


@settings(max_examples=100, deadline=None)
@given(
    st.floats(0, 20e-6),
    st.floats(1e11, 8e12),
    st.lists(st.floats(1e6, 1e9), min_size=2, max_size=6, unique_by=lambda size: round(size, -6)),
    st.data(),
)
def test_a_planted_roofline_is_recovered(t0: float, bandwidth: float, sizes: list[float], drawn: st.DataObject) -> None:
    """Every size has a site on the line, and slower ones beside it."""
    points = [(size, t0 + size / bandwidth, 1) for size in sizes]
    for size in sizes:
        slower = drawn.draw(st.floats(1, 5))
        points.append((size, slower * (t0 + size / bandwidth), 3))
    found = fit(points)
    assert found is not None
    assert found.t0 == pytest.approx(t0, abs=1e-10)
    assert found.bandwidth == pytest.approx(bandwidth, rel=1e-4)
