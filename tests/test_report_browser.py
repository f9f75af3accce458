"""The report page in a real browser: it draws, reacts, is readable and fetches nothing.

Skipped where Chromium with its driver (Debian: chromium, chromium-driver) or selenium is missing.
"""

import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from browsers import asked, chromium, opened, wait
from make_results import results, run

from hisparse_sim.simulator.replay.result_files import read_rows
from hisparse_sim.simulator.replay.totals import totals


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    files = results(tmp_path_factory.mktemp("browser"))
    page = files[0].with_name("page.html")
    run("report", *files, "-o", page)
    return page


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Any]:
    with chromium() as driver:
        opened(driver, page.as_uri())
        yield driver


def test_it_loads_without_errors_and_fetches_nothing(browser: Any, page: Path) -> None:
    assert browser.get_log("browser") == []
    asked(browser)  # by what came before
    opened(browser, page.as_uri())
    assert asked(browser) == [page.as_uri()]
    drawn = browser.execute_script("return document.querySelectorAll('.chart svg').length")
    assert drawn == len(browser.execute_script("return [...document.querySelectorAll('.chart')]"))
    assert drawn == 7


def test_choices_change_the_charts(browser: Any) -> None:
    points = "document.querySelectorAll('#miss-ratio .mark-symbol path').length"
    assert browser.execute_script(f"return {points}") == 9
    browser.execute_script("document.querySelector('input[value=arc]').click()")
    wait(browser, f"return {points} === 6")
    browser.execute_script("document.querySelector('input[name=buffer][value=\"4096\"]').click()")
    wait(browser, f"return {points} === 4")
    # One layer alone: the points are those of its rows.
    before = browser.execute_script("return document.querySelector('#miss-ratio').innerHTML")
    browser.execute_script(
        "const box = document.getElementById('last-layer'); box.value = 4;"
        "box.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    wait(
        browser, f"return document.querySelector('#miss-ratio').innerHTML !== {json.dumps(before)}"
    )
    browser.execute_script(
        "document.querySelectorAll('#choices input[type=checkbox]').forEach("
        "(box) => box.checked || box.click());"
        "const box = document.getElementById('last-layer'); box.value = 14;"
        "box.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    wait(browser, f"return {points} === 9")
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
    point = browser.find_element("css selector", "#miss-ratio .mark-symbol path")
    browser.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", point
    )
    ActionChains(browser).move_to_element(point).perform()
    wait(browser, "return document.querySelector('#vg-tooltip-element.visible') !== null")
    assert "policy" in browser.find_element("id", "vg-tooltip-element").text


def drawn(browser: Any, chart: str) -> pd.DataFrame:
    """What a chart draws, as its CSV has it."""
    return pd.read_csv(StringIO(browser.execute_script(f"return csvOf({json.dumps(chart)})")))


def test_every_series_equals_its_table(browser: Any, page: Path) -> None:
    """What the marks of a chart carry, against sums of the rows in Python."""
    rows = read_rows(page.with_name("rows.parquet"))
    by = ["policy", "buffer"]
    sums = totals(rows).sort_values(by).reset_index(drop=True)
    shown = drawn(browser, "miss-ratio").sort_values(by).reset_index(drop=True)
    assert shown[by].astype(str).equals(sums[by].astype(str))
    np.testing.assert_allclose(shown["miss_percent"], 100 * sums["miss_rate"])
    np.testing.assert_allclose(shown["per_step"], sums["misses_per_step"])
    np.testing.assert_allclose(shown["excess_over_min"], sums["excess_over_min"], atol=1e-12)
    layers = totals(rows, ("layer", "policy", "buffer"))
    layers = layers[layers["buffer"] == 4096].sort_values(["layer", "policy"])
    lines = drawn(browser, "by-layer").sort_values(["layer", "policy"])
    assert lines["layer"].tolist() == layers["layer"].tolist() == 3 * [4] + 3 * [9] + 3 * [14]
    np.testing.assert_allclose(lines["per_step"], layers["misses_per_step"])
    dots = drawn(browser, "dots").set_index("policy")
    for policy, own in layers.groupby("policy"):
        misses = own["misses_per_step"]
        assert dots.loc[policy, ["low", "high"]].tolist() == pytest.approx(
            [misses.min(), misses.max()]
        )
    curve = pd.read_csv(page.with_name("curve.csv"))
    points = drawn(browser, "rolling").merge(curve, on=[*by, "step"], suffixes=("", "_of_file"))
    assert len(points) == len(curve)
    for name in ("misses_per_step", "p10", "p90"):
        assert (points[name] - points[f"{name}_of_file"]).abs().max() <= 0.05 + 1e-9
    served = drawn(browser, "throughput")
    assert served.to_dict("list") == {
        "mode": ["baseline", "hisparse", "hisparse"],
        "concurrency": [8, 8, 16],
        "tokens_per_s": [10, 12, 20],
    }
    plan = drawn(browser, "pareto").sort_values("buffer")
    assert plan["tokens_per_s"].tolist() == [100, 99.5]


def test_curves_are_named_at_their_ends(browser: Any) -> None:
    """Behind the last step, within the picture, and not cut off there."""
    ends = browser.execute_script(
        "return [...document.querySelectorAll('#rolling .mark-text[role] text, #rolling"
        " .mark-text text[aria-roledescription]')].map((one) => [one.textContent,"
        " one.getAttribute('opacity'), one.parentElement.getAttribute('clip-path'),"
        " one.getBoundingClientRect().right <="
        " document.querySelector('#rolling svg').getBoundingClientRect().right])"
    )
    assert ends
    assert {name for name, *_ in ends} <= {"2,048", "3,072", "4,096"}
    assert {(clip, within) for _, _, clip, within in ends} == {(None, True)}


def test_layers_that_were_not_sampled_are_a_gap(browser: Any) -> None:
    """Layers 4, 9 and 14: points, and no line from one to the next."""
    paths = browser.execute_script(
        "return [...document.querySelectorAll('#by-layer .mark-line path')]"
        ".map((one) => one.getAttribute('d'))"
    )
    assert len(paths) == 9
    assert not [path for path in paths if "L" in path and len(set(path[1:].split("L"))) > 1]


def test_a_saved_chart_needs_no_page(browser: Any) -> None:
    for theme in "ab":
        svg = browser.execute_script("return svgOf('miss-ratio')")
        texts = [one.text for one in ElementTree.fromstring(svg).findall(".//{*}text")]
        assert texts[:4] == [
            browser.execute_script(
                "return document.querySelector('#miss-ratio-card h3').innerText"
            ),
            "LRU",
            "ARC",
            "MIN",
        ], theme
        assert "var(" not in svg
        assert "NaN" not in svg
        browser.execute_script("document.getElementById('theme').click()")


def test_a_title_is_that_of_what_is_drawn(browser: Any, page: Path) -> None:
    opened(browser, page.as_uri())
    title = "return document.querySelector('#by-layer-card h3').textContent"
    change = (
        "const one = document.getElementById('{}'); one.value = {};"
        "one.dispatchEvent(new Event('change', {{bubbles: true}}))"
    )
    assert "4,096 slots" in browser.execute_script(title)
    browser.execute_script(change.format("shown", 2048))
    assert "2,048 slots" in browser.execute_script(title)
    text = "return document.querySelector('{}').textContent"
    for part in ("[data-tile=misses] .small", "[data-line=Policy] dd", "[data-line=Layers] dd",
                 "#layers summary"):  # fmt: skip
        assert "2,048 slots" in browser.execute_script(text.format(part)), part
    rows = read_rows(page.with_name("rows.parquet"))
    own = totals(rows, ("layer", "policy", "buffer")).set_index(["buffer", "layer", "policy"])
    cells = browser.execute_script(
        "return [...document.querySelectorAll('#layer-table tbody tr')]"
        ".map((row) => [...row.cells].map((one) => one.textContent))"
    )
    policies = list(dict.fromkeys(rows["policy"]))
    for layer, *shown in cells:
        ours = [own.loc[(2048, int(layer), name), "misses_per_step"] for name in policies]
        assert [float(one) for one in shown] == pytest.approx(ours, abs=0.051)
    assert len(cells) == 3
    browser.execute_script(change.format("first-layer", 9))
    label = "Misses per step by layer, a line per policy"
    assert browser.execute_script(title) == label
    described = "return document.getElementById('by-layer').ariaLabel"
    assert browser.execute_script(described) == label  # for who cannot see the chart


def test_the_legend_and_the_chosen_buffer_reach_all_charts(browser: Any, page: Path) -> None:
    opened(browser, page.as_uri())  # nothing is under the pointer
    faded = (
        "[...document.querySelectorAll('#swap-in .mark-line path')]"
        ".map((one) => one.getAttribute('opacity')).join()"
    )
    assert browser.execute_script(f"return {faded}") == "1,1,1"
    browser.execute_script("document.querySelector('input[value=arc]').focus()")
    wait(browser, f"return {faded} === '0.15,1,0.15'")
    browser.execute_script("document.activeElement.blur()")
    wait(browser, f"return {faded} === '1,1,1'")
    pick = (
        "const list = document.getElementById('shown'); list.value = {};"
        "list.dispatchEvent(new Event('change', {{bubbles: true}}))"
    )
    browser.execute_script(pick.format(2048))
    wait(browser, "return csvOf('dots').includes('lru,2048')")
    browser.execute_script(pick.format(4096))
    wait(browser, "return csvOf('dots').includes('lru,4096')")


def test_the_keyboard_reaches_everything(browser: Any, page: Path) -> None:
    """From the top: skip link, theme, sections, tiles, choices, charts; nothing holds the focus."""
    from selenium.webdriver import ActionChains, Keys

    opened(browser, page.as_uri())
    seen = []
    for _ in range(80):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        seen.append(
            browser.execute_script(
                "const one = document.activeElement; return one.id || one.dataset.tile"
                " || one.name || one.className || one.tagName"
            )
        )
        if "BODY" in seen:
            break
    order = [seen.index(name) for name in ("skip", "theme", "misses", "policy", "shown")]
    assert order == sorted(order)
    for chart in ("miss-ratio", "rolling", "dots", "by-layer", "swap-in", "pareto", "throughput"):
        assert chart in seen


def test_no_serious_fault_of_accessibility(browser: Any) -> None:
    axe = pytest.importorskip("axe_core_python", reason="needs axe-core-python")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text("utf-8")
    browser.execute_script(  # as on the page of a synthetic trace
        "document.querySelector('#answer .wide').insertAdjacentHTML('beforeend',"
        " '<p class=synthetic>Synthetic trace</p>')"
    )
    for theme in "ab":
        browser.execute_script(script)
        found = browser.execute_async_script(
            "axe.run().then(arguments[arguments.length - 1],"
            " (error) => arguments[arguments.length - 1]({violations: [{id: String(error)}]}))"
        )
        serious = [
            (one["id"], [node["target"] for node in one.get("nodes", [])][:3])
            for one in found["violations"]
            if one.get("impact") not in ("minor", "moderate")
        ]
        assert serious == [], theme
        browser.execute_script("document.getElementById('theme').click()")


@pytest.mark.parametrize("width", [360, 768, 1920])
def test_text_is_readable_at(width: int, browser: Any) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wait(browser, "return document.querySelector('#miss-ratio svg').clientWidth <= innerWidth")
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
    const axis = getComputedStyle(document.querySelector('#miss-ratio .role-axis-label text')).fill;
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
