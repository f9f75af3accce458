"""Plans on a terminal, and what a load is."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hisparse_sim.simulator.serving.candidates import NEARLY_EQUAL
from hisparse_sim.simulator.serving.lengths import in_tokens
from hisparse_sim.simulator.serving.load_and_targets import not_met
from hisparse_sim.simulator.views.tables import print_table, write_text

if TYPE_CHECKING:
    from hisparse_sim.simulator.serving.config_check import Finding
    from hisparse_sim.simulator.serving.load_and_targets import Aim
    from hisparse_sim.simulator.serving.plan import Plan
    from hisparse_sim.simulator.serving.prediction import Setting

Columns = dict[str, tuple[str, Callable[[Any], str]]]


def count(value: Any) -> str:
    return f"{value:,.0f}"


def one(value: Any) -> str:
    return "-" if pd.isna(value) else f"{value:,.1f}"


def _percent(value: Any) -> str:
    return f"{100 * value:.1f}"


def share(value: Any) -> str:
    return f"{100 * value:.0f} %"


def _wrapped(text: str) -> str:
    """Return the text in indented lines of at most 80 columns."""
    return textwrap.fill(text, 80, initial_indent="  ", subsequent_indent="    ")


def load_line(setting: Setting, aim: Aim, instances: bool = False) -> str:
    """What a plan or a run is for; with the number of `instances` of each kind."""
    deployment = setting.deployment
    prefill = "prefill on other instances" if setting.disaggregated else "prefill on the same GPUs"
    if instances and setting.disaggregated:
        plural = "s" * (setting.prefill_instances > 1)
        prefill = (
            f"prefill on {setting.prefill_instances} instance{plural}, decode on"
            f" {setting.decode_instances}"
        )
    ranks = f"{setting.ranks} ranks" if setting.ranks > 1 else "1 rank"
    lengths = f"prompts of {in_tokens(aim.prompt)}, {aim.output:,} out"
    if aim.drawn is not None:
        prompt, output = aim.drawn.mean
        lengths = f"{aim.drawn.name}: prompts of {prompt:,.0f} tokens, {output:,.0f} out (means)"
    if aim.range_ratio < 1:
        lengths += f", down to {aim.range_ratio:g} of that"
    return (
        f"{deployment.model.name}, {deployment.model.kv_label(deployment.kv_dtype)}, on"
        f" {deployment.layout.gpus} x"
        f" {deployment.hardware.name} ({deployment.layout.name}: {ranks}), {prefill};\n"
        f"{lengths}"
    )


def assumed(setting: Setting, notes: Sequence[str]) -> str:
    """What the figures rest on, a line each."""
    return "Assumed:\n" + "\n".join(_wrapped(line) for line in (*notes, *setting.assumptions()))


def _candidate_columns(rows: pd.DataFrame, aim: Aim) -> Columns:
    at = "" if aim.percentile == 50 else f" p{aim.percentile:g}"
    columns: Columns = {"buffer": ("buffer", count), "ratio": ("ratio", count)}
    if (rows["resident_tokens"] > 0).any():
        columns["resident_tokens"] = ("resident", count)
    if rows["layout"].nunique() > 1:
        columns["layout"] = ("layout", str)
    if "tpot_ms" not in rows:  # memory alone is known
        return columns | {
            "miss_rate": ("miss %", _percent),
            "requests": ("requests/rank", count),
            "limit": ("limited by", str),
            "host_gb": ("host GB", count),
        }
    if (rows["prefill_instances"] > 0).any():
        columns |= {"instances": ("P+D", str), "tokens_per_s_per_gpu": ("tok/s/GPU", one)}
    else:
        columns |= {"miss_rate": ("miss %", _percent), "running": ("running", count)}
    columns |= {
        "tokens_per_s": ("tok/s", count),
        "tpot_ms": (f"TPOT ms{at}", one),
        "ttft_s": (f"TTFT s{at}", one),
        "host_gb": ("host GB", count),
    }
    if aim.gpu_hour is not None:
        columns["cost_per_million"] = ("cost/1M", lambda value: f"{value:,.2f}")
    return columns | {"bottleneck": ("bottleneck", str)}


def show_plan(
    plan: Plan,
    rows: pd.DataFrame,
    setting: Setting,
    aim: Aim,
    again: str,
    notes: Sequence[str],
    output: Path | None,
) -> None:
    """The load, the choice with its reasons, the table of candidates, and the consequences.

    `again`: the command that serves the best; `notes`: where the misses come from.
    """
    load = (
        f"{aim.label.replace('/s', ' requests/s')}"
        if aim.open_loop
        else f"{aim.concurrency:,} concurrent requests over all ranks"
    )
    lines = [f"{load_line(setting, aim)}, {load}", ""]
    if plan.best is not None:
        pair = f"device_buffer_size {plan.best['buffer']}, ratio {plan.best['ratio']}"
        if plan.best["resident_tokens"]:
            pair += f", {plan.best['resident_tokens']:,} resident tokens (no release keeps them)"
        if plan.best["worth_it"]:
            lines.append(f"Best: {pair}{_above(plan)}")
        else:
            lines.append(f"Serve without HiSparse at this load; the best with it: {pair}")
    lines += [_wrapped(reason) for reason in plan.reasons]
    refused = [
        f"B {row['buffer']:,}, ratio {row['ratio']} cannot run: {row['reason']}"
        for row in rows[rows["requests"] == 0].to_dict("records")
    ]
    able = rows[rows["requests"] > 0]
    if len(able):
        lines += ["", "tok/s and host GB: over all instances"]
    pairs = zip(able["prefill_instances"], able["decode_instances"], strict=True)
    print_table(
        able.assign(instances=[f"{prefill}+{decode}" for prefill, decode in pairs]),
        _candidate_columns(able, aim),
        output,
        before="\n".join(lines),
        after="\n".join([*refused, _extras(plan, aim, again), "", assumed(setting, notes)]),
        bars="tokens_per_s" if "tpot_ms" in able else "",
        keys=("buffer", "ratio"),
        sections=[_section(row, plan) for _, row in able.iterrows()],
    )


def _section(row: pd.Series, plan: Plan) -> str:
    """The heading that a row of the table stands under."""
    if plan.best is None:
        return not_met(row["missed"]) if row.get("missed") else "Candidates"
    if row["best"]:
        return "Best"
    if row["missed"]:
        return not_met(row["missed"])
    return "Alternatives: lower TPOT, less host memory or more tokens/s"


def _above(plan: Plan) -> str:
    """Say why the best is not the fastest, if it is not."""
    rows = plan.candidates
    if plan.best is None or "missed" not in rows:
        return ""
    rate = rows["tokens_per_s_per_gpu"]
    faster = (rate > plan.best["tokens_per_s_per_gpu"]) & (rows["missed"] == "")
    if not faster.any():
        return ""
    return f", the least host memory within {100 * NEARLY_EQUAL:g} % of the most tokens/s"


def _behind(plan: Plan) -> str:
    """Say at which load below the break-even HiSparse is not ahead."""
    from hisparse_sim.simulator.serving.worth import below_break_even

    below = below_break_even(plan.best or {})
    return f"; at {below} not ahead" if below else ""


def _extras(plan: Plan, aim: Aim, again: str) -> str:
    """Targets, break-even, sensitivity, better eviction, C2C and flags of the choice, in lines."""
    if plan.best is None:
        return ""
    best = plan.best
    lines = [""]
    if aim.has_targets:
        lines += [
            f"Smallest buffer tried that meets the targets: {plan.smallest_buffer}",
            f"Goodput: {best['goodput_per_s']:.3g} requests/s meet every latency target",
        ]
    if not aim.open_loop:
        crossing = (
            "not ahead up to this load"
            if plan.break_even is None
            else f"{plan.break_even} requests over all ranks{_behind(plan)}"
        )
        lines.append(f"Break-even concurrency: {crossing}")
    rates = ", ".join(f"{value:,.0f}" for value in plan.sensitivity["tokens_per_s"])
    lines.append(f"At 0, 0.5, 1, 1.5, 2 times the misses: {rates} tok/s")
    if len(plan.host):
        given = [
            f"of {row['host_gb_s']:,.0f} GB/s: {row['tokens_per_s']:,.0f} tok/s"
            for row in plan.host.to_dict("records")
        ]
        lines.append(f"With host bandwidth for all GPUs {'; '.join(given)}")
    for row in plan.policies.to_dict("records")[1:]:
        lines.append(
            f"With policy {row['policy']}: {100 * row['miss_rate']:.1f} % misses,"
            f" {100 * row['more_tokens']:+.1f} % tok/s"
        )
    if plan.linked:
        lines.append(
            f"With the host link of {plan.linked['hardware']} ({plan.linked['link_gb_s']:.0f}"
            f" GB/s) and the same compute: {plan.linked['tokens_per_s']:,.0f} tok/s"
        )
    lines += ["", "Simulate it:", *_flag_lines(again), "", f"Flags{_without(plan)}:"]
    lines += _flag_lines(plan.flags)
    if plan.prefill_flags:
        lines += ["Flags of an instance that prefills:", *_flag_lines(plan.prefill_flags)]
    return "\n".join(lines)


def _without(plan: Plan) -> str:
    """Say what the flags do not start: there is none for a resident share."""
    best = plan.best or {}
    left_out = best.get("worth_it") and best.get("resident_tokens")
    return ", of the same buffer and ratio without resident tokens" if left_out else ""


def _flag_lines(flags: str) -> list[str]:
    """Break a command line so that a shell reads it as one."""
    whole = re.sub(r"'[^']*'", lambda quoted: quoted[0].replace(" ", "\xa0"), flags)
    lines = textwrap.wrap(whole, 76, break_long_words=False, break_on_hyphens=False)
    return [*(f"  {line} \\" for line in lines[:-1]), f"  {lines[-1]}"]


def show_findings(findings: Sequence[Finding], output: Path | None = None) -> None:
    """Print what is wrong with a configuration, and notes on it."""
    lines = [
        textwrap.fill(f"{finding.severity}: {finding.text}", 80, subsequent_indent="  ")
        for finding in findings
    ]
    if all(finding.severity == "note" for finding in findings):
        lines.insert(0, "nothing wrong with this configuration at this load")
    write_text("\n".join(lines) + "\n", output)
