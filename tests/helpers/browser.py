"""A headless Chromium for tests, and what it noted: console lines, and every address it asked."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

PASTED = 80  # letters that nobody would type one by one


class Browser:
    """One window."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM or ""
        for flag in QUIET:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.driver.set_script_timeout(30)
        self._first: dict[str, Any] | None = None

    def open(self, url: str, width: int = 1280, height: int = 860, scheme: str = "light") -> None:
        """A fresh page of this size and colour scheme, with nothing remembered."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})
        self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
        self.driver.get(url)
        self.until(lambda: self.text("#health") == "ready")

    def remember(self, script: str) -> None:
        """Run a script at the beginning of every page from now on, instead of the one before."""
        if self._first is not None:
            self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", self._first)
        self._first = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """What an element says, shown or not."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector
        )
        return found

    def run(self, script: str, *given: Any) -> Any:
        """Run JavaScript in the page; a promise is waited for."""
        return self.driver.execute_script(script, *given)

    def until(self, holds: Callable[[], Any], seconds: float = 20) -> None:
        limit = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > limit:
                raise AssertionError(f"still not so after {seconds} s; the page says {self.text('#notice')!r}")
            time.sleep(0.03)

    def shown(self, selector: str) -> bool:
        return self.one(selector).is_displayed()

    def ask(self, question: str, seconds: float = 20) -> None:
        """Type a question, send it, and wait for the end of the answer."""
        self.send(question)
        self.until(lambda: not self.shown("#stop"), seconds)

    def send(self, question: str) -> None:
        box = self.one("#question")
        box.clear()
        if len(question) > PASTED:
            box.click()
            self.driver.execute_cdp_cmd("Input.insertText", {"text": question})
            question = ""
        box.send_keys(question.replace("\n", Keys.SHIFT + Keys.ENTER + Keys.NULL), Keys.ENTER)

    def press(self, *keys: str, shift: bool = False) -> None:
        """Keys for whatever has the focus."""
        chain = webdriver.ActionChains(self.driver)
        if shift:
            chain.key_down(Keys.SHIFT).send_keys(*keys).key_up(Keys.SHIFT).perform()
        else:
            chain.send_keys(*keys).perform()

    def hover(self, element: WebElement) -> None:
        webdriver.ActionChains(self.driver).move_to_element(element).perform()

    def complaints(self) -> list[str]:
        """Console lines that are warnings or worse, since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")]

    def hosts(self) -> set[str]:
        """Hosts of all addresses that were asked since the last time; a data: address has none."""
        found = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                params = message["params"]
                found.add(urlsplit(params.get("url") or params["request"]["url"]).netloc)
        return found
