"""The answer at the head of a page: one line with the verdict, and a tile for each figure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hisparse_sim.simulator.replay.metrics import blocks_of
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.serving.reproduce import OUT
from hisparse_sim.simulator.views.palette import OPTIMUM, named
from hisparse_sim.simulator.views.report import data, findings, titles
from hisparse_sim.simulator.views.report.pieces import percent, unbroken
from hisparse_sim.simulator.views.report.results import Result
from hisparse_sim.simulator.views.report.series import Series


@dataclass(frozen=True)
class Tile:
    """One figure of the answer."""

    name: str
    label: str
    value: str
    note: str
    href: str  # id of the chart or section behind it
    kind: str = "modelled"  # or replayed, measured, published


def tiles_html(tiles: Sequence[Tile]) -> str:
    every = "".join(
        f'<a class="tile" data-tile="{one.name}" href="#{one.href}">'
        f'<span class="label">{unbroken(one.label)} <span class="kind">{one.kind}</span></span>'
        f'<span class="value">{unbroken(one.value)}</span>'
        f'<span class="small">{unbroken(one.note)}</span></a>'
        for one in tiles
    )
    return f'<div class="tiles">{every}</div>'


def of_choice(
    series: Series, times: data.Times | None, policy: str, buffer: int, planned: bool
) -> list[Tile]:
    """Return the tiles of one trace that follow the chosen policy and buffer: misses, excess, bytes
    and time, requests.

    `times`: of all traces, None without tokens. `planned`: a plan tells the requests."""
    rows, sums = series.rows, series.sums
    own = sums[(sums["policy"] == policy) & (sums["buffer"] == buffer)].iloc[0].to_dict()
    at = f"{named(policy)}, {buffer:,} slots"
    found = [
        Tile(
            "misses",
            "Misses",
            percent(own["miss_rate"], 1),
            f"{own['misses_per_step']:,.1f} of {own['accesses'] / own['steps']:,.0f} selected"
            f" positions per step and layer; {at}",
            "miss-ratio-card",
            "replayed",
        )
    ]
    if policy != OPTIMUM and math.isfinite(own["excess_over_min"]):
        least = own["misses_per_step"] / (1 + own["excess_over_min"])
        found.append(
            Tile(
                "excess",
                "Over MIN",
                f"+{percent(own['excess_over_min'])}",
                f"no policy can miss fewer than {least:,.1f} a step",
                "dots-card",
                "replayed",
            )
        )
    if times is not None and not blocks_of(rows):
        found += _moved(rows, own["misses_per_step"], times, policy, buffer)
        found += [] if planned else _fits(rows, buffer)
    return found


def _moved(
    rows: pd.DataFrame,
    misses_per_step: float,
    times: data.Times,
    policy: str,
    buffer: int,
) -> list[Tile]:
    table = times.table
    of = (table["policy"] == policy) & (table["buffer"] == buffer)
    of &= (table["trace"] == rows["trace"].iloc[0]) & (table["batch"] == times.chosen)
    if not of.any():
        return []
    time = float(table.loc[of, "time"].iloc[0])
    together = f"{times.chosen} requests" if times.chosen > 1 else "one request"
    waits = f"{time:,.1f} {times.unit} of swap-in over {times.link}, {together}"
    if times.model is None:
        return [Tile("moved", "Swap-in of a layer", f"{time:,.1f} {times.unit}", waits,
                     "swap-in-card")]  # fmt: skip
    moved = misses_per_step * times.entry_bytes * times.layers
    return [
        Tile(
            "moved",
            "Over the link",
            f"{moved / 1e6:,.1f} MB",
            f"a token, all {times.layers} layers of {data.called(times.model, times.kv_dtype)};"
            f" {waits}",
            "swap-in-card",
        )
    ]


def _fits(rows: pd.DataFrame, buffer: int) -> list[Tile]:
    fits = data.fitting(rows, buffer)
    if not fits:
        return []
    (model, best), *others = fits.items()
    limit = f", limited by {best['limit']}" if isinstance(best.get("limit"), str) else ""
    ratio = best.get("host_to_device_ratio")
    tokens = best.get("request_tokens")
    told = [f"of {tokens:,.0f} tokens"] if pd.notna(tokens) else []
    told += [model] if others else []
    told += [f"ratio {ratio:.0f}"] if pd.notna(ratio) else []
    limit += "".join(f"; {name}: {one['requests_per_gpu']:,.0f}" for name, one in others)
    return [
        Tile("requests", "Requests per rank", f"{best['requests_per_gpu']:,.0f}",
             (", ".join(told) + limit).removeprefix(", "), "memory")
    ]  # fmt: skip


def of_plan(best: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[Tile]:
    """Return the tiles of a plan: its requests, its rate, and that without HiSparse."""
    lengths = [parameters.get(name) for name in ("prompt", "output_len")]
    known = [one for one in lengths if isinstance(one, int)]
    tokens = f"of {sum(known):,} tokens, " if len(known) == len(lengths) else ""
    pair = f"{best['buffer']:,.0f} slots, ratio {best['ratio']:.0f}"
    limit = f", limited by {best['limit']}" if isinstance(best.get("limit"), str) else ""
    fits = Tile("requests", "Requests per rank", f"{best['batch']:,.0f}",
                f"on average, {tokens}{pair}{limit}", "plan")  # fmt: skip
    note = pair
    base = best.get("baseline_tokens_per_s")
    if base is not None and pd.notna(base) and base > 0:
        note += f"; {best['tokens_per_s'] / base:.1f} times the {base:,.0f} without HiSparse"
    rate = Tile("rate", "Tokens per second", f"{best['tokens_per_s']:,.0f}",
                note, "plan")  # fmt: skip
    return [fits, rate]


def of_served(served: pd.DataFrame) -> list[Tile]:
    """Return the tiles of a serving run at its largest load with HiSparse: rate and latencies.

    `served`: columns of `data.serve_table`."""
    own = served[served["mode"] == "hisparse"]
    last = (own if len(own) else served).sort_values("concurrency").iloc[-1].to_dict()
    load = f"at {last['concurrency']:,.0f} concurrent requests"
    same = served[(served["mode"] == "baseline") & (served["concurrency"] == last["concurrency"])]
    without: dict[str, float] = same.iloc[0].to_dict() if len(same) else {}
    base = without.get("tokens_per_s")
    gain = (
        f"{last['tokens_per_s'] / base:.2f} times the {base:,.0f} without HiSparse, "
        if base
        else ""
    )
    found = [Tile("rate", "Tokens per second", f"{last['tokens_per_s']:,.0f}", gain + load,
                  "throughput-card")]  # fmt: skip
    for of, unit, what in (("tpot", "ms", "Time per token"), ("ttft", "s", "First token after")):
        median, most = (last.get(f"{of}_p{percent}_{unit}") for percent in (50, 99))
        if median is None or most is None or pd.isna(median) or pd.isna(most):
            continue
        beside = without.get(f"{of}_p50_{unit}")
        other = f"; without HiSparse {beside:,.1f} {unit}" if pd.notna(beside) else ""
        note = f"median, 99th percentile {most:,.1f} {unit}{other}"
        found.append(Tile(of, what, f"{median:,.1f} {unit}", note, f"{of}-card"))
    return found


def of_published(rows: pd.DataFrame) -> list[Tile]:
    """Return the tiles of published figures beside ours."""
    errors = rows["error"].abs().reset_index(drop=True)
    near = f"{(errors <= titles.NEAR).sum()} of {len(rows)}"
    far = rows.iloc[int(errors.argmax())]
    tiles = [
        ("near", f"Within {percent(titles.NEAR)}", near, "published figures, all of them"),
        ("error", "Median error", percent(errors.median()), "half of the figures are closer"),
        ("worst", "Largest error", f"{far['error']:+.0%}".replace("%", " %"), str(far["what"])),
    ]
    if "sample" in rows and (out := rows["sample"].eq(OUT).fillna(False).to_numpy(bool)).any():
        unseen = f"{(errors[out] <= titles.NEAR).sum()} of {out.sum()}"
        whose = f"within {percent(titles.NEAR)}, of those that shaped no choice in the model"
        tiles.insert(1, ("out", "Out of sample", unseen, whose))
    return [Tile(*one, "published") for one in tiles]


def verdict(results: Sequence[Result], rows: pd.DataFrame, planned: int | None = None) -> str:
    """Return whether HiSparse pays, and from which load on, as far as the results tell."""
    for plan in findings.plans_of(results):
        if (best := findings.choose_plan(plan.rows)) is not None:
            if (base := best.get("baseline_tokens_per_s")) is None or pd.isna(base):
                continue
            return pays(best, float(base), findings.load_of(best, plan.parameters))
        return "No candidate of the plan can run and meets the targets."
    for _, served in findings.runs_of(results):
        closed = data.serve_table(served)
        if len(closed) and {"hisparse", "baseline"} <= set(closed["mode"]):
            return titles.throughput(closed) + " (modelled)."
    if rows.empty:
        redone = findings.published_of(results)
        return "" if redone.empty else titles.reproduced(redone) + "."
    if rows["trace"].nunique() > 1:
        return ""
    sums = totals(rows)
    return titles.miss_ratio(sums, *findings.focus(sums, planned)) + "."


def pays(best: Mapping[str, Any], base: float, load: str) -> str:
    """Return the verdict on a plan's best pair beside serving without HiSparse."""
    rate = best["tokens_per_s"]
    with_it = f"{best['buffer']:,.0f} slots and a ratio of {best['ratio']:.0f}"
    if rate <= base:
        return (
            f"HiSparse does not pay{load}: {rate:,.0f} tokens/s with {with_it},"
            f" {base:,.0f} without it (modelled)."
        )
    times = f", {rate / base:.1f} times the {base:,.0f} without it" if base > 0 else ""
    said = f"HiSparse pays{load}: {rate:,.0f} tokens/s with {with_it}{times}"
    said += _price(best, "tpot_ms", "a token takes")
    said += _price(best, "ttft_s", "the first one comes after")
    even = best.get("break_even")
    if even is not None and pd.notna(even):
        said += f"; it is ahead from {even:,.0f} concurrent requests on{findings.behind(best)}"
    return said + " (modelled)."


def _price(best: Mapping[str, Any], of: str, what: str) -> str:
    """Say what a latency of a plan's best pair is, and without HiSparse; empty if not known."""
    ours, theirs = best.get(of), best.get(f"baseline_{of}")
    if ours is None or theirs is None or pd.isna(ours) or pd.isna(theirs):
        return ""
    return f"; {what} {_spoken(ours, of)}, without it {_spoken(theirs, of)}"


def _spoken(value: float, of: str) -> str:
    if of == "tpot_ms":
        return f"{value:,.1f} ms"
    return f"{value / 60:,.0f} min" if value >= 120 else f"{value:,.1f} s"
