"""The figure of docs/policy-study.md, from benchmarks/results/policy-study.json.

python benchmarks/policy_study_figure.py docs/policy-study.svg
"""

import json
import sys
from pathlib import Path

import pandas as pd

from hisparse_sim.simulator.views import figures

RESULT = Path(__file__).parent / "results" / "policy-study.json"
TRACES = "smollm2-135m 32k, documents and layers not used to choose fast-slow"
WHOLE = 100_000  # the file has miss rates in thousandths of a per cent


def main() -> None:
    sizes = json.loads(RESULT.read_text())["by_buffer"]
    rows = [
        {"policy": policy, "buffer": int(size), "misses": round(rates[policy] * WHOLE / 100)}
        for size, sets in sizes.items()
        for rates in [sets["held_out"]["miss_percent"]]
        for policy in ("lru", "mq", "fast-slow", "belady")
    ]
    table = pd.DataFrame(rows).assign(
        accesses=WHOLE, steps=1, trace=TRACES, provenance="captured, simulated:"
    )
    figures.save(figures.miss_ratio(table), sys.argv[1])


if __name__ == "__main__":
    main()
