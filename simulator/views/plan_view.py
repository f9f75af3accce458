"""Plans, serving runs and reproduced figures on a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hisparse_sim.simulator.views.tables import print_table, write_text

if TYPE_CHECKING:
    from hisparse_sim.simulator.serving.config_check import Finding
    from hisparse_sim.simulator.serving.plan import Aim, Plan
    from hisparse_sim.simulator.serving.prediction import Setting

Columns = dict[str, tuple[str, Callable[[Any], str]]]


def _count(value: Any) -> str:
    return f"{value:,.0f}"


def _one(value: Any) -> str:
    return "-" if pd.isna(value) else f"{value:,.1f}"


def _percent(value: Any) -> str:
    return f"{100 * value:.1f}"


def _signed(value: Any) -> str:
    return f"{100 * value:+.1f} %"


_CANDIDATES: Columns = {
    "buffer": ("buffer", _count),
    "ratio": ("ratio", _count),
    "miss_rate": ("miss %", _percent),
    "batch": ("requests/rank", _count),
    "limit": ("limited by", str),
    "tokens_per_s": ("tok/s", _count),
    "tpot_ms": ("TPOT ms", _one),
    "host_gb": ("host GB", _count),
}


def _wrapped(text: str) -> str:
    """Return the text in indented lines of at most 80 columns."""
    return textwrap.fill(text, 80, initial_indent="  ", subsequent_indent="    ")


def load_line(setting: Setting, prompt: int, output: int) -> str:
    """Return the load that a plan or run is for."""
    deployment = setting.deployment
    prefill = "prefill on another instance" if setting.disaggregated else "prefill on the same GPUs"
    ranks = f"{setting.ranks} ranks" if setting.ranks > 1 else "1 rank"
    return (
        f"{deployment.model.name}, {deployment.kv_dtype} KV, on {deployment.layout.gpus} x"
        f" {deployment.hardware.name} ({deployment.layout.name}: {ranks}), {prefill};\n"
        f"prompts of {prompt:,} tokens, {output:,} out"
    )


def assumed(setting: Setting) -> str:
    """Return the assumptions of the figures, a line each."""
    return "Assumed:\n" + "\n".join(_wrapped(line) for line in setting.assumptions())


def show_plan(
    plan: Plan, rows: pd.DataFrame, setting: Setting, aim: Aim, output: Path | None
) -> None:
    """Print the load, the choice and its reasons, the candidates, and what follows from the
    choice."""
    load = load_line(setting, aim.prompt, aim.output)
    lines = [f"{load}, {aim.concurrency:,} concurrent requests over all ranks", ""]
    if plan.best is not None:
        pair = f"device_buffer_size {plan.best['buffer']}, ratio {plan.best['ratio']}"
        if plan.best["tokens_per_s"] < plan.baseline["tokens_per_s"]:
            lines.append(f"Serve without HiSparse at this load; best with it: {pair}")
        else:
            lines.append(f"Best: {pair}")
    lines += [_wrapped(reason) for reason in plan.reasons]
    refused = [
        f"B {row['buffer']:,}, ratio {row['ratio']} cannot run: {row['reason']}"
        for row in rows[rows["requests"] == 0].to_dict("records")
    ]
    able = rows[rows["requests"] > 0]
    if len(able):
        front = (
            "Pareto front of the candidates" if len(rows) < len(plan.candidates) else "Candidates"
        )
        lines += ["", f"{front} (tok/s and host GB over all ranks)"]
    print_table(
        able,
        _CANDIDATES,
        output,
        before="\n".join(lines),
        after="\n".join([*refused, _extras(plan, aim), "", assumed(setting)]),
        bars="tokens_per_s",
    )


def _extras(plan: Plan, aim: Aim) -> str:
    """Return targets, break-even, sensitivity, other policies, C2C and the flags of the choice."""
    if plan.best is None:
        return ""
    crossing = (
        "never, with the requests that fit"
        if plan.break_even is None
        else f"{plan.break_even} requests over all ranks"
    )
    rates = ", ".join(f"{value:,.0f}" for value in plan.sensitivity["tokens_per_s"])
    lines = [
        "",
        *(
            [f"Smallest buffer that meets the targets: {plan.smallest_buffer}"]
            if aim.max_tpot_ms is not None or aim.max_miss_rate is not None
            else []
        ),
        f"Break-even concurrency: {crossing}",
        f"If misses are 0, 0.5, 1, 1.5, 2 times as many: {rates} tok/s",
    ]
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
    best = plan.best
    return "\n".join(
        [
            *lines,
            f"Simulate it: hisparse-sim serve --buffer {best['buffer']} --ratio {best['ratio']}"
            f" --concurrency {aim.concurrency} and the other options of this plan",
            "",
            "Flags:",
            *_flag_lines(plan.flags if best["worth_it"] else plan.baseline["flags"]),
        ]
    )


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


def show_served(
    rows: pd.DataFrame, before: str, setting: Setting, output: Path | None = None
) -> None:
    """Print the load and a line per run: rate, latencies, and shares of the time in per cent."""
    columns: Columns = {
        "mode": ("mode", str),
        "load": ("load", str),
        "tokens_per_s": ("tok/s", _count),
        "tpot_p50_ms": ("TPOT ms", _one),
        "ttft_p50_s": ("TTFT s", _one),
        "running": ("running", _one),
        "waiting": ("queued", _one),
        "prefill": ("prefill %", _percent),
        "swap_in": ("swap-in %", _percent),
    }
    notes = [
        f"{row['mode']}, {row['load']}: {row[name]} {what}"
        for row in rows.to_dict("records")
        for name, what in (
            ("refused", "prompts too long for a GPU's pool, refused"),
            ("cut", "outputs cut to what a GPU's pool can hold"),
        )
        if row[name]
    ]
    print_table(
        rows,
        columns,
        output,
        before,
        "\n".join([*_READING, "", assumed(setting), "", *notes]),
        "tokens_per_s",
    )


_READING = (
    "",
    "TPOT, TTFT: medians; TTFT includes the wait in the queue",
    "running: requests that decode, over all ranks; queued: all others",
    "prefill, swap-in: share of the time; the rest is decoding",
)


def show_reproduced(rows: pd.DataFrame, output: Path | None = None) -> None:
    """Print published, ours and error; below, how each was obtained and what is unexplained."""
    numbered = rows.assign(number=range(1, len(rows) + 1))
    columns: Columns = {
        "number": ("", str),
        "what": ("figure", str),
        "published": ("published", lambda value: f"{value:,.4g}"),
        "ours": ("ours", lambda value: f"{value:,.4g}"),
        "error": ("error", _signed),
    }
    notes = []
    for row in numbered.to_dict("records"):
        notes.append(f"{row['number']}.  {row['how']}")
        if row["gap"]:
            notes.append(f"     {row['gap']}")
        notes.append(f"     published: {row['source']}")
    print_table(numbered, columns, output, after="\n".join(notes))
