"""The standard policies against the plain reference, step by step and slot by slot."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from make_traces import drift, growing, several, write
from numpy.typing import NDArray
from reference import Slots, Step, Stream, replay, without_newest
from streams import cases, demand_of, stream_of

import hisparse_sim as hs
from hisparse_sim.policies import STANDARD
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.traces import Demand

each_policy = pytest.mark.parametrize("policy", sorted(STANDARD))
each_start = pytest.mark.parametrize("start", ["staged", "direct"])


class Record(NamedTuple):
    """What a step did, in the parts that the package reports, and the slots after it."""

    misses: list[int]
    victims: list[int]
    slots: Slots


def records(
    stream: Stream,
    buffer_size: int,
    start: str,
    misses: NDArray[np.int32],
    victims: NDArray[np.int16],
) -> list[Record]:
    """Redo the steps from their miss counts and victims, and check what must hold after each.

    A victim may not hold a demanded position nor be chosen twice in a step; the count must be
    that of the demanded positions which are absent; afterwards no position stands in two slots.
    """
    assert len(misses) == len(stream.rows)
    assert len(victims) == misses.sum()
    slots: Slots = [None] * buffer_size
    if start == "staged" or stream.prompt_len <= buffer_size:
        slots = list(range(buffer_size))
    found = []
    taken = 0
    for (seq_len, positions), count in zip(stream.rows, misses, strict=True):
        chosen = [int(slot) for slot in victims[taken : taken + count]]
        taken += int(count)
        row = [] if seq_len <= buffer_size else without_newest(seq_len, positions)
        missed = [position for position in row if position not in slots]
        assert len(missed) == count
        for position, slot in zip(missed, chosen, strict=True):
            assert 0 <= slot < buffer_size
            assert slots[slot] not in row  # neither found there nor just fetched into it
            slots[slot] = position
        held = [position for position in slots if position is not None]
        assert len(held) == len(set(held))
        assert set(row) <= set(held)
        found.append(Record(missed, chosen, list(slots)))
    return found


def expected(steps: list[Step]) -> list[Record]:
    return [Record(step.misses, step.victims, step.slots) for step in steps]


def assert_equals_reference(demand: Demand, policy: str, buffer_size: int, start: str) -> None:
    stream = stream_of(demand)
    fast = replay_part(demand, policy, buffer_size, start, victims=True)
    assert fast.victims is not None
    found = records(stream, buffer_size, start, fast.misses, fast.victims)
    assert found == expected(replay(stream, policy, buffer_size, start))
    # Sweeps do not ask for slots, and the counts must not depend on that.
    counted = replay_part(demand, policy, buffer_size, start)
    assert counted.victims is None
    np.testing.assert_array_equal(counted.misses, fast.misses)


@each_policy
@each_start
@settings(max_examples=80, deadline=None)
@given(case=cases())
def test_equals_reference(policy: str, start: str, case: tuple[Stream, int]) -> None:
    stream, buffer_size = case
    assert_equals_reference(demand_of(stream), policy, buffer_size, start)


@each_policy
@each_start
@pytest.mark.parametrize("buffer_size", [63, 64, 65, 128, 200])
def test_equals_reference_over_words_and_long_runs(
    policy: str, start: str, buffer_size: int
) -> None:
    """Buffers around the width of a machine word, and runs long enough to wrap any ring."""
    full_rows = drift(
        seed=1, steps=40, top_k=buffer_size, first_seq_len=4 * buffer_size, shuffled=True
    )
    few_misses = drift(
        seed=2, steps=80, top_k=buffer_size // 3, first_seq_len=3 * buffer_size, keep=0.9
    )
    ragged = drift(seed=3, steps=60, top_k=buffer_size, first_seq_len=600, ragged=True, newest=True)
    for demand in (full_rows, few_misses, ragged):
        assert_equals_reference(demand, policy, buffer_size, start)


@each_policy
@each_start
@pytest.mark.parametrize("buffer_size", [8, 64, 65])
def test_equals_reference_while_growing_past_the_buffer(
    policy: str, start: str, buffer_size: int
) -> None:
    for seed in range(3):
        demand = growing(top_k=8, buffer_size=buffer_size, seed=seed)
        assert_equals_reference(demand, policy, buffer_size, start)
    faster = drift(steps=60, top_k=6, first_seq_len=2, growth=3, shuffled=True, ragged=True)
    assert_equals_reference(faster, policy, buffer_size, start)


@each_policy
@each_start
def test_newest_token_at_every_place_of_the_row(policy: str, start: str) -> None:
    for place in range(5):
        rows = []
        for step in range(12):
            positions = [(3 * step + i) % 11 for i in range(4)]
            positions.insert(place, 20 + step)
            rows.append((21 + step, positions))
        assert_equals_reference(demand_of(Stream("r", 0, 20, rows)), policy, 6, start)


@each_policy
@each_start
def test_a_file_of_several_requests_and_layers_equals_reference(
    policy: str, start: str, tmp_path: Path
) -> None:
    """Each (request, layer) has a cache of its own; results stand in the order of the file."""
    demands = several(ragged=True, shuffled=True)
    path = write(tmp_path / "several.parquet", demands)

    fast = hs.replay(path, policy, 16, start, seed=5, victims=True)

    assert fast.victims is not None
    first = taken = 0
    for stream in map(stream_of, demands):
        misses = fast.misses[first : first + len(stream.rows)]
        victims = fast.victims[taken : taken + misses.sum()]
        first += len(stream.rows)
        taken += int(misses.sum())
        assert records(stream, 16, start, misses, victims) == expected(
            replay(stream, policy, 16, start, seed=5)
        )
    assert (first, taken) == (len(fast.misses), len(fast.victims))


@each_start
@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_belady_is_never_beaten(start: str, case: tuple[Stream, int]) -> None:
    stream, buffer_size = case
    demand = demand_of(stream)
    misses = {
        policy: int(replay_part(demand, policy, buffer_size, start).misses.sum())
        for policy in STANDARD
    }
    assert misses["belady"] == min(misses.values()), misses


@each_policy
@settings(max_examples=30, deadline=None)
@given(case=cases())
def test_a_buffer_for_everything_misses_each_position_once(
    policy: str, case: tuple[Stream, int]
) -> None:
    stream, _ = case
    # Beyond any buffer size of this test, so that nothing is short and nothing is preloaded.
    offset = 400
    rows = [
        (seq_len + offset, [position + offset for position in positions])
        for seq_len, positions in stream.rows
    ]
    moved = Stream(stream.request, stream.layer, offset, rows)
    distinct = set().union(*(without_newest(*row) for row in rows))
    buffer_size = max(len(distinct), *(len(positions) for _, positions in rows), 1)
    assert buffer_size < offset
    fast = replay_part(demand_of(moved), policy, buffer_size, "direct")
    assert fast.misses.sum() == len(distinct)


@each_policy
@each_start
def test_replay_is_deterministic(policy: str, start: str) -> None:
    demand = drift(top_k=32, first_seq_len=500)
    first, second = (replay_part(demand, policy, 64, start, seed=9, victims=True) for _ in range(2))
    np.testing.assert_array_equal(first.misses, second.misses)
    np.testing.assert_array_equal(first.victims, second.victims)


def test_random_draws_differently_for_each_seed_layer_and_request() -> None:
    stream = stream_of(drift(top_k=32, first_seq_len=500))
    runs = [
        (stream, 0),
        (stream, 1),
        (Stream("other", stream.layer, stream.prompt_len, stream.rows), 0),
        (Stream(stream.request, 9, stream.prompt_len, stream.rows), 0),
    ]
    chosen = set()
    for run, seed in runs:
        victims = replay_part(demand_of(run), "random", 64, seed=seed, victims=True).victims
        assert victims is not None
        chosen.add(victims.tobytes())
    assert len(chosen) == len(runs)
