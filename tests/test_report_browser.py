"""The report page in a real browser: it draws, reacts, is readable and fetches nothing.

Skipped where Chromium with its driver (Debian: chromium, chromium-driver) or selenium is missing.
"""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from make_results import results, run

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    files = results(tmp_path_factory.mktemp("browser"))
    page = files[0].with_name("page.html")
    run("report", *files, "-o", page)
    return page


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Any]:
    if BROWSER is None or shutil.which("chromedriver") is None:
        pytest.skip("needs Chromium and chromedriver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        driver.get(page.as_uri())
        wait(driver, "return document.documentElement.dataset.ready === 'true'")
        yield driver
    finally:
        driver.quit()


def wait(driver: Any, script: str) -> None:
    for _ in range(100):
        if driver.execute_script(script):
            return
        time.sleep(0.1)
    raise AssertionError(f"never true: {script[:200]}")


def test_it_loads_without_errors_and_fetches_nothing(browser: Any, page: Path) -> None:
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert asked == [page.as_uri()]
    drawn = browser.execute_script("return document.querySelectorAll('.chart svg').length")
    assert drawn == len(browser.execute_script("return [...document.querySelectorAll('.chart')]"))
    assert drawn == 8


def test_choices_change_the_charts(browser: Any) -> None:
    bars = "document.querySelectorAll('#bars .mark-rect path').length"
    assert browser.execute_script(f"return {bars}") == 9
    browser.execute_script("document.querySelector('input[value=arc]').click()")
    wait(browser, f"return {bars} === 6")
    browser.execute_script("document.querySelector('input[name=buffer][value=\"4096\"]').click()")
    wait(browser, f"return {bars} === 4")
    # One layer alone: the bars are those of its rows.
    before = browser.execute_script("return document.querySelector('#bars').innerHTML")
    browser.execute_script(
        "const box = document.getElementById('last-layer'); box.value = 4;"
        "box.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    wait(browser, f"return document.querySelector('#bars').innerHTML !== {json.dumps(before)}")
    browser.execute_script(
        "document.querySelectorAll('#choices input[type=checkbox]').forEach("
        "(box) => box.checked || box.click());"
        "const box = document.getElementById('last-layer'); box.value = 14;"
        "box.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    wait(browser, f"return {bars} === 9")
    times = browser.execute_script("return document.querySelector('#swap-in').innerHTML")
    browser.execute_script(
        "const list = document.getElementById('batch'); list.value = 64;"
        "list.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    wait(browser, f"return document.querySelector('#swap-in').innerHTML !== {json.dumps(times)}")
    assert browser.get_log("browser") == []


def test_keys_zoom_and_the_pointer_tells_figures(browser: Any) -> None:
    from selenium.webdriver import ActionChains

    chart = browser.find_element("id", "rolling")
    browser.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'}); arguments[0].focus()",
        chart,
    )
    ticks = (
        "[...document.querySelectorAll('#rolling .role-axis-label text')]"
        ".map((one) => one.textContent).sort().join()"
    )
    before = browser.execute_script(f"return {ticks}")
    ActionChains(browser).send_keys("+").perform()
    wait(browser, f"return {ticks} !== '{before}'")
    ActionChains(browser).send_keys("0").perform()
    wait(browser, f"return {ticks} === '{before}'")
    bar = browser.find_element("css selector", "#bars .mark-rect path")
    browser.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", bar
    )
    ActionChains(browser).move_to_element(bar).perform()
    wait(browser, "return document.querySelector('#vg-tooltip-element.visible') !== null")
    assert "policy" in browser.find_element("id", "vg-tooltip-element").text


@pytest.mark.parametrize("width", [360, 1920])
def test_text_is_readable_at(width: int, browser: Any) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wait(browser, "return document.querySelector('#bars svg').clientWidth <= innerWidth")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    smallest = browser.execute_script(
        "return Math.min(...[...document.querySelectorAll('p, li, td, figcaption, label, text')]"
        ".map((one) => parseFloat(getComputedStyle(one).fontSize)))"
    )
    assert smallest >= 10
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_light_and_dark_have_contrast(browser: Any) -> None:
    measure = """
    const parts = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((c) => {
      c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    const light = (colour) => { const [r, g, b] = parts(colour);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const paper = light(getComputedStyle(document.body).backgroundColor);
    const contrast = (colour) => { const own = light(colour);
      return (Math.max(own, paper) + 0.05) / (Math.min(own, paper) + 0.05); };
    const text = getComputedStyle(document.body).color;
    const axis = getComputedStyle(document.querySelector('#bars .role-axis-label text')).fill;
    const lines = [...document.querySelectorAll('#choices label svg')];
    const worst = Math.min(...lines.map((one) => contrast(getComputedStyle(one).stroke)));
    return [document.documentElement.dataset.theme, contrast(text), contrast(axis), worst];
    """
    seen = set()
    for _ in "ab":
        theme, text, axis, line = browser.execute_script(measure)
        seen.add(theme)
        assert text > 7
        assert axis > 7
        assert line > 3
        browser.execute_script("document.getElementById('theme').click()")
    assert seen == {"light", "dark"}


def test_it_prints(browser: Any) -> None:
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 50_000
