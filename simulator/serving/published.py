"""The published figures for `reproduce`: data with sources, which no model reads."""

from importlib.resources import files
from typing import Any

import pandas as pd

from hisparse_sim.simulator.serving import profiles
from hisparse_sim.traces.documents import parse_toml


def read_published() -> dict[str, Any]:
    """The shipped figures: tables sources, memory, serving, step, hidden, steps, decode,
    measured_baseline."""
    text = (files(profiles) / "published.toml").read_text(encoding="utf-8")
    return parse_toml(text, "published.toml")


def published_rates() -> pd.DataFrame:
    """The published rates of the workload of `throughput_curves`: source, mode, concurrency,
    tokens_per_s."""
    rates = {  # the last entry of a point counts
        (entry["source"], entry["mode"], entry["concurrency"]): entry["value"]
        for entry in read_published()["serving"]
        if not {"against", "prompt"} & set(entry)
    }
    return pd.DataFrame(
        [(*key, rate) for key, rate in rates.items()],
        columns=["source", "mode", "concurrency", "tokens_per_s"],
    )
