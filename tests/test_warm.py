"""A warm start: the staged one after the first step, which is not counted."""

import json
from pathlib import Path

import pytest
import reference
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from make_traces import demand, drift, write
from streams import cases, demand_of

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.prefetch import get_prefetcher
from hisparse_sim.simulator.prefetch.prefetching import Prefetch
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.simulator.replay.sweeping import sweep
from hisparse_sim.simulator.study.least import least_misses
from hisparse_sim.simulator.study.reuse import reuse_of
from hisparse_sim.traces import TraceError

POLICIES = ("lru", "fifo", "clock", "lfu", "arc", "random", "belady")


def test_the_buffer_starts_as_the_last_row_of_the_prompt_left_it() -> None:
    # Slots hold 0, 1, 2. The first row stands for the prompt's last one: it takes slots 0 and 1 for
    # 7 and 5, and leaves 2 as the next victim. The second row is the first that counts: 5 is there,
    # 4 takes slot 2. The third finds 5 and misses 2.
    part = demand([[7, 5], [5, 4], [2, 5]], [9, 10, 11])
    done = replay_part(part, "lru", 3, "warm", victims=True)
    assert done.misses.tolist() == [1, 1]
    assert done.victims is not None
    assert done.victims.tolist() == [2, 0]
    assert replay_part(part.cut(1, 3), "lru", 3, "staged").misses.tolist() == [2, 0]


@given(cases(), st.sampled_from(POLICIES))
@settings(max_examples=150, deadline=None)
def test_it_is_the_reference_after_its_first_step(
    case: tuple[reference.Stream, int], policy: str
) -> None:
    stream, size = case
    done = replay_part(demand_of(stream), policy, size, "warm", victims=True)
    steps = reference.replay(stream, policy, size, "staged")[1:]
    assert done.misses.tolist() == [len(step.misses) for step in steps]
    assert done.victims is not None
    assert done.victims.tolist() == [victim for step in steps for victim in step.victims]


@given(cases(), st.sampled_from(POLICIES[:-1]))
@settings(max_examples=60, deadline=None)
def test_min_has_the_fewest_misses_of_it(case: tuple[reference.Stream, int], policy: str) -> None:
    stream, size = case
    misses = [
        replay_part(demand_of(stream), each, size, "warm").misses for each in ("belady", policy)
    ]
    assert misses[0].sum() <= misses[1].sum()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "drift.parquet", [drift(steps=40)])


def test_rows_cover_the_steps_that_are_counted(trace: Path) -> None:
    part = drift(steps=40)
    swept = hs.sweep(trace, "lru", 16, "warm")
    replayed = hs.replay(trace, "lru", 16, "warm")
    expected = replay_part(part, "lru", 16).misses[1:].tolist()
    assert replayed.misses.tolist() == swept.steps["misses"].tolist() == expected
    assert swept.steps["step"].tolist() == part.step[1:].tolist()
    for rows in (swept.rows, replayed.rows):
        (row,) = rows.to_dict("records")
        assert (row["start"], row["steps"], row["selected_steps"]) == ("warm", 39, "1:40")
        assert row["accesses"] == len(part.positions) - len(part.row(0))
        assert row["misses"] == sum(expected)


def test_of_selected_steps_the_first_is_the_prompt_s(trace: Path) -> None:
    found = hs.replay(trace, "lru", 16, "warm", steps=(9, 30))
    part = drift(steps=40).cut(9, 30)
    assert found.misses.tolist() == replay_part(part, "lru", 16).misses[1:].tolist()


def test_one_step_is_refused(trace: Path) -> None:
    for call in (hs.replay, hs.sweep):
        with pytest.raises(TraceError, match="no second step in the selection"):
            call(trace, "lru", 16, "warm", steps=(5, 6))


@pytest.mark.parametrize("budget", [0, 3])
def test_a_prefetch_goes_on_after_the_first_step(trace: Path, budget: int) -> None:
    mode = Prefetch(get_prefetcher("slash"), budget)
    found, cold = (sweep([trace], "lru", 20, start, mode=mode) for start in ("warm", "staged"))
    assert found.steps["misses"].tolist() == cold.steps["misses"].tolist()[1:]
    assert found.rows["accesses"].item() == cold.rows["accesses"].item() - len(
        drift(steps=40).row(0)
    )


def test_what_has_no_warm_start_says_so(trace: Path) -> None:
    calls = (
        lambda: hs.sweep(trace, "lru", 16, "warm", draft_tokens=2),
        lambda: hs.mrc(trace, start="warm"),
    )
    for call in calls:
        with pytest.raises(ValueError, match="a warm start is of sweeps, curves and studies"):
            call()


def test_the_command_line_has_it(trace: Path) -> None:
    options = ["--policy", "lru", "--buffer", "16", "--start", "warm", "--format", "json"]
    done = CliRunner().invoke(cli, ["sweep", str(trace), *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["start"] == "warm"
    refused = CliRunner().invoke(cli, ["sweep", str(trace), *options, "--draft-tokens", "2"])
    assert refused.exit_code in (1, 2)
    assert "a warm start is of sweeps, curves and studies without" in refused.stderr


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Requests of one layer, which are a batch, and one that fits into the buffer at first."""
    parts = [drift(request=name, seed=seed, steps=40) for seed, name in enumerate("abc")]
    short = drift(request="d", seed=9, steps=40, first_seq_len=14)
    return write(tmp_path / "several.parquet", [*parts, short])


def test_a_study_has_the_rows_of_a_sweep(several: Path) -> None:
    policies, sizes = ["lru", "clock", "random", "belady"], [16, 24]
    swept = hs.sweep(several, policies, sizes, "warm").rows
    studied = hs.study(several, policies, sizes, "warm", prefetchers="slash", budgets=2).rows
    plain = studied[studied["prefetcher"] == "none"].set_index(["policy", "buffer"])
    assert set(studied["start"]) == {"warm"}
    for row in swept.itertuples():
        for name in ("steps", "accesses", "misses", "miss_rate", "misses_per_step"):
            assert plain.loc[(row.policy, row.buffer), name] == getattr(row, name), name
    assert len(plain) == len(swept)


def test_nothing_in_a_study_is_below_what_is_least(several: Path) -> None:
    found = hs.study(several, ["clock"], [16, 24], "warm", prefetchers=["oracle"], budgets=8).rows
    best = found[(found["policy"] == "belady") & (found["prefetcher"] == "none")]
    assert best["fetch_regret"].tolist() == [0, 0]
    assert best["lru_slots"].notna().all()
    assert (found["stall_regret"] >= 0).all()
    plain = found[found["prefetcher"] == "none"]
    assert plain["barrier_regret"].notna().all()
    assert (plain["barrier_regret"] >= 0).all()
    assert (found["least_newest_start"] <= found["least_newest"]).all()
    assert (found["least_newest"] <= found["least_misses"]).all()
    assert (found["least_exposed"] <= found["misses_per_step"]).all()
    assert (found["least_start"] < found["least_misses"]).all()
    lru = found[(found["policy"] == "lru") & (found["prefetcher"] == "none")]
    curve = hs.mrc(several, "textbook-lru", skip_steps=1).rows.set_index("buffer")["misses"]
    for misses, slots in lru[["misses", "lru_slots"]].to_numpy().tolist():
        assert curve[slots] <= misses < curve[slots - 1]


@given(cases())
@settings(max_examples=100, deadline=None)
def test_the_least_of_a_warm_start_is_min(case: tuple[reference.Stream, int]) -> None:
    stream, size = case
    reuse = reuse_of(demand_of(stream), size, "warm")
    misses = replay_part(demand_of(stream), "belady", size, "warm").misses
    assert least_misses(reuse).tolist() == misses[len(misses) - reuse.steps :].tolist()
    assert not misses[: len(misses) - reuse.steps].any()


def test_a_study_of_one_step_is_refused(trace: Path) -> None:
    with pytest.raises(TraceError, match="no second step in the selection"):
        hs.study(trace, "lru", 16, "warm", steps=(5, 6))


def test_study_has_it_on_the_command_line(several: Path) -> None:
    words = "--policy lru --buffer 16 --prefetch none --start warm --format json".split()
    done = CliRunner().invoke(cli, ["study", str(several), *words])
    assert done.exit_code == 0, done.output
    assert {row["start"] for row in json.loads(done.stdout)} == {"warm"}
