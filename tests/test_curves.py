"""Rolling curves and their figure."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from make_traces import drift, metadata
from make_traces import write as write_trace

import hisparse_sim as hs
from hisparse_sim.simulator.replay.curves import rolling_curves
from hisparse_sim.simulator.views import figures


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> hs.Sweep:
    parts = [drift(request="a", layer=layer, steps=40) for layer in (0, 1)]
    parts.append(drift(request="b", steps=30, first_step=2))
    path = write_trace(tmp_path_factory.mktemp("curve") / "t.parquet", parts, metadata())
    return hs.sweep(path, ["lru", "fifo"], [8, 16], compare_min=False)


def smoothed(swept: hs.Sweep, piece: int, window: int, skip: int = 0) -> dict[int, float]:
    """The slow way: the mean of the last `window` misses, by step."""
    chosen = swept.pieces[piece]
    misses = next(
        misses
        for run, misses in chosen.misses.items()
        if (run.policy.name, run.buffer_size) == ("lru", 8)
    )
    return {
        chosen.first_step + i: float(np.mean(misses[i - window + 1 : i + 1]))
        for i in range(skip + window - 1, len(misses))
    }


@pytest.mark.parametrize(("window", "skip"), [(1, 0), (10, 0), (10, 5)])
def test_curves_average_the_smoothed_layers(swept: hs.Sweep, window: int, skip: int) -> None:
    curve = rolling_curves(swept, window, skip)
    curve = curve[(curve["policy"] == "lru") & (curve["buffer"] == 8)]
    layers = [smoothed(swept, piece, window, skip) for piece in range(3)]
    assert curve["step"].tolist() == list(range(skip + window - 1, 40))
    for _, row in curve.iterrows():
        values = [layer[row["step"]] for layer in layers if row["step"] in layer]
        assert row["layers"] == len(values)
        assert row["misses_per_step"] == pytest.approx(np.mean(values))
        assert row["p10"] == pytest.approx(np.percentile(values, 10))
        assert row["p90"] == pytest.approx(np.percentile(values, 90))


def test_too_short_for_the_window(swept: hs.Sweep) -> None:
    with pytest.raises(ValueError, match="has 40 steps, too few for a window of 41"):
        rolling_curves(swept, 41)


def test_the_figure_shows_the_table(swept: hs.Sweep, tmp_path: Path) -> None:
    curves = rolling_curves(swept, 10)
    axes = figures.rolling_misses(curves, window=10, provenance="synthetic trace t")
    entries = {line.get_label(): line for line in axes.lines if line.get_label()[0] != "_"}
    assert list(entries) == ["LRU", "FIFO", "B = 8", "B = 16"]
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert shown == list(entries)
    looks = set()
    for policy, buffer in product(("lru", "fifo"), (8, 16)):
        wanted = curves[(curves["policy"] == policy) & (curves["buffer"] == buffer)]
        values = wanted["misses_per_step"].tolist()
        (drawn,) = [line for line in axes.lines if list(line.get_ydata()) == values]
        # Mark and colour are those of the policy's entry, dashes those of the buffer's.
        marked, dashed = entries[policy.upper()], entries[f"B = {buffer}"]
        assert (drawn.get_marker(), drawn.get_color()) == (marked.get_marker(), marked.get_color())
        assert drawn._dash_pattern == dashed._dash_pattern
        looks.add((drawn.get_marker(), str(drawn._dash_pattern)))
    assert len(looks) == 4  # told apart without colour
    assert len(axes.collections) == 4  # the bands
    assert axes.get_xlabel() == "decode step"
    assert "misses per step" in axes.get_ylabel()
    assert axes.figure.get_supxlabel() == "synthetic trace t"
    for suffix in (".png", ".svg"):
        figures.save(axes, tmp_path / f"curve{suffix}")
        assert (tmp_path / f"curve{suffix}").stat().st_size > 1000
    assert len(list(tmp_path.iterdir())) == 2


def test_the_same_data_gives_the_same_svg(swept: hs.Sweep, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        axes = figures.rolling_misses(rolling_curves(swept, 10), window=10, provenance="p")
        figures.save(axes, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_an_unknown_suffix_is_refused(swept: hs.Sweep, tmp_path: Path) -> None:
    axes = figures.rolling_misses(rolling_curves(swept, 10), window=10, provenance="p")
    with pytest.raises(ValueError, match=r"choose one of \.png, \.svg, \.pdf"):
        figures.save(axes, tmp_path / "curve.tiff")
