"""Every figure can be read, whatever is drawn: no text is cut or covered, nothing vanishes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from figure_texts import unreadable

import hisparse_sim as hs
from hisparse_sim.policies import STANDARD
from hisparse_sim.simulator.replay.curves import rolling_curves
from hisparse_sim.simulator.views import figures
from hisparse_sim.simulator.views.figures.style import shortened, spaced
from hisparse_sim.traces.synth.generator import get_profile, reshaped, synthesize

MIXES = [
    *[[each] for each in ((64, 1), (64, 2), (64, 30), (448, 1), (448, 6), (2048, 2))],
    [(128, 2), (2048, 6), (448, 1)],
    [(64, 1), (448, 1)],
    [(64, 2), (64, 30)],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("figures")


def made(folder: Path, top_k: int, layers: int) -> Path:
    path = folder / f"k{top_k}-l{layers}.parquet"
    if not path.exists():
        profile = reshaped(get_profile("glm-5.1"), prompt_len=12 * top_k, top_k=top_k, steps=24)
        synthesize(path, profile, layers=list(range(layers)))
    return path


@pytest.fixture(params=MIXES, ids=lambda mix: "+".join(f"k{k}-l{n}" for k, n in mix))
def mix(request: Any, folder: Path) -> pd.DataFrame:
    return hs.locality([made(folder, *each) for each in request.param])


def panels() -> Iterator[Callable[..., Any]]:
    yield from (figures.overlap, figures.reuse_distance, figures.working_set)
    yield from (figures.cross_layer_overlap, figures.sinks_and_recent, figures.drift)


def test_locality_can_be_read(mix: pd.DataFrame) -> None:
    assert unreadable(figures.locality_page(mix)) == []
    for draw in panels():
        if draw is figures.cross_layer_overlap and mix["layer"].nunique() == 1:
            continue
        assert unreadable(draw(mix).figure) == [], draw.__name__


def test_lru_curves_begin_at_the_top_k_of_their_trace(folder: Path, mix: pd.DataFrame) -> None:
    axes: Any = figures.reuse_distance(mix)
    names = list(dict.fromkeys(mix["trace"]))
    top_k = [hs.open_trace(folder / f"{name}.parquet").metadata.top_k for name in names]
    marks = [line.get_xdata() for line in axes.lines if line.get_linestyle() == "None"]
    assert [list(each) for each in marks] == [[each, 2 * each, 3 * each] for each in top_k]
    lines = [line.get_xdata() for line in axes.lines if line.get_linestyle() != "None"]
    assert [min(line) for line in lines] == top_k
    left, right = axes.get_xlim()
    assert left == (min(top_k) // 8 if len(names) == 1 else min(top_k))
    assert right >= 3 * max(top_k)
    if len(names) == 1:
        assert [text.get_text().split(":")[0] for text in axes.texts] == [
            f"{times * top_k[0]:,}" for times in (1, 2, 3)
        ]


def test_the_command_and_the_library_draw_alike(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from hisparse_sim.cli import cli

    drawn: list[Any] = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    paths = [made(folder, 128, 2), made(folder, 448, 1)]
    words = ["trace", "info", *map(str, paths), "--plot", str(folder / "p.png")]
    assert CliRunner().invoke(cli, words).exit_code == 0
    page = figures.locality_page(hs.locality(paths))
    for ours, other in zip(page.axes, drawn[0].axes, strict=True):
        assert ours.get_xlim() == other.get_xlim()
        for line, same in zip(ours.lines, other.lines, strict=True):
            assert np.array_equal(line.get_xydata(), same.get_xydata(), equal_nan=True)


def test_no_trace_vanishes(folder: Path) -> None:
    """A line of one point has a marker, and a trace without any is named."""
    rows = hs.locality([made(folder, *each) for each in ((128, 2), (2048, 6), (448, 1))])
    for draw in panels():
        axes: Any = draw(rows)
        shown = {text.get_text() for text in axes.get_legend().get_texts()}
        said = " ".join(text.get_text() for text in axes.texts)
        for name in ("k128-l2", "k2048-l6", "k448-l1"):
            assert name in shown or name in said, draw.__name__
        for line in axes.lines:
            assert len(line.get_xdata()) > 1 or line.get_marker() != "None", draw.__name__
    assert "k448-l1 has a single layer" in [
        text.get_text() for text in figures.cross_layer_overlap(rows).texts
    ]
    alone = hs.locality([made(folder, 64, 1), made(folder, 448, 1)])
    with pytest.raises(ValueError, match="k64-l1 has a single layer, k448-l1 has a single layer"):
        figures.cross_layer_overlap(alone)


def test_no_marker_is_cut(mix: pd.DataFrame) -> None:
    for draw in panels():
        if draw is figures.cross_layer_overlap and mix["layer"].nunique() == 1:
            continue
        axes: Any = draw(mix)
        for line in axes.lines:
            assert max(line.get_ydata()) < axes.get_ylim()[1], draw.__name__


@pytest.mark.parametrize(
    "sizes", [[64], [64, 128, 192], [64, 80, 96, 112, 128, 160, 192, 512, 768]]
)
def test_misses_can_be_read(folder: Path, sizes: list[int]) -> None:
    swept = hs.sweep(made(folder, 64, 2), STANDARD, sizes)
    few = swept.rows[swept.rows["policy"].isin(["lru", "belady"])]
    for rows in (swept.rows, few, few[few["policy"] == "lru"]):
        assert unreadable(figures.miss_ratio(rows).figure) == []
        if len(rows) <= 21:
            assert unreadable(figures.policy_dots(rows).figure) == []
    for layers in (1, 2, 30):
        swept = hs.sweep(made(folder, 64, layers), ["lru", "belady"], sizes)
        curves = rolling_curves(swept, 5)
        axes: Any = figures.rolling_misses(curves, window=5, provenance="synthetic trace t")
        assert unreadable(axes.figure) == []
        titled = axes.get_legend().get_title().get_text()
        assert (titled == "one layer") == (layers == 1)
        assert bool(axes.collections) == (layers > 1 and 2 * len(sizes) <= 6)
        axes = figures.layer_step_map(swept.steps, policy="lru", buffer=64)
        assert unreadable(axes.figure) == []


def test_costs_can_be_read() -> None:
    loads = [1, 2, 8, 10, 12, 16, 32, 64, 240, 256]
    served = pd.DataFrame(
        [
            {"mode": mode, "load": str(load), "tokens_per_s": 10.0 * load}
            for mode in ("baseline", "hisparse")
            for load in loads
        ]
    )
    for rows in (served, served[served["load"] == "8"]):
        assert unreadable(figures.throughput(rows).figure) == []
    points = pd.DataFrame(
        {"batch": [1, 1, 64, 64], "misses": [0, 1024] * 2, "measured_us": [20.0, 120, 22, 1500]}
    )
    assert unreadable(figures.latency(points.assign(predicted_us=1.0)).figure) == []
    candidates = pd.DataFrame(
        [
            {
                "buffer": buffer, "ratio": ratio, "requests": 8, "host_gb": 100.0 * ratio,
                "tokens_per_s": 500.0 + 60 * ratio, "tpot_ms": 30.0 + 2 * ratio + buffer / 4096,
            }
            for buffer in (2048, 4096, 8192) for ratio in (1, 4, 8, 20)
        ]
    )  # fmt: skip
    assert unreadable(figures.plan_pareto(candidates).figure) == []


def test_labels_that_would_touch_are_left_out() -> None:
    places = [64.0, 80, 160, 764, 768]
    assert spaced(places, list("abcde")) == ["a", "", "c", "", "e"]
    assert spaced([5.0], ["a"]) == ["a"]


def test_long_names_leave_room_for_the_figure(folder: Path) -> None:
    rows = hs.locality(made(folder, 64, 2))
    long = [rows.assign(trace="/somewhere/" + 40 * f"{number}long" + "end") for number in (1, 2)]
    both = pd.concat(long, ignore_index=True)
    for draw in panels():
        assert draw(both).get_legend().get_texts()[0].get_text().startswith("…")
        assert unreadable(draw(both).figure) == []
    assert unreadable(figures.locality_page(both)) == []
    assert len(shortened(40 * "long")) == 36
