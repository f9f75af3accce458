"""One position a step: every policy then misses exactly as often as its textbook form.

With a constant seq_len above every position no request is short and no token is newest, so the
rules of simultaneous demand never act. libCacheSim is an independent implementation of the
textbook forms. `staged` is the same as accessing the keys 0..B-1 first, in order.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from reference import Stream, TokenPolicy, replay
from reference_history import Lirs
from reference_queues import S3Fifo, Sieve, TwoQ
from streams import demand_of

from hisparse_sim.simulator.replay import replay_part

libcachesim_runner = pytest.importorskip(
    "libcachesim_runner", reason="libcachesim has no wheel for this platform", exc_type=ImportError
)

POLICIES = ("lru", "fifo", "clock", "arc", "lfu", "belady", "sieve", "2q", "s3-fifo")
ACCESSES = 1500
# libCacheSim's shares of the buffer are empty below: it then inserts nothing.
LEAST = {"2q": 4, "s3-fifo": 20}
QUEUES: dict[str, Callable[[int], TokenPolicy]] = {"sieve": Sieve, "2q": TwoQ, "s3-fifo": S3Fifo}
Keys = Callable[[int], tuple[NDArray[np.int64], int]]


def uniform(seed: int) -> tuple[NDArray[np.int64], int]:
    """Keys drawn evenly, and a buffer that holds a part of them."""
    random = np.random.default_rng(seed)
    buffer_size = int(random.integers(1, 48))
    keys = int(random.integers(buffer_size + 1, 4 * buffer_size + 8))
    return random.integers(0, keys, ACCESSES), buffer_size


def zipf(seed: int) -> tuple[NDArray[np.int64], int]:
    """Keys drawn with Zipf weights; the order of the keys says nothing about their weight."""
    random = np.random.default_rng(seed)
    buffer_size = int(random.integers(1, 48))
    keys = int(random.integers(buffer_size + 1, 6 * buffer_size + 8))
    weights = np.arange(1, keys + 1) ** -random.uniform(0.5, 1.4)
    drawn = random.choice(keys, ACCESSES, p=weights / weights.sum())
    return random.permutation(keys)[drawn], buffer_size


def one_a_step(keys: NDArray[np.int64], buffer_size: int) -> Stream:
    above = int(keys.max()) + buffer_size + 2
    return Stream("r", 0, above - 1, [(above, [int(key)]) for key in keys])


@pytest.mark.parametrize("start", ["staged", "direct"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sequence", [uniform, zipf])
def test_one_position_a_step_misses_as_often_as_libcachesim(
    policy: str, start: str, sequence: Keys, tmp_path: Path
) -> None:
    for seed in range(10):
        keys, buffer_size = sequence(seed)
        if buffer_size < LEAST.get(policy, 1):
            continue
        stream = one_a_step(keys, buffer_size)

        preloaded = np.arange(buffer_size if start == "staged" else 0)
        path = tmp_path / f"{seed}.oracleGeneral.bin"
        libcachesim_runner.write_oracle_general(path, np.concatenate([preloaded, keys]))
        theirs = libcachesim_runner.run(policy, path, buffer_size, hashpower=12).misses

        ours = replay_part(demand_of(stream), policy, buffer_size, start)
        rule = QUEUES[policy](buffer_size) if policy in QUEUES else policy
        slow = sum(len(step.misses) for step in replay(stream, rule, buffer_size, start))
        assert (int(ours.misses.sum()), slow) == (theirs - len(preloaded),) * 2, f"seed {seed}"


@pytest.mark.parametrize("sequence", [uniform, zipf])
def test_lru_k_that_forgets_what_it_evicts_misses_as_often_as_libcachesim(
    sequence: Keys, tmp_path: Path
) -> None:
    """From an empty start: libCacheSim would count what fills the buffer as uses."""
    remembering = 0
    for seed in range(10):
        keys, buffer_size = sequence(seed)
        path = tmp_path / f"{seed}.oracleGeneral.bin"
        libcachesim_runner.write_oracle_general(path, keys)
        theirs = libcachesim_runner.run("lru-k", path, buffer_size, hashpower=12).misses
        demand = demand_of(one_a_step(keys, buffer_size))
        ours = replay_part(demand, "lru-k:remember=false", buffer_size, "direct")
        assert int(ours.misses.sum()) == theirs, f"seed {seed}"
        remembering += int(replay_part(demand, "lru-k", buffer_size, "direct").misses.sum())
        remembering -= theirs
    assert remembering != 0  # the two do differ


@pytest.mark.parametrize("sequence", [uniform, zipf])
def test_lirs_misses_as_often_as_libcachesim_until_a_hit_that_changes_no_status(
    sequence: Keys, tmp_path: Path
) -> None:
    """When a high position that left the stack is hit, libCacheSim makes the lowest low one high
    and evicts a position for it; the paper changes nothing."""
    compared = differing = 0
    for seed in range(20):
        keys, buffer_size = sequence(seed)
        if buffer_size < 2:  # libCacheSim's stack is empty
            continue
        path = tmp_path / f"{seed}.oracleGeneral.bin"
        rule = Lirs(buffer_size)
        slow = replay(one_a_step(keys, buffer_size), rule, buffer_size, "direct")
        until = [*rule.unchanged, ACCESSES][0]
        for accesses in (until, ACCESSES):
            part = keys[:accesses]
            libcachesim_runner.write_oracle_general(path, part)
            theirs = libcachesim_runner.run("lirs", path, buffer_size, hashpower=12).misses
            ours = replay_part(
                demand_of(one_a_step(part, buffer_size)), "lirs", buffer_size, "direct"
            )
            assert ours.misses.sum() == sum(len(step.misses) for step in slow[:accesses])
            if accesses == until:
                assert ours.misses.sum() == theirs, f"seed {seed}"
        compared += until
        differing += ours.misses.sum() != theirs
    assert compared > 20 * ACCESSES / 5
    assert differing > 0


@pytest.mark.parametrize("lru", [0.0, 1.0])
def test_lecar_that_does_not_learn_misses_as_often_as_libcachesim(
    lru: float, tmp_path: Path
) -> None:
    for seed in range(10):
        keys, buffer_size = zipf(seed)
        path = tmp_path / f"{seed}.oracleGeneral.bin"
        libcachesim_runner.write_oracle_general(path, keys)
        given = {"update_weight": False, "lru_weight": lru}
        theirs = libcachesim_runner.run("lecar", path, buffer_size, hashpower=12, **given).misses
        demand = demand_of(one_a_step(keys, buffer_size))
        ours = replay_part(demand, f"lecar:rate=0.0,lru={lru}", buffer_size, "direct")
        assert int(ours.misses.sum()) == theirs, f"seed {seed}"


@pytest.mark.parametrize("sequence", [uniform, zipf])
def test_lecar_misses_about_as_often_as_libcachesim(sequence: Keys, tmp_path: Path) -> None:
    """Both draw, from streams of their own."""
    ours = theirs = 0
    for seed in range(20):
        keys, buffer_size = sequence(seed)
        path = tmp_path / f"{seed}.oracleGeneral.bin"
        libcachesim_runner.write_oracle_general(path, keys)
        theirs += libcachesim_runner.run("lecar", path, buffer_size, hashpower=12).misses
        demand = demand_of(one_a_step(keys, buffer_size))
        ours += int(replay_part(demand, "lecar", buffer_size, "direct").misses.sum())
    assert ours == pytest.approx(theirs, rel=0.02)


def test_lhd_misses_about_as_often_as_libcachesim_at_every_size(tmp_path: Path) -> None:
    """Ages and periods grow with the buffer. When they were numbers of steps, which fit steps of
    many accesses, LHD missed more than LRU here."""
    for size in (40, 100):
        random = np.random.default_rng(size)
        weights = np.arange(1, 8 * size + 1) ** -0.9
        keys = random.choice(len(weights), 40_000, p=weights / weights.sum())
        path = tmp_path / "zipf.oracleGeneral.bin"
        libcachesim_runner.write_oracle_general(path, keys)
        theirs = libcachesim_runner.run("lhd", path, size, hashpower=12).misses
        demand = demand_of(one_a_step(keys, size))
        ours, lru = (
            int(replay_part(demand, each, size, "direct").misses.sum()) for each in ("lhd", "lru")
        )
        assert ours == pytest.approx(theirs, rel=0.08)
        assert ours < 0.92 * lru


OTHERS = ("lru-k", "lirs", "lecar", "lhd", "clock-pro", "slru", "lfuda", "hyperbolic", "w-tinylfu")


@pytest.mark.parametrize("policy", OTHERS)
def test_others_count_otherwise(policy: str, tmp_path: Path) -> None:
    """So that no difference is stated that is none."""
    differing = 0
    for seed in range(5):
        keys, _ = zipf(seed)
        size = max(2, len(set(keys.tolist())) // 3)
        path = tmp_path / f"{seed}.oracleGeneral.bin"
        libcachesim_runner.write_oracle_general(path, keys)
        theirs = libcachesim_runner.run(policy, path, size, hashpower=12).misses
        ours = replay_part(demand_of(one_a_step(keys, size)), policy, size, "direct")
        differing += int(ours.misses.sum()) != theirs
    assert differing > 0


def test_the_page_names_what_is_compared() -> None:
    page = (Path(__file__).parents[1] / "docs" / "policy-order.md").read_text()
    rows = re.findall(r"^\| (`[^|]*) \| ", page.partition("## Beside libCacheSim")[2], re.M)
    named = [re.findall("`([^`]+)`", row) for row in rows]
    assert named[0] == list(POLICIES)
    assert [name for row in named[1:] for name in row] == list(OTHERS)
    assert {*POLICIES, *OTHERS} == set(libcachesim_runner.CACHES)


def test_clock_pro_fills_the_buffer_where_libcachesim_keeps_room_for_hot_positions(
    tmp_path: Path,
) -> None:
    """So libCacheSim misses again what it did not fetch, and its counts are no bar for ours."""
    keys = np.tile(np.arange(10), 2)
    path = tmp_path / "twice.oracleGeneral.bin"
    libcachesim_runner.write_oracle_general(path, keys)
    theirs = libcachesim_runner.run("clock-pro", path, 10, hashpower=12).misses
    ours = replay_part(demand_of(one_a_step(keys, 10)), "clock-pro", 10, "direct")
    assert (int(ours.misses.sum()), theirs) == (10, 15)
