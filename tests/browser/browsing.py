"""What the tests do with a page: open it, look, press keys, read the clipboard."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE_S = 10


@dataclass(frozen=True)
class Browser:
    """A browser session at one page."""

    driver: WebDriver

    def open(self, page: Path, **media: str) -> None:
        """Load a page and wait until its script has run; `media` are emulated media features."""
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.run("try { localStorage.clear() } catch { return }")
        self.driver.get(page.as_uri())
        self.wait(lambda: self.run("return document.documentElement.dataset.ready") == "true")
        self.frame()

    def run(self, script: str, *arguments: Any) -> Any:
        """The value a script returns in the page."""
        return self.driver.execute_script(script, *arguments)  # type: ignore[no-untyped-call]

    def frame(self) -> None:
        """Wait until everything that was asked to be drawn is."""
        script = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        self.driver.execute_async_script(script)  # type: ignore[no-untyped-call]

    def wait(self, condition: Callable[[], Any]) -> None:
        """Wait for a condition."""
        WebDriverWait(self.driver, PATIENCE_S, poll_frequency=0.05).until(lambda _: condition())

    def one(self, selector: str) -> WebElement:
        """The first element a CSS selector finds."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """Every element a CSS selector finds."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Text of every element, read at once."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((element) => element.textContent)", selector
        )
        return found

    def click(self, selector: str) -> None:
        """Scroll to an element and click it with the pointer."""
        element = self.one(selector)
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def keys(self, *keys: str) -> None:
        """Press keys one after the other wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()
        self.frame()

    def data(self, selector: str, key: str) -> str:
        """A data attribute of an element."""
        return str(self.run("return document.querySelector(arguments[0]).dataset[arguments[1]]", selector, key))

    def clipboard(self) -> str:
        """What the page copied."""
        permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
        self.driver.execute_cdp_cmd("Browser.grantPermissions", permissions)
        script = "const done = arguments[0]; navigator.clipboard.readText().then(done, (error) => done(String(error)));"
        return str(self.driver.execute_async_script(script))  # type: ignore[no-untyped-call]

    def colour(self, selector: str, name: str = "background-color") -> str:
        """A computed colour."""
        script = "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])"
        return str(self.run(script, selector, name))

    def canvas(self, number: int = 0) -> np.ndarray:
        """Pixels of a timeline's canvas, (height, width, 4) of 0 to 1."""
        self.frame()
        url = self.run("return document.querySelectorAll('.stage canvas')[arguments[0]].toDataURL()", number)
        return np.asarray(imread(io.BytesIO(base64.b64decode(url.split(",", 1)[1]))))

    def printed(self) -> bytes:
        """The page as a PDF."""
        found = self.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
        return base64.b64decode(found["data"])

    def console(self) -> list[str]:
        """Everything the page said in the console since it was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]
