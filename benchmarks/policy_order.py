"""Do policies come in the same order on other traces? Studies against docs/policy-study.md.

    python benchmarks/policy_order.py STUDY.parquet... -o benchmarks/results/policy-study-8k.json

STUDY: what `hisparse-sim study --prefetch none -o FILE` writes. The order is that of miss rates at
twice the top-k; the optimum is left out. Kendall's tau is the share of pairs of policies in the
same order minus that of those in the other.
"""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

REFERENCE = Path(__file__).parent / "results" / "policy-study.json"
OPTIMUM = "belady"


def tau(one: pd.Series, other: pd.Series) -> float:
    """Return Kendall's tau of the values of the same names."""
    pairs = combinations(one.index, 2)
    return float(
        np.mean([np.sign(one[a] - one[b]) * np.sign(other[a] - other[b]) for a, b in pairs])
    )


def of_study(path: Path, known: pd.Series) -> dict[str, Any]:
    """Return the rates of a study and how its order differs from `known`, percent at 2 x top-k."""
    rows = pd.read_parquet(path)
    traces = [each for each in dict.fromkeys(rows["trace"]) if each != "all"]
    rows = rows[rows["trace"] == ("all" if len(traces) > 1 else traces[0])]
    top_k = int(rows["accesses"].max() / rows["steps"].max())
    sizes = {
        int(buffer): {
            name: {
                "miss_percent": round(100 * own["miss_rate"], 3),
                "closed_percent": round(100 * own["gap_closed"], 1),
            }
            for name, own in at.set_index("policy").iterrows()
        }
        for buffer, at in rows.groupby("buffer")
    }
    orders = {}
    for buffer, at in rows.groupby("buffer"):
        rates = at.set_index("policy")["miss_rate"].drop(OPTIMUM)
        both = [name for name in rates.index if name in known.index]
        moved = known[both].rank() - rates[both].rank()
        orders[f"{buffer / top_k:g} x top-k"] = {
            "policies": len(both),
            "tau": round(tau(rates[both], known[both]), 3),
            "places up": {name: move for name, move in moved.sort_values().items() if move},
        }
    return {
        "traces": traces, "provenance": rows["provenance"].iloc[0],
        "trace_sha256": rows["trace_sha256"].iloc[0].split(), "parts": int(rows["parts"].iloc[0]),
        "top_k": top_k, "at": sizes, "order against 32k at 2 x top-k": orders,
    }  # fmt: skip


@click.command()
@click.argument("studies", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def main(studies: tuple[Path, ...], output: Path) -> None:
    """Compare, and write what was found."""
    of = json.loads(REFERENCE.read_text())["policies_at_4096"]["all"]
    known = pd.Series({
        name: each["miss_percent"] for name, each in of.items() if ":" not in name
    }).drop(OPTIMUM)  # fmt: skip
    found = {path.stem: of_study(path, known) for path in studies}
    output.write_text(json.dumps(found, indent=1) + "\n")
    for name, each in found.items():
        for at, order in each["order against 32k at 2 x top-k"].items():
            click.echo(f"{name}, {at}: tau {order['tau']} of {order['policies']} policies")


if __name__ == "__main__":
    main()
