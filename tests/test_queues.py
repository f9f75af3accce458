"""The policies made of queues, and LRU's approximations, against the plain reference."""

from collections.abc import Callable
from typing import Any

import pytest
import reference_history as learned
import reference_queues as rules
from hypothesis import given, settings
from reference import Stream, TokenPolicy, replay
from streams import cases, demand_of
from test_policies import expected, records

from hisparse_sim.policies import get_policy
from hisparse_sim.simulator.replay import replay_part

Make = Callable[[Stream, int], TokenPolicy]


def key(stream: Stream, size: int) -> str:
    return f"0/{stream.request}/{stream.layer}/{size}"


RULES: list[tuple[str, Make]] = [
    ("sieve", lambda _, size: rules.Sieve(size)),
    ("slru", lambda _, size: rules.Slru(size)),
    ("slru:protected=0.5", lambda _, size: rules.Slru(size, 0.5)),
    ("2q", lambda _, size: rules.TwoQ(size)),
    ("2q:a1in=0.5,a1out=1", lambda _, size: rules.TwoQ(size, 0.5, 1)),
    ("s3-fifo", lambda _, size: rules.S3Fifo(size)),
    ("s3-fifo:small=0.4,ghost=0.5", lambda _, size: rules.S3Fifo(size, 0.4, 0.5)),
    ("mq", lambda _, size: rules.Mq(size)),
    ("mq:queues=3,life=0.5,ghost=0.5", lambda _, size: rules.Mq(size, 3, 0.5, 0.5)),
    ("w-tinylfu", lambda _, size: rules.WTinyLfu(size)),
    (
        "w-tinylfu:window=0.4,protected=0.5,sample=1.5",
        lambda _, size: rules.WTinyLfu(size, 0.4, 0.5, 1.5),
    ),
    ("lirs", lambda _, size: learned.Lirs(size)),
    ("lirs:queue=0.4,stack=1.0", lambda _, size: learned.Lirs(size, 0.4, 1.0)),
    ("lirs:queue=0.0,stack=4.0", lambda _, size: learned.Lirs(size, 0.0, 4.0)),
    ("lirs:queue=1.0", lambda _, size: learned.Lirs(size, 1.0)),
    ("clock-pro", lambda _, size: learned.ClockPro(size)),
    ("clock-pro:cold=0.4,ghost=0.5", lambda _, size: learned.ClockPro(size, 0.4, 0.5)),
    ("clock-pro:cold=0.0,ghost=3.0", lambda _, size: learned.ClockPro(size, 0.0, 3.0)),
    ("clock-pro:cold=1.0,ghost=0.0", lambda _, size: learned.ClockPro(size, 1.0, 0.0)),
    ("lecar", lambda stream, size: learned.Lecar(key(stream, size), size)),
    (
        "lecar:rate=2.0,discount=0.5,lru=0.9,ghost=3.0",
        lambda stream, size: learned.Lecar(key(stream, size), size, 2.0, 0.5, 0.9, 3.0),
    ),
    ("sampled-lru", lambda stream, size: rules.SampledLru(key(stream, size))),
    ("sampled-lru:candidates=1", lambda stream, size: rules.Random(key(stream, size))),
    ("set-associative-lru:ways=2", lambda _, size: rules.SetAssociativeLru(size, 2)),
    ("set-associative-lru:ways=3", lambda _, size: rules.SetAssociativeLru(size, 3)),
]


@pytest.mark.parametrize(("policy", "make"), RULES, ids=[name for name, _ in RULES])
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_equals_reference(policy: str, make: Make, case: tuple[Stream, int]) -> None:
    stream, size = case
    demand: Any = demand_of(stream)
    for start in ("staged", "direct"):
        fast = replay_part(demand, get_policy(policy), size, start, victims=True)
        assert fast.victims is not None
        found = records(stream, size, start, fast.misses, fast.victims)
        assert found == expected(replay(stream, make(stream, size), size, start)), start
        assert fast.misses.sum() >= replay_part(demand, "belady", size, start).misses.sum()
