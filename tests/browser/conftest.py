"""A headless Chromium that knows no network, for the pages of the report."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.browser.browsing import Browser
from tests.helpers import pages

BROWSERS, DRIVERS = ("chromium", "chromium-browser", "google-chrome"), ("chromedriver",)
REQUIRED = "ATTRIB_REQUIRE_BROWSER"
"""Set where the tests must run: a browser that is missing then fails them."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--window-size=1360,900",
)  # fmt: skip


def found(names: tuple[str, ...]) -> str | None:
    """Path of the first of the programs that is installed."""
    return next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests, with a profile of its own."""
    chromium, driver = found(BROWSERS), found(DRIVERS)
    if chromium is None or driver is None:
        reason = "no Chromium with chromedriver is installed (Debian: apt-get install chromium chromium-driver)"
        if os.environ.get(REQUIRED):
            pytest.fail(f"{REQUIRED} is set and {reason}")
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options=options, service=Service(driver))
    try:
        session.execute_cdp_cmd("Network.enable", {})
        # a page that asked for anything would fail to get it, and say so in the console
        session.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["http://*", "https://*"]})
        yield Browser(session)
    finally:
        session.quit()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages under test."""
    place = tmp_path_factory.mktemp("pages")
    pages.recorded(pages.DECODE).write(place / "run.html")
    pages.pair().write(place / "pair.html")
    pages.recorded("train-2gpu-after-2026.2", None).write(place / "unknown.html")
    pages.staged(place).write(place / "staged.html")
    pages.hostile(place).write(place / "hostile.html")
    return place


@pytest.fixture
def run(browser: Browser, folder: Path) -> Iterator[Browser]:
    """The browser at the report of the llama.cpp 14B decode; the console must stay clean."""
    browser.open(folder / "run.html")
    yield browser
    assert browser.console() == []


@pytest.fixture
def pair(browser: Browser, folder: Path) -> Iterator[Browser]:
    """The browser at a comparison; the console must stay clean."""
    browser.open(folder / "pair.html")
    yield browser
    assert browser.console() == []
