"""The figures of the locality show the tidy table: every line, band, bar and cell is its number."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from make_traces import demand, drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.views import figures
from hisparse_sim.simulator.views.locality_view import curve, missed

BUFFERS = (8, 16, 24)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    parts = [drift(layer=layer, steps=40, keep=0.3 + 0.2 * layer) for layer in (0, 1, 3)]
    return hs.locality(write(tmp_path_factory.mktemp("one") / "t.parquet", parts, metadata()))


@pytest.fixture(scope="module")
def several(one: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    parts = [drift(layer=layer, steps=20, seed=5) for layer in (0, 2)]
    path = write(tmp_path_factory.mktemp("two") / "u.parquet", parts, metadata())
    longest = one.assign(trace="v", provenance="trained-indexer")
    return pd.concat([one, hs.locality(path), longest], ignore_index=True)


def value(rows: pd.DataFrame, measure: str, layer: int, at: int | None = None) -> float:
    own = rows[(rows["measure"] == measure) & (rows["layer"] == layer)]
    (found,) = own["value"] if at is None else own.loc[own["at"] == at, "value"]
    return float(found)


def points(line: Any) -> dict[float, float]:
    """What is drawn; lines have gaps where a layer was not sampled."""
    places = zip(line.get_xdata(), line.get_ydata(), strict=True)
    return {x: y for x, y in places if y == y}


def line_of(axes: Any, name: str) -> dict[float, float]:
    (found,) = [line for line in axes.lines if line.get_label() == name]
    return points(found)


def legend(axes: Any) -> list[str]:
    return [] if axes.get_legend() is None else [t.get_text() for t in axes.get_legend().texts]


@pytest.mark.parametrize(
    ("draw", "measure", "scale"),
    [(figures.overlap, "overlap", 100), (figures.working_set, "working_set", 1)],
)
def test_lines_are_means_and_bands_the_spread_of_layers(
    draw: Any, measure: str, scale: float, one: pd.DataFrame
) -> None:
    axes = draw(one)
    drawn = line_of(axes, "mean")
    assert list(drawn) == sorted(set(one.loc[one["measure"] == measure, "at"]))
    for at, y in drawn.items():
        layers = [scale * value(one, measure, layer, int(at)) for layer in (0, 1, 3)]
        assert y == pytest.approx(np.mean(layers))
        edges = axes.collections[0].get_paths()[0].vertices
        band = edges[edges[:, 0] == at][:, 1]
        assert band.min() == pytest.approx(np.percentile(layers, 10))
        assert band.max() == pytest.approx(np.percentile(layers, 90))
    assert legend(axes) == ["10-90 % of 3 layers", "mean"]
    assert axes.figure.get_supxlabel() == "synthetic trace t"


def test_several_traces_are_lines(several: pd.DataFrame) -> None:
    axes: Any = figures.overlap(several)
    assert legend(axes) == ["t", "u", "v"]
    assert not axes.collections  # three bands would hide each other
    own = several[several["trace"] == "u"]
    layers = [100 * value(own, "overlap", layer, 4) for layer in (0, 2)]
    assert line_of(axes, "u")[4] == pytest.approx(np.mean(layers))
    assert list(line_of(axes, "u")) == [1, 2, 4, 8, 16]  # 20 steps
    assert list(line_of(axes, "t")) == [1, 2, 4, 8, 16, 32]
    assert axes.figure.get_supxlabel() == "t (synthetic), u (synthetic), v (trained-indexer)"


def test_reuse_distances_by_hand() -> None:
    """Distances 0, 5 and 6; a share of 0.3 is demanded for the first time and 0.1 newest."""
    rows = pd.DataFrame(
        [
            ("reuse_distance", 1, 0.3),
            ("reuse_distance", 6, 0.2),
            ("reuse_distance", 7, 0.1),
            ("reuse_nearest", 1, 0.6),
            ("reuse_farthest", 8, 0.6),
            ("newest_share", None, 0.1),
        ],
        columns=["measure", "at", "value"],
    ).assign(trace="t", request="a", layer=0, provenance="trained-indexer")
    axes: Any = figures.reuse_distance(rows, buffers=(4, 6, 12))
    drawn = line_of(axes, "missed by an LRU buffer of this size")
    expected = {4: 60, 5: 60, 6: 40, 7: 30, 8: 30, 10: 30, 12: 30}
    assert drawn == pytest.approx(expected)
    assert [text.get_text() for text in axes.texts] == ["4: 60.0", "6: 40.0", "12: 30.0"]
    bars = {(bar.get_x(), bar.get_width()): bar.get_height() for bar in axes.patches}
    # Bins of 0, of 1, of 2-3 and of 4-7; the bar of [4, 8) holds both 5 and 6.
    assert bars == pytest.approx({(0.5, 0.5): 30, (1, 1): 0, (2, 2): 0, (4, 4): 30})
    edges = axes.collections[0].get_paths()[0].vertices
    at_six = edges[edges[:, 0] == 6][:, 1]
    assert (at_six.min(), at_six.max()) == pytest.approx((30, 90))


def test_reuse_is_what_is_missed(one: pd.DataFrame, several: pd.DataFrame) -> None:
    for rows, name in ((one, "missed by an LRU buffer of this size"), (several, "t")):
        axes: Any = figures.reuse_distance(rows, buffers=BUFFERS)
        drawn = line_of(axes, name)
        read = missed(one)
        assert min(drawn) == 8
        assert all(y == pytest.approx(100 * read.get(x, read.iloc[-1])) for x, y in drawn.items())
    assert legend(axes) == ["t", "u", "v"]


def test_cross_layer_cells_and_lines(one: pd.DataFrame, several: pd.DataFrame) -> None:
    axes: Any = figures.cross_layer_overlap(one)
    cells = axes.images[0].get_array().filled(np.nan)
    layers = (0, 1, 3)
    for row, other in enumerate(layers):
        for column, layer in enumerate(layers):
            wanted = np.nan if layer == other else 100 * value(one, "cross_layer", layer, other)
            assert cells[row, column] == pytest.approx(wanted, nan_ok=True)
    assert len(axes.texts) == 6
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1", "3"]
    lines: Any = figures.cross_layer_overlap(several)
    apart = line_of(lines, "t")
    assert list(apart) == [1, 2, 3]
    pair = [value(one, "cross_layer", 1, 3), value(one, "cross_layer", 3, 1)]
    assert apart[2] == pytest.approx(100 * np.mean(pair))
    assert list(line_of(lines, "u")) == [2]


def test_layers_are_drawn_by_number(one: pd.DataFrame, several: pd.DataFrame) -> None:
    axes: Any = figures.sinks_and_recent(one)
    kinds = {
        "last 256 tokens": "recent_coverage",
        "first 4 positions": "sink_coverage",
        "all positions": "density",
    }
    for name, measure in kinds.items():
        expected = {layer: 100 * value(one, measure, layer) for layer in (0, 1, 3)}
        assert line_of(axes, name) == pytest.approx(expected)
    assert legend(axes) == list(kinds)
    assert legend(figures.sinks_and_recent(several)) == ["t", "u", "v"]
    turned: Any = figures.drift(several)
    expected = {layer: 100 * value(one, "drift", layer) for layer in (0, 1, 3)}
    assert line_of(turned, "t") == pytest.approx(expected)
    assert list(line_of(turned, "u")) == [0, 2]


def test_a_page_holds_all(one: pd.DataFrame, several: pd.DataFrame, tmp_path: Path) -> None:
    page = figures.locality_page(one, buffers=BUFFERS)
    titles = [axes.get_title(loc="left") for axes in page.axes[:6]]
    assert len(set(titles)) == 6
    assert page.axes[1].texts[0].get_text().startswith("8: ")
    assert page._supxlabel.get_weight() == "bold"  # synthetic
    for suffix in figures.SUFFIXES:
        figures.save(page, tmp_path / f"page{suffix}")
        assert (tmp_path / f"page{suffix}").stat().st_size > 10_000
    page = figures.locality_page(several, buffers=BUFFERS)
    (shared,) = page.legends
    assert [text.get_text() for text in shared.get_texts()] == ["t", "u", "v"]
    assert all(axes.get_legend() is None for axes in page.axes)


def test_what_a_trace_is_too_small_for(tmp_path: Path) -> None:
    rows = hs.locality(write(tmp_path / "t.parquet", [demand([[0, 1]], 9)], metadata()))
    for draw, why in (
        (figures.overlap, "single step"),
        (figures.drift, "single step"),
        (figures.reuse_distance, "selects no position twice"),
        (figures.cross_layer_overlap, "single layer"),
    ):
        with pytest.raises(ValueError, match=why):
            draw(rows)
    page = figures.locality_page(rows)
    said = [text.get_text() for axes in page.axes for text in axes.texts]
    assert sum("to draw: t " in text for text in said) == 4
    figures.save(page, tmp_path / "page.png")
    with pytest.raises(ValueError, match=r"not rows of hs.locality: they lack at, measure"):
        figures.overlap(rows.drop(columns=["at", "measure"]))


def test_the_table_of_a_curve_fills_bins_and_drops_lags(several: pd.DataFrame) -> None:
    bins = curve(several, "reuse_distance")
    assert not bins.isna().any().any()
    assert len(bins) == 8
    assert list(curve(several, "overlap").columns) == [1, 2, 4, 8, 16]


def test_one_command_draws_and_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, keep in (("a", 0.9), ("b", 0.1)):
        write(Path(f"{name}.parquet"), [drift(layer=0, keep=keep), drift(layer=1)], metadata())

    def run(*words: str) -> Any:
        return CliRunner().invoke(cli, ["trace", "info", *words])

    alone = run("a.parquet", "--plot", "page.svg")
    assert alone.exit_code == 0, alone.output
    assert "wrote page.svg" in alone.stderr
    assert "Reuse distance" not in alone.stdout
    assert Path("page.svg").read_text().startswith("<?xml")
    assert alone.stdout == run("a.parquet", "--full").stdout
    both = run("*.parquet", "--full", "-o", "both.csv", "--plot", "both.png")
    assert both.exit_code == 0, both.output
    assert Path("both.png").stat().st_size > 10_000
    table = pd.read_csv("both.csv")
    wanted = hs.locality(["a.parquet", "b.parquet"])
    np.testing.assert_allclose(table["value"], wanted["value"])
    assert table["trace_sha256"].nunique() == 2
    lines = run("*.parquet", "--full").stdout.splitlines()
    first = wanted[(wanted["trace"] == "b") & (wanted["measure"] == "overlap")]
    mean = 100 * first.loc[first["at"] == 1, "value"].mean()
    assert lines[2].split()[:2] == ["b", f"{mean:.1f}"]
    for words, why in (
        (("*.parquet",), "give --full to compare several traces"),
        (("a.parquet", "--plot", "page.txt"), "ends in .txt; choose one of .png"),
        (("a.parquet", "--plot", "nowhere/page.png"), "nowhere"),
        (("a.parquet", "--full", "--plot", "a.parquet"), "a.parquet"),
    ):
        refused = run(*words)
        assert refused.exit_code in (1, 2)
        assert why in refused.stderr, refused.output
