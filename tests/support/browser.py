"""Debian's Chromium without a window, driven by Selenium: opens a page from a file and tells what it did wrong."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait
from typing_extensions import Self

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--force-device-scale-factor=1",
    "--hide-scrollbars", "--lang=en-US",
)  # fmt: skip
PATIENCE_S = 60


class Browser:
    """A browser with a profile of its own; a context, which ends it."""

    def __init__(self, size: tuple[int, int] = (1440, 900)) -> None:
        self._profile = tempfile.mkdtemp(prefix="msprobe-browser-")
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM or ""
        for flag in (*FLAGS, f"--user-data-dir={self._profile}", f"--window-size={size[0]},{size[1]}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        options.add_experimental_option("prefs", {"download.default_directory": self._profile})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        self._requested: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.driver.quit()
        shutil.rmtree(self._profile, ignore_errors=True)

    @property
    def downloads(self) -> Path:
        return Path(self._profile)

    def open(self, page: Path | str) -> None:
        """Open a page as one who has never seen it, and wait until it stands."""
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
        self.problems(), self.requested()
        self._requested.clear()
        self.driver.get(page.as_uri() if isinstance(page, Path) else page)
        self.wait_for(".app, .empty")

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all that match, as they are at one moment."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector)

    def title_shown(self) -> str:
        return self.driver.title

    def click(self, testid: str) -> None:
        self.find(f"[data-testid='{testid}']").click()

    def keys(self, *keys: str) -> None:
        """Press keys wherever the focus is."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def search(self, words: str, *keys: str) -> None:
        """Go to the search as the keyboard does, and type."""
        self.keys("/")
        self.until(lambda: self.run("return document.activeElement.type") == "search", "the search has no focus")
        self.keys(words, *keys)

    def frame(self) -> None:
        """Wait until what has been done is on the screen."""
        self.run_async("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")

    def escape(self) -> None:
        self.keys(Keys.ESCAPE)

    def wait_for(self, selector: str) -> WebElement:
        self.until(lambda: self.all(selector), f"nothing is {selector}")
        return self.find(selector)

    def until(self, holds: Any, message: str) -> None:
        WebDriverWait(self.driver, PATIENCE_S, poll_frequency=0.05).until(lambda _driver: holds(), message)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def run_async(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_async_script(script, *arguments)

    def still(self) -> None:
        """Wait until what moves has come to rest."""
        self.run_async(
            "const done = arguments[0]; setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 300)"
        )

    def problems(self) -> list[str]:
        """Return what the console has of warnings and errors since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]

    def requested(self) -> list[str]:
        """Return every address that was asked for since the page was opened."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self._requested.append(message["params"]["request"]["url"])
        return self._requested
