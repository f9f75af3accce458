"""Serving runs on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hisparse_sim.simulator.serving.load_and_targets import not_met
from hisparse_sim.simulator.views.plan_view import Columns, assumed, count, one, share
from hisparse_sim.simulator.views.tables import print_table

if TYPE_CHECKING:
    from hisparse_sim.simulator.serving.load_and_targets import Aim
    from hisparse_sim.simulator.serving.prediction import Setting

_READING = (
    "",
    "TPOT: (latency - TTFT) / (output tokens - 1); TTFT includes the wait in the queue;"
    " medians, if no percentile is named",
    "running: requests that decode, over all instances, mean over time",
)


def show_served(
    rows: pd.DataFrame,
    before: str,
    setting: Setting,
    aim: Aim,
    notes: Sequence[str],
    output: Path | None = None,
) -> None:
    """What runs, and one line per run: rate, latencies, and the shares of the time in per cent."""
    apart = setting.disaggregated
    at = "" if aim.percentile == 50 else f" p{aim.percentile:g}"
    columns: Columns = {"mode": ("mode", str)}
    if rows["load"].nunique() > 1:
        columns["load"] = ("load", str)
    columns |= {
        "tokens_per_s": ("tok/s", count),
        "tpot_ms": (f"TPOT ms{at}", one),
        "ttft_s": (f"TTFT s{at}", one),
    }
    if "load" not in columns and not aim.has_targets:  # there is room for one of them
        columns["running"] = ("running", one)
    columns |= {
        "prefill_busy" if apart else "prefill": ("prefill", share),
        "swap_in": ("swap-in", share),
    }
    if (rows["hidden"] > 0).any():
        columns["hidden"] = ("hidden", share)
    if aim.has_targets:
        columns["goodput_per_s"] = ("goodput/s", lambda value: f"{value:.3g}")
    if aim.gpu_hour is not None:
        columns["cost_per_million"] = ("cost/1M", lambda value: f"{value:,.2f}")
    columns["bottleneck"] = ("bottleneck", str)
    said = [
        f"{row['mode']}, {row['load']}: {not_met(row['missed'])}"
        for row in rows.to_dict("records")
        if row["missed"] not in ("", "length")
    ]
    said += [
        f"{row['mode']}, {row['load']}: {row[name]} {what[0]}{'s' * (row[name] > 1)} {what[1]}"
        for row in rows.to_dict("records")
        for name, what in (
            ("refused", ("request", "refused for length")),
            ("cut", ("output", "cut to what a GPU's pool or the context can hold")),
        )
        if row[name]
    ]
    said += [
        f"{row['mode']}, {row['load']}: {100 * row['prefix_hits']:.0f} % of the prompt tokens were"
        " in the prefix cache"
        for row in rows.to_dict("records")
        if row["prefix_hits"]
    ]
    shares = (
        "prefill: share of the time that those instances work; swap-in: of the time of decode"
        if apart
        else "prefill, swap-in: share of the time; the rest is decoding"
    )
    if "hidden" in columns:
        shares += "; hidden: share in which copies run while decode steps compute"
    reading = _READING if "running" in columns else _READING[:-1]
    after = [*reading, shares, "", assumed(setting, notes), "", *said]
    print_table(rows, columns, output, before=before, after="\n".join(after), bars="tokens_per_s")
