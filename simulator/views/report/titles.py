"""The titles of charts: each states what the chart shows at the chosen policy and buffer."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from hisparse_sim.simulator.mrc.names import COMPULSORY
from hisparse_sim.simulator.serving.reproduce import OUT
from hisparse_sim.simulator.views.palette import OPTIMUM, PARTS, named
from hisparse_sim.simulator.views.report.findings import focus
from hisparse_sim.simulator.views.report.pieces import percent

_LEVEL = 0.1  # a change of the misses over a request that is called none
NEAR = 0.2  # error of a figure that counts as reproduced
_LEFT_OUT = 0.1  # of a curve: the burst of the first steps


def miss_ratio(sums: pd.DataFrame, policy: str, buffer: int) -> str:
    """`sums`: totals of one trace."""
    own: dict[Any, float] = (
        sums[sums["policy"] == policy].set_index("buffer")["miss_rate"].to_dict()
    )
    said = f"{named(policy)} misses {percent(own[buffer], 1)} with {buffer:,} slots"
    others = [size for size in dict.fromkeys((min(own), max(own))) if size != buffer]
    return said + "".join(f", {percent(own[size], 1)} with {size:,}" for size in others)


def policies(sums: pd.DataFrame, policy: str, buffer: int) -> str:
    at = sums[sums["buffer"] == buffer].set_index("policy")
    misses: dict[Any, float] = at["misses_per_step"].to_dict()
    bounds = (OPTIMUM, COMPULSORY)
    online = {name: value for name, value in misses.items() if name not in bounds}
    excess = float(at["excess_over_min"].to_dict()[policy])
    slots = f"at {buffer:,} slots"
    said = f"{named(policy)} misses {misses[policy]:,.1f} a step {slots}"
    if math.isfinite(excess):
        said = f"{named(policy)} misses {percent(excess)} more than MIN {slots}"
    if len(online) < 2:
        return said
    best = min(online, key=lambda name: online[name])
    if online[best] == misses[policy]:
        return f"{said}; no other policy misses fewer"
    return f"{said}; {named(best)} misses {percent(1 - online[best] / misses[policy], 1)} fewer"


def layers(sums: pd.DataFrame, policy: str, buffer: int) -> str:
    """`sums`: totals of one trace by `layer, policy, buffer`."""
    own = sums[(sums["policy"] == policy) & (sums["buffer"] == buffer) & sums["layer"].notna()]
    misses: dict[Any, float] = own.set_index("layer")["misses_per_step"].to_dict()
    mean = sum(misses.values()) / max(1, len(misses))
    if mean == 0:
        return f"No layer misses with {buffer:,} slots"
    most, least = (pick(misses, key=lambda layer: misses[layer]) for pick in (max, min))
    return (
        f"Layer {most} misses most, {misses[most] / mean:.1f} times the mean, layer {least} least,"
        f" {misses[least] / mean:.2f} times ({named(policy)}, {buffer:,} slots)"
    )


def rolling(curve: pd.DataFrame) -> str:
    """`curve`: of one trace; says whether misses stay level after the first steps."""
    policy, buffer = focus(curve)
    of = (curve["policy"] == policy) & (curve["buffer"] == buffer)
    line = curve[of].sort_values("step")["misses_per_step"].to_numpy(float)
    line = line[int(_LEFT_OUT * len(line)) :]
    third = max(1, len(line) // 3)
    first, last = line[:third].mean(), line[-third:].mean()
    what = f"{named(policy)} with {buffer:,} slots"
    if first <= 0 or not math.isfinite(first + last):
        return f"Misses of {what} over the request"
    change = last / first - 1
    if abs(change) <= _LEVEL:
        return f"Misses stay level over the request: {what}, {last:,.0f} a step"
    way = "rise" if change > 0 else "fall"
    return f"Misses {way} over the request: {what}, from {first:,.0f} to {last:,.0f} a step"


def swap_in(times: pd.DataFrame, unit: str, policy: str, buffer: int, batch: int) -> str:
    """`times`: columns of `data.Times.table`, of one trace."""
    own = times[(times["policy"] == policy) & (times["buffer"] == buffer)]
    value = own.loc[own["batch"] == batch, "time"].iloc[0]
    together = f"{batch} requests together" if batch > 1 else "one request"
    return f"Swap-in takes {value:,.1f} {unit} with {buffer:,} slots ({named(policy)}, {together})"


def throughput(rows: pd.DataFrame) -> str:
    """`rows`: of one setting, with `mode, concurrency, tokens_per_s`."""
    rates = rows.pivot_table(index="concurrency", columns="mode", values="tokens_per_s")
    if not {"hisparse", "baseline"} <= set(rates):
        mode, most = rows["mode"].iloc[0], rows["tokens_per_s"].max()
        return f"{mode}: up to {most:,.0f} tokens per second"
    both = rates[["hisparse", "baseline"]].dropna()
    ahead = both["hisparse"] > both["baseline"]
    if not ahead.any():
        return "HiSparse is at no load ahead of serving without it"
    top = both.iloc[-1]
    first = _first_of_the_rest(ahead)
    if first is None:
        return "HiSparse is ahead at some loads only"
    below = both.index[both.index < first]
    behind = f" (not at {below[-1]:,.0f})" if len(below) else ""
    return (
        f"HiSparse is ahead from {first:,.0f} concurrent requests on{behind}:"
        f" {top['hisparse'] / top['baseline']:.1f} times the rate at {both.index[-1]:,.0f}"
    )


def _first_of_the_rest(ahead: "pd.Series[bool]") -> float | None:
    """Return the first place from which on all are ahead."""
    if not ahead.iloc[-1]:
        return None
    behind = ahead.index[~ahead]
    rest = ahead.index[ahead.index > behind.max()] if len(behind) else ahead.index
    return float(rest[0])


def percentile(rows: pd.DataFrame, of: str) -> str:
    """`of`: "tpot" or "ttft"; compares the modes at the largest load that both have."""
    column, unit, what = {
        "tpot": ("tpot_p50_ms", "ms", "A token takes"),
        "ttft": ("ttft_p50_s", "s", "The first token takes"),
    }[of]
    table = rows.pivot_table(index="concurrency", columns="mode", values=column).dropna()
    if table.empty:
        return f"{what} so long, by load"
    at, values = table.index[-1], table.iloc[-1]
    told = [
        f"{values[mode]:,.1f} {unit} {words}"
        for mode, words in (("hisparse", "with HiSparse"), ("baseline", "without"))
        if mode in values
    ] or [f"{values.iloc[0]:,.1f} {unit}"]
    return f"{what} {', '.join(told)}, at {at:,.0f} concurrent requests"


def shares(rows: pd.DataFrame) -> str:
    own = rows[rows["mode"] == "hisparse"]
    own = own if len(own) else rows
    last = own.sort_values("concurrency").iloc[-1]
    parts = {name: float(last[column]) for name, (column, _) in PARTS.items()}
    most = max(parts, key=lambda name: parts[name])
    said = f"Most of the time is {most} ({percent(parts[most])})"
    if most != "swap-in":
        said += f", swap-in {percent(parts['swap-in'])}"
    return f"{said}: {last['mode']} at {last['concurrency']:,.0f}"


def pareto(best: Mapping[str, Any] | None) -> str:
    if best is None:
        return "No candidate can run and meets the targets"
    return (
        f"{best['buffer']:,.0f} slots and a ratio of {best['ratio']:.0f} give"
        f" {best['tokens_per_s']:,.0f} tokens/s at {best['tpot_ms']:.1f} ms per token"
    )


def reproduced(rows: pd.DataFrame) -> str:
    """`rows`: those of `reproduce`."""
    near = rows["error"].abs() <= NEAR
    said = f"{near.sum()} of {len(rows)} published figures are reproduced within {percent(NEAR)}"
    if "sample" in rows and (out := rows["sample"].eq(OUT).fillna(False)).any():
        said += f"; of the {out.sum()} that shaped no choice in the model, {(near & out).sum()}"
    return said
