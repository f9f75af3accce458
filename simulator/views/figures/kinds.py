"""The figures that result files can be drawn as, by name."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hisparse_sim.simulator.mrc import mrc
from hisparse_sim.simulator.mrc.facts import is_facts
from hisparse_sim.simulator.prefetch import NO_PREFETCH
from hisparse_sim.simulator.replay.result_files import read_rows
from hisparse_sim.simulator.views.figures import costs, misses, prefetched, served, studied
from hisparse_sim.simulator.views.figures.style import SCREEN
from hisparse_sim.simulator.views.report.results import read_results, rows_of
from hisparse_sim.traces import TraceError
from hisparse_sim.traces.remote import place_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_NAMED = 10  # sizes in a message


@dataclass(frozen=True)
class Kind:
    """A figure of one kind of result file."""

    summary: str
    of: str  # the kind of its rows, as `report.results` names them
    draw: Callable[[pd.DataFrame, str], "Axes | Figure"]  # of rows, in a style


def _swap_ins(rows: pd.DataFrame, style: str) -> "Axes":
    sizes, entries = sorted(rows["buffer"].unique()), rows["entry_bytes"].max()
    buffer = 4096 if 4096 in sizes else sizes[-1]
    own = rows[(rows["buffer"] == buffer) & (rows["entry_bytes"] == entries)]
    kernel = "sglang_us" if "sglang_us" in own else "native_us"
    machine = str(own["machine"].iloc[0]) if "machine" in own else "GPU not told"
    corner = f"measured on {machine}, {buffer:,} slots, KV entries of {entries:,} bytes"
    points = own.rename(columns={kernel: "measured_us"})
    return costs.latency(points, provenance=corner, style=style)


def _policies(measure: str) -> Callable[[pd.DataFrame, str], "Axes | Figure"]:
    def draw(rows: pd.DataFrame, style: str) -> "Axes | Figure":
        if studied.lines_fit(rows, measure):
            return studied.study_lines(rows, measure=measure, style=style)
        return studied.study_dots(rows, measure=measure, style=style)

    return draw


def _curve(rows: pd.DataFrame, style: str) -> "Axes":
    if "layers" not in rows:
        raise ValueError("the figure of curves lacks the column layers: give it what curve wrote")
    return misses.rolling_misses(rows, style=style)


def _prefetch(rows: pd.DataFrame, style: str) -> "Axes | Figure":
    if {"prefetcher", "buffer"} <= set(rows):
        ahead = rows[rows["prefetcher"] != NO_PREFETCH]
        if ahead["buffer"].nunique() > 1:
            return prefetched.exposed_misses_by_buffer(rows, style=style)
    return prefetched.exposed_misses(rows, style=style)


KINDS = {
    "mrc": Kind("miss ratio by buffer size", "sweep", lambda r, s: misses.miss_ratio(r, style=s)),
    "policies": Kind(
        "misses of policies at each buffer", "sweep", lambda r, s: misses.policy_dots(r, style=s)
    ),
    "curve": Kind("rolling misses over decode steps", "curve", _curve),
    "study": Kind("misses of policies, with intervals", "study", _policies("misses")),
    "gap": Kind(
        "share of the gap between LRU and MIN that policies close, with intervals",
        "study",
        _policies("gap"),
    ),
    "prefetch": Kind("misses that prefetch leaves, and what it copies", "study", _prefetch),
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


def plot(
    kind: str,
    results: Sequence[str | Path],
    *,
    buffers: Iterable[int] | None = None,
    style: str = SCREEN,
) -> "Axes | Figure":
    """Draw result files as a figure of a kind of KINDS.

    `results`: files written with -o (csv, json, jsonl, parquet); mrc takes facts, too. `buffers`:
    only these sizes. `style`: see `STYLES`. Returns the axes, of several panels the figure. Raises
    ValueError for an unknown kind or style, for sizes that are not there, and for rows that the
    figure refuses, TraceError for files that cannot be read or hold no such rows."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    rows = _rows(kind, [place_of(one) for one in results])
    if buffers is not None:
        rows = _of_buffers(rows, kind, list(buffers))
    return KINDS[kind].draw(rows, style)


def _rows(kind: str, paths: list[Path]) -> pd.DataFrame:
    """Read the rows of a figure."""
    if kind == "mrc" and all(path.suffix == ".parquet" and is_facts(path) for path in paths):
        return mrc(list(paths)).rows
    wanted = KINDS[kind].of
    if wanted == "study":
        studies = [read_rows(path, study=True) for path in paths]
        return pd.concat(studies, ignore_index=True)
    rows = rows_of(read_results(paths), wanted)
    if rows.empty:
        names = ", ".join(str(path) for path in paths)
        command = "gpu bench" if wanted == "bench" else wanted
        raise TraceError(
            f"{names}: no rows of {wanted}; a figure of {kind} needs what"
            f" `hisparse-sim {command} -o FILE` writes"
        )
    return rows


def _of_buffers(rows: pd.DataFrame, kind: str, buffers: list[int]) -> pd.DataFrame:
    if "buffer" not in rows:
        raise ValueError(f"a figure of {kind} has no `buffers` to choose from")
    known = sorted(set(rows["buffer"]))
    if missing := [size for size in buffers if size not in known]:
        there = ", ".join(f"{size:,}" for size in known[:_MOST_NAMED])
        more = f" and {len(known) - _MOST_NAMED} more" * (len(known) > _MOST_NAMED)
        raise ValueError(f"no rows of `buffers` {missing[0]:,}; there are {there}{more}")
    return rows[rows["buffer"].isin(buffers)]
