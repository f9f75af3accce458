"""Budgets of slots against brute force, and their replays."""

import itertools
import json
from pathlib import Path

import make_traces
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.mrc.budgeting import spread
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.traces import TraceError, open_trace


def least(sizes: np.ndarray, misses: np.ndarray, slots: int) -> int:
    """Return the fewest misses of any choice of a size for each curve within so many slots."""
    choices = itertools.product(range(len(sizes)), repeat=len(misses))
    return min(
        sum(int(curve[at]) for curve, at in zip(misses, choice, strict=True))
        for choice in choices
        if sum(int(sizes[at]) for at in choice) <= slots
    )


def test_segments_that_save_alike_are_bought_from_left_to_right() -> None:
    sizes = 64 * np.arange(2, 7)
    misses = np.array([[0, 0, 0, 0, 0], [96, 72, 49, 24, 0]])
    assert spread(sizes, misses, 192).tolist() == [128, 256]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_budget_is_kept_and_never_worse_than_equal_buffers(data: st.DataObject) -> None:
    count, levels = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    sizes = 64 * np.arange(2, 2 + levels)
    falls = st.lists(st.integers(0, 50), min_size=levels, max_size=levels)
    misses = np.array([np.cumsum(data.draw(falls))[::-1] for _ in range(count)])
    alike = int(data.draw(st.sampled_from(sizes.tolist())))
    chosen = spread(sizes, misses, alike)
    assert chosen.sum() <= count * alike
    total = sum(
        int(curve[sizes.searchsorted(at)]) for curve, at in zip(misses, chosen, strict=True)
    )
    assert total <= misses[:, sizes.searchsorted(alike)].sum()
    assert total >= least(sizes, misses, count * alike)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_of_convex_curves_it_is_the_optimum(data: st.DataObject) -> None:
    count, levels = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 5))
    sizes = np.arange(3, 3 + levels)
    falls = st.lists(st.integers(0, 50), min_size=levels, max_size=levels)
    # Each slot more saves no more than the one before it.
    misses = np.array([np.cumsum(sorted(data.draw(falls)))[::-1] for _ in range(count)])
    alike = int(data.draw(st.sampled_from(sizes.tolist())))
    chosen = spread(sizes, misses, alike)
    total = sum(int(curve[at - 3]) for curve, at in zip(misses, chosen, strict=True))
    assert total == least(sizes, misses, count * alike)


def test_replays_of_the_sample() -> None:
    trace = open_trace(hs.sample_path())
    found = hs.budget(trace, 6144)
    rows = found.rows
    assert rows["buffer"].sum() <= 6 * 6144
    assert (rows["buffer"] % 64 == 0).all()
    assert found.saved == pytest.approx(1 - rows["misses"].sum() / rows["misses_alike"].sum())
    assert found.saved > 0.05  # of the engine's own misses, not of the curves
    alike = hs.sweep(trace, "lru", 6144, per_layer=True, compare_min=False).rows
    assert rows["misses_alike"].tolist() == alike["misses"].tolist()
    for part, row in zip(trace.parts, rows.itertuples(), strict=True):
        own = replay_part(trace.read(part), "lru", int(row.buffer))  # type: ignore[arg-type]
        assert own.misses.sum() == row.misses


def several(path: Path, seed: int, layers: tuple[int, ...] = (0, 1, 3)) -> Path:
    return make_traces.write(path, make_traces.several(layers=layers, seed=seed, keep=0.6))


def test_requests_apart_and_another_trace(tmp_path: Path) -> None:
    one, other = several(tmp_path / "one.parquet", 1), several(tmp_path / "two.parquet", 2)
    layers = hs.budget(one, 16)
    requests = hs.budget(one, 16, per_request=True, policy="clock")
    assert layers.rows["layer"].tolist() == [0, 1, 3]
    assert layers.rows["request"].isna().all()
    assert len(requests.rows) == 9
    assert requests.policy == "clock"
    elsewhere = hs.budget(one, 16, on=other)
    assert elsewhere.rows["buffer"].tolist() == layers.rows["buffer"].tolist()
    assert elsewhere.trace == "two"
    fewer = several(tmp_path / "three.parquet", 3, layers=(0, 2))
    with pytest.raises(TraceError, match="says nothing of request 'request-0', layer 2"):
        hs.budget(one, 16, on=fewer)
    with pytest.raises(ValueError, match="choose a multiple of 1 from 8 to 64"):
        hs.budget(one, 100)


def test_command(tmp_path: Path) -> None:
    path = several(tmp_path / "one.parquet", 1)
    found = CliRunner().invoke(cli, ["budget", str(path), "--buffer", "16", "--quiet"])
    assert found.exit_code == 0, found.output
    assert "mean of all:" in found.output
    assert len(found.output.splitlines()) == 7
    found = CliRunner().invoke(cli, ["budget", str(path), "--format", "json", "--quiet"])
    assert [row["layer"] for row in json.loads(found.output)] == [0, 1, 3]
