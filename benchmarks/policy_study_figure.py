"""The figure of docs/policy-study.md, from benchmarks/results/policy-study-second.json.

python benchmarks/policy_study_figure.py docs/policy-study.svg
"""

import json
import sys
from pathlib import Path

import pandas as pd

from hisparse_sim.simulator.views import figures

RESULT = Path(__file__).parent / "results" / "policy-study-second.json"
TRACES = "smollm2-135m 32k, a capture not used to choose fast-slow"
WHOLE = 100_000  # the file has miss rates in thousandths of a per cent


def main() -> None:
    sizes = json.loads(RESULT.read_text())["by_buffer"]
    rows = [
        {
            "policy": policy,
            "buffer": int(size),
            "misses": round(policies[policy]["miss_percent"] * WHOLE / 100),
        }
        for size, policies in sizes.items()
        if int(size) > 2048  # with top_k slots no policy has a choice
        for policy in ("lru", "mq", "fast-slow", "belady")
    ]
    table = pd.DataFrame(rows).assign(
        accesses=WHOLE, steps=1, trace=TRACES, provenance="captured, simulated:"
    )
    figures.save(figures.miss_ratio(table), sys.argv[1])


if __name__ == "__main__":
    main()
