"""Figures show the table they are given: axes, labels, series, and data equal to the table."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from figure_texts import unreadable
from make_results import run
from make_traces import drift, metadata
from make_traces import write as write_trace

import hisparse_sim as hs
from hisparse_sim.policies import POLICIES, STANDARD
from hisparse_sim.simulator.prefetch import PREFETCHERS
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.views import figures, palette
from hisparse_sim.traces import TraceError


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> hs.Sweep:
    parts = [drift(layer=layer, steps=40) for layer in (0, 3)]
    path = write_trace(tmp_path_factory.mktemp("figures") / "t.parquet", parts, metadata())
    return hs.sweep(path, ["lru", "fifo", "belady"], [8, 16, 24], per_layer=True)


POINTS = pd.DataFrame(
    {
        "batch": [1, 1, 8, 8],
        "misses": [0, 100, 0, 100],
        "measured_us": [20.0, np.nan, 22.0, 90.0],
        "predicted_us": [20.0, 30.0, 21.0, 88.0],
    }
)
SERVED = pd.DataFrame(
    {
        "mode": ["baseline", "baseline", "hisparse", "hisparse", "hisparse"],
        "load": ["8", "16", "16", "8", "2/s"],
        "tokens_per_s": [10.0, 20.0, 40.0, 15.0, 99.0],
        "trace": "t",
        "provenance": "synthetic",
    }
)
CANDIDATES = pd.DataFrame(
    {
        "buffer": [8, 8, 16, 16],
        "ratio": [1, 2, 1, 2],
        "requests": [4, 8, 3, 0],
        "tokens_per_s": [100.0, 150.0, 90.0, 0.0],
        "tpot_ms": [40.0, 50.0, 45.0, np.nan],
        "host_gb": [10.0, 20.0, 10.0, 20.0],
    }
)


def labels(axes: Any) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def test_totals_count_nothing_twice(swept: hs.Sweep) -> None:
    rows = swept.rows
    twice = pd.concat([rows.assign(host_to_device_ratio=ratio) for ratio in (2, 8)])
    pd.testing.assert_frame_equal(totals(rows), totals(twice))
    whole = hs.sweep(swept.pieces[0].trace, ["lru", "fifo", "belady"], [8, 16, 24]).rows
    found = totals(rows).merge(whole, on=["policy", "buffer"], suffixes=("", "_whole"))
    assert len(found) == 9
    for column in (
        "steps",
        "accesses",
        "misses",
        "miss_rate",
        "misses_per_step",
        "excess_over_min",
    ):
        np.testing.assert_allclose(found[column], found[f"{column}_whole"])
    with pytest.raises(ValueError, match="lack accesses"):
        totals(rows.drop(columns="accesses"))


def test_miss_ratio_has_a_line_per_policy(swept: hs.Sweep) -> None:
    axes: Any = figures.miss_ratio(swept.rows)
    assert labels(axes) == ["LRU", "FIFO", "MIN"]
    wanted = totals(swept.rows).query("policy == 'fifo'")
    (line,) = [line for line in axes.lines if line.get_label() == "FIFO"]
    assert line.get_xdata().tolist() == [8, 16, 24]
    np.testing.assert_allclose(line.get_ydata(), 100 * wanted["miss_rate"])
    assert "%" in axes.get_ylabel()
    assert "slots" in axes.get_xlabel()
    assert axes.figure.get_supxlabel() == "synthetic trace t"


def test_many_sizes_have_ticks_at_powers_of_two(swept: hs.Sweep) -> None:
    few: Any = figures.miss_ratio(swept.rows)
    assert few.get_xticks().tolist() == [8, 16, 24]
    own = swept.rows[swept.rows["buffer"] == 8]
    sizes = [own.assign(buffer=size) for size in range(10, 67, 4)]
    many: Any = figures.miss_ratio(pd.concat(sizes))
    assert many.get_xticks().tolist() == [16, 32, 64]


def test_a_legend_of_curves_names_policies_and_buffers_once(swept: hs.Sweep) -> None:
    trace = swept.pieces[0].trace
    curves = hs.curve(trace, ["lru", "fifo", "belady"], [8, 16], window=4).rows
    axes: Any = figures.rolling_misses(curves)
    assert labels(axes) == ["LRU", "FIFO", "MIN", "B = 8", "B = 16"]
    means = [line for line in axes.lines if len(line.get_xdata()) and line.get_linewidth() > 1]
    assert len({(line.get_color(), line.get_linestyle()) for line in means}) == len(means) == 6
    alone: Any = figures.rolling_misses(curves[curves["policy"] == "lru"])
    assert labels(alone) == ["B = 8", "B = 16"]


def test_a_file_of_curves_without_layers(swept: hs.Sweep, tmp_path: Path) -> None:
    rows = hs.curve(swept.pieces[0].trace, ["lru"], [8], window=4).rows
    rows.drop(columns="layers").to_csv(tmp_path / "curve.csv", index=False)
    with pytest.raises(ValueError, match="the figure of curves lacks the column layers"):
        figures.plot("curve", [tmp_path / "curve.csv"])


def test_dots_carry_the_excess_and_the_spread_of_layers(swept: hs.Sweep) -> None:
    axes: Any = figures.policy_dots(swept.rows)
    sums = totals(swept.rows)
    layers = totals(swept.rows, ("layer", "policy", "buffer"))
    assert labels(axes) == ["LRU", "FIFO", "MIN"]
    dots = [line for line in axes.lines if line.get_linestyle() == "None"]
    policies = ["lru", "fifo", "belady"]
    lines, thick = axes.collections[::2], axes.collections[1::2]
    for line, spans, half, policy in zip(dots, lines, thick, policies, strict=True):
        own = sums[sums["policy"] == policy]
        np.testing.assert_allclose(line.get_ydata(), own["misses_per_step"])
        ends = np.array([segment[:, 1] for segment in spans.get_segments()])
        of = layers[layers["policy"] == policy].groupby("buffer")["misses_per_step"]
        np.testing.assert_allclose(ends, np.column_stack([of.min(), of.max()]))
        middle = np.array([segment[:, 1] for segment in half.get_segments()])
        np.testing.assert_allclose(middle, np.column_stack([of.quantile(0.25), of.quantile(0.75)]))
    texts = [text.get_text() for text in axes.texts]
    assert texts == [
        f"{100 * value:+.0f}%"
        for policy in ("lru", "fifo", "belady")
        for value in sums[sums["policy"] == policy]["excess_over_min"]
    ]
    assert len({line.get_marker() for line in dots}) == 3
    assert "lines: layers" in axes.get_legend().get_title().get_text()
    assert "over MIN" in axes.get_legend().get_title().get_text()
    without: Any = figures.policy_dots(swept.rows.assign(excess_over_min=float("nan")))
    assert "over MIN" not in without.get_legend().get_title().get_text()
    assert {text.get_text() for text in without.texts} == {""}
    whole = hs.sweep(swept.pieces[0].trace, ["lru"], [8, 16, 24]).rows
    (lines,) = figures.policy_dots(whole).collections
    ends = np.array([segment[:, 1] for segment in lines.get_segments()])
    np.testing.assert_allclose(ends, whole[["p50", "p95"]])


def test_the_heat_map_holds_every_step(swept: hs.Sweep) -> None:
    axes: Any = figures.layer_step_map(swept.steps, policy="lru", buffer=16, provenance="p")
    steps = swept.steps.query("policy == 'lru' and buffer == 16")
    shown = axes.images[0].get_array()
    assert shown is not None
    for row, layer in enumerate((0, 3)):
        assert shown[row].tolist() == steps[steps["layer"] == layer]["misses"].tolist()
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "3"]
    assert axes.get_xlabel() == "decode step"
    with pytest.raises(ValueError, match="one policy; choose one of these: lru, fifo, belady"):
        figures.layer_step_map(swept.steps, buffer=16)
    with pytest.raises(ValueError, match="choose one of these: none"):
        figures.layer_step_map(swept.steps, policy="arc")


def test_the_heat_map_averages_many_steps() -> None:
    steps = pd.DataFrame(
        {"layer": 0, "policy": "lru", "buffer": 8, "step": range(600), "misses": range(600)}
    )
    axes: Any = figures.layer_step_map(steps)
    shown = axes.images[0].get_array()
    assert shown is not None
    assert shown.shape == (1, 200)
    assert shown[0, 1] == 4  # the mean of steps 3, 4 and 5
    assert axes.get_xlabel() == "decode step (means of 3)"


def test_latency_joins_predictions_and_marks_measurements() -> None:
    axes: Any = figures.latency(POINTS)
    assert labels(axes) == ["1 request", "8 requests"]
    drawn = [line.get_ydata().tolist() for line in axes.lines]
    assert drawn == [[], [20.0, 30.0], [20.0], [], [21.0, 88.0], [22.0, 90.0]]
    assert "µs" in axes.get_ylabel()
    with pytest.raises(ValueError, match="measured_us or predicted_us"):
        figures.latency(POINTS[["batch", "misses"]])


def test_throughput_draws_closed_loops() -> None:
    axes: Any = figures.throughput(SERVED)
    lines = {
        line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist())
        for line in axes.lines
    }
    assert lines == {"baseline": ([8, 16], [10, 20]), "hisparse": ([8, 16], [15, 40])}
    assert axes.get_ylabel() == "output tokens per second"
    with pytest.raises(ValueError, match="`concurrencies`"):
        figures.throughput(SERVED[SERVED["load"] == "2/s"])
    with pytest.raises(ValueError, match="lacks the columns mode"):
        figures.throughput(SERVED.drop(columns="mode"))


def test_plans_show_what_runs_and_the_front() -> None:
    axes: Any = figures.plan_pareto(CANDIDATES)
    assert labels(axes) == ["B = 8", "B = 16", "front"]
    points = [points.get_offsets().tolist() for points in axes.collections]
    assert points == [[[40, 100], [50, 150]], [[45, 90]]]
    assert [text.get_text() for text in axes.texts] == ["R 1", "R 2"]
    marked: Any = figures.plan_pareto(CANDIDATES.assign(best=[False, False, True, False]))
    assert labels(marked) == ["B = 8", "B = 16", "front", "recommended"]
    assert marked.collections[-1].get_offsets().tolist() == [[45, 90]]
    assert sorted(text.get_text() for text in marked.texts) == ["R 1", "R 1", "R 2"]
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.plan_pareto(CANDIDATES[CANDIDATES["requests"] == 0])


def test_policies_look_the_same_everywhere_and_differ_without_colour() -> None:
    alone = figures.looks(STANDARD)
    assert len({look.colour for look in alone.values()}) == len(STANDARD)
    assert len({look.marker for look in alone.values()}) == len(STANDARD)
    every = figures.looks([*POLICIES, *PREFETCHERS])
    for name, look in every.items():
        for beside in ((), ("lru", "mine"), tuple(POLICIES), tuple(reversed(PREFETCHERS))):
            assert figures.looks([*beside, name])[name] == look
    assert len({(look.colour, look.marker) for look in every.values()}) == len(every)
    assert len({(look.marker, str(look.dash)) for look in every.values()}) == len(every)
    for name, look in every.items():  # nothing looks like MIN or LRU
        for fixed in ("belady", "lru"):
            assert name == fixed or look.colour != alone[fixed].colour
    assert alone["belady"].colour == "#000000"
    own = figures.looks(["lru", "slru", "mine", "mine:a=1", "decayed-rank"])
    assert len({look.colour for look in own.values()}) == len(own)
    assert len({look.marker for look in own.values()}) == len(own)
    for name in ("mine", "mine:a=1"):  # also where all colours are taken
        assert figures.looks([*POLICIES, name])[name] not in every.values()
    many = [f"p{number}" for number in range(30)]
    assert list(figures.looks(many)) == many  # colours come twice


LATENCIES = SERVED.assign(
    tpot_p50_ms=[10.0, 20, 30, 15, 0],
    tpot_p95_ms=[11.0, 22, 33, 16, 0],
    tpot_p99_ms=[12.0, 24, 36, 17, 0],
    prefill=0.1,
    decode_attention=0.2,
    decode_rest=0.3,
    swap_in=0.15,
    idle=0.25,
)


def test_percentiles_reach_from_the_median_to_the_99th() -> None:
    axes: Any = figures.percentiles(LATENCIES, "tpot")
    lines = {line.get_label(): line for line in axes.lines if line.get_label()[0] != "_"}
    assert {name: line.get_ydata().tolist() for name, line in lines.items()} == {
        "baseline": [10, 20],
        "hisparse": [15, 30],
    }
    reach = [[segment[:, 1].tolist() for segment in one.get_segments()] for one in axes.collections]
    assert reach == [[[10, 12], [20, 24]], [[15, 17], [30, 36]]]
    with pytest.raises(ValueError, match="lacks the columns ttft_p50_s"):
        figures.percentiles(LATENCIES, "ttft")
    with pytest.raises(ValueError, match="unknown latency 'itl'; known: tpot, ttft"):
        figures.percentiles(LATENCIES, "itl")


def test_shares_of_the_time_add_up() -> None:
    axes: Any = figures.time_shares(LATENCIES)
    assert labels(axes) == list(palette.PARTS)
    ends = [bars[0].get_x() + bars[0].get_width() for bars in axes.containers]
    np.testing.assert_allclose(ends, [10, 30, 60, 75, 100])
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["8, baseline", "8, hisparse", "16, baseline", "16, hisparse"]


def test_min_is_black_and_modes_keep_their_colours() -> None:
    assert figures.looks(["belady"])["belady"].colour == "#000000"
    for modes in (["baseline", "hisparse"], ["hisparse", "zero-cost", "baseline"]):
        look = figures.looks(modes)
        assert look["hisparse"].colour == palette.TABLE[palette.OF_MIN + 1].light
        assert look["baseline"].colour == palette.TABLE[palette.OF_MIN + 2].light


@pytest.mark.parametrize(("style", "width"), [("paper", 3.35), ("paper-wide", 7.0)])
def test_figures_for_a_paper(style: str, width: float, swept: hs.Sweep, tmp_path: Path) -> None:
    """A column wide, without title and corner, fonts embedded as TrueType; the file says where its
    data are from."""
    for draw in (figures.miss_ratio, figures.policy_dots):
        axes: Any = draw(swept.rows, style=style)
        assert axes.figure.get_size_inches()[0] == width
        assert axes.get_title(loc="left") == ""
        assert axes.figure.get_supxlabel() == ""
        assert unreadable(axes.figure) == []
        figures.save(axes, tmp_path / "figure.pdf")
        text = (tmp_path / "figure.pdf").read_bytes()
        assert b"/Type3" not in text
        assert b"/CIDFontType2" in text
        assert b"/Subject (synthetic trace t)" in text
    with pytest.raises(
        ValueError, match="unknown style 'poster'; known: screen, paper, paper-wide"
    ):
        figures.miss_ratio(swept.rows, style="poster")


def test_files_say_where_their_data_are_from(swept: hs.Sweep, tmp_path: Path) -> None:
    for suffix in ("svg", "png", "pdf"):
        figures.save(figures.miss_ratio(swept.rows), str(tmp_path / f"figure.{suffix}"))
        text = (tmp_path / f"figure.{suffix}").read_bytes()
        assert b"synthetic trace t" in text
        assert b"hisparse-sim " + version("hisparse-sim").encode() in text


def test_results_are_drawn_by_kind(swept: hs.Sweep, tmp_path: Path) -> None:
    swept.rows.to_csv(tmp_path / "rows.csv", index=False)
    LATENCIES.to_csv(tmp_path / "served.csv", index=False)
    run("plot", "policies", tmp_path / "rows.csv", "--paper", "-o", tmp_path / "p.svg")
    assert (tmp_path / "p.svg").stat().st_size > 1000
    for kind, name in (("mrc", "rows"), ("tpot", "served"), ("shares", "served")):
        axes: Any = figures.plot(kind, [tmp_path / f"{name}.csv"])
        assert labels(axes)
    with pytest.raises(TraceError, match="no rows of plan; a figure of pareto needs what"):
        figures.plot("pareto", [tmp_path / "rows.csv"])
    with pytest.raises(ValueError, match="unknown kind 'pie'; known: mrc, policies"):
        figures.plot("pie", [tmp_path / "rows.csv"])


@pytest.mark.parametrize(
    "draw",
    [
        lambda rows: figures.miss_ratio(rows),
        lambda rows: figures.policy_dots(rows),
        lambda rows: figures.latency(POINTS, provenance="synthetic"),
        lambda rows: figures.throughput(SERVED),
        lambda rows: figures.plan_pareto(CANDIDATES.assign(trace="t", provenance="synthetic")),
    ],
)
def test_every_figure_can_be_saved_and_marks_synthetic_traces(
    draw: Callable[[pd.DataFrame], Any], swept: hs.Sweep, tmp_path: Path
) -> None:
    axes = draw(swept.rows)
    corner = axes.figure._supxlabel
    assert "synthetic" in corner.get_text()
    assert corner.get_weight() == "bold"
    figures.save(axes, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 1000
    assert axes.get_title(loc="left")
