"""The figures that result files can be drawn as, by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hisparse_sim.simulator.mrc import mrc
from hisparse_sim.simulator.mrc.facts import is_facts
from hisparse_sim.simulator.replay.result_files import read_rows
from hisparse_sim.simulator.views.figures import costs, misses, prefetched, served
from hisparse_sim.simulator.views.figures.style import SCREEN
from hisparse_sim.simulator.views.report.results import read_results, rows_of
from hisparse_sim.traces import TraceError
from hisparse_sim.traces.remote import place_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Kind:
    """A figure of one kind of result file."""

    summary: str
    of: str  # the kind of its rows, as `report.results` names them
    draw: Callable[[pd.DataFrame, str], "Axes"]  # of rows, in a style


def _swap_ins(rows: pd.DataFrame, style: str) -> "Axes":
    sizes, entries = sorted(rows["buffer"].unique()), rows["entry_bytes"].max()
    buffer = 4096 if 4096 in sizes else sizes[-1]
    own = rows[(rows["buffer"] == buffer) & (rows["entry_bytes"] == entries)]
    kernel = "sglang_us" if "sglang_us" in own else "native_us"
    machine = str(own["machine"].iloc[0]) if "machine" in own else "GPU not told"
    corner = f"measured on {machine}, {buffer:,} slots, KV entries of {entries:,} bytes"
    points = own.rename(columns={kernel: "measured_us"})
    return costs.latency(points, provenance=corner, style=style)


KINDS = {
    "mrc": Kind("miss ratio by buffer size", "sweep", lambda r, s: misses.miss_ratio(r, style=s)),
    "policies": Kind(
        "misses of policies at each buffer", "sweep", lambda r, s: misses.policy_dots(r, style=s)
    ),
    "curve": Kind(
        "rolling misses over decode steps", "curve", lambda r, s: misses.rolling_misses(r, style=s)
    ),
    "prefetch": Kind(
        "misses that prefetch leaves, and what it copies",
        "study",
        lambda r, s: prefetched.exposed_misses(r, style=s),
    ),
    "pareto": Kind(
        "plans: throughput against latency", "plan", lambda r, s: costs.plan_pareto(r, style=s)
    ),
    "throughput": Kind(
        "tokens per second by concurrency", "serve", lambda r, s: costs.throughput(r, style=s)
    ),
    "tpot": Kind(
        "time per output token", "serve", lambda r, s: served.percentiles(r, "tpot", style=s)
    ),
    "ttft": Kind(
        "time to the first token", "serve", lambda r, s: served.percentiles(r, "ttft", style=s)
    ),
    "shares": Kind("where the time goes", "serve", lambda r, s: served.time_shares(r, style=s)),
    "latency": Kind("measured time of a swap-in", "bench", _swap_ins),
}


def plot(kind: str, results: Sequence[str | Path], *, style: str = SCREEN) -> "Axes":
    """Draw result files as a figure of a kind of KINDS.

    `results`: files written with -o (csv, json, jsonl, parquet); mrc takes facts, too. `style`: see
    `STYLES`. Raises ValueError for an unknown kind or style and for rows that the figure refuses,
    TraceError for files that cannot be read or hold no such rows."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    paths = [place_of(one) for one in results]
    if kind == "mrc" and all(path.suffix == ".parquet" and is_facts(path) for path in paths):
        return KINDS[kind].draw(mrc(list(paths)).rows, style)
    wanted = KINDS[kind].of
    if wanted == "study":
        studied = [read_rows(path, study=True) for path in paths]
        return KINDS[kind].draw(pd.concat(studied, ignore_index=True), style)
    rows = rows_of(read_results(paths), wanted)
    if rows.empty:
        names = ", ".join(str(path) for path in paths)
        command = "gpu bench" if wanted == "bench" else wanted
        raise TraceError(
            f"{names}: no rows of {wanted}; a figure of {kind} needs what"
            f" `hisparse-sim {command} -o FILE` writes"
        )
    return KINDS[kind].draw(rows, style)
