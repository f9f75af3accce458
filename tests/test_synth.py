"""The generator: seeded, valid, close to what was published; and the extreme shapes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from hisparse_sim.cli import cli
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.traces import Demand, Ragged, TraceError, open_trace
from hisparse_sim.traces.file.rules import check_rows
from hisparse_sim.traces.locality.measure import adjacent_overlap
from hisparse_sim.traces.synth.generator import (
    Parameters,
    Profile,
    generate,
    get_profile,
    layer_noise,
    profiles,
    reshaped,
    synthesize,
)
from hisparse_sim.traces.synth.shapes import SHAPES, generate_shape, synthesize_shape

SMALL = Profile(
    "small", "none", 4, 32, 300, 40,
    Parameters(noise=0.3, drift=1.0, shortest_life=1, longest_life=100, window=16),
)  # fmt: skip


def miss_percent(demand: Demand, policy: str, buffer_size: int) -> float:
    misses = replay_part(demand, policy, buffer_size).misses.sum()
    return 100 * float(misses) / len(demand.positions)


@settings(max_examples=30, deadline=None)
@given(
    prompt_len=st.integers(0, 200),
    top_k=st.integers(1, 40),
    steps=st.integers(1, 60),
    segment=st.integers(1, 9),
    noise=st.floats(0, 100),
    drift=st.floats(0, 10),
    block=st.sampled_from([1, 4]),
    seed=st.integers(0, 2**40),
)
def test_rows_keep_the_rules(
    prompt_len: int, top_k: int, steps: int, segment: int, noise: float, drift: float,
    block: int, seed: int,
) -> None:  # fmt: skip
    """Any parameters: sorted distinct positions, min(top_k, seq_len) of them in every row."""
    parameters = replace(SMALL.parameters, segment=segment, noise=noise, drift=drift)
    profile = replace(
        SMALL, prompt_len=prompt_len, top_k=top_k, steps=steps, parameters=parameters,
        tokens_per_position=block,
    )  # fmt: skip
    demand = generate(profile, 1, seed=seed)
    tally = check_rows(demand.step, demand.seq_len, Ragged(demand.offsets, demand.positions), top_k)
    assert tally.unsorted_rows == 0
    assert (np.diff(demand.offsets) == np.minimum(top_k, demand.seq_len)).all()
    tokens = prompt_len + 1 + np.arange(steps)
    assert (demand.seq_len == -(-tokens // block)).all()


def test_seeds() -> None:
    """One (seed, request, layer) gives the same rows anywhere; another gives others."""
    plain = generate(SMALL, 2)
    assert (generate(SMALL, 2).positions == plain.positions).all()
    for other in (
        generate(SMALL, 3),
        generate(SMALL, 2, seed=1),
        generate(SMALL, 2, request="synth-1"),
    ):
        assert (other.positions != plain.positions).any()
    # Pinned: a change of the model must be meant, since it asks for a new fit.
    assert plain.row(0)[:8].tolist() == [0, 1, 2, 3, 49, 71, 101, 112]


def test_sinks_and_newest_tokens_are_demanded() -> None:
    demand = generate(SMALL, 0)
    for row in range(demand.rows):
        listed = demand.row(row)
        assert listed[:4].tolist() == [0, 1, 2, 3]
        assert listed[-1] == demand.seq_len[row] - 1


def test_noise_lowers_and_drift_raises_overlap() -> None:
    def overlap(**changes: float) -> float:
        parameters = replace(SMALL.parameters, **changes)  # type: ignore[arg-type]
        return adjacent_overlap(generate(replace(SMALL, parameters=parameters), 0))

    by_noise = [overlap(noise=noise) for noise in (0.05, 0.3, 1.0, 10.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    by_drift = [overlap(noise=0.5, drift=drift, shortest_life=50) for drift in (0.1, 1, 4)]
    assert by_drift == sorted(by_drift)


def test_layers_spread_evenly() -> None:
    """Any run of neighbouring layers has about the median noise of all."""
    profile = get_profile("glm-5.1")
    noise = np.array([layer_noise(profile, layer) for layer in range(profile.num_layers)])
    logs = np.log(noise / profile.parameters.noise)
    assert abs(logs.mean()) < 0.03
    assert abs(logs.std() - profile.parameters.layer_spread) < 0.03
    for first in range(0, 60, 7):
        assert abs(logs[first : first + 13].mean()) < 0.1


@pytest.mark.parametrize("name", list(profiles()))
def test_profiles_reproduce_their_recorded_fit(name: str) -> None:
    """What the shipped parameters give now is what the file says was measured on all layers."""
    profile = get_profile(name)
    fit = {row["figure"]: row for row in profile.fit["figures"]}
    assert all(row["published"] > 0 for row in fit.values())
    if name == "glm-5.1":
        parts = [generate(profile, layer) for layer in range(8)]
        for buffer_size in (4096, 8192):
            recorded = fit[f"LRU miss % at {buffer_size}"]["achieved"]
            found = np.mean([miss_percent(part, "lru", buffer_size) for part in parts])
            assert found == pytest.approx(recorded, rel=0.1)
        fitted = [row for row in fit.values() if row["fitted"]]
        assert all(row["achieved"] == pytest.approx(row["published"], rel=0.01) for row in fitted)
    if name == "deepseek-v3.2":
        early = adjacent_overlap(generate(reshaped(profile, steps=50), 0))
        deep = [adjacent_overlap(generate(reshaped(profile, steps=50), 20 + i)) for i in range(13)]
        assert early < 0.03
        assert 0.4 < np.mean(deep) < 0.48


def test_synthesize(tmp_path: Path) -> None:
    path = tmp_path / "small.parquet"
    calls: list[tuple[int, int]] = []
    synthesize(
        path, SMALL, layers=[3, 1], requests=2, seed=7, progress=lambda *call: calls.append(call)
    )
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    trace = open_trace(path)
    assert [(part.request, part.layer) for part in trace.parts] == [
        ("synth-0", 1), ("synth-0", 3), ("synth-1", 1), ("synth-1", 3),
    ]  # fmt: skip
    expected = generate(SMALL, 3, request="synth-1", seed=7)
    assert (trace.read(trace.parts[-1]).positions == expected.positions).all()
    assert trace.metadata.provenance == "synthetic"
    assert trace.metadata.notes["seed"] == 7


def test_the_fit_stands_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "glm.parquet"
    profile = get_profile("glm-5.1")
    synthesize(path, replace(profile, steps=2), layers=[5])
    notes = open_trace(path).metadata.notes
    assert notes["fit"] == profile.fit
    assert "not for this file" in notes["fit_holds"]
    assert notes["parameters"]["noise"] == profile.parameters.noise
    synthesize(path, get_profile("qsa"), layers=[5])
    notes = open_trace(path).metadata.notes
    assert notes["fit_holds"] == "over all 12 layers, of which this file has 1"


def test_impossible_requests(tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"
    with pytest.raises(ValueError, match=r"unknown profile 'x'; known are glm-5\.1"):
        get_profile("x")
    for profile, options, reason in (
        (SMALL, {"layers": [4]}, "there is no layer 4"),
        (SMALL, {"requests": 0}, "at least one"),
        (replace(SMALL, top_k=0), {}, "top_k is 0"),
        (replace(SMALL, steps=0), {}, "steps is 0"),
        (replace(SMALL, prompt_len=2**31), {}, "below 2"),
    ):
        with pytest.raises(TraceError, match=reason):
            synthesize(path, profile, **options)
    assert not path.exists()


def shape_misses(name: str, policy: str, buffer_size: int) -> list[int]:
    demand = generate_shape(name, top_k=8, steps=12, prompt_len=400, distinct=40)
    misses: list[int] = replay_part(demand, policy, buffer_size, "direct").misses.tolist()
    return misses


def test_shapes() -> None:
    # The first step fills an empty buffer.
    assert shape_misses("none-new", "lru", 16) == [8] + [0] * 11
    assert shape_misses("all-new", "belady", 16) == [8] * 12
    assert shape_misses("step-change", "lru", 8) == [8] + [0] * 5 + [8] + [0] * 5
    # A pool of 40 comes round every 5 steps: 32 slots keep nothing of it under LRU, all but 8
    # under Belady, and 40 slots hold it.
    assert shape_misses("cyclic", "lru", 32) == [8] * 12
    assert sum(shape_misses("cyclic", "belady", 32)) < 8 * 12
    assert shape_misses("cyclic", "lru", 40) == [8] * 5 + [0] * 7
    # Half is fixed, the other half scans 36 positions in steps of 4.
    assert shape_misses("thrash", "lru", 16) == [8] + [4] * 11


@pytest.mark.parametrize("name", list(SHAPES))
def test_shapes_are_traces(tmp_path: Path, name: str) -> None:
    path = tmp_path / "shape.parquet"
    synthesize_shape(path, name, top_k=8, steps=70, prompt_len=100, distinct=None)
    trace = open_trace(path)
    demand = trace.read(trace.parts[0])
    assert (np.diff(demand.offsets) == 8).all()
    assert trace.metadata.provenance == "synthetic"


@pytest.mark.parametrize(
    ("changes", "requests", "message"),
    [
        ({"top_k": 99_999_999_999}, 1, "top_k is 99999999999, expected less than 2"),
        ({"prompt_len": 2**31 - 50}, 1, "40 steps behind a prompt of 2,147,483,598 tokens take"),
        ({"steps": 2**31 - 2000}, 1, "of memory at least, and this machine has"),
        ({}, 10**9, "the names of 1,000,000,000 requests take"),
    ],
)
def test_what_no_memory_holds_is_refused_before_it_is_tried(
    changes: dict[str, int],
    requests: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = {"SC_PHYS_PAGES": 2**21, "SC_PAGE_SIZE": 4096}  # 8 GiB
    monkeypatch.setattr("os.sysconf", pages.__getitem__, raising=False)
    with pytest.raises(TraceError, match=message):
        synthesize(tmp_path / "t", reshaped(SMALL, **changes), requests=requests)
    assert not list(tmp_path.iterdir())


def test_impossible_shapes() -> None:
    with pytest.raises(ValueError, match="unknown shape 'x'; known are cyclic"):
        generate_shape("x")
    with pytest.raises(TraceError, match="no room"):
        generate_shape("cyclic", top_k=8, prompt_len=15)
    with pytest.raises(TraceError, match="no room"):
        generate_shape("cyclic", top_k=8, prompt_len=100, distinct=101)
    with pytest.raises(TraceError, match="at least 1"):
        generate_shape("cyclic", steps=0)
    with pytest.raises(TraceError, match="of memory at least, and this machine has"):
        generate_shape("none-new", steps=2**31 - 2001, prompt_len=2000, top_k=1000)
    given = ["trace", "synth", "--shape", "cyclic", "--seed", "7", "-o", "t"]
    assert "no seed" in CliRunner().invoke(cli, given).stderr


def fit_table() -> str:
    """Return the fits of all profiles as the documentation shows them."""
    lines = ["| profile | figure | published | achieved | |", "|---|---|---|---|---|"]
    for name, profile in profiles().items():
        for row in profile.fit["figures"]:
            kind = "fitted" if row["fitted"] else "held out"
            achieved = f"{row['achieved']:.4g}"
            lines.append(f"| {name} | {row['figure']} | {row['published']} | {achieved} | {kind} |")
    return "\n".join(lines)


def test_the_documentation_shows_the_fit() -> None:
    page = (Path(__file__).parent.parent / "docs" / "synthesize.md").read_text()
    shown = page.split("<!-- fit: begin -->\n")[1].split("\n<!-- fit: end -->")[0]
    assert shown == fit_table(), f"paste this between the marks:\n{fit_table()}"
