"""The figure of a study with prefetch: what stands where, and which tables are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from figure_texts import unreadable
from make_results import run
from make_traces import drift, metadata
from make_traces import write as write_trace
from matplotlib.colors import to_hex

import hisparse_sim as hs
from hisparse_sim.simulator.views import figures


def row(prefetcher: str, budget: int, policy: str, misses: float, copies: float) -> dict[str, Any]:
    return {
        "trace": "t", "provenance": "synthetic", "prefetcher": prefetcher, "budget": budget,
        "policy": policy, "buffer": 64, "misses_per_step": misses, "copies_per_step": copies,
    }  # fmt: skip


ROWS = pd.DataFrame(
    [
        row("none", 0, "lru", 10.0, float("nan")),
        row("none", 0, "clock", 9.0, float("nan")),
        row("none", 0, "belady", 4.0, float("nan")),
        row("slash", 8, "lru", 8.5, 16.0),
        row("slash", 4, "lru", 9.5, 13.0),
        row("oracle", 4, "lru", 6.0, 11.0),
    ]
)


def places(axes: Any) -> dict[str, list[list[float]]]:
    return {mark.get_label(): mark.get_offsets().tolist() for mark in axes.collections}


def test_misses_stand_over_copies_beyond_those_of_lru() -> None:
    axes: Any = figures.exposed_misses(ROWS)
    assert places(axes) == {
        "slash": [[3.0, 9.5], [6.0, 8.5]],  # by budget
        "oracle": [[1.0, 6.0]],
        "LRU": [[0.0, 10.0]],
        "MIN": [[-6.0, 4.0]],
    }
    smaller, larger = axes.collections[0].get_sizes()
    assert smaller < larger
    assert "B = 64" in axes.get_title(loc="left")
    assert "budget 4 to 8" in axes.get_legend().get_title().get_text()
    assert axes.figure.get_supxlabel() == "synthetic trace t"


def test_policies_beside_a_prefetch_are_told_apart_and_shown_alone() -> None:
    beside = ROWS[ROWS["prefetcher"] == "slash"].assign(policy="clock", misses_per_step=7.0)
    axes: Any = figures.exposed_misses(pd.concat([ROWS, beside]))
    assert list(places(axes)) == [
        "slash, LRU",
        "oracle, LRU",
        "slash, CLOCK",
        "LRU",
        "CLOCK",
        "MIN",
    ]
    assert places(axes)["CLOCK"] == [[-1.0, 9.0]]
    look = figures.looks(["slash", "oracle", "lru", "clock"])
    marks = {mark.get_label(): mark for mark in axes.collections}
    for name, prefetcher, policy in (
        ("slash, LRU", "slash", "lru"),
        ("oracle, LRU", "oracle", "lru"),
        ("slash, CLOCK", "slash", "clock"),
    ):
        assert to_hex(marks[name].get_facecolor()[0]).upper() == look[prefetcher].colour
        alone = next(marks[each] for each in ("LRU", "CLOCK") if each.lower() == policy)
        assert np.array_equal(marks[name].get_paths()[0].vertices, alone.get_paths()[0].vertices)


def test_a_prefetcher_looks_the_same_in_every_figure() -> None:
    for rows in (ROWS, ROWS[ROWS["prefetcher"] != "slash"], ROWS[::-1]):
        axes: Any = figures.exposed_misses(rows)
        (mark,) = [each for each in axes.collections if each.get_label() == "oracle"]
        assert to_hex(mark.get_facecolor()[0]).upper() == figures.looks(["oracle"])["oracle"].colour


def test_of_several_traces_all_together_are_drawn() -> None:
    other = ROWS.assign(trace="u", misses_per_step=1.0)
    with pytest.raises(ValueError, match="a figure shows one study"):
        figures.exposed_misses(pd.concat([ROWS, other]))
    axes: Any = figures.exposed_misses(pd.concat([other, ROWS.assign(trace="all")]))
    assert places(axes)["LRU"] == [[0.0, 10.0]]
    assert axes.figure.get_supxlabel() == "synthetic trace u"


@pytest.mark.parametrize("column", ["trace", "prefetcher", "policy", "buffer", "copies_per_step"])
def test_a_file_that_lacks_a_column(tmp_path: Path, column: str) -> None:
    path = tmp_path / "study.csv"
    pd.concat([ROWS, ROWS.assign(buffer=96)]).drop(columns=column).to_csv(path, index=False)
    with pytest.raises(ValueError, match=f"lacks the columns {column}:"):
        figures.plot("prefetch", [path])


def test_other_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="lacks the columns copies_per_step"):
        figures.exposed_misses(ROWS.drop(columns="copies_per_step"))
    two = pd.concat([ROWS, ROWS.assign(buffer=96)])
    with pytest.raises(ValueError, match="one buffer, and the rows are of 64, 96: choose one"):
        figures.exposed_misses(two)
    assert places(figures.exposed_misses(two, buffer=96)) == places(figures.exposed_misses(ROWS))
    lru = (two["prefetcher"] == "none") & (two["policy"] == "lru")
    with pytest.raises(ValueError, match="needs rows with a prefetch, and LRU without one"):
        figures.exposed_misses_by_buffer(two[~(lru & (two["buffer"] == 96))])
    for without in ("none", "slash,oracle"):
        with pytest.raises(ValueError, match="needs rows with a prefetch, and LRU without one"):
            figures.exposed_misses(ROWS[~ROWS["prefetcher"].isin(without.split(","))])


@pytest.mark.parametrize("style", figures.STYLES)
@pytest.mark.parametrize("buffers", [2, 3, 5])
def test_several_buffers_have_a_panel_each(style: str, buffers: int) -> None:
    sizes = [64 + 16 * number for number in range(buffers)]
    rows = pd.concat([ROWS.assign(buffer=size) for size in sizes])
    # The smallest leaves no room for the larger budget.
    rows = rows[(rows["buffer"] > 64) | (rows["budget"] < 8)]
    drawn: Any = figures.exposed_misses_by_buffer(rows, style=style)
    assert unreadable(drawn) == []
    panels = [axes for axes in drawn.axes if axes.axison]
    assert [axes.get_title() for axes in panels] == [f"B = {size}" for size in sizes]
    assert places(panels[0])["slash"] == [[3.0, 9.5]]
    assert places(panels[1]) == places(figures.exposed_misses(ROWS))
    (legend,) = drawn.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["slash", "oracle", "LRU", "MIN"]


def test_a_file_of_study_is_drawn(tmp_path: Path) -> None:
    parts = [drift(layer=layer, steps=30) for layer in range(2)]
    trace = write_trace(tmp_path / "t.parquet", parts, metadata())
    run(
        "study", trace, "--policy", "lru", "--buffer", "16,24", "--budget", "2,4", "--prefetch",
        "slash", "-o", tmp_path / "study.csv",
    )  # fmt: skip
    both: Any = figures.plot("prefetch", [tmp_path / "study.csv"])
    axes: Any = figures.plot("prefetch", [tmp_path / "study.csv"], buffers=[24])
    assert places(both.axes[1]) == places(axes)
    rows = hs.study(trace, "lru", 24, prefetchers="slash", budgets=[2, 4]).rows
    ahead = rows[rows["prefetcher"] == "slash"]
    assert [y for _, y in places(axes)["slash"]] == pytest.approx(ahead["misses_per_step"].tolist())
