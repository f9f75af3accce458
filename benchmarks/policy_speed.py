"""Speed of every policy at 4,096 slots, beside libCacheSim's, and its misses on several traces.

    python benchmarks/policy_speed.py TRACE...

Speeds are of the first trace, on one core, by processor time, as in replay_speed.py; libCacheSim
has the best of three hash tables. Where it lacks a policy it runs its LRU. Policies that need ranks
or scores are timed with ones drawn at random, and as many positions behind each row: their misses
are not reported. The bar: no policy is slower than half of libCacheSim.
"""

import json
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import libcachesim_runner as libcachesim
import numpy as np
from machine import describe_machine, describe_versions
from replay_speed import HASHPOWERS, one_core, seconds

from hisparse_sim.policies import POLICIES, Policy
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.traces import Demand, Trace, open_trace
from hisparse_sim.traces.demand import Ragged

RESULT = Path(__file__).parent / "results" / "policy_speed.json"
SLOTS = 4096
TURNS = 3
BAR = 0.5


def told(demand: Demand) -> Demand:
    """Return the demand with random scores, and as many positions behind each row."""
    random = np.random.default_rng(0)
    behind = [
        random.permutation(int(demand.seq_len[row]) - 1)[: len(demand.row(row))].astype(np.int32)
        for row in range(demand.rows)
    ]
    return replace(
        demand,
        scores=random.random(len(demand.positions)).astype(np.float16),
        next_positions=Ragged(demand.offsets, np.concatenate(behind)),
    )


def needs(policy: Policy) -> bool:
    return policy.needs_ranks or policy.needs_scores or policy.needs_next


def miss_rates(policy: str, traces: list[Trace]) -> dict[str, float]:
    rates = {}
    for trace in traces:
        demands = [trace.read(part) for part in trace.parts]
        misses = sum(int(replay_part(each, policy, SLOTS).misses.sum()) for each in demands)
        rates[trace.name] = round(misses / sum(len(each.positions) for each in demands), 6)
    return rates


def main() -> None:
    traces = [open_trace(path) for path in sys.argv[1:]]
    demands = [told(traces[0].read(part)) for part in traces[0].parts]
    accesses = sum(len(each.positions) for each in demands)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, one_core():
        files = [Path(folder) / str(number) for number in range(len(demands))]
        for file, demand in zip(files, demands, strict=True):
            libcachesim.write_oracle_general(file, demand.positions)
        theirs: dict[str, float] = {}
        for name, policy in POLICIES.items():
            like = name if name in libcachesim.CACHES else "lru"
            if like not in theirs:
                taken = [
                    sum(libcachesim.run(like, file, SLOTS, power).seconds for file in files)
                    for power in HASHPOWERS
                ]
                theirs[like] = accesses / min(taken) / 1e6
            for demand in demands:
                replay_part(demand, policy, SLOTS)
            ours = min(
                sum(seconds(partial(replay_part, demand, policy, SLOTS)) for demand in demands)
                for _ in range(TURNS)
            )
            row = {
                "policy": name,
                "m_per_s": round(accesses / ours / 1e6, 1),
                "libcachesim": like,
                "libcachesim_m_per_s": round(theirs[like], 1),
                "ratio": round(accesses / ours / 1e6 / theirs[like], 2),
                "miss_rates": {} if needs(policy) else miss_rates(name, traces),
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
    report = {
        "machine": describe_machine(),
        "versions": describe_versions("libcachesim", "numba", "numpy"),
        "slots": SLOTS,
        "trace": traces[0].name,
        "sha256": traces[0].sha256,
        "bar": BAR,
        "policies": rows,
    }
    RESULT.write_text(json.dumps(report, indent=2) + "\n")
    slow = [row["policy"] for row in rows if row["ratio"] < BAR]
    if slow:
        sys.exit(f"slower than {BAR} of libCacheSim: {', '.join(slow)}")


if __name__ == "__main__":
    main()
