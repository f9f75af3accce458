"""A study on a terminal: policies, prefetch, and what is least."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from hisparse_sim.simulator.prefetch import NO_PREFETCH
from hisparse_sim.simulator.study.rows import ALL, FIRST, LRU
from hisparse_sim.simulator.views.tables import table_text, write_text
from hisparse_sim.traces.terminal import counted

Columns = dict[str, tuple[str, Callable[[Any], str]]]


def _count(value: Any) -> str:
    return "-" if pd.isna(value) else f"{value:,.0f}"


def _one(value: Any) -> str:
    return "-" if pd.isna(value) else f"{value:,.1f}"


def _percent(value: Any) -> str:
    return "-" if pd.isna(value) else f"{100 * value:.2f}"


def _more(value: Any) -> str:
    return "-" if pd.isna(value) else f"{100 * value:+.1f}"


def _intervals(rows: pd.DataFrame) -> str:
    if (rows["parts"] < 2).all():
        return "without intervals, which a single part has not"
    return "with 95 % intervals over requests and layers"


def show_study(rows: pd.DataFrame, output: Path | None = None) -> None:
    """Print the rows of all traces together, or those of the only trace."""
    traces = [each for each in dict.fromkeys(rows["trace"]) if each != ALL]
    shown = rows[rows["trace"] == (ALL if len(traces) > 1 else traces[0])]
    first = shown.iloc[0]
    before = (
        f"{', '.join(traces)} ({first['provenance']}): {counted(first['parts'], 'part')},"
        f" {counted(first['requests'], 'request')}, {first['start']} start"
        f"{', without the rows of drafts' * bool(first['queries'] == FIRST)}\n"
        f"Misses, % of accesses, {_intervals(shown)}; change against LRU,"
        " %; time of one layer's swap-in, and how much of it MIN would save, and a prefetch that"
        " knows the future"
    )
    plain = shown[shown["prefetcher"] == NO_PREFETCH]
    tables = [(plain, _POLICIES, ["buffer", "policy"], before)]
    ahead = shown[shown["prefetcher"] != NO_PREFETCH]
    if len(ahead):
        what = (
            "\nPrefetch, per step of a layer: misses that the step waits for, copies that were of"
            " use, of none and late, further misses for want of slots, copies in all"
        )
        tables.append((ahead, _AHEAD, ["buffer", "prefetcher", "budget"], what))
    least = plain[plain["policy"] == LRU]
    what = (
        "\nThe least possible, misses per step of a layer: MIN; with the newest token inserted for"
        " free; from the best start; both; with a prefetch that knows the future, over the link"
    )
    tables.append((least, _LEAST, ["buffer"], what))
    if "busiest" in plain:
        what = (
            "\nThe busiest request of a layer, which a batch waits for, misses per step; least: no"
            " schedule has fewer"
        )
        tables.append((plain, _BUSIEST, ["buffer", "policy"], what))
    texts = [
        table_text(table, columns, output, before=text, keys=keys)
        for table, columns, keys, text in tables
    ]
    write_text("".join(texts), output)


_POLICIES: Columns = {
    "buffer": ("buffer", _count),
    "policy": ("policy", str),
    "miss_rate": ("miss %", _percent),
    "miss_rate_low": ("from %", _percent),
    "miss_rate_high": ("to %", _percent),
    "change": ("change %", _more),
    "p_value": ("p", lambda value: "-" if pd.isna(value) else f"{value:.3f}"),
    "gap_closed": ("gap closed %", _more),
    "lru_slots": ("LRU slots", _count),
    "swap_in_us": ("us", _one),
    "fetch_regret_us": ("us over MIN", _one),
    "stall_regret_us": ("us over least", _one),
}
_AHEAD: Columns = {
    "buffer": ("buffer", _count),
    "policy": ("policy", str),
    "prefetcher": ("prefetcher", str),
    "budget": ("budget", _count),
    "misses_per_step": ("misses", _one),
    "change": ("change %", _more),
    "useful_per_step": ("useful", _one),
    "useless_per_step": ("useless", _one),
    "late_per_step": ("late", _one),
    "pollution_per_step": ("pollution", _one),
    "copies_per_step": ("copies", _one),
    "swap_in_us": ("us", _one),
}
_LEAST: Columns = {
    "buffer": ("buffer", _count),
    "misses_per_step": ("LRU", _one),
    "least_misses": ("MIN", _one),
    "least_newest": ("newest kept", _one),
    "least_start": ("best start", _one),
    "least_newest_start": ("both", _one),
    "least_exposed": ("exposed", _one),
}
_BUSIEST: Columns = {
    "buffer": ("buffer", _count),
    "policy": ("policy", str),
    "busiest": ("busiest", _one),
    "least_busiest": ("least", _one),
    "barrier_regret": ("misses over least", _one),
    "busiest_us": ("us", _one),
    "barrier_regret_us": ("us over least", _one),
}
