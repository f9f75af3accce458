"""What a report finds in results: its policy and buffer, its plans and runs, what rows cover."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from hisparse_sim.simulator.mrc.names import COMPULSORY
from hisparse_sim.simulator.replay.coverage import ALL, SELECTED
from hisparse_sim.simulator.replay.joining import FILE, selected
from hisparse_sim.simulator.serving.worth import below_break_even
from hisparse_sim.simulator.views.palette import OPTIMUM
from hisparse_sim.simulator.views.report.data import Profiles, model_called
from hisparse_sim.simulator.views.report.pieces import listed, percent
from hisparse_sim.simulator.views.report.redo import command as command
from hisparse_sim.simulator.views.report.results import Result, rows_of
from hisparse_sim.traces import TraceError

ENGINE_POLICY = "lru"
ENGINE_BUFFER = 4096  # the engine's default at a top-k of 2048


def focus(sums: pd.DataFrame, planned: int | None = None) -> tuple[str, int]:
    """Return the policy and the buffer of the answer: those of the engine, or the buffer that is
    planned, if swept."""
    policies, sizes = list(sums["policy"]), sorted(sums["buffer"].unique())
    online = [name for name in policies if name not in (OPTIMUM, COMPULSORY)] or policies
    policy = ENGINE_POLICY if ENGINE_POLICY in online else online[0]
    own = sorted(sums[sums["policy"] == policy]["buffer"])
    sizes = own or sizes
    for size in (planned, ENGINE_BUFFER):
        if size is not None and size in sizes:
            return policy, size
    return policy, int(sizes[len(sizes) // 2])


def plans_of(results: Sequence[Result]) -> list[Result]:
    """Return the plans, each setting once: the table and the document of a plan are equivalent."""
    plans: dict[Any, Result] = {}
    for result in results:
        if result.kind == "plan":
            # The misses come from a trace, which the parameters do not name.
            of = result.rows.reindex(columns=["trace", "trace_sha256"]).iloc[0].astype(str)
            plans.setdefault(json.dumps([result.parameters, *of], sort_keys=True), result)
    return list(plans.values())


def planned(results: Sequence[Result]) -> tuple[Result | None, dict[str, Any] | None]:
    """Return the first plan that recommends something, and what."""
    for plan in plans_of(results):
        if (best := choose_plan(plan.rows)) is not None:
            return plan, best
    return None, None


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
        f"{name.replace('_', ' ')} {_grouped(parameters[name])}"
        for name in ("model", "hardware", "layout", "prompt", "output_len", "concurrency")
        if parameters.get(name) is not None
    )


def _grouped(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


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
    if (of := foreign(result, rows)) is None:
        return ""
    return f" Its misses are those of another trace, {of['trace']} ({_kind(of)})."


def foreign(result: Result, rows: pd.DataFrame) -> dict[str, Any] | None:
    """Return trace, provenance and digest of the misses of a plan or a run if they are not those of
    the swept `rows`."""
    first = result.rows.reindex(columns=["trace", "provenance", "trace_sha256"]).iloc[0]
    of = {str(name): value for name, value in first.astype(object).fillna("").items()}
    swept = set(rows["trace_sha256"].dropna()) if "trace_sha256" in rows else set()
    return of if of["trace_sha256"] and of["trace_sha256"] not in swept else None


def rates_of(results: Sequence[Result], rows: pd.DataFrame) -> str:
    """Return where the misses behind plans and runs come from, if not from the swept `rows`."""
    said: dict[str, str] = {}  # by trace
    for result in results:
        if result.kind not in ("plan", "serve") or (of := foreign(result, rows)) is None:
            continue
        best = choose_plan(result.rows) if result.kind == "plan" else None
        rate = best.get("miss_rate") if best else None
        at = f", {percent(rate, 1)} misses at {best['buffer']:,.0f} slots" if best and rate else ""
        said.setdefault(of["trace"], f"{of['trace']} ({_kind(of)}{at})")
    return listed([*said.values()]) if said else ""


def _kind(of: Mapping[str, Any]) -> str:
    """Return the provenance of misses; a name with an @ is that of the demand of a model."""
    kind = str(of["provenance"] or "provenance not told")
    if "@" in str(of["trace"]):
        return f"{kind}, fitted to published figures of the model"
    return f"{kind}, sha256 {of['trace_sha256'][:8]}"


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


def behind(plan: Mapping[str, Any]) -> str:
    """Return in brackets the load below the break-even at which HiSparse is not ahead."""
    below = below_break_even(plan)
    return f" (not at {below:,})" if below else ""


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
    on = f"{plan['break_even']:,.0f} concurrent requests on{behind(plan)}"
    return f"{said}; HiSparse is faster from {on}."


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
