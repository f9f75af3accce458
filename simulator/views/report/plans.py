"""The section on plans and serving runs."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from hisparse_sim.simulator.views.report import data, findings, served_charts, titles
from hisparse_sim.simulator.views.report.drawing import Drawn
from hisparse_sim.simulator.views.report.pieces import (
    Cells,
    copy,
    count,
    details,
    hint,
    legend_of_modes,
    legend_of_parts,
    table,
)
from hisparse_sim.simulator.views.report.results import Result

_ALIKE = 0.002  # two rates closer than this share are one to the eye
_ROOM = 0.08  # of the axes, that a label takes


def section(
    results: Sequence[Result], swept: pd.DataFrame, drawn: Drawn, profiles: data.Profiles
) -> str:
    """Return plans and serving runs, one setting at a time; `swept`: the rows of the page."""
    plans = findings.plans_of(results)
    text = "".join(
        _planned(
            plan,
            plan.path.name if len(plans) > 1 else "",
            f"-{number}" * (number > 1),
            swept,
            drawn,
            profiles,
        )
        for number, plan in enumerate(plans, 1)
    )
    if not text and len(swept):
        text = hint(
            "There is no plan among the results. This one weighs memory, misses and time:",
            "hisparse-sim plan --prompt 32768 --output-len 8192 -o plan.json",
        )
    for number, (runs, served) in enumerate(findings.runs_of(results), 1):
        if not (closed := data.serve_table(served)).empty:
            text += _served(runs, closed, f"-{number}" * (number > 1), swept, drawn)
    return text


def _served(
    runs: Sequence[Result], closed: pd.DataFrame, suffix: str, swept: pd.DataFrame, drawn: Drawn
) -> str:
    name = f"serve{suffix}"
    drawn.tables[name] = data.columns(closed, 4)
    names = ", ".join(dict.fromkeys(run.path.name for run in runs))
    load = findings.load(runs[0].parameters)
    modes = list(dict.fromkeys(closed["mode"]))
    loads = sorted(float(one) for one in closed["concurrency"].unique())
    columns = ["mode", "concurrency", "tokens_per_s"]
    text = drawn.chart(
        f"throughput{suffix}",
        served_charts.throughput(modes, loads, name),
        titles.throughput(closed),
        "Output tokens per second by concurrent requests, a line per mode",
        f"{names}: modelled serving, closed loop"
        + f", for {load}" * bool(load)
        + "."
        + findings.elsewhere(runs[0], swept),
        columns,
        "concurrency",
        legend_of_modes(modes),
        ["mode"],
    )
    for of, unit, what in (
        ("tpot", "ms", "Time per output token"),
        ("ttft", "s", "Time to the first token"),
    ):
        wanted = [f"{of}_p{percent}_{unit}" for percent in (50, 95, 99)]
        if set(wanted) <= set(closed) and closed[wanted].notna().any(axis=None):
            text += drawn.chart(
                f"{of}{suffix}",
                served_charts.percentiles(modes, loads, name, of),
                titles.percentile(closed, of),
                f"{what} by concurrent requests, a line per mode",
                f"{what}: the line is the median, rules reach to the 99th percentile, ticks mark"
                " the 95th.",
                ["mode", "concurrency", *wanted],
                "concurrency",
                legend_of_modes(modes),
                ["mode"],
            )
    parts = data.shares_table(closed)
    if len(parts):
        drawn.tables[f"shares{suffix}"] = data.columns(parts, 4)
        text += drawn.chart(
            f"shares{suffix}",
            served_charts.shares(f"shares{suffix}", parts["run"].nunique()),
            titles.shares(closed),
            "Where the time of the instances that decode goes, a bar per load and mode",
            "Of the instances that decode; concurrent requests, mode.",
            ["run", "part", "share"],
            extra=legend_of_parts(),
            legend=["part"],
        )
    return text


def _planned(
    plan: Result,
    name: str,
    suffix: str,
    swept: pd.DataFrame,
    drawn: Drawn,
    profiles: data.Profiles,
) -> str:
    plans, parameters = plan.rows, plan.parameters
    best = findings.choose_plan(plans)
    text = f"<h3>{escape(name)}</h3>" * bool(name)
    if best is None:
        text += "<p>No candidate can run and meets the targets.</p>"
    else:
        text += (
            f"<h3>Recommended: {best['buffer']:,.0f} slots, ratio {best['ratio']:.0f}"
            f"{_resident(best)}</h3>"
            f"<p>For {escape(findings.load(parameters))}: {best['tokens_per_s']:,.0f} tokens/s"
            f" at {best['tpot_ms']:.1f} ms per token, {best['batch']:.0f} requests per rank,"
            f" limited by {escape(str(best['limit']))}; {best['host_gb']:,.0f} GB of host"
            f" memory are pinned.{escape(findings.worth(best))} Modelled."
            f"{escape(findings.elsewhere(plan, swept))}</p>"
            "<p>The engine's flags:</p>" + copy(findings.flags(best, parameters, profiles))
        )
    able = plans[plans["requests"] > 0]
    if able.empty:
        return f'<div class="wide">{text}</div>'
    shown = able.assign(front=_labelled(able), label=able["ratio"].map("R {:g}".format), best=False)
    baseline = None
    if best is not None:
        chosen = (shown["buffer"] == best["buffer"]) & (shown["ratio"] == best["ratio"])
        if "resident_tokens" in shown:
            chosen &= shown["resident_tokens"] == best["resident_tokens"]
        shown["best"] = chosen & ~(chosen & chosen.duplicated())
        given = best.get("baseline_tokens_per_s")
        baseline = float(given) if given is not None and pd.notna(given) else None
    wanted = "buffer ratio requests batch tokens_per_s tpot_ms host_gb limit".split()
    drawn.tables[f"plan{suffix}"] = data.columns(shown[[*wanted, "front", "label", "best"]])
    hybrid = "resident_tokens" in able and (able["resident_tokens"] > 0).any()
    cells: Cells = {
        "buffer": ("slots", count),
        "ratio": ("ratio", count),
        **({"resident_tokens": ("resident tokens", count)} if hybrid else {}),
        "batch": ("requests per rank", count),
        "tokens_per_s": ("tokens/s", count),
        "tpot_ms": ("ms per token", lambda value: "-" if pd.isna(value) else f"{value:,.1f}"),
        "host_gb": ("host GB", count),
        "limit": ("limited by", str),
    }
    chart = drawn.chart(
        f"pareto{suffix}",
        served_charts.pareto(
            [int(size) for size in sorted(able["buffer"].unique())], f"plan{suffix}", baseline
        ),
        titles.pareto(best),
        "Candidates of the plan: tokens per second over time per token",
        "Upper left is better. The ring is the recommended one, R the ratio of those that no other"
        " beats in both; larger points pin more host memory.",
        wanted,
        "tpot_ms",
    )
    rates = able.sort_values("tokens_per_s", ascending=False, kind="stable")
    every = bool(parameters.get("candidates")) or "best" not in plans
    text += details(
        "All candidates that can run"
        if every
        else "The best, and candidates that no other beats (all: plan --candidates)",
        table(rates, cells),
    )
    return chart + f'<div class="card">{text}</div>'


def _resident(best: Mapping[str, Any]) -> str:
    tokens = best.get("resident_tokens", 0)  # older files have none
    return f", {tokens:,.0f} resident tokens" if tokens else ""


def _labelled(able: pd.DataFrame) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """[candidates] whether no other beats it in both rate and time, and its label has room."""
    rates, times = able["tokens_per_s"].to_numpy(float), able["tpot_ms"].to_numpy(float)
    ahead = np.array(
        [
            not ((times <= time) & (rates > (1 + _ALIKE) * rate)).any()
            for rate, time in zip(rates, times, strict=True)
        ],
        bool,
    )
    kept: list[int] = []
    spans = (np.nanmax(rates) - np.nanmin(rates)) or 1, (np.nanmax(times) - np.nanmin(times)) or 1
    for at in np.flatnonzero(ahead)[np.argsort(-rates[ahead], kind="stable")]:
        apart = (
            abs(rates[at] - rates[one]) / spans[0] + abs(times[at] - times[one]) / spans[1]
            for one in kept
        )
        if all(distance > _ROOM for distance in apart):
            kept.append(int(at))
    return np.isin(np.arange(len(able)), kept)
