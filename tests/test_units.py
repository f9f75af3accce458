"""Traces that count blocks of tokens: misses are told, nothing is priced as if a block were one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from make_traces import drift, metadata, table, write, write_table

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.gpu_replay.harness.trace_replay import replay_on_gpus, replay_trace
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.simulator.replay.curves import rolling_curves
from hisparse_sim.simulator.serving.costs import SwapIn, add_costs, add_swap_in
from hisparse_sim.simulator.serving.latency import load_link
from hisparse_sim.simulator.serving.misses import layer_misses, read_miss_curve
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.scenario import deployment_of
from hisparse_sim.simulator.views import figures
from hisparse_sim.simulator.views.report import data, read_results
from hisparse_sim.simulator.views.report.facts import of_source
from hisparse_sim.traces import Metadata, TraceError, open_trace, validate
from hisparse_sim.traces.file.units import plural
from hisparse_sim.traces.synth.generator import generate, get_profile, reshaped, synthesize

PARTS = [drift(layer=layer, steps=40) for layer in (0, 3)]
REFUSED = "counts blocks of 4 tokens, and "


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("units") / "blocks.parquet"
    return write(path, PARTS, replace(metadata(), unit="block4"))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("units") / "tokens.parquet", PARTS, metadata())


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.mark.parametrize("unit", ["token", "block2", "block4", "block128", "c4"])
def test_units_that_are_read(unit: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", PARTS, replace(metadata(), unit=unit))
    assert open_trace(path).metadata.unit == unit
    assert validate(path).ok


@pytest.mark.parametrize(
    "unit", ["block", "block0", "block1", "block04", "block-4", "blocks", "Token", "", 4, ["token"]]
)
def test_units_that_are_not(unit: Any, tmp_path: Path) -> None:
    about = replace(metadata(), unit=unit).to_json()
    with pytest.raises(TraceError, match=r"gives unit as .* expected one of token, block4"):
        Metadata.from_json(about)
    found = validate(write_table(tmp_path / "t.parquet", table(PARTS), about))
    assert "gives unit as" in found.problems[0]


def test_words() -> None:
    assert plural("token") == "tokens"
    assert plural("block128") == "blocks of 128 tokens"
    assert plural("c4") == "compressed groups of 4 tokens"


def test_the_profile_qsa_says_that_it_counts_blocks(tmp_path: Path) -> None:
    path = tmp_path / "qsa.parquet"
    profile = reshaped(get_profile("qsa"), steps=5)
    synthesize(path, profile, layers=[3])
    about = open_trace(path).metadata
    assert about.unit == "block4"
    assert about.prompt_len == {"synth-0": 9546}  # 38,185 tokens; the 9,547th block has begun
    assert "position" not in about.notes
    assert "block4: positions, seq_len and top_k are blocks of 4 tokens" in run(
        "trace", "info", path
    ).stdout.replace("\n", " ")
    listed = run("trace", "info", path, "--format", "csv").stdout
    assert listed.splitlines()[0].startswith("trace,provenance,unit,")


def test_the_profile_qsa_misses_what_was_published() -> None:
    """33.564 % at 512 and 7.107 % at 2,048 blocks, over 12 layers from the second step on."""
    profile = get_profile("qsa")
    parts = [generate(profile, layer) for layer in range(profile.num_layers)]
    accesses = sum(len(part.positions) - int(part.offsets[1]) for part in parts)
    for buffer_size, published, within in ((512, 33.564, 0.01), (2048, 7.107, 0.04)):
        misses = sum(
            int(replay_part(part, "lru", buffer_size, "direct").misses[1:].sum()) for part in parts
        )
        assert 100 * misses / accesses == pytest.approx(published, rel=within)


def test_misses_are_those_of_positions(blocks: Path, tokens: Path) -> None:
    here, there = (hs.sweep(path, ["lru", "belady"], [8, 16]).rows for path in (blocks, tokens))
    assert here["misses"].tolist() == there["misses"].tolist()
    assert set(here["unit"]) == {"block4"}
    assert "unit" not in there
    assert set(hs.replay(blocks, "lru", 16).rows["unit"]) == {"block4"}
    both = hs.sweep([blocks, tokens], ["lru"], [16]).rows
    assert both["unit"].tolist() == ["block4", "token"]
    curves = rolling_curves(hs.sweep(blocks, ["lru"], [16]), 10)
    assert set(curves["unit"]) == {"block4"}
    assert set(hs.locality(blocks)["unit"]) == {"block4"}
    assert "unit" not in hs.locality(tokens)


def test_tables_and_figures_say_it_and_show_no_bytes(blocks: Path, tokens: Path) -> None:
    shown = run("sweep", blocks, "--buffer", "16").stdout
    assert "Positions and slots are blocks of 4 tokens\n" in shown
    assert not any(word in shown for word in ("MB", "GB", "Memory", "swap-in", "tokens a request"))
    shown = run("sweep", blocks, tokens, "--buffer", "16").stdout
    assert "Positions and slots are blocks of 4 tokens in blocks\n" in shown
    rows = hs.locality(blocks)
    axes: Any = figures.sinks_and_recent(rows)
    assert axes.get_title(loc="left") == "Recent positions and sinks"
    assert axes.figure.get_supxlabel() == (
        "synthetic trace blocks; positions are blocks of 4 tokens"
    )


@pytest.mark.parametrize(
    "words",
    [
        "sweep FILE --ratio 4",
        "sweep FILE --model glm-5.1",
        "sweep FILE --link h200-pcie5",
        "sweep sample FILE --ratio 4 --model glm-5.1",
        "curve FILE --link h200-pcie5 --window 10 -o c.csv",
        "plan --trace FILE",
        "plan --trace FILE --config {}",
        "serve --trace FILE",
        "reproduce --trace FILE",
        "gpu replay FILE --buffer 16",
        "gpu replay FILE --buffer 16 --gpus 2 --oversubscribe --check",
    ],
)
def test_what_prices_tokens_refuses_blocks(
    words: str, blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "hisparse_sim.gpu_replay.harness.several.find_devices", lambda gpus, over: [0, 0]
    )
    result = run(*(str(blocks) if word == "FILE" else word for word in words.split()))
    assert result.exit_code == 1, result.output
    assert f"{blocks} {REFUSED}" in result.stderr
    assert result.stdout == ""
    assert not list(tmp_path.iterdir())


def test_the_library_refuses_them_too(blocks: Path) -> None:
    swept = hs.sweep(blocks, ["lru"], [16])
    swap_in = SwapIn(load_link("h200-pcie5"), "sglang", 1, 1152)
    trace = open_trace(blocks)
    for price in (
        lambda: add_costs(swept, deployment_of(load_model("glm-5.1")), [4]),
        lambda: add_swap_in(swept, swept.rows, swap_in),
        lambda: rolling_curves(swept, 10, swap_in=swap_in),
        lambda: layer_misses(trace, "lru", 16),
        lambda: replay_trace(trace, "native", buffer=16),
        lambda: replay_on_gpus(trace, "native", [0, 1], buffer=16),
    ):
        with pytest.raises(TraceError, match=REFUSED):
            price()


def test_rows_that_were_written_keep_it(blocks: Path, tokens: Path, tmp_path: Path) -> None:
    """As a miss curve they are refused; a report shows their misses, and prices tokens only."""
    curve = tmp_path / "rows.csv"
    assert run("sweep", blocks, "--buffer", "16", "--quiet", "-o", curve).exit_code == 0
    with pytest.raises(ValueError, match="counts blocks of 4 tokens, and the model that is served"):
        read_miss_curve(curve, "lru", 100.0, 8)
    priced = tmp_path / "priced.csv"
    assert run("sweep", tokens, "--buffer", "16", "--link", "h200-pcie5", "--quiet", "-o",
               priced).exit_code == 0  # fmt: skip
    results = read_results([curve])
    said = of_source(results[0].rows).said
    assert "Positions and slots are blocks of 4 tokens: no cost is computed." in said
    assert "MB" not in said
    assert "default" not in said
    assert data.priced_rows(results[0].rows).empty
    page = tmp_path / "report.html"
    pytest.importorskip("vl_convert")
    assert run("report", curve, "-o", page).exit_code == 0
    text = page.read_text()
    assert "Positions are blocks of 4 tokens; bytes, time and memory are computed" in text
    assert 'id="swap-in"' not in text
    assert run("report", curve, priced, "-o", page).exit_code == 0
    text = page.read_text()
    assert "Positions are blocks of 4 tokens in blocks; bytes, time" in text
    assert 'id="swap-in"' in text
    drafts = tmp_path / "drafts.csv"
    assert run("sweep", tokens, "--draft-tokens", "2", "--policy", "epoch-clock", "--buffer", "16",
               "--model", "glm-5.1", "--quiet", "-o", drafts).exit_code == 0  # fmt: skip
    assert run("report", drafts, "-o", page).exit_code == 0
    text = page.read_text()
    assert "computed for one query a step with all KV on the host, not for tokens" in text
    assert 'id="swap-in"' not in text
    assert "Over the link" not in text
    both = pd.concat([pd.read_csv(path) for path in (curve, priced)], ignore_index=True)
    assert np.array_equal(data.priced_rows(both)["trace"].unique(), ["tokens"])
