"""The report with live controls: its answers, its server, and its page."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from browsers import asked, chromium, opened, wait
from click.testing import CliRunner

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.views.explore import Calculator, Choice, Server, live_page, static_page
from hisparse_sim.simulator.views.explore.panel import STATIC
from hisparse_sim.simulator.views.report.results import read_results
from hisparse_sim.traces import TraceError


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a sweep, made up: 10 and 5 % of the selected positions."""
    table = [
        {
            "trace": "t",
            "provenance": "synthetic",
            "layer": layer,
            "policy": policy,
            "buffer": buffer,
            "start": "staged",
            "steps": 100,
            "accesses": 204_800,
            "misses": int(204_800 * rate * 4096 / buffer),
            "excess_over_min": rate / 0.05 - 1,
        }
        for layer in (0, 1)
        for policy, rate in (("lru", 0.1), ("belady", 0.05))
        for buffer in (4096, 8192)
    ]
    path = tmp_path_factory.mktemp("explore") / "rows.csv"
    pd.DataFrame(table).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def calculator(rows: Path) -> Calculator:
    return Calculator(rows, ["lru", "belady"], [4096, 8192])


def tiles(calculator: Calculator, choice: Choice) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["value"], one["note"]) for one in calculator.answer(choice)["tiles"]}


def test_misses_and_bytes_by_hand(calculator: Calculator) -> None:
    """10 % of 2,048 positions, 1,152 bytes each, in 78 layers."""
    first = calculator.first
    assert first == Choice(4096, "lru", "h200-pcie5", "glm-5.1", 32_768, 64)
    found = tiles(calculator, first)
    assert found["misses"][0] == "10.0 %"
    assert found["misses"][1].startswith("204.8 of 2,048 selected positions")
    assert found["excess"] == ("+100 %", "no policy can miss fewer than 102.4 a step")
    assert found["moved"][0] == f"{204.8 * 1152 * 78 / 1e6:,.1f} MB"
    assert tiles(calculator, replace(first, buffer=8192))["misses"][0] == "5.0 %"


def test_excess_of_rows_without_min_is_that_of_their_lines(rows: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    table = pd.read_csv(rows)
    alone = tmp_path / "lru.csv"
    table[table["policy"] == "lru"].to_csv(alone, index=False)
    page, calculator = live_page([alone])
    assert tiles(calculator, calculator.first)["excess"][0] == "+100 %"
    assert "MIN, which knows the future, misses 102.4, 50\u00a0% fewer" in page
    assert "as replayed, whatever the model" in page


@pytest.mark.parametrize("concurrency", [8, 64])
def test_rates_are_those_of_serve(calculator: Calculator, rows: Path, concurrency: int) -> None:
    choice = replace(calculator.first, concurrency=concurrency)
    found = calculator.answer(choice)
    value, note = tiles(calculator, choice)["rate"]
    ratio = int(tiles(calculator, choice)["requests"][1].split("ratio ")[1].split(",")[0])
    served = hs.serve(
        miss_curve=rows, buffer=4096, ratio=ratio, concurrencies=concurrency,
        modes=["hisparse", "baseline"],
    ).rows.set_index("mode")  # fmt: skip
    ours, base = served["tokens_per_s"][["hisparse", "baseline"]]
    assert value == f"{ours:,.0f}"
    assert f"the {base:,.0f} without HiSparse" in note
    assert ("pays" in found["verdict"]) == (ours > base)
    assert ("does not pay" in found["verdict"]) == (ours <= base)


def test_what_is_no_option_is_refused(calculator: Calculator, rows: Path) -> None:
    with pytest.raises(ValueError, match="buffer must be one of 4096, 8192"):
        calculator.choice({"buffer": "1"})
    unswept = Calculator(rows, ["lru", "belady"], [4096, 8192])
    unswept.curves["lru"] = replace(unswept.curves["lru"], rates={8192: 0.1})
    assert unswept.answer(unswept.first)["verdict"] == "LRU was not swept at 4,096 slots."


@pytest.fixture(scope="module")
def server(rows: Path) -> Iterator[Server]:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    page, calculator = live_page([rows])
    with Server(page, calculator) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def got(url: str, host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


ASKED = "&buffer=8192&policy=lru&link=pcie4&model=glm-5.1&prompt=32768&concurrency=16"


def test_the_server_answers_who_knows_the_token(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 32
    status, page = got(server.url)
    assert status == 200
    assert "HiSparse calculator: t" in page
    assert server.token not in page
    address = server.url.replace("/?", "/answer?") + ASKED
    status, text = got(address)
    assert status == 200
    choice = Choice(8192, "lru", "pcie4", "glm-5.1", 32_768, 16)
    assert json.loads(text) == server.calculator.answer(choice)
    for wrong in (server.url.split("?")[0], server.url + "x", address.replace("token=", "token=x")):
        assert got(wrong)[0] == 403
    assert got(server.url, host="example.org")[0] == 403  # by another name, as DNS rebinding does
    assert got(server.url.replace("/?", "/elsewhere?"))[0] == 404
    status, text = got(address.replace("8192&policy", "9&policy"))
    assert (status, text) == (400, "buffer must be one of 4096, 8192\n")


def test_a_page_without_a_server_holds_its_answers(
    rows: Path, calculator: Calculator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    few = {name: values[:1] for name, values in STATIC.items()}
    monkeypatch.setattr("hisparse_sim.simulator.views.explore.panel.STATIC", few)
    page = static_page([rows])
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    answers = data["live"]["answers"]
    assert len(answers) == 2  # buffers
    key = "4096|lru|h200-pcie5|glm-5.1|32768|16"
    own = calculator.answer(replace(calculator.first, concurrency=16))
    assert answers[key][0] == own["verdict"]
    assert answers[key][1]["misses"][0] == "10.0 %"


def test_what_explore_refuses(rows: Path, tmp_path: Path) -> None:
    served = tmp_path / "served.csv"
    served.write_text("mode,load,tokens_per_s,tpot_p50_ms\nhisparse,8,1,1\n")
    result = CliRunner().invoke(cli, ["explore", str(served)])
    assert result.exit_code == 1
    assert "explore needs misses: name a file that sweep or mrc wrote" in result.output
    table = pd.read_csv(rows)
    small = tmp_path / "small.csv"
    table.assign(buffer=table["buffer"] // 64).to_csv(small, index=False)
    assert read_results([small])
    with pytest.raises(TraceError, match="holds buffers that no known model takes"):
        Calculator(small, ["lru"], [64, 128])
    two = tmp_path / "two.csv"
    pd.concat([table, table.assign(trace="u")]).to_csv(two, index=False)
    result = CliRunner().invoke(cli, ["explore", str(two)])
    assert result.exit_code == 1
    assert "several traces" in result.output


def test_controls_change_the_answer(server: Server, rows: Path, tmp_path: Path) -> None:
    """In a browser, from the server and from the page alone: the figures follow, nothing else is
    asked, nothing goes wrong."""
    with chromium() as browser:
        opened(browser, server.url)
        verdict = "document.querySelector('.verdict').textContent"
        for name, value, word in (
            ("concurrency", "8", "does not pay at 8 concurrent"),
            ("buffer", "8192", "with 8,192 slots"),
            ("concurrency", "256", "at 256 concurrent"),
        ):
            browser.execute_script(
                "const list = document.querySelector(`#controls [name=${arguments[0]}]`);"
                "list.value = arguments[1];"
                "list.dispatchEvent(new Event('change', {bubbles: true}))",
                name,
                value,
            )
            wait(browser, f"return {verdict}.includes({json.dumps(word)})")
        misses = "document.querySelector('[data-tile=misses] .value').textContent"
        assert browser.execute_script(f"return {misses}") == "5.0\xa0%"
        assert browser.execute_script("return document.getElementById('shown').value") == "8192"
        line = "return document.querySelector('[data-line={}] dd').textContent"
        assert "LRU misses 102.4 a step with 8,192 slots" in browser.execute_script(
            line.format("Policy")
        )
        assert "8,192 slots)" in browser.execute_script(line.format("Layers"))
        browser.execute_script(
            "const list = document.querySelector('#controls [name=policy]');"
            "list.value = 'belady'; list.dispatchEvent(new Event('change', {bubbles: true}))"
        )
        wait(
            browser,
            "return document.querySelector('[data-line=Layers] dd').textContent"
            ".includes('MIN, 8,192 slots')",
        )
        assert browser.get_log("browser") == []
        assert {url.split("?")[0] for url in asked(browser)} == {
            server.url.split("?")[0],
            server.url.split("?")[0] + "answer",
        }
