"""The report page: what it says and what it holds."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from make_results import results, run

from hisparse_sim.cli import cli
from hisparse_sim.policies import STANDARD
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.serving.latency import load_link
from hisparse_sim.simulator.views import palette
from hisparse_sim.simulator.views.figures import DASHES
from hisparse_sim.simulator.views.report import (
    Result,
    data,
    findings,
    read_results,
    vega,
    write_report,
)
from hisparse_sim.simulator.views.report.answer import pays
from hisparse_sim.simulator.views.report.facts import Fact, of_choice, of_load, of_plan, of_source
from hisparse_sim.simulator.views.report.page import Page
from hisparse_sim.simulator.views.report.series import Series
from hisparse_sim.traces import TraceError


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return results(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def folder(files: list[Path]) -> Path:
    return files[0].parent


def embedded(page: str) -> dict[str, Any]:
    """What the script of a page gets."""
    found = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    parsed: dict[str, Any] = json.loads(found[1])
    return parsed


def test_kinds_are_told_apart(files: list[Path]) -> None:
    kinds = [result.kind for result in read_results(files)]
    assert kinds == ["sweep", "curve", "plan", "serve"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("rows.txt", "", "not a result file"),
        ("rows.csv", None, "does not exist"),
        ("rows.json", "{", "cannot be read as json"),
        ("rows.json", '{"a": 1}', "not a list of rows"),
        ("rows.csv", "a,b\n1,2\n", "no rows of sweep"),
        ("rows.csv", "policy,buffer,steps,accesses,misses\n", "holds no rows"),
        ("rows.parquet", "nothing", "cannot be read as parquet"),
    ],
)
def test_what_is_no_result_is_refused(
    name: str, text: str | None, words: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(TraceError, match=words):
        read_results([tmp_path / name])


@pytest.mark.parametrize(
    ("name", "heading", "chart"),
    [
        ("curve.csv", "Hot buffer misses: small", "rolling"),
        ("plan.json", "HiSparse: a plan", "pareto"),
        ("serve.jsonl", "HiSparse: serving", "throughput"),
    ],
)
def test_any_result_alone_makes_a_report(
    name: str, heading: str, chart: str, files: list[Path], folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    write_report(read_results([folder / name]), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert f"<h1>{heading}</h1>" in text
    assert f'<div class="chart" id="{chart}"' in text
    assert list(embedded(text)["charts"]) == [chart]


def lines(facts: list[Fact]) -> dict[str, str]:
    return {one.about: one.said for one in facts}


def of_series(rows: pd.DataFrame, planned: int | None = None) -> dict[str, str]:
    """The lines about one trace, at the first choice."""
    series = Series.of(rows)
    policy, buffer = findings.focus(series.sums, planned)
    return lines([*of_choice(series, policy, buffer, planned is not None), of_source(rows)])


def test_the_lines_of_a_sweep_hold_the_figures_of_its_rows(files: list[Path]) -> None:
    rows = read_results(files)[0].rows
    sums = {(one["policy"], one["buffer"]): one for one in totals(rows).to_dict("records")}
    own = sums["lru", 4096]
    said = of_series(rows)
    assert list(said) == ["Buffer", "Policy", "Layers", "Source"]
    assert said["Buffer"].startswith("4,096 slots (the engine's default): ")
    smaller = sums["lru", 3072]["miss_rate"]
    assert f"default): {100 * own['miss_rate']:.1f} % misses, " in said["Buffer"]
    assert f"; 3,072 slots: {100 * smaller:.1f} % misses, " in said["Buffer"]
    least = sums["belady", 4096]["misses_per_step"]
    assert said["Policy"].startswith(f"LRU misses {own['misses_per_step']:,.1f} a step with 4,096")
    assert f"MIN, which knows the future, misses {least:,.1f}, " in said["Policy"]
    arc = sums["arc", 4096]["misses_per_step"]
    change = 1 - arc / own["misses_per_step"]
    assert ("fewer than ARC" if change <= 0 else f"ARC {100 * change:.1f} % fewer") in said[
        "Policy"
    ]
    layers = totals(rows, ("layer", "policy", "buffer"))
    layers = layers[(layers["policy"] == "lru") & (layers["buffer"] == 4096)]
    worst = layers.sort_values("misses_per_step")["layer"].iloc[-1]
    times = layers["misses_per_step"].max() / layers["misses_per_step"].mean()
    assert said["Layers"].startswith(f"Layer {worst} misses most, {times:.1f} times")
    assert said["Source"].startswith("small (trained-indexer), replayed: 3 layers x 60 steps, ")
    planned = of_series(rows, 3072)
    assert "Buffer" not in planned  # the plan tells it
    assert "a step with 3,072 slots" in planned["Policy"]
    assert "3,072 slots)" in planned["Layers"]


def test_lines_without_optimum_layers_or_another_policy(folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    options = "--policy fifo --buffer 4096 --no-min --quiet"
    run("sweep", folder / "small.parquet", *options.split(), "-o", rows)
    said = of_series(read_results([rows])[0].rows)
    assert list(said) == ["Buffer", "Policy", "Source"]
    assert re.fullmatch(r"FIFO misses [0-9.]+ a step with 4,096 slots\.", said["Policy"])
    table = read_results([rows])[0].rows.assign(policy="belady")
    assert of_series(table)["Policy"].startswith("Only MIN was swept")


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (
            [8.9, 12.5, 17.9],
            "At 4 concurrent requests HiSparse does not pay: 0.89 times the rate without it; at 16"
            " and 64 concurrent requests HiSparse pays: 1.25 and 1.79 times the rate without it.",
        ),
        (
            [10, 10, 10],
            "At 4, 16 and 64 concurrent requests HiSparse does not pay: 1.00, 1.00 and 1.00 times"
            " the rate without it.",
        ),
    ],
)
def test_the_line_on_load_tells_where_it_pays(rates: list[float], said: str) -> None:
    loads = ["4", "16", "64"]
    rows = pd.DataFrame({"load": loads * 2, "tpot_p50_ms": 20.0})
    rows = rows.assign(
        mode=["hisparse"] * 3 + ["baseline"] * 3, tokens_per_s=[*rates, 10.0, 10.0, 10.0]
    )
    assert of_load([Result(Path("served.csv"), "serve", rows)], None).said == said
    assert of_load([], None).said == "Whether it pays at a load takes a plan or a serving run."
    plan = {"baseline_tokens_per_s": 650.0, "break_even": 32, "load": "256"}
    assert of_load([], plan).said == ("From 32 concurrent requests on HiSparse pays.")
    tried = of_load([], plan | {"layout": "dp8-tp8", "decode_instances": 1})
    assert tried.said == "From 32 concurrent requests on HiSparse pays (not at 24)."
    two = of_load([], plan | {"layout": "dp8-tp8", "decode_instances": 2})
    assert two.said == "From 32 concurrent requests on HiSparse pays (not at 16)."
    assert "at every load" in of_load([], plan | {"break_even": None}).said


def test_a_verdict_tells_the_latencies_and_a_choice_its_rule() -> None:
    best = {
        "buffer": 4096, "ratio": 4, "tokens_per_s": 1404.8, "tpot_ms": 65.78, "ttft_s": 881.2,
        "baseline_tpot_ms": 34.42, "baseline_ttft_s": 90.0, "break_even": None,
    }  # fmt: skip
    assert pays(best, 650.1, " at 256 concurrent requests") == (
        "HiSparse pays at 256 concurrent requests: 1,405 tokens/s with 4,096 slots and a ratio of"
        " 4, 2.2 times the 650 without it; a token takes 65.8 ms, without it 34.4 ms; the first one"
        " comes after 15 min, without it 90.0 s (modelled)."
    )
    older = {name: value for name, value in best.items() if "baseline" not in name}
    assert "takes" not in pays(older, 650.1, "")
    assert "within 1 % of the most tokens/s" in of_plan(best).said


def test_rates_from_another_trace_say_which(files: list[Path]) -> None:
    """The misses behind a plan are of the demand of its model, not of what was swept."""
    sweep, _, plan, _ = read_results(files)
    other = {"trace": "glm-5.1@36864", "provenance": "synthetic", "trace_sha256": "94d9" * 16}
    best = plan.rows["buffer"].eq(4096) & plan.rows["ratio"].eq(8)
    elsewhere = plan.rows.assign(**other, miss_rate=best.map({True: 0.0873, False: 0.5}))
    page = Page([sweep, Result(plan.path, "plan", elsewhere)], None)
    source = lines(page.head.facts)["Source"]
    assert source.startswith("Misses: small (trained-indexer), replayed: ")
    assert source.endswith(
        "Rates, load and verdict: the misses of glm-5.1@36864 (synthetic, fitted to published"
        " figures of the model, 8.7 % misses at 4,096 slots)."
    )
    sources = page.sections[-1][2]
    row = '>plan.json</td><td class="text">glm-5.1@36864</td><td class="text">synthetic</td>'
    assert row in sources
    assert "glm" not in lines(Page([sweep], None).head.facts)["Source"]
    alone = lines(Page([Result(plan.path, "plan", elsewhere)], None).head.facts)["Source"]
    assert "The misses are those of glm-5.1@36864 (synthetic" in alone


def test_the_answer_follows_the_plan_and_every_choice(files: list[Path]) -> None:
    """Tiles and lines at all buffers; at first that of the plan, whose requests are shown."""
    sweep, _, plan, _ = read_results(files)
    smaller = plan.rows.assign(best=plan.rows["buffer"].eq(3072) & plan.rows["ratio"].eq(4))
    page = Page([sweep, Result(plan.path, "plan", smaller)], None)
    assert page.shown == 3072
    _, _, answer = page.sections[0]
    assert "LRU, 3,072 slots" in answer
    assert "LRU, 4,096 slots" not in answer
    batch = smaller.loc[smaller["best"], "batch"].iloc[0]
    assert (
        f'Requests per rank <span class="kind">modelled</span></span><span class="value">{batch}<'
        in answer
    )
    assert "3,072 slots, ratio 4" in answer
    sums = totals(sweep.rows).set_index(["policy", "buffer"])["miss_rate"]
    answers = page.embedded["answers"]
    assert list(answers) == ["small|2048|lru", "small|3072|lru", "small|4096|lru"]
    for size in (2048, 3072, 4096):
        found = answers[f"small|{size}|lru"]
        assert found["tiles"]["misses"][0] == f"{100 * sums['lru', size]:.1f} %"
        assert f"{size:,} slots" in found["lines"]["Policy"]
        assert f"{size:,} slots" in found["lines"]["Layers"]


def test_the_first_screen_has_five_answers_and_what_each_figure_is(files: list[Path]) -> None:
    page = Page(read_results(files), None)
    assert sorted(lines(page.head.facts)) == ["Buffer", "Layers", "Load", "Policy", "Source"]
    _, _, answer = page.sections[0]
    assert re.findall(r'class="kind">(\w+)<', answer) == ["replayed"] * 2 + ["modelled"] * 3
    assert "4,096 slots with a ratio of 8" in answer  # alike in rate, less host memory
    assert 'class="synthetic"' not in answer
    result = read_results(files[:1])[0]
    made_up = Result(result.path, "sweep", result.rows.assign(provenance="synthetic"))
    assert 'class="synthetic"' in Page([made_up], None).sections[0][2]


def test_titles_follow_trace_and_buffer(files: list[Path]) -> None:
    page = Page(read_results(files), None)
    for chart in ("miss-ratio", "dots", "by-layer"):
        titles = page.drawn.titles[chart]
        assert list(titles) == ["small|4096", "small|2048", "small|3072"]
        for key, title in titles.items():
            assert f"{int(key.split('|')[1]):,} slots" in title
    assert len(page.drawn.titles["swap-in"]) == 3 * 4  # buffers and batches
    assert "8 requests together" in page.drawn.titles["swap-in"]["small|3072|8"]


def test_the_commands_give_the_same_rows_again(
    files: list[Path], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(folder / "small.parquet", tmp_path)
    monkeypatch.chdir(tmp_path)
    sweep, curve, plan, serve = read_results(files)
    for result in (sweep, curve):
        words = findings.command(result).split()
        assert words[0] == "hisparse-sim"
        run(*words[1:])
        again = read_results([files[0], tmp_path / result.path.name])[1]
        pd.testing.assert_frame_equal(again.rows, result.rows)
    assert findings.command(plan) == (
        "hisparse-sim plan --trace small.parquet --model glm-5.1 --prompt 32768 --disaggregated"
        " --buffer 3072,4096 --ratio 4,8 -o plan.json"
    )
    assert findings.command(serve) == (
        "hisparse-sim serve --trace small.parquet --seed 0 --mode baseline --mode hisparse"
        " --concurrency 8,16 -o serve.jsonl"
    )


def test_the_bundled_sample_needs_no_name(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    options = "--policy lru --buffer 4096 --no-min --layer 4 --steps 0:32 --quiet"
    run("sweep", *options.split(), "-o", rows)
    (result,) = read_results([rows])
    assert findings.command(result) == (
        "hisparse-sim sweep --layer 4 --steps 0:32 --policy lru --buffer 4096 --start staged"
        " --seed 0 --no-min -o rows.csv"
    )


def test_curves_are_thinned_honestly() -> None:
    line = pd.DataFrame(
        {
            "trace": "t",
            "policy": "lru",
            "buffer": 8,
            "step": range(2000),
            "misses_per_step": 1.0,
            "p10": 0.5,
            "p90": 2.0,
        }
    )
    kept, notes = data.curve_table(line)
    assert kept["step"].tolist() == [*range(0, 2000, 4), 1999]
    assert notes == [
        "Charts draw one point in 4 of each line, and its last (501 of 2,000); the result file has"
        " all."
    ]
    short, no_notes = data.curve_table(line.head(50))
    assert len(short) == 50
    assert no_notes == []


def large_sweep(folder: Path) -> Path:
    """Rows of 78 layers, 7 policies, 8 buffers and 6 requests, made up."""
    names = ("lru", "fifo", "clock", "lfu", "arc", "random", "belady")
    rows = [
        {
            "trace": "large",
            "provenance": "synthetic",
            "request": f"r{request}",
            "layer": layer,
            "policy": policy,
            "buffer": 1024 * size,
            "start": "staged",
            "steps": 1000,
            "accesses": 2048000,
            "misses": 1000 * (10 + number) * (layer + 1) // size,
            "excess_over_min": number / 10,
        }
        for request in range(6)
        for layer in range(78)
        for number, policy in enumerate(names)
        for size in range(2, 10)
    ]
    path = folder / "large.parquet"
    pd.DataFrame(rows).to_parquet(path)
    curve = pd.DataFrame({"step": range(99, 8000)}).assign(misses_per_step=123.4567, p10=1, p90=9)
    lines = [
        curve.assign(trace="large", provenance="synthetic", policy=policy, buffer=1024 * size)
        for policy in names
        for size in range(2, 10)
    ]
    pd.concat(lines).to_parquet(folder / "long.parquet")
    return path


def test_a_sweep_of_78_layers_stays_small(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    large = large_sweep(tmp_path)
    page = tmp_path / "page.html"
    notes = write_report(read_results([large, tmp_path / "long.parquet"]), page)
    assert page.stat().st_size < 1_500_000
    assert any("one point in" in note for note in notes)
    sweep = data.unpacked(embedded(page.read_text())["tables"]["sweep"])
    assert len(sweep["layer"]) == 78 * 7 * 8
    assert sweep["policy"][0] == "fifo"  # the engine's policy comes last
    assert sweep["misses"][0] == 6 * 1000 * 11 // 2
    assert all(note in page.read_text() for note in notes)


def test_without_the_library_the_way_out_is_named(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from hisparse_sim.simulator.views.report.shell import _library

    _library.cache_clear()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    result = CliRunner().invoke(cli, ["report", str(files[0]), "-o", str(tmp_path / "p.html")])
    assert result.exit_code == 1
    assert "pip install '.[report]' in a clone" in result.output
    assert list(tmp_path.iterdir()) == []


def test_charts_differ_without_colour() -> None:
    assert len({one.shape for one in palette.TABLE}) == len(palette.TABLE)
    assert len({one.marker for one in palette.TABLE}) == len(palette.TABLE)
    for dashes in (vega.DASHES, DASHES):
        assert len({str(dash) for dash in dashes}) == len(dashes) == 10


def test_a_policy_has_one_mark_in_figures_and_in_the_report() -> None:
    """By their corners, or by the name that both libraries have."""
    markers = pytest.importorskip("matplotlib.markers")
    named = {
        "o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "D": "diamond",
        "<": "triangle-left", ">": "triangle-right", "P": "cross",
    }  # fmt: skip
    for one in palette.TABLE:
        if one.marker in named:
            assert one.shape == named[one.marker]
        else:
            corners = markers.MarkerStyle(one.marker).get_path().vertices[:-1]
            assert one.shape.count("L") + 1 == len(corners), one.marker


def test_modes_of_serving_look_like_no_policy() -> None:
    policies = palette.places([*STANDARD, "sieve", "slru", "two-q"]).values()
    assert not set(palette.places(palette.MODES).values()) & set(policies)


@pytest.fixture(scope="module")
def page(files: list[Path], folder: Path) -> Path:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    run("report", *files, "-o", folder / "page.html", "--title", "A <b>small</b> report")
    return folder / "page.html"


def test_the_page_is_whole(page: Path) -> None:
    text = page.read_text()
    assert "A &lt;b&gt;small&lt;/b&gt; report" in text
    for section in "answer misses policies layers cost plan provenance".split():
        assert f'<section id="{section}">' in text
        assert f'href="#{section}"' in text
    assert 'class="synthetic"' not in text
    assert "&quot;host_to_device_ratio&quot;: 8}" in text
    head = text[: text.index('type="application/json"')]
    assert not re.findall(r'(?:src|href)="(?!#)', head)  # nothing to fetch
    ids = re.findall(r' id="([^"]+)"', head)
    assert len(ids) == len(set(ids))


def test_a_page_of_a_plain_sweep_tells_what_is_missing(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    rows, page = tmp_path / "rows.csv", tmp_path / "page.html"
    run("sweep", folder / "small.parquet", "--policy", "lru", "--quiet", "-o", rows)
    run("report", rows, "-o", page)
    text = page.read_text()
    for hint in ("hisparse-sim curve TRACE", "--per-layer -o", "--ratio 4,8", "hisparse-sim plan"):
        assert hint in text


def test_plans_and_serving_runs_are_redone_by_their_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = "--buffer 4096 --ratio 6,8 --concurrency 64 --max-tpot-ms 80 --candidates --quiet"
    run("plan", *plan.split(), "-o", "plan.json")
    serve = "--mode hisparse --concurrency 8,16 --requests 24 --ratio 6 --quiet"
    run("serve", *serve.split(), "-o", "serve.csv")
    options = "--policy lru --buffer 4096 --layer 4 --steps 0:32 --quiet -o rows.csv"
    run("sweep", *options.split())
    paths = [tmp_path / name for name in ("rows.csv", "plan.json", "serve.csv")]
    for before in read_results(paths)[1:]:
        command = findings.command(before)
        assert "--buffer 4096" in command  # serve chose it
        before.path.unlink()
        run(*shlex.split(command)[1:])
        again = read_results([paths[0], before.path])[1]
        # Their order is that of the command line.
        assert again.parameters == before.parameters
        left = [result.rows.drop(columns="parameters") for result in (again, before)]
        pd.testing.assert_frame_equal(*left)


def test_times_are_those_of_the_link_that_the_sweep_named(folder: Path, tmp_path: Path) -> None:
    rows = read_results([folder / "rows.parquet"])[0].rows
    times = data.times_table(rows, {})
    assert times.chosen == 8
    assert times.batches == [1, 8, 32, 64]
    assert "our kernel" in times.source
    slower = tmp_path / "rows.csv"
    options = "--policy lru --buffer 2048,3072 --link pcie4 --batch 3 --quiet"
    run("sweep", folder / "small.parquet", *options.split(), "-o", slower)
    other = read_results([slower])[0]
    found = data.times_table(other.rows, other.parameters)
    assert found.chosen == 3
    assert "the engine's kernel over" in found.source
    assert load_link("pcie4").description in found.source
    # One layer: close to the mean over steps that the sweep itself wrote.
    own = found.table[found.table["batch"] == 3].set_index("buffer")["time"]
    swept = other.rows.set_index("buffer")["swap_in_us"]
    assert own.to_dict() == pytest.approx(swept.to_dict(), rel=0.05)
    both = pd.concat([other.rows, rows], ignore_index=True)
    assert "left out here" in data.times_table(both, {}).source
    with pytest.raises(TraceError, match="cannot look up: unknown"):
        data.times_table(other.rows.assign(link="mine"), {})


def test_a_sweep_without_a_link_says_so(folder: Path) -> None:
    rows = read_results([folder / "rows.parquet"])[0].rows.drop(columns=["link", "swap_in_kernel"])
    times = data.times_table(rows, {})
    assert times.chosen == 1
    assert "The sweep named no link" in times.source


def test_published_figures_and_measurements(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="needs the extra [report]")
    redone, benched = tmp_path / "redone.csv", tmp_path / "bench.json"
    several = tmp_path / "several.json"
    figure = {"what": "a <figure>", "published": 100.0, "ours": 90.0, "error": -0.1}
    told = figure | {"how": "by hand", "gap": "open", "source": "a paper", "sample": "shaped"}
    far = told | {"what": "far", "ours": 200.0, "error": 1.0, "sample": "out of sample"}
    pd.DataFrame([told, far]).to_csv(redone, index=False)
    machine = {"gpu": "NVIDIA H200", "hisparse_sim": "source tree"}
    point = {"batch": 1, "misses": 64, "buffer": 4096, "entry_bytes": 1152, "timer_us": 2.0}
    timed = point | {"sglang_us": 30.0, "native_us": 10.0, "native_samples": [9.0, 11.0]}
    given = {"repeats": 30, "unit": "us"}
    benched.write_text(json.dumps({"machine": machine, "parameters": given, "rows": [timed]}))
    pools = {"what": "pools", "used_bytes": 1}
    both = {"what": "copy", "gpus": 2, "sum_gb_s": 105.8, "us": [5000.0, 5078.0]}
    shared = given | {"host_pool": "shared"}
    measured = {"machine": machine, "parameters": shared, "gpus": [], "rows": [pools, both]}
    several.write_text(json.dumps(measured))
    results = read_results([folder / "rows.parquet", redone, benched, several])
    assert [result.kind for result in results[1:]] == ["reproduce", "bench", "bench of several"]
    page = tmp_path / "page.html"
    write_report(results, page)
    text = page.read_text(encoding="utf-8")
    assert "1 of 2 published figures are reproduced within 20\u00a0%" in text
    assert "of the 1 that shaped no choice in the model, 0" in text
    points = data.unpacked(embedded(text)["tables"]["reproduce"])
    assert points["kind"] == ["shaped", "out of sample"]
    assert points["ours"] == [90, 200]
    assert "a &lt;figure&gt;" in text
    assert ">3.00<" in text  # sglang / native
    assert ">5,078.0<" in text
    assert "NVIDIA H200: bench.json" in text
    commands = [findings.command(result) for result in results[1:]]
    assert commands[0].startswith("hisparse-sim reproduce")
    assert commands[1] == (
        "hisparse-sim gpu bench --batch 1 --misses 64 --buffer 4096 --kv-entry-bytes 1152"
        " --repeats 30 -o bench.json"
    )
    assert commands[2] == (
        "hisparse-sim gpu bench --gpus 2 --repeats 30 --share-host-pool -o several.json"
    )


def test_a_plan_is_read_whole(folder: Path, tmp_path: Path) -> None:
    file, rows = tmp_path / "plan.json", tmp_path / "plan.csv"
    few = ["--buffer", "3072,4096", "--ratio", "4,6", "--concurrency", "64", "--quiet"]
    run("plan", *few, "-o", file)
    run("plan", *few, "-o", rows)
    document = json.loads(file.read_text())
    for path in (file, rows):
        result = read_results([folder / "rows.parquet", path])[1]
        best = findings.choose_plan(result.rows)
        assert best is not None
        assert best["buffer"] == document["recommendation"]["buffer"]
        assert findings.flags(best, {}) == document["recommendation"]["flags"]
        assert f"from {document['recommendation']['break_even']} concurrent" in findings.worth(best)
        words = shlex.split(findings.command(result))
        assert words[words.index("--buffer") + 1] == "3072,4096"
        assert words[words.index("--ratio") + 1] == "4,6"
