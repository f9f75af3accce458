"""Miss counts on the bundled sample, summed over its layers and steps, pinned to the miss.

They change only together with a line in CHANGELOG.md that says why. The plain reference of
tests/reference.py gives the same numbers (an hour of plain Python, so not here).
"""

import pytest

from hisparse_sim.policies import POLICIES
from hisparse_sim.simulator.replay import sweep
from hisparse_sim.traces import sample_path

GOLDEN: dict[tuple[str, str, int], int] = {
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
    ("clock", "direct", 2048): 1668392,
    ("clock", "direct", 4096): 589632,
    ("clock", "direct", 6144): 330676,
    ("clock", "staged", 2048): 1668379,
    ("clock", "staged", 4096): 589533,
    ("clock", "staged", 6144): 330566,
    ("fifo", "direct", 2048): 1668421,
    ("fifo", "direct", 4096): 797499,
    ("fifo", "direct", 6144): 468138,
    ("fifo", "staged", 2048): 1668402,
    ("fifo", "staged", 4096): 797448,
    ("fifo", "staged", 6144): 467988,
    ("lfu", "direct", 2048): 1667732,
    ("lfu", "direct", 4096): 645852,
    ("lfu", "direct", 6144): 358756,
    ("lfu", "staged", 2048): 1667713,
    ("lfu", "staged", 4096): 645812,
    ("lfu", "staged", 6144): 358653,
    ("lru", "direct", 2048): 1667733,
    ("lru", "direct", 4096): 591402,
    ("lru", "direct", 6144): 326995,
    ("lru", "staged", 2048): 1667714,
    ("lru", "staged", 4096): 591319,
    ("lru", "staged", 6144): 326852,
    ("random", "direct", 2048): 1668784,
    ("random", "direct", 4096): 731881,
    ("random", "direct", 6144): 431172,
    ("random", "staged", 2048): 1668769,
    ("random", "staged", 4096): 739733,
    ("random", "staged", 6144): 448709,
}


@pytest.mark.parametrize("start", ["staged", "direct"])
def test_miss_counts_on_the_sample(start: str) -> None:
    rows = sweep([sample_path()], list(POLICIES), [2048, 4096, 6144], start, compare_min=False).rows
    found = {
        (policy, start, int(buffer)): int(misses)
        for policy, buffer, misses in zip(rows.policy, rows.buffer, rows.misses, strict=True)
    }
    expected = {key: misses for key, misses in GOLDEN.items() if key[1] == start}
    lines = [f"    {key!r}: {misses},".replace("'", '"') for key, misses in sorted(found.items())]
    assert found == expected, "the sample now misses (to paste):\n" + "\n".join(lines)
