"""Chromium for tests of pages; skipped where it, its driver or selenium is missing."""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a driver without a window, which logs errors and requests."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None or shutil.which("chromedriver") is None:
        pytest.skip("needs Chromium and chromedriver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def opened(driver: Any, url: str) -> None:
    """Open a report and wait until its charts are drawn."""
    driver.get(url)
    wait(driver, "return document.documentElement.dataset.ready === 'true'")


def wait(driver: Any, script: str) -> None:
    for _ in range(150):
        if driver.execute_script(script):
            return
        time.sleep(0.1)
    raise AssertionError(f"never true: {script[:200]}")


def asked(driver: Any) -> list[str]:
    """Return the addresses that the page has requested."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
