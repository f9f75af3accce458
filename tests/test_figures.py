"""Figures show the table they are given: axes, labels, series, and data equal to the table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from make_traces import drift, metadata
from make_traces import write as write_trace

import hisparse_sim as hs
from hisparse_sim.policies import POLICIES
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.views import figures


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
    assert labels(axes) == ["lru", "fifo", "belady"]
    wanted = totals(swept.rows).query("policy == 'fifo'")
    (line,) = [line for line in axes.lines if line.get_label() == "fifo"]
    assert line.get_xdata().tolist() == [8, 16, 24]
    np.testing.assert_allclose(line.get_ydata(), 100 * wanted["miss_rate"])
    assert "%" in axes.get_ylabel()
    assert "slots" in axes.get_xlabel()
    assert axes.figure.get_supxlabel() == "synthetic trace t"


def test_bars_carry_the_excess(swept: hs.Sweep) -> None:
    axes: Any = figures.policy_bars(swept.rows)
    sums = totals(swept.rows)
    assert [len(bars) for bars in axes.containers] == [3, 3, 3]
    for bars, policy in zip(axes.containers, ["lru", "fifo", "belady"], strict=True):
        own = sums[sums["policy"] == policy]
        heights = [bar.get_height() for bar in bars]
        np.testing.assert_allclose(heights, own["misses_per_step"])
    texts = [text.get_text() for text in axes.texts]
    assert texts == [
        f"{100 * value:+.0f}%"
        for policy in ("lru", "fifo", "belady")
        for value in sums[sums["policy"] == policy]["excess_over_min"]
    ]
    assert len({bars[0].get_hatch() for bars in axes.containers[:2]}) == 2
    without: Any = figures.policy_bars(swept.rows.assign(excess_over_min=float("nan")))
    assert "optimum" not in without.get_title(loc="left")
    assert {text.get_text() for text in without.texts} == {""}


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
    with pytest.raises(ValueError, match="missing: mode"):
        figures.throughput(SERVED.drop(columns="mode"))


def test_plans_show_what_runs_and_the_front() -> None:
    axes: Any = figures.plan_pareto(CANDIDATES)
    assert labels(axes) == ["B = 8", "B = 16", "front"]
    points = [points.get_offsets().tolist() for points in axes.collections]
    assert points == [[[40, 100], [50, 150]], [[45, 90]]]
    assert [text.get_text() for text in axes.texts] == ["R 1", "R 2"]
    with pytest.raises(ValueError, match="nothing to draw"):
        figures.plan_pareto(CANDIDATES[CANDIDATES["requests"] == 0])


def test_policies_look_the_same_everywhere_and_differ_without_colour() -> None:
    every = figures.looks(POLICIES)
    assert len({look.colour for look in every.values()}) == 7
    assert len({look.marker for look in every.values()}) == 7
    assert figures.looks(["arc", "mine"])["arc"] == every["arc"]
    assert figures.looks(["arc", "mine"])["mine"] != every["arc"]


@pytest.mark.parametrize(
    "draw",
    [
        lambda rows: figures.miss_ratio(rows),
        lambda rows: figures.policy_bars(rows),
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
