"""The figures of policies in a study: what stands where, and which tables are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from figure_texts import unreadable
from make_results import run
from make_traces import drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.policies import POLICIES
from hisparse_sim.simulator.views import figures

SIZES = [2048, 3072, 4096, 6144, 8192]


def row(policy: str, buffer: int, misses: float, closed: float, trace: str = "t") -> dict[str, Any]:
    """Of 1 % of the gap to either side, and as much of the misses."""
    return {
        "trace": trace, "provenance": "synthetic", "prefetcher": "none", "budget": 0,
        "policy": policy, "buffer": buffer, "miss_rate": misses / 100,
        "miss_rate_low": misses / 100 - 0.01, "miss_rate_high": misses / 100 + 0.01,
        "gap_closed": closed / 100, "gap_closed_low": closed / 100 - 0.01,
        "gap_closed_high": closed / 100 + 0.01,
    }  # fmt: skip


ROWS = pd.DataFrame(
    [
        made
        for at, size in enumerate((64, 96))
        for made in (
            row("lru", size, 10 - 5 * at, 0),
            row("fast-slow", size, 8 - 4 * at, 40),
            row("fifo", size, 12 - 5 * at, -40),
            row("belady", size, 5 - 2.5 * at, 100),
        )
    ]
)


def every_policy(sizes: list[int]) -> pd.DataFrame:
    draws = np.random.default_rng(1)
    return pd.DataFrame(
        [
            row(policy, size, 10000 / size + draws.uniform(1, 4), draws.uniform(-100, 40))
            for size in sizes
            for policy in POLICIES
        ]
    )


def names(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels()]


def places(dots: Any) -> list[float]:
    return [float(dot.get_xdata()[0]) for dot in dots]


def bars(axes: Any, level: bool) -> list[list[float]]:
    """The two ends of every bar, level or upright."""
    (lines,) = axes.collections
    return [segment[:, 0 if level else 1].tolist() for segment in lines.get_segments()]


def test_at_one_buffer_a_dot_stands_in_its_interval() -> None:
    drawn: Any = figures.study_dots(ROWS[ROWS["buffer"] == 64])
    (axes,) = drawn.axes
    assert names(axes) == ["MIN", "fast-slow", "LRU", "FIFO"]
    line, *dots = axes.lines
    assert places(dots) == pytest.approx([5, 8, 10, 12])
    assert [dot.get_ydata().tolist() for dot in dots] == [[0], [1], [2], [3]]
    look = figures.looks(["belady", "fast-slow", "lru", "fifo"])
    for dot, own in zip(dots, look.values(), strict=True):  # as in all other figures
        assert (dot.get_color(), dot.get_marker()) == (own.colour, own.marker)
    assert axes.get_xlabel().endswith("\ndashed line: LRU")
    assert set(line.get_xdata()) == {10}  # LRU
    for (low, high), value in zip(bars(axes, True), (5, 8, 10, 12), strict=True):
        assert (low, high) == pytest.approx((value - 1, value + 1))
    low, high = axes.get_ylim()
    assert low > high  # the best above
    assert axes.get_title() == "B = 64"
    assert drawn.get_supxlabel() == "synthetic trace t"


def test_of_the_gap_lru_and_min_are_the_ends() -> None:
    drawn: Any = figures.study_dots(ROWS, measure="gap")
    assert names(drawn.axes[0]) == ["fast-slow", "FIFO"]
    for axes, size in zip(drawn.axes, (64, 96), strict=True):
        line, *dots = axes.lines
        assert places(dots) == pytest.approx([40, -40])
        assert set(line.get_xdata()) == {0}
        assert bars(axes, True)[0] == pytest.approx([39, 41])
        assert axes.get_title() == f"B = {size}"
    assert drawn.axes[1].get_xlabel().endswith("\ndashed line: LRU; order: mean rank")


def test_over_buffers_every_policy_has_a_line() -> None:
    axes: Any = figures.study_lines(ROWS)
    lines = {line.get_label(): line for line in axes.lines}
    assert list(lines) == ["LRU", "fast-slow", "FIFO", "MIN"]
    assert lines["fast-slow"].get_xdata().tolist() == pytest.approx([64, 96], rel=0.011)
    assert lines["fast-slow"].get_ydata().tolist() == pytest.approx([8, 4])
    assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 4
    assert [segment[:, 1].tolist() for segment in axes.collections[1].get_segments()] == [
        pytest.approx([7, 9]),
        pytest.approx([3, 5]),
    ]
    assert "intervals" in axes.get_title(loc="left")
    gap: Any = figures.study_lines(ROWS, measure="gap")
    lru, first, second = gap.lines
    assert lru.get_label() == "LRU"
    assert (first.get_xdata() < second.get_xdata()).all()  # intervals do not cover each other
    for line in (first, second):
        assert line.get_xdata().tolist() == pytest.approx([64, 96], rel=0.011)
    assert [segment[:, 1].tolist() for segment in gap.collections[0].get_segments()] == [
        pytest.approx([39, 41])
    ] * 2


def test_more_lines_than_few_stand_at_their_buffers_without_intervals() -> None:
    rows = pd.concat([ROWS, ROWS.replace({"fifo": "mq", "fast-slow": "sieve"})])
    rows = rows.drop_duplicates(["policy", "buffer"])
    for measure in ("misses", "gap"):
        axes: Any = figures.study_lines(
            rows if measure == "misses" else every_policy([64, 96])[:40], measure=measure
        )
        assert len(axes.collections) == 0
        assert "intervals" not in axes.get_title(loc="left")
        for line in axes.lines[1:]:
            assert line.get_xdata().tolist()[0] == 64


def test_shares_far_below_lru_are_counted_and_not_drawn() -> None:
    far = [row("arc", size, 20, -6000) for size in (64, 96)] + [row("mq", 64, 8, 30)]
    rows = pd.concat([ROWS, pd.DataFrame(far)])
    drawn: Any = figures.study_dots(rows, measure="gap")
    axes: Any = figures.study_lines(rows, measure="gap")
    for low, texts in (
        *((panel.get_xlim()[0], panel.texts) for panel in drawn.axes),
        (axes.get_ylim()[0], axes.texts),
    ):
        assert -130 < low < -100
        assert any(f"{number} below -100 %" in text.get_text() for text in texts for number in "12")
    near = pd.concat([ROWS, pd.DataFrame([row("mq", size, 20, -180) for size in (64, 96)])])
    for each in (ROWS, near):
        assert not figures.study_dots(each, measure="gap").axes[0].texts
    # Where most are far off, half of them are shown.
    most = [row(name, 64, 8, -closed) for name, closed in (("mq", 500), ("arc", 700), ("lfu", 900))]
    drawn = figures.study_dots(pd.DataFrame(most), measure="gap")
    assert [text.get_text() for text in drawn.axes[0].texts] == ["1 below -700 %"]


def test_long_names_keep_both_ends_and_leave_room() -> None:
    long = "w-tinylfu:window=0.4,protected=0.5,sample=1.5"
    rows = ROWS.replace({"fast-slow": long})
    for style, most in (("screen", 36), ("paper", 20)):
        drawn: Any = figures.study_dots(rows, style=style)
        (name,) = [each for each in names(drawn.axes[0]) if "…" in each]
        assert len(name) == most
        assert long.startswith(name.split("…")[0])
        assert long.endswith(name.split("…")[1])
        assert unreadable(drawn) == []
        labels = [line.get_label() for line in figures.study_lines(rows, style=style).lines]
        assert name in labels
    two = rows.replace({"fifo": "lhd:reach=0.5,period=2.0,other=3.0"})
    alike = rows.replace({"fifo": long.replace("protected=0.5", "protected=0.6")})
    for each, cut in ((two, True), (alike, False)):
        drawn = figures.study_dots(each, style="paper")
        assert any("…" in name for name in names(drawn.axes[0])) == cut


@pytest.mark.parametrize("measure", ["misses", "gap"])
@pytest.mark.parametrize("style", figures.STYLES)
def test_every_policy_can_be_read(style: str, measure: str) -> None:
    for sizes in (SIZES[2:3], SIZES[1:4], SIZES):
        rows = every_policy(sizes)
        few = rows[rows["policy"].isin(["lru", "belady", "mq", "sieve", "fast-slow", "2q"])]
        if len(sizes) > 1:
            axes: Any = figures.study_lines(few, measure=measure, style=style)
            assert unreadable(axes.figure) == []
        assert unreadable(figures.study_dots(few[few["buffer"] == sizes[0]], style=style)) == []
        if (style, len(sizes)) == ("paper", 5):
            with pytest.raises(ValueError, match="at 5 buffers take more panels than the 3"):
                figures.study_dots(rows, measure=measure, style=style)
            continue
        drawn: Any = figures.study_dots(rows, measure=measure, style=style)
        assert unreadable(drawn) == []
        assert len(names(drawn.axes[0])) == len(POLICIES) - 2 * (measure == "gap")


def test_a_file_is_drawn_as_it_holds(tmp_path: Path) -> None:
    """Lines of few policies over several buffers, rows of more, dots at one buffer; what has no
    interval has no bar."""
    kinds = {}
    for name, rows in (("few", ROWS), ("many", every_policy(SIZES))):
        path = tmp_path / f"{name}.parquet"
        rows.to_parquet(path)
        kinds[name] = figures.plot("study", [path])
    assert type(kinds["few"]).__name__ == "Axes"
    assert len(kinds["many"].axes) == 5  # type: ignore[union-attr]
    one: Any = figures.plot("gap", [tmp_path / "few.parquet"], buffers=[96])
    assert [axes.get_title() for axes in one.axes] == ["B = 96"]
    with pytest.raises(ValueError, match="no rows of `buffers` 128; there are 64, 96"):
        figures.plot("study", [tmp_path / "few.parquet"], buffers=[96, 128])
    ROWS.drop(columns=["gap_closed_low", "gap_closed_high"]).to_csv(tmp_path / "old.csv")
    old: Any = figures.plot("gap", [tmp_path / "old.csv"], buffers=[64])
    assert not any(len(bar) for bar in old.axes[0].collections[0].get_segments())
    assert places(old.axes[0].lines[1:]) == pytest.approx([40, -40])


def test_other_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lacks the columns miss_rate"):
        figures.study_lines(ROWS.drop(columns="miss_rate"))
    with pytest.raises(ValueError, match="shows one study, and these are several"):
        figures.study_dots(pd.concat([ROWS, ROWS]))
    with pytest.raises(ValueError, match="no policies without prefetch but LRU and MIN"):
        figures.study_dots(ROWS[ROWS["policy"].isin(["lru", "belady"])], measure="gap")
    with pytest.raises(ValueError, match="unknown measure 'time'; known: misses, gap"):
        figures.study_lines(ROWS, measure="time")


def test_of_several_traces_all_together_are_drawn() -> None:
    together = pd.concat([ROWS.assign(trace="u", miss_rate=0.5), ROWS.assign(trace="all")])
    assert figures.study_lines(together).lines[0].get_ydata() == pytest.approx([10, 5])


def test_the_command_draws_what_study_wrote(tmp_path: Path) -> None:
    parts = [drift(layer=layer, steps=30) for layer in range(3)]
    trace = write(tmp_path / "t.parquet", parts, metadata(num_layers=3))
    out = tmp_path / "study.parquet"
    words = ["--policy", "clock,random", "--buffer", "16,24", "--prefetch", "none"]
    run("study", trace, *words, "-o", out)
    rows = hs.study(trace, ["clock", "random"], [16, 24], prefetchers=()).rows
    inner = rows[~rows["policy"].isin(["lru", "belady"])]
    assert (inner["gap_closed_low"] <= inner["gap_closed"]).all()
    assert (inner["gap_closed"] <= inner["gap_closed_high"]).all()
    assert (inner["gap_closed_low"] < inner["gap_closed_high"]).all()
    own = inner[inner["buffer"] == 24].set_index("policy")
    drawn: Any = figures.plot("gap", [out], buffers=[24])
    assert names(drawn.axes[0]) == ["CLOCK", "random"]
    for policy, ends in zip(("clock", "random"), bars(drawn.axes[0], True), strict=True):
        assert ends == pytest.approx(
            [100 * own.loc[policy, f"gap_closed_{end}"] for end in ("low", "high")]
        )
    for kind, words in (("study", ["--paper"]), ("gap", ["--buffer", "24"])):
        run("plot", kind, out, *words, "-o", tmp_path / f"{kind}.pdf")
        assert (tmp_path / f"{kind}.pdf").read_bytes()[:4] == b"%PDF"
