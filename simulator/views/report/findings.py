"""The words of a report: the question, the answer, and what rows cover."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from hisparse_sim.simulator.mrc.names import COMPULSORY
from hisparse_sim.simulator.replay.coverage import ALL, SELECTED
from hisparse_sim.simulator.replay.joining import FILE, joined, selected
from hisparse_sim.simulator.replay.metrics import blocks_of
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.views.palette import OPTIMUM, named
from hisparse_sim.simulator.views.report.data import Profiles, entry_bytes_of, model_called
from hisparse_sim.simulator.views.report.redo import command as command
from hisparse_sim.simulator.views.report.results import Result, rows_of
from hisparse_sim.traces import TraceError

ENGINE_POLICY = "lru"
ENGINE_BUFFER = 4096  # the engine's default at a top-k of 2048


def focus(sums: pd.DataFrame) -> tuple[str, int]:
    """Return the policy and the buffer of the answer: those of the engine, if swept."""
    policies, sizes = list(sums["policy"]), sorted(sums["buffer"].unique())
    online = [name for name in policies if name not in (OPTIMUM, COMPULSORY)] or policies
    policy = ENGINE_POLICY if ENGINE_POLICY in online else online[0]
    own = sorted(sums[sums["policy"] == policy]["buffer"])
    sizes = own or sizes
    return policy, int(ENGINE_BUFFER if ENGINE_BUFFER in sizes else sizes[len(sizes) // 2])


def question(rows: pd.DataFrame) -> str:
    """Return the question that the rows of a sweep answer."""
    sizes = [f"{size:,}" for size in sorted(rows["buffer"].unique())]
    policies = list(dict.fromkeys(rows["policy"]))
    return (
        "How many of the positions that a decode step selects are not in the hot buffer, with"
        f" {_listed(sizes)} slots under {_listed(list(map(named, policies)))}, and what does that"
        " cost?"
    )


def answer(results: Sequence[Result], profiles: Profiles = None) -> list[str]:
    """Return the answer, generated from the rows: a paragraph per trace and start, and one per
    plan."""
    rows = joined(rows_of(results, "sweep"))
    if rows.empty:
        rows = rows.reindex(columns=["trace"])
    series = {str(name): own for name, own in rows.groupby("trace", sort=False)}
    said = [
        (f"{name}: " if len(series) > 1 else "") + " ".join(_of_series(own, profiles))
        for name, own in series.items()
    ]
    plans = plans_of(results)
    for plan in plans:
        best = choose_plan(plan.rows)
        if best is None:
            continue
        whose = f" of {plan.path.name}" if len(plans) > 1 else ""
        said.append(
            f"The plan{whose} with the most tokens per second has {best['buffer']:,.0f} slots at a"
            f" host_to_device_ratio of {best['ratio']:.0f}:"
            f" {best['tokens_per_s']:,.0f} tokens/s at {best['tpot_ms']:.1f} ms per token"
            f" (simulated).{elsewhere(plan, rows)}"
        )
    return said


def plans_of(results: Sequence[Result]) -> list[Result]:
    """Return the plans, each setting once: the table and the document of a plan are equivalent."""
    plans: dict[Any, Result] = {}
    for result in results:
        if result.kind == "plan":
            # The misses come from a trace, which the parameters do not name.
            of = result.rows.reindex(columns=["trace", "trace_sha256"]).iloc[0].astype(str)
            plans.setdefault(json.dumps([result.parameters, *of], sort_keys=True), result)
    return list(plans.values())


def runs_of(results: Sequence[Result]) -> list[tuple[list[Result], pd.DataFrame]]:
    """Return the serving runs by setting, with their rows.

    Raises TraceError if two runs of one setting and load differ."""
    found: dict[Any, list[Result]] = {}
    for result in results:
        if result.kind == "serve":
            of = result.rows.reindex(columns=["seed", "trace_sha256"]).iloc[0].astype(str)
            key = json.dumps([result.parameters, *of], sort_keys=True)
            found.setdefault(key, []).append(result)
    together = []
    for runs in found.values():
        rows = rows_of(runs, "serve")
        rows = rows.drop_duplicates(["mode", "load", "tokens_per_s", "tpot_p50_ms"])
        if rows.duplicated(["mode", "load"]).any():
            names = " and ".join(dict.fromkeys(run.path.name for run in runs))
            raise TraceError(
                f"{names} give different figures for one setting and load; leave one out"
            )
        together.append((runs, rows))
    return together


def published_of(results: Sequence[Result]) -> pd.DataFrame:
    """Return the published figures beside ours, each once; empty if there are none.

    Raises TraceError if a figure was reproduced more than once, with different results."""
    rows = rows_of(results, "reproduce")
    if not rows.empty and rows.duplicated(["what", "source"]).any():
        names = " and ".join(dict.fromkeys(rows[FILE]))
        raise TraceError(
            f"{names} reproduce the same published figures with different results: give one of them"
        )
    return rows


def load(parameters: Mapping[str, Any]) -> str:
    """Return the load of a plan or a serving run."""
    return ", ".join(
        f"{name.replace('_', ' ')} {parameters[name]}"
        for name in ("model", "hardware", "layout", "prompt", "output_len", "concurrency")
        if parameters.get(name) is not None
    )


def load_of(plan: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
    """Return the load of a plan's row in words, empty if it is not told."""
    load = str(plan.get("load") or parameters.get("concurrency") or "")
    if load.endswith("/s"):
        return f" at {load.removesuffix('/s')} requests a second"
    return f" at {load} concurrent requests" if load.isdecimal() else ""


def covered(rows: pd.DataFrame) -> str:
    """Return in words the part of its trace that a series of rows covers, and its start."""
    first = rows.iloc[0].reindex(["start", *SELECTED])
    start = "start unknown" if pd.isna(first["start"]) else f"{first['start']} start"
    if first[list(SELECTED)].isna().any():
        return f"{start}; the file does not say which requests, layers and steps it covers"
    parts = [selected(name, first[name]) for name in SELECTED if first[name] != ALL]
    return ", ".join([start, *(parts or ["whole trace"])])


def averaged(curve: pd.DataFrame) -> str:
    """Return in words the meaning of the points of a rolling curve."""
    first = curve.iloc[0].reindex(["window", "skip_steps"])
    over = "" if pd.isna(first["window"]) else f" of {first['window']} steps"
    skipped = first["skip_steps"]
    after = f" after the first {skipped} steps" if pd.notna(skipped) and skipped else ""
    return f"mean over layers of the trailing mean{over}{after}; {covered(curve)}"


def elsewhere(result: Result, rows: pd.DataFrame) -> str:
    """Return a sentence if a plan or a run has its misses from a trace that was not swept."""
    of = result.rows.iloc[0]
    digest, name = of.get("trace_sha256"), of.get("trace")
    if not isinstance(digest, str) or not digest or "trace_sha256" not in rows:
        return ""
    if digest in set(rows["trace_sha256"].dropna()):
        return ""
    return f" Its misses are those of another trace, {name} (sha256 {digest[:8]})."


def _of_series(rows: pd.DataFrame, profiles: Profiles) -> list[str]:
    sums = totals(rows)
    policy, buffer = focus(sums)
    at = sums[sums["buffer"] == buffer].set_index("policy")
    own = at.loc[policy].to_dict()
    selected = own["accesses"] / own["steps"]
    said = [
        f"With a hot buffer of {buffer:,} slots, {named(policy)} misses"
        f" {own['misses_per_step']:,.1f} of {selected:,.0f} selected positions per step and layer"
        f" ({own['miss_rate']:.1%})."
    ]
    if math.isfinite(own["excess_over_min"]):
        least = own["misses_per_step"] / (1 + own["excess_over_min"])
        said.append(
            f"No policy can miss fewer than {least:,.1f} (MIN, Belady's optimum, which knows the"
            f" future): {named(policy)} misses {own['excess_over_min']:.0%} more."
        )
    online = at.drop(index=[OPTIMUM, COMPULSORY], errors="ignore")
    if len(online) > 1:
        misses: dict[Any, float] = online["misses_per_step"].to_dict()
        best: str = min(misses, key=lambda name: float(misses[name]))
        others = ""
        if best != policy:
            others = f", {misses[best] / own['misses_per_step'] - 1:+.1%} against {named(policy)}"
        said.append(
            f"Of the policies that do not know the future, {named(best)} has the fewest"
            f" misses{others}."
        )
    if blocks := blocks_of(rows):
        said.append(f"Positions and slots are {blocks}: no cost is computed.")
    said += _by_buffer(sums, policy, buffer)
    said += _by_layer(rows, policy, buffer)
    said += _over_the_link(rows, own["misses_per_step"], profiles)
    if any("synthetic" in str(kind) for kind in rows["provenance"]):
        said.append("The trace is synthetic: these figures are not those of a real model.")
    return said


def _by_buffer(sums: pd.DataFrame, policy: str, buffer: int) -> list[str]:
    swept = sums[sums["policy"] == policy]
    own = dict(zip(swept["buffer"].astype(int), swept["misses_per_step"], strict=True))
    base = max(own[buffer], 1e-12)
    said = [
        f"a buffer of {other:,} has {own[other] / base:.2f} times the misses"
        for other in sorted({min(own), max(own)} - {buffer})
    ]
    return [f"Compared with {buffer:,} slots, {_listed(said)}."] if said else []


def _by_layer(rows: pd.DataFrame, policy: str, buffer: int) -> list[str]:
    if not rows["layer"].notna().any():
        return []
    layers = totals(rows, ("layer", "policy", "buffer"))
    own = layers[(layers["policy"] == policy) & (layers["buffer"] == buffer)]
    misses = own.set_index("layer")["misses_per_step"].to_dict()
    mean = sum(misses.values()) / max(1, len(misses))
    if len(misses) < 2 or mean == 0:
        return []
    most = max(misses, key=lambda layer: float(misses[layer]))
    least = min(misses, key=lambda layer: float(misses[layer]))
    return [
        f"Layers differ: layer {most:.0f} misses {misses[most] / mean:.1f} times the mean,"
        f" layer {least:.0f} {misses[least] / mean:.2f} times."
    ]


def _over_the_link(rows: pd.DataFrame, misses_per_step: float, profiles: Profiles) -> list[str]:
    if blocks_of(rows) or not {"model", "kv_dtype"} <= set(rows.columns):
        return []
    said = []
    priced = rows[["model", "kv_dtype"]].dropna().drop_duplicates()
    for name, kv_dtype in priced.itertuples(index=False, name=None):
        model = model_called(name, profiles)
        moved = misses_per_step * entry_bytes_of(model, kv_dtype) * model.layers
        said.append(
            f"On the {model.layers} layers of {model.name} ({kv_dtype} KV) that is"
            f" {moved / 1e6:,.1f} MB over the host link per token and request."
        )
    return said


def choose_plan(plans: pd.DataFrame) -> dict[str, Any] | None:
    """Return the candidate that the plan marks as its best; in older files and of several plans,
    the one with the most tokens per second among those that meet their targets, and of those within
    1 % of it the one that pins the least host memory. None if none can run."""
    if plans.empty:
        return None
    able = plans[(plans["requests"] > 0) & plans["meets"].astype(bool)]
    if able.empty:
        return None
    marked = able[able["best"].eq(True)] if "best" in able else able[:0]
    if len(marked) == 1:
        able = marked
    alike = able[able["tokens_per_s"] >= 0.99 * able["tokens_per_s"].max()]
    ranked = alike.sort_values(["host_gb", "tokens_per_s"], ascending=[True, False])
    found: dict[str, Any] = ranked.iloc[0].to_dict()
    return found


def worth(plan: dict[str, Any]) -> str:
    """Compare the chosen plan with serving without HiSparse; empty for older files."""
    base = plan.get("baseline_tokens_per_s")
    if base is None:
        return ""
    said = f" Without HiSparse: {base:,.0f} tokens/s"
    if str(plan.get("load", "")).endswith("/s"):
        return said + "."  # of an open loop; there is no concurrency to be ahead from
    if pd.isna(plan["break_even"]):
        return said + "; HiSparse is slower at every load up to this one."
    return said + f"; HiSparse is faster from {plan['break_even']:,.0f} concurrent requests on."


def flags(plan: dict[str, Any], parameters: dict[str, Any], profiles: Profiles = None) -> str:
    """Return the engine's flags for the chosen plan; for older files only the configuration."""
    if isinstance(plan.get("flags"), str):
        return str(plan["flags"])
    config: dict[str, Any] = {}
    if isinstance(parameters.get("model"), str):
        config["top_k"] = model_called(parameters["model"], profiles).top_k
    config["device_buffer_size"] = int(plan["buffer"])
    config["host_to_device_ratio"] = int(plan["ratio"])
    return f"--enable-hisparse --hisparse-config '{json.dumps(config)}'"


def _listed(names: Sequence[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    if len(names) < 2:
        return "".join(names)
    return ", ".join(names[:-1]) + " and " + names[-1]
