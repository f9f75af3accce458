"""Miss counts on the bundled sample, summed over its layers and steps, pinned to the miss.

They change only together with a line in CHANGELOG.md that says why. The plain reference of
tests/reference.py gives the same numbers (an hour of plain Python, so not here).
"""

import pytest

from hisparse_sim.policies import POLICIES
from hisparse_sim.simulator.replay import sweep
from hisparse_sim.traces import sample_path

GOLDEN: dict[tuple[str, str, int], int] = {
    ("2q", "direct", 2048): 1668465,
    ("2q", "direct", 4096): 645729,
    ("2q", "direct", 6144): 371145,
    ("2q", "staged", 2048): 1668446,
    ("2q", "staged", 4096): 645875,
    ("2q", "staged", 6144): 370910,
    ("arc", "direct", 2048): 1668461,
    ("arc", "direct", 4096): 587344,
    ("arc", "direct", 6144): 323410,
    ("arc", "staged", 2048): 1668443,
    ("arc", "staged", 4096): 591435,
    ("arc", "staged", 6144): 330972,
    ("belady", "direct", 2048): 1666614,
    ("belady", "direct", 4096): 374054,
    ("belady", "direct", 6144): 202234,
    ("belady", "staged", 2048): 1666592,
    ("belady", "staged", 4096): 373491,
    ("belady", "staged", 6144): 200436,
    ("bucketed-lru", "direct", 2048): 1668089,
    ("bucketed-lru", "direct", 4096): 596570,
    ("bucketed-lru", "direct", 6144): 349823,
    ("bucketed-lru", "staged", 2048): 1668069,
    ("bucketed-lru", "staged", 4096): 596545,
    ("bucketed-lru", "staged", 6144): 371471,
    ("clock", "direct", 2048): 1668392,
    ("clock", "direct", 4096): 589632,
    ("clock", "direct", 6144): 330676,
    ("clock", "staged", 2048): 1668379,
    ("clock", "staged", 4096): 589533,
    ("clock", "staged", 6144): 330566,
    ("decayed-frequency", "direct", 2048): 1667724,
    ("decayed-frequency", "direct", 4096): 619631,
    ("decayed-frequency", "direct", 6144): 334089,
    ("decayed-frequency", "staged", 2048): 1667705,
    ("decayed-frequency", "staged", 4096): 619550,
    ("decayed-frequency", "staged", 6144): 333946,
    ("fifo", "direct", 2048): 1668421,
    ("fifo", "direct", 4096): 797499,
    ("fifo", "direct", 6144): 468138,
    ("fifo", "staged", 2048): 1668402,
    ("fifo", "staged", 4096): 797448,
    ("fifo", "staged", 6144): 467988,
    ("hyperbolic", "direct", 2048): 1667737,
    ("hyperbolic", "direct", 4096): 586642,
    ("hyperbolic", "direct", 6144): 318899,
    ("hyperbolic", "staged", 2048): 1667718,
    ("hyperbolic", "staged", 4096): 586566,
    ("hyperbolic", "staged", 6144): 318763,
    ("lfu", "direct", 2048): 1667732,
    ("lfu", "direct", 4096): 645852,
    ("lfu", "direct", 6144): 358756,
    ("lfu", "staged", 2048): 1667713,
    ("lfu", "staged", 4096): 645812,
    ("lfu", "staged", 6144): 358653,
    ("lfuda", "direct", 2048): 1667815,
    ("lfuda", "direct", 4096): 594021,
    ("lfuda", "direct", 6144): 318780,
    ("lfuda", "staged", 2048): 1667796,
    ("lfuda", "staged", 4096): 593951,
    ("lfuda", "staged", 6144): 318751,
    ("lru", "direct", 2048): 1667733,
    ("lru", "direct", 4096): 591402,
    ("lru", "direct", 6144): 326995,
    ("lru", "staged", 2048): 1667714,
    ("lru", "staged", 4096): 591319,
    ("lru", "staged", 6144): 326852,
    ("lru-k", "direct", 2048): 1667733,
    ("lru-k", "direct", 4096): 594198,
    ("lru-k", "direct", 6144): 338918,
    ("lru-k", "staged", 2048): 1667714,
    ("lru-k", "staged", 4096): 594116,
    ("lru-k", "staged", 6144): 338775,
    ("lru-lfu", "direct", 2048): 1667720,
    ("lru-lfu", "direct", 4096): 590031,
    ("lru-lfu", "direct", 6144): 326588,
    ("lru-lfu", "staged", 2048): 1667701,
    ("lru-lfu", "staged", 4096): 589948,
    ("lru-lfu", "staged", 6144): 326445,
    ("lru-misses-last", "direct", 2048): 1668421,
    ("lru-misses-last", "direct", 4096): 604613,
    ("lru-misses-last", "direct", 6144): 329600,
    ("lru-misses-last", "staged", 2048): 1668402,
    ("lru-misses-last", "staged", 4096): 604522,
    ("lru-misses-last", "staged", 6144): 329457,
    ("random", "direct", 2048): 1668784,
    ("random", "direct", 4096): 731881,
    ("random", "direct", 6144): 431172,
    ("random", "staged", 2048): 1668769,
    ("random", "staged", 4096): 739733,
    ("random", "staged", 6144): 448709,
    ("s3-fifo", "direct", 2048): 1668413,
    ("s3-fifo", "direct", 4096): 593083,
    ("s3-fifo", "direct", 6144): 335132,
    ("s3-fifo", "staged", 2048): 1668402,
    ("s3-fifo", "staged", 4096): 606973,
    ("s3-fifo", "staged", 6144): 355499,
    ("sampled-lru", "direct", 2048): 1668787,
    ("sampled-lru", "direct", 4096): 620739,
    ("sampled-lru", "direct", 6144): 344816,
    ("sampled-lru", "staged", 2048): 1668738,
    ("sampled-lru", "staged", 4096): 621391,
    ("sampled-lru", "staged", 6144): 346268,
    ("set-associative-lru", "direct", 2048): 1668665,
    ("set-associative-lru", "direct", 4096): 630493,
    ("set-associative-lru", "direct", 6144): 341980,
    ("set-associative-lru", "staged", 2048): 1668651,
    ("set-associative-lru", "staged", 4096): 634945,
    ("set-associative-lru", "staged", 6144): 344006,
    ("sieve", "direct", 2048): 1668252,
    ("sieve", "direct", 4096): 582856,
    ("sieve", "direct", 6144): 329287,
    ("sieve", "staged", 2048): 1668234,
    ("sieve", "staged", 4096): 582788,
    ("sieve", "staged", 6144): 329293,
    ("sink-recent", "direct", 2048): 1667799,
    ("sink-recent", "direct", 4096): 591483,
    ("sink-recent", "direct", 6144): 326977,
    ("sink-recent", "staged", 2048): 1667882,
    ("sink-recent", "staged", 4096): 591743,
    ("sink-recent", "staged", 6144): 326912,
    ("slru", "direct", 2048): 1668019,
    ("slru", "direct", 4096): 579350,
    ("slru", "direct", 6144): 325064,
    ("slru", "staged", 2048): 1668001,
    ("slru", "staged", 4096): 579281,
    ("slru", "staged", 6144): 324922,
    ("textbook-lru", "direct", 2048): 1668078,
    ("textbook-lru", "direct", 4096): 593917,
    ("textbook-lru", "direct", 6144): 327518,
    ("textbook-lru", "staged", 2048): 1668059,
    ("textbook-lru", "staged", 4096): 593829,
    ("textbook-lru", "staged", 6144): 327375,
}

# The sample holds neither ranks nor scores.
UNTOLD = [
    policy
    for policy in POLICIES.values()
    if not (policy.needs_ranks or policy.needs_scores or policy.needs_next)
]


@pytest.mark.parametrize("start", ["staged", "direct"])
def test_miss_counts_on_the_sample(start: str) -> None:
    rows = sweep([sample_path()], UNTOLD, [2048, 4096, 6144], start, compare_min=False).rows
    found = {
        (policy, start, int(buffer)): int(misses)
        for policy, buffer, misses in zip(rows.policy, rows.buffer, rows.misses, strict=True)
    }
    expected = {key: misses for key, misses in GOLDEN.items() if key[1] == start}
    lines = [f"    {key!r}: {misses},".replace("'", '"') for key, misses in sorted(found.items())]
    assert found == expected, "the sample now misses (to paste):\n" + "\n".join(lines)
