"""The section on plans and serving runs."""

from collections.abc import Sequence
from html import escape

import pandas as pd

from hisparse_sim.simulator.views.report import charts, data, findings
from hisparse_sim.simulator.views.report.drawing import Drawn
from hisparse_sim.simulator.views.report.pieces import copy, hint
from hisparse_sim.simulator.views.report.results import Result


def section(
    results: Sequence[Result], swept: pd.DataFrame, drawn: Drawn, profiles: data.Profiles
) -> str:
    """Return plans and serving runs, one setting at a time; `swept`: the rows of the page."""
    plans = findings.plans_of(results)
    text = "".join(
        (f"<h3>{escape(plan.path.name)}</h3>" if len(plans) > 1 else "")
        + _planned(plan, f"-{number}" * (number > 1), swept, drawn, profiles)
        for number, plan in enumerate(plans, 1)
    )
    text = text or hint(
        "There is no plan among the results. This one weighs memory, misses and time:",
        "hisparse-sim plan --prompt 32768 --output-len 8192 -o plan.json",
    )
    for number, (runs, served) in enumerate(findings.runs_of(results), 1):
        if (closed := data.serve_table(served)).empty:
            continue
        suffix = f"-{number}" * (number > 1)
        drawn.tables[f"serve{suffix}"] = data.columns(closed)
        names = ", ".join(dict.fromkeys(run.path.name for run in runs))
        load = findings.load(runs[0].parameters)
        text += "<h3>Throughput by concurrency</h3>" + drawn.chart(
            f"throughput{suffix}",
            charts.throughput(list(dict.fromkeys(closed["mode"])), f"serve{suffix}"),
            "Output tokens per second by concurrent requests, a line per mode",
            f"{names}: simulated serving, closed loop"
            + f", for {load}" * bool(load)
            + "."
            + findings.elsewhere(runs[0], swept),
            "concurrency",
        )
    return text


def _planned(
    plan: Result, suffix: str, swept: pd.DataFrame, drawn: Drawn, profiles: data.Profiles
) -> str:
    plans, parameters = plan.rows, plan.parameters
    best = findings.choose_plan(plans)
    if best is None:
        text = "<p>No candidate can run and meets the targets.</p>"
    else:
        text = (
            f"<p>For {escape(findings.load(parameters))}: {best['tokens_per_s']:,.0f} tokens/s"
            f" at {best['tpot_ms']:.1f} ms per token, {best['batch']:.0f} requests per rank,"
            f" limited by {escape(str(best['limit']))}; {best['host_gb']:,.0f} GB of host"
            f" memory are pinned.{escape(findings.worth(best))} Simulated."
            f"{escape(findings.elsewhere(plan, swept))}</p>"
            "<p>The engine's flags:</p>" + copy(findings.flags(best, parameters, profiles))
        )
    if not (plans["requests"] > 0).any():
        return text
    wanted = "buffer ratio requests batch tokens_per_s tpot_ms host_gb limit".split()
    drawn.tables[f"plan{suffix}"] = data.columns(plans[wanted])
    return text + drawn.chart(
        f"pareto{suffix}",
        charts.pareto([int(size) for size in sorted(plans["buffer"].unique())], f"plan{suffix}"),
        "Candidates of the plan: tokens per second over time per token",
        "Upper left is better; larger points pin more host memory.",
        "tpot_ms",
    )
