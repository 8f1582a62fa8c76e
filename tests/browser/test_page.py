"""The report in a browser: loads clean, sorts, filters, zooms, copies, by pointer and by keyboard, in both themes."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from attrib import api
from tests.browser.browsing import Browser
from tests.helpers import pages

ROWS = "#census tbody tr[data-row]"
STAGE = ".stage"


def column(browser: Browser, place: int) -> list[str]:
    return browser.texts(f"{ROWS} td:nth-child({place})")


def names(browser: Browser) -> list[str]:
    found: list[str] = browser.run(f"return [...document.querySelectorAll('{ROWS}')].map((row) => row.dataset.row)")
    return found


def view(browser: Browser) -> tuple[int, int]:
    return int(browser.data(STAGE, "begin")), int(browser.data(STAGE, "end"))


def focus_timeline(browser: Browser) -> None:
    browser.run(f"document.querySelector('{STAGE}').focus()")


@pytest.mark.parametrize("name", ["run", "pair", "unknown", "hostile", "staged"])
@pytest.mark.parametrize("width", [1360, 390])
def test_loads_without_a_word_and_fits_its_width(browser: Browser, folder: Path, name: str, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.open(folder / f"{name}.html")
        assert browser.run("return document.documentElement.scrollWidth") == width
        assert browser.console() == []
        assert browser.canvas().shape[1] <= width
        assert browser.run("return performance.getEntriesByType('resource').length") == 0
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_shows_the_census(run: Browser) -> None:
    census = api.census(pages.subject(pages.DECODE).attribution)
    assert names(run) == [row.site for row in census.rows]
    assert column(run, 7) == [
        f"{row.rate / 1e9:,.0f}" if row.rate >= 1e12 else f"{row.rate / 1e9:,.1f}" if row.rate > 0 else "–"
        for row in census.rows
    ]
    assert column(run, 11) == [f"{row.step_seconds * 1e3:.3f}" for row in census.rows]
    assert run.texts("#verdict-title") == ["2.429 ms of every step (37.3 %) can be recovered"]
    assert run.texts("#census .flag.below") == ["below"] * 6


def test_sorts(run: Browser) -> None:
    rate = "#census th[data-key=gbps]"
    run.click(f"{rate} button")
    assert run.one(rate).get_attribute("aria-sort") == "descending"
    values = column(run, 7)
    numbers = [float(value.replace(",", "")) for value in values if value != "–"]
    assert numbers == sorted(numbers, reverse=True)
    assert set(values[len(numbers) :]) == {"–"}
    run.click(f"{rate} button")
    assert run.one(rate).get_attribute("aria-sort") == "ascending"
    assert column(run, 7) == [f"{n:,.0f}" if n >= 1000 else f"{n:,.1f}" for n in sorted(numbers)] + ["–"] * (
        len(values) - len(numbers)
    )
    run.click("#census th[data-key=site] button")
    assert names(run) == sorted(names(run), key=str.casefold)


def test_filters(run: Browser) -> None:
    box = run.one("#census input[type=search]")
    box.send_keys("ffn q6")
    assert names(run) == ["ffn_down/q6_K"]
    assert run.texts("#census .count") == ["1 of 18 rows"]
    box.clear()
    box.send_keys("mul_mat_vec_q")  # the kernel's name, which no cell shows
    assert len(names(run)) == 9
    box.clear()
    box.send_keys("nothing")
    assert run.texts("#census tbody td") == ["No row matches."]
    box.clear()
    box.send_keys(Keys.SPACE)
    run.click("#census label.check input")
    assert len(names(run)) == 6


def test_groups_by_kernel_and_layer(run: Browser) -> None:
    attribution = pages.subject(pages.DECODE).attribution
    for by in ("layer", "kernel"):
        run.click(f"#census button[data-group={by}]")
        expected = [row.site for row in api.census(attribution, by=by).rows]
        assert run.texts("#census .count") == [f"{len(expected)} rows"]
        assert names(run) == expected[:300]
    run.click("#census tbody button.name")
    assert "mul_mat_vec_q" in run.one("#census tr.more code").text


def test_opens_a_row_to_the_full_kernel_name(run: Browser) -> None:
    run.click(f"{ROWS}[data-row='ffn_down/q6_K'] button.name")
    assert run.texts("#census tr.more code")[0].startswith("void mul_mat_vec_q<(ggml_type)14")
    run.click("#census tr.more button.button")
    assert run.data(STAGE, "site") == "ffn_down/q6_K"
    assert "ffn_down/q6_K" in run.one(".launch .title").text
    assert run.run("return document.activeElement.className") == "stage"


def test_copies_the_rows_shown(run: Browser) -> None:
    run.one("#census input[type=search]").send_keys("attn_v")
    run.click("#census button[data-copy=csv]")
    run.wait(lambda: run.one("#toast").text == "Copied 2 rows as CSV")
    rows = list(csv.DictReader(io.StringIO(run.clipboard())))
    census = {row.site: row for row in api.census(pages.subject(pages.DECODE).attribution).rows}
    assert [row["site"] for row in rows] == ["attn_v/q6_K", "attn_v/q4_K"]
    for row in rows:
        assert float(row["gbps"]) == pytest.approx(census[row["site"]].rate / 1e9, rel=1e-5)
        assert float(row["ms_per_step"]) == pytest.approx(census[row["site"]].step_seconds * 1e3, rel=1e-5)
    run.click("#census button[data-copy=markdown]")
    run.wait(lambda: run.one("#toast").text == "Copied 2 rows as Markdown")
    lines = run.clipboard().splitlines()
    assert lines[0].startswith("| site | category | launches (per step) | bytes (MB / launch) |")
    assert lines[1].startswith("| --- | --- | ---: |")
    assert lines[2].startswith("| attn_v/q6_K | weight streaming | 24 | 4.3 |")


def test_zooms_and_pans_with_the_pointer(run: Browser) -> None:
    stage = run.one(STAGE)
    run.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", stage)
    whole = view(run)
    assert whole[0] == 0
    before = run.canvas()
    run.click("button[data-act=in]")
    first = view(run)
    assert first[1] - first[0] == pytest.approx((whole[1] - whole[0]) / 1.5, abs=2)
    assert not np.array_equal(run.canvas(), before)
    ActionChains(run.driver).key_down(Keys.CONTROL).scroll_by_amount(0, 0).key_up(Keys.CONTROL).perform()
    script = (
        "const box = arguments[0].getBoundingClientRect();"
        "arguments[0].dispatchEvent(new WheelEvent('wheel', {deltaY: -100, ctrlKey: true, cancelable: true,"
        " clientX: box.left + box.width / 2, clientY: box.top + 60}))"
    )
    run.run(script, stage)
    second = view(run)
    assert second[1] - second[0] < first[1] - first[0]
    assert first[0] < second[0] < second[1] < first[1]
    ActionChains(run.driver).move_to_element_with_offset(stage, 0, -60).click_and_hold().move_by_offset(
        -200, 0
    ).release().perform()
    third = view(run)
    assert third[0] > second[0]
    assert third[1] - third[0] == pytest.approx(second[1] - second[0], abs=2)
    run.click("button[data-act=all]")
    assert view(run) == whole


def test_a_click_selects_the_launch_under_it(run: Browser) -> None:
    stage = run.one(STAGE)
    run.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", stage)
    # the head is the last and longest launch of the step, at the right end of its rate track
    width, height = stage.size["width"], stage.size["height"]
    ActionChains(run.driver).move_to_element_with_offset(stage, width // 2 - 20, height // 2 - 50).click().perform()
    run.frame()
    assert run.one(".launch .title").text == "output/q6_K"
    assert "638.7 MB" in run.one(".launch").text


def test_the_timeline_by_keyboard(run: Browser) -> None:
    focus_timeline(run)
    run.keys(Keys.HOME)
    assert run.data(STAGE, "selected") == "0"
    run.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert run.data(STAGE, "selected") == "2"
    assert "blk.0.attn_q/q4_K" in run.one(".launch .title").text
    run.keys(Keys.ENTER)
    begin, end = view(run)
    assert end - begin < 100_000
    run.keys(Keys.ARROW_DOWN)
    assert "blk.1.attn_q/q4_K" in run.one(".launch .title").text
    moved = view(run)
    assert moved[0] > end
    run.keys(Keys.ARROW_UP)
    assert "blk.0.attn_q/q4_K" in run.one(".launch .title").text
    run.keys(Keys.END)
    assert run.data(STAGE, "selected") == "917"
    run.keys("-")
    assert view(run)[1] - view(run)[0] > end - begin
    run.keys("+", "+")
    narrow = view(run)
    ActionChains(run.driver).key_down(Keys.SHIFT).send_keys(Keys.ARROW_LEFT).key_up(Keys.SHIFT).perform()
    assert view(run)[0] < narrow[0]
    run.keys("0", Keys.ESCAPE)
    assert view(run)[0] == 0
    assert run.data(STAGE, "selected") == "-1"


def test_everything_is_reached_by_tab_and_shows_its_focus(run: Browser) -> None:
    run.keys(Keys.TAB)
    assert run.run("return document.activeElement.className") == "skip"
    reached = set()
    for _ in range(70):
        run.keys(Keys.TAB)
        tag, label, outline = run.run(
            "const e = document.activeElement, s = getComputedStyle(e);"
            "return [e.tagName, e.className, s.outlineStyle + ' ' + s.outlineWidth]"
        )
        if tag == "BODY":
            break
        reached.add((tag, str(label).split(" ")[0]))
        assert outline not in ("none 0px", "none 3px"), (tag, label)
    assert {
        ("BUTTON", "quiet"),
        ("DIV", "stage"),
        ("SELECT", "button"),
        ("DIV", "scroll"),
        ("BUTTON", "name"),
    } <= reached


def test_controls_have_names(run: Browser) -> None:
    nameless = run.run(
        "const kinds = 'button, input, select, [role=application], [role=region], [role=img]';"
        "const named = (e) => e.hidden || e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length;"
        "return [...document.querySelectorAll(kinds)].filter((e) => !named(e)).map((e) => e.outerHTML)"
    )
    assert nameless == []
    assert run.run("return new Set([...document.querySelectorAll('[id]')].map((e) => e.id)).size") == len(
        run.all("[id]")
    )


def test_dims_a_category(run: Browser) -> None:
    before = run.canvas()
    run.click(".legend button[data-category='weight streaming']")
    assert run.one(".legend button[data-category='weight streaming']").get_attribute("aria-pressed") == "false"
    after = run.canvas()
    assert np.abs(after - before).mean() > 0.02


def test_the_heat_map_by_keyboard_and_pointer(run: Browser) -> None:
    cells = run.all("#layers .heat td[role=gridcell]")
    assert len(cells) == 48 * 7
    run.run("document.querySelector('#layers .heat td[tabindex=\"0\"]').focus()")
    run.keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    label = run.run("return document.activeElement.getAttribute('aria-label')")
    assert label.startswith("blk.1.attn_v/q6_K: ")
    assert run.texts(".heat-foot .read") == [label]
    run.keys(Keys.ENTER)
    begin, end = view(run)
    assert 0 < begin < end < 500_000
    first = run.colour("#layers .heat td[data-layer='9']")
    run.click("#layers button[data-mode=share]")
    assert run.colour("#layers .heat td[data-layer='9']") != first


def test_themes(browser: Browser, folder: Path) -> None:
    for scheme, bright in (("light", True), ("dark", False)):
        browser.open(folder / "run.html", prefers_color_scheme=scheme)
        assert bool(browser.canvas()[:, :, :3].mean() > 0.5) is bright
        assert is_bright(browser.colour("body")) is bright
    browser.click("#theme")
    assert browser.one("#theme").text == "Theme: light"
    assert is_bright(browser.colour("body"))
    assert browser.canvas()[:, :, :3].mean() > 0.5
    browser.click("#theme")
    browser.driver.refresh()
    browser.wait(lambda: browser.one("#theme").text == "Theme: dark")
    assert not is_bright(browser.colour("body"))
    assert browser.console() == []


def is_bright(colour: str) -> bool:
    channels = [float(part) for part in colour[colour.index("(") + 1 : -1].replace(",", " ").split()[:3]]
    return sum(channels) / 3 > 128


def test_prints_light_and_whole_whatever_the_screen_shows(browser: Browser, folder: Path) -> None:
    browser.open(folder / "run.html", prefers_color_scheme="dark")
    script = (
        "window.seen = null; addEventListener('beforeprint', () => {"
        " const c = document.querySelector('.stage canvas');"
        " const p = c.getContext('2d').getImageData(c.width - 3, 3, 1, 1).data; window.seen = [...p]; });"
    )
    browser.run(script)
    paper = browser.printed()
    assert paper.startswith(b"%PDF")
    assert 2 <= paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page ") <= 6
    assert browser.run("return window.seen.slice(0, 3)") == [255, 255, 255]
    assert browser.run("return document.documentElement.dataset.theme ?? 'auto'") == "auto"
    assert browser.canvas()[:, :, :3].mean() < 0.5
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert is_bright(browser.colour(".card"))
        assert browser.colour(".top", "display") == browser.colour(".toolbar", "display") == "none"
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert browser.console() == []


def test_a_comparison(pair: Browser) -> None:
    report = pages.pair()
    assert report.comparison is not None
    labels = pair.texts(".waterfall .label")
    assert labels == ["A step", *(part.name for part in report.comparison.parts), "B step"]
    assert len(pair.all("[data-part=pair-anatomy] .stack")) == 2
    rows = pair.texts("#sites tbody td:first-child .words")
    assert len(rows) == len(report.comparison.rows)
    first = pair.run("return document.querySelector('#sites tbody tr').dataset.row")
    assert first == report.comparison.rows[0].site
    pair.one("#sites input[type=search]").send_keys("only attention")
    only = [row.site for row in report.comparison.rows if row.category == "attention" and None in (row.a, row.b)]
    shown = pair.run("return [...document.querySelectorAll('#sites tbody tr')].map((row) => row.dataset.row)")
    assert sorted(shown) == sorted(only)
    assert only


def test_both_timelines_move_together_until_they_are_parted(pair: Browser) -> None:
    def views() -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = pair.run(
            "return [...document.querySelectorAll('.stage')].map((s) => [s.dataset.begin, s.dataset.end])"
        )
        return found

    pair.click("button[data-act=in]")
    a, b = views()
    assert int(a[1]) - int(a[0]) == pytest.approx(int(b[1]) - int(b[0]), abs=2)
    pair.click("#timeline label.check input")
    pair.click("button[data-act=in]")
    assert views()[1] == b
    assert views()[0] != a


def test_without_bytes_every_part_says_what_it_lacks(browser: Browser, folder: Path) -> None:
    browser.open(folder / "unknown.html")
    lacks = browser.texts(".lack")
    assert lacks == [
        "No launch has known weight bytes, so nothing can be a straggler; pass --model, --bytes or --manifest.",
        "No launch in a layer has known weight bytes, so there is no rate by layer.",
    ]
    assert set(column(browser, 7)) == {"–"}
    assert set(column(browser, 4)) == {"–"}
    assert browser.console() == []


def test_stages_have_their_waits(browser: Browser, folder: Path) -> None:
    browser.open(folder / "staged.html")
    assert "waiting" in browser.texts("#census th .label")
    focus_timeline(browser)
    browser.keys(Keys.HOME, *[Keys.ARROW_RIGHT] * 4)
    panel = browser.one(".launch").text
    assert "launch or stage\n5 of 8" in panel
    assert "waiting, mean\n300 ns" in panel
    assert browser.texts("#anatomy tfoot td")[-2:] == ["6", "0.002"]
    assert browser.console() == []


def test_hostile_names_stay_text(browser: Browser, folder: Path) -> None:
    browser.open(folder / "hostile.html")
    assert len(browser.all("script")) == 2
    assert browser.all("main img") == []
    for place in range(4):
        browser.run("document.querySelectorAll('#census button.name')[arguments[0]].click()", place)
    assert set(browser.texts("#census tr.more code")) == {name.strip() for name in pages.HOSTILE}
    focus_timeline(browser)
    browser.keys(Keys.HOME, Keys.ARROW_RIGHT)
    browser.run("document.querySelector('#census button[data-copy=markdown]').click()")
    browser.wait(lambda: browser.one("#toast").text.startswith("Copied 4 rows"))
    lines = browser.clipboard().splitlines()
    assert len(lines) == 6
    assert all(line.count(" | ") == 13 for line in lines)
    assert browser.console() == []
