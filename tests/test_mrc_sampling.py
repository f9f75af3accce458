"""Curves from samples: intervals against the whole, windows against a pass over everything."""

from io import StringIO
from pathlib import Path

import make_traces
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.mrc.intervals import interval, ratio_estimate, student
from hisparse_sim.simulator.mrc.one_pass import part_curves
from hisparse_sim.simulator.mrc.sampling import _window, of_requests, of_steps
from hisparse_sim.simulator.views import figures
from hisparse_sim.traces import open_trace

DRAWS = 200
LEAST_COVERAGE = 0.93  # of a nominal 0.95


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 25 requests of different lengths and locality."""
    demands = [
        make_traces.drift(
            request=f"r{number}",
            layer=layer,
            steps=20 + (number * 7) % 15,
            first_seq_len=60 + (number * 13) % 80,
            keep=0.5 + 0.4 * ((number * 5) % 11) / 11,
            seed=number,
        )
        for number in range(25)
        for layer in ((0, 2) if number % 5 == 0 else (0,))
    ]
    return make_traces.write(tmp_path_factory.mktemp("many") / "many.parquet", demands)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of four layers and 208 steps."""
    demands = [
        make_traces.drift(layer=layer, steps=208, first_seq_len=80, keep=0.4 + 0.1 * layer)
        for layer in range(4)
    ]
    return make_traces.write(tmp_path_factory.mktemp("long") / "long.parquet", demands)


def test_students_distribution() -> None:
    for degrees, known in ((4, 2.776), (9, 2.262), (29, 2.045), (1e6, 1.960)):
        assert student(degrees) == pytest.approx(known, rel=0.004)


def test_intervals_of_skewed_units_hold_the_whole() -> None:
    """Windows of the bundled sample, a fifth of them: rare bursts of misses."""
    trace = open_trace(hs.sample_path())
    demands = [trace.read(part) for part in trace.parts]
    sizes = np.array([2048, 3072, 4096, 8192, 16384])
    edges = np.arange(0, 513, 16)
    windows = [
        part_curves(each, ["textbook-lru"], 16384, "staged", edges)["textbook-lru"][1:, sizes]
        for each in demands
    ]
    accesses = [np.diff(each.offsets[edges]).astype(float)[1:] for each in demands]
    truth = np.sum([each.sum(axis=0) for each in windows], axis=0)
    stream = np.random.default_rng(5)
    held = []
    for _ in range(10 * DRAWS):
        strata = []
        for misses, own in zip(windows, accesses, strict=True):
            drawn = stream.choice(len(own), 6, replace=False)
            strata.append(ratio_estimate(misses[drawn], own[drawn], len(own), own.sum()))
        _, low, high = interval(strata)
        held.append((low <= truth) & (truth <= high))
    assert np.mean(held, axis=0).min() >= LEAST_COVERAGE


def test_intervals_of_requests_hold_the_whole(many: Path) -> None:
    trace = open_trace(many)
    whole = hs.mrc(trace, "textbook-lru").rows.set_index("buffer")["miss_rate"]
    held = []
    for seed in range(DRAWS):
        rows = of_requests(trace, 0.4, "textbook-lru", seed=seed, jobs=1).set_index("buffer")
        truth = whole.reindex(rows.index)
        held.append(((rows["low"] <= truth) & (truth <= rows["high"])).to_numpy())
        assert (rows["low"] <= rows["miss_rate"]).all()
        assert (rows["high"] > rows["low"]).all()
    assert np.mean(held, axis=0).min() >= LEAST_COVERAGE  # at every size


def test_intervals_of_steps_hold_the_whole(long: Path) -> None:
    trace = open_trace(long)
    whole = hs.mrc(trace, "textbook-lru").rows.set_index("buffer")["miss_rate"]
    held, widths = [], []
    for seed in range(DRAWS):
        rows = of_steps(trace, 0.4, seed=seed, jobs=1).set_index("buffer")
        truth = whole.reindex(rows.index)
        held.append(((rows["low"] <= truth) & (truth <= rows["high"])).to_numpy())
        widths.append((rows["high"] - rows["low"]).to_numpy())
    assert np.mean(held, axis=0).min() >= LEAST_COVERAGE  # at every size
    assert np.mean(widths) < 0.1


def test_all_of_it_is_exact(many: Path, long: Path) -> None:
    rows = of_requests(many, 1.0, ["textbook-lru", "fifo"], [8, 32], seed=1)
    whole = hs.mrc(many, ["textbook-lru", "fifo"], [8, 32]).rows
    both = rows.merge(whole, on=["policy", "buffer"], suffixes=("", "_whole"))
    assert len(both) == len(range(8, 65)) + 2
    assert both["miss_rate"].tolist() == pytest.approx(both["miss_rate_whole"].tolist())
    assert (both["high"] - both["low"]).max() < 1e-9
    rows = of_steps(long, 1.0)
    whole = hs.mrc(long, "textbook-lru").rows
    assert rows["misses"].tolist() == pytest.approx(whole["misses"].tolist())
    assert (rows["high"] - rows["low"]).max() < 1e-9


@pytest.mark.parametrize("first_seq_len", [20, 200])
def test_windows_are_exact(first_seq_len: int) -> None:
    demand = make_traces.drift(steps=150, first_seq_len=first_seq_len, ragged=True, shuffled=True)
    sizes = np.arange(8, 41)
    for start in ("staged", "direct"):
        for begin in range(0, 150, 7):
            end = min(150, begin + 9)
            edges = np.array([0, begin, end, 150])
            wanted = part_curves(demand, ["textbook-lru"], 40, start, edges)["textbook-lru"]
            found = _window(demand, begin, end, sizes, start)
            assert found.tolist() == wanted[1, sizes].tolist(), (begin, start)


def test_a_sample_of_blocks_says_so(tmp_path: Path) -> None:
    demands = [make_traces.drift(steps=208, first_seq_len=80)]
    about = make_traces.metadata(unit="block4")
    path = make_traces.write(tmp_path / "blocks.parquet", demands, about)
    assert set(of_steps(path, 0.9)["unit"]) == {"block4"}


def test_what_cannot_be_sampled(many: Path, long: Path) -> None:
    with pytest.raises(ValueError, match=r"a share of 0\.1 of 25 requests is 2"):
        of_requests(many, 0.1)
    with pytest.raises(ValueError, match=r"of 12 windows of 16 steps .* is 1"):
        of_steps(long, 0.1)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(cli, [*map(str, arguments), "--quiet"])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_command(many: Path, long: Path, tmp_path: Path) -> None:
    text = run("mrc", many, "--sample-requests", 0.5, "--policy", "textbook-lru,belady")
    assert text.splitlines()[1].split() == ["buffer", "policy", "miss", "%", "from", "to"]
    run("mrc", long, "--sample-steps", 0.5, "-o", tmp_path / "curve.svg")
    rows = of_steps(long, 0.5)
    (band,) = figures.miss_ratio(rows).collections
    assert len(band.get_paths()) == 1
    for words, said in (
        ("--sample-steps 0.5 --per-layer", "--per-layer does not apply to a sample"),
        ("--sample-steps 0.5 --sample-requests 0.5", "one of --sample-requests and --sample-steps"),
        ("--sample-steps 0.5 --buffer 16", "leave --policy and --buffer out"),
        ("--sample-requests 0.5 --request r0", "--request does not apply to a sample of requests"),
    ):
        refused = CliRunner().invoke(cli, ["mrc", str(many), *words.split()])
        assert refused.exit_code == 2, words
        assert said in " ".join(refused.stderr.split()), words


def test_the_function_is_the_command(many: Path, tmp_path: Path) -> None:
    written = tmp_path / "rows.csv"
    run("mrc", many, "--sample-requests", 0.5, "--policy", "fifo", "--buffer", 16, "-o", written)
    rows = hs.sampled_mrc(many, "fifo", 16, sample_requests=0.5)
    of_function = pd.read_csv(StringIO(rows.to_csv(index=False)))
    pd.testing.assert_frame_equal(pd.read_csv(written)[rows.columns], of_function)
