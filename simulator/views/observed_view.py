"""How counters beside a simulation are printed."""

from pathlib import Path

import pandas as pd

from hisparse_sim.simulator.serving.counters import SERVERS, Observed
from hisparse_sim.simulator.serving.fitting import Fit
from hisparse_sim.simulator.views.tables import print_table
from hisparse_sim.traces.terminal import escaped


def show_observed(
    observed: Observed, rows: pd.DataFrame, fit: Fit | None, output: Path | None = None
) -> None:
    """Print a row per quantity: measured, simulated, and when the two can be compared."""
    counts = observed.counts
    told = (
        f"{escaped(observed.model_name) or SERVERS[observed.server]}, {observed.engines}"
        f" engine{'s' * (observed.engines != 1)}: "
    )
    told += f"{counts['hits']:,.0f} hits and {counts['misses']:,.0f} misses of hot buffers"
    if observed.window_s is not None:
        told += f" in {observed.window_s:,.0f} s"
    after = ""
    if fit is not None:
        after = f"\n{fit}"
    print_table(
        rows,
        {
            "quantity": ("", str),
            "measured": ("measured", _figure),
            "simulated": ("simulated", _figure),
            "comparable": ("comparable", str),
        },
        output,
        before=told,
        after=after,
    )


def _figure(value: float) -> str:
    if pd.isna(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.3g}"
