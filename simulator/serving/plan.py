"""Which device_buffer_size and host_to_device_ratio to run, and what they are worth.

Uses the cohort view of `Setting.steady_tokens_per_s` for every candidate, so that a whole grid
takes a moment; `serve` runs the chosen one in time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from hisparse_sim.simulator.serving.deployment import pinned_bytes
from hisparse_sim.simulator.serving.hardware import Hardware
from hisparse_sim.simulator.serving.missing import MissesOf
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.traces.documents import LEAST_AMOUNT, MOST_AMOUNT

DEFAULT_BUFFERS = (2048, 3072, 4096, 6144, 8192)
DEFAULT_RATIOS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
NEARLY_EQUAL = 0.01  # throughputs closer than this are alike: the smaller memory wins


@dataclass(frozen=True)
class Aim:
    """The load to plan for and what must hold."""

    prompt: int
    output: int
    concurrency: int
    max_tpot_ms: float | None = None
    max_miss_rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("prompt", "output", "concurrency"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        tpot_ms, miss_rate = self.max_tpot_ms, self.max_miss_rate
        if tpot_ms is not None and not LEAST_AMOUNT <= tpot_ms <= MOST_AMOUNT:
            raise ValueError(f"max_tpot_ms must be above 0 and finite, not {tpot_ms}")
        if miss_rate is not None and not 0 <= miss_rate <= 1:
            raise ValueError(f"max_miss_rate must be between 0 and 1, not {miss_rate}")


@dataclass(frozen=True)
class Plan:
    """The result of planning. Tables are tidy; `best` is a row of `candidates` or None, and has
    `hisparse_config` and `worth_it` (at this load no slower than without HiSparse) besides.

    Columns of `candidates`: what `_candidate` gives for each (buffer, ratio), then `best` (whether
    it is the one recommended), `baseline_tokens_per_s` (without HiSparse), `break_even` (concurrent
    requests over all ranks from which it is ahead of that; missing: never here) and `flags` (that
    start the engine with it).
    """

    candidates: pd.DataFrame
    best: Mapping[str, Any] | None
    reasons: tuple[str, ...]
    baseline: Mapping[str, Any]
    pareto: pd.DataFrame  # candidates that no other beats in tokens/s, TPOT and host memory
    smallest_buffer: int | None  # that meets the targets
    break_even: int | None  # of the best
    sensitivity: pd.DataFrame  # of the best: misses scaled
    flags: str  # of the best
    policies: pd.DataFrame  # the best with the misses of other policies
    linked: Mapping[str, Any]  # the best over another host link: hardware, link_gb_s, tokens_per_s

    def rows(self, every: bool = False) -> pd.DataFrame:
        """The Pareto front and the best, or every candidate."""
        if every:
            return self.candidates
        front = self.pareto
        missing = self.candidates["best"] & ~self.candidates["flags"].isin(front["flags"])
        return pd.concat([front, self.candidates[missing]], ignore_index=True)

    def document(self, every: bool = False) -> dict[str, Any]:
        """Everything in names and plain values, for a script: `recommendation` and what it rests
        on, then `candidates`."""
        return {
            "recommendation": dict(self.best) if self.best is not None else None,
            "reasons": list(self.reasons),
            "baseline": dict(self.baseline),
            "smallest_buffer": self.smallest_buffer,
            "sensitivity": self.sensitivity.to_dict("records"),
            "policies": self.policies.to_dict("records"),
            "linked": dict(self.linked),
            "candidates": self.rows(every).to_dict("records"),
        }


def _candidate(setting: Setting, aim: Aim) -> dict[str, Any]:
    """One row for a setting: what runs and how fast; `requests` 0 and a reason if it cannot."""
    row: dict[str, Any] = {
        "buffer": setting.device_buffer_size if setting.mode != "baseline" else 0,
        "ratio": setting.ratio if setting.mode != "baseline" else 0,
        "miss_rate": setting.misses.rate if setting.misses else 0.0,
        "requests": 0,
        "limit": "",
        "batch": 0,
        "tokens_per_s": 0.0,
        "tpot_ms": float("nan"),
        "host_gb": 0.0,
        "meets": False,
        "reason": "",
    }
    if setting.mode != "baseline":
        row["host_gb"] = pinned_bytes(setting.deployment, setting.ratio) / 1e9
        found = setting.deployment.capacity(
            setting.ratio, setting.device_buffer_size, aim.prompt + aim.output, aim.output
        )
        if found.requests == 0:
            return row | {"limit": found.limit, "reason": found.reason}
    resident, limit = setting.resident(aim.prompt, aim.output)
    length = setting.pool.length(aim.prompt, aim.output)
    if resident == 0:
        return row | {"limit": limit, "reason": length.reason}
    wanted = -(-aim.concurrency // setting.ranks)
    batch = min(resident, wanted)
    tpot = setting.step_us(batch, aim.prompt + length.output / 2) / 1000
    meets = (aim.max_tpot_ms is None or tpot <= aim.max_tpot_ms) and (
        aim.max_miss_rate is None or row["miss_rate"] <= aim.max_miss_rate
    )
    return row | {
        "requests": resident,
        "limit": limit if resident < wanted else "concurrency",
        "batch": batch,
        "tokens_per_s": setting.steady_tokens_per_s(aim.prompt, length.output, batch),
        "tpot_ms": tpot,
        "meets": meets,
    }


def _best(rows: pd.DataFrame) -> dict[str, Any] | None:
    able = rows[rows["meets"] & (rows["requests"] > 0)]
    if able.empty:
        return None
    top = able["tokens_per_s"].max()
    alike = able[able["tokens_per_s"] >= top * (1 - NEARLY_EQUAL)]
    order = alike.sort_values(["host_gb", "tokens_per_s", "buffer"], ascending=[True, False, True])
    return {str(name): value for name, value in order.head(1).to_dict("records")[0].items()}


def _pareto(rows: pd.DataFrame) -> pd.DataFrame:
    able = rows[rows["requests"] > 0]
    keep = []
    for index, row in able.iterrows():
        better = (
            (able["tokens_per_s"] >= row["tokens_per_s"])
            & (able["tpot_ms"] <= row["tpot_ms"])
            & (able["host_gb"] <= row["host_gb"])
        )
        strictly = (
            (able["tokens_per_s"] > row["tokens_per_s"])
            | (able["tpot_ms"] < row["tpot_ms"])
            | (able["host_gb"] < row["host_gb"])
        )
        if not (better & strictly).any():
            keep.append(index)
    return able.loc[keep].sort_values("tokens_per_s", ascending=False).reset_index(drop=True)


def break_even(setting: Setting, baseline: Setting, prompt: int, output: int) -> int | None:
    """Smallest concurrency, in steps of one request per rank, from which HiSparse is ahead."""
    most, _ = setting.resident(prompt, output)
    held, _ = baseline.resident(prompt, output)
    for batch in range(1, most + 1):
        ours = setting.steady_tokens_per_s(prompt, output, batch)
        if ours > baseline.steady_tokens_per_s(prompt, output, min(batch, held)):
            return batch * setting.ranks
    return None


def hisparse_config(setting: Setting) -> dict[str, int]:
    """What --hisparse-config takes."""
    return {
        "top_k": setting.deployment.model.top_k,
        "device_buffer_size": setting.device_buffer_size,
        "host_to_device_ratio": setting.ratio,
    }


def launch_flags(setting: Setting) -> str:
    """The flags that start SGLang with this setting."""
    deployment, layout = setting.deployment, setting.deployment.layout
    flags = [f"--tp-size {layout.gpus}"]
    if layout.attention_dp > 1:
        flags.append(f"--dp-size {layout.attention_dp} --enable-dp-attention")
    if layout.experts_ep > 1:
        flags.append(f"--ep-size {layout.experts_ep}")
    dtype = {"bf16": "bfloat16"}.get(deployment.kv_dtype, "fp8_e4m3")
    flags += [
        f"--kv-cache-dtype {dtype}",
        f"--mem-fraction-static {deployment.mem_fraction_static:g}",
        f"--max-running-requests {setting.max_running_requests}",
        f"--chunked-prefill-size {setting.chunked_prefill_size}",
        "--disable-radix-cache",
    ]
    if deployment.max_total_tokens is not None:
        flags.append(f"--max-total-tokens {deployment.max_total_tokens}")
    if setting.disaggregated:
        flags.append("--disaggregation-mode decode")
    if setting.mode != "baseline":
        config = json.dumps(hisparse_config(setting))
        flags.append(f"--enable-hisparse --hisparse-config '{config}'")
    return " ".join(flags)


def make_plan(
    setting: Setting,
    aim: Aim,
    misses_of: MissesOf,
    policy: str = "lru",
    buffers: Iterable[int] = DEFAULT_BUFFERS,
    ratios: Iterable[int] = DEFAULT_RATIOS,
    *,
    other_policies: Iterable[str] = (),
    linked: Hardware | None = None,
) -> Plan:
    """Try every buffer and ratio for `aim`; `setting` gives all the rest.

    The best is also computed with the misses of `other_policies`, and over the host link of the
    machine `linked`. Raises ValueError if the model does not fit or a buffer is smaller than its
    top-k.
    """
    baseline = replace(setting, mode="baseline", misses=None)
    settings = [
        replace(setting, device_buffer_size=size, ratio=ratio, misses=misses_of(policy, size))
        for size in sorted(set(buffers))
        for ratio in sorted(set(ratios))
    ]
    candidates = pd.DataFrame([_candidate(one, aim) for one in settings])
    base = _candidate(baseline, aim) | {"flags": launch_flags(baseline)}
    best = _best(candidates)
    crossings = [
        break_even(one, baseline, aim.prompt, aim.output) if able else None
        for one, able in zip(settings, candidates["requests"] > 0, strict=True)
    ]
    candidates = candidates.assign(
        best=False,
        baseline_tokens_per_s=base["tokens_per_s"],
        break_even=pd.array(crossings, dtype="Int64"),
        flags=[launch_flags(one) for one in settings],
    )
    met = candidates[candidates["meets"]]
    smallest = int(met["buffer"].min()) if len(met) else None
    if best is None:
        none = pd.DataFrame()
        reasons = (_why_none(candidates, aim),)
        front = _pareto(candidates)
        return Plan(candidates, None, reasons, base, front, smallest, None, none, "", none, {})
    place = candidates.index[
        (candidates["buffer"] == best["buffer"]) & (candidates["ratio"] == best["ratio"])
    ][0]
    candidates.loc[place, "best"] = True
    chosen = settings[place]
    sensitivity = [
        {"misses_times": factor}
        | {
            name: value
            for name, value in _candidate(scale_misses(chosen, factor), aim).items()
            if name in ("miss_rate", "tokens_per_s", "tpot_ms")
        }
        for factor in (0.0, 0.5, 1.0, 1.5, 2.0)
    ]
    return Plan(
        candidates=candidates,
        best=best
        | {
            "break_even": crossings[place],
            "flags": launch_flags(chosen),
            "hisparse_config": hisparse_config(chosen),
            "worth_it": bool(best["tokens_per_s"] >= base["tokens_per_s"]),
        },
        reasons=tuple(_reasons(candidates, best, base, aim)),
        baseline=base,
        pareto=_pareto(candidates),
        smallest_buffer=smallest,
        break_even=crossings[place],
        sensitivity=pd.DataFrame(sensitivity),
        flags=launch_flags(chosen),
        policies=policy_value(chosen, aim, misses_of, dict.fromkeys((policy, *other_policies))),
        linked=_over(chosen, aim, int(best["batch"]), linked) if linked else {},
    )


def _over(setting: Setting, aim: Aim, batch: int, hardware: Hardware) -> dict[str, Any]:
    linked = on_link(setting, hardware)
    return {
        "hardware": hardware.name,
        "link_gb_s": linked.link.bulk_gb_s,
        "tokens_per_s": linked.steady_tokens_per_s(aim.prompt, aim.output, batch),
    }


def scale_misses(setting: Setting, factor: float) -> Setting:
    """The same setting with every layer's misses multiplied."""
    if setting.misses is None:
        return setting
    return replace(setting, misses=setting.misses.times(factor))


def on_link(setting: Setting, hardware: Hardware) -> Setting:
    """The same setting with the host link and host memory of `hardware`: the C2C projection."""
    own = setting.deployment.hardware
    linked = replace(
        own,
        node_host_bytes=hardware.node_host_bytes,
        link=hardware.link,
        gpus_per_host=hardware.gpus_per_host,
    )
    return replace(setting, deployment=replace(setting.deployment, hardware=linked))


def _why_none(rows: pd.DataFrame, aim: Aim) -> str:
    able = rows[rows["requests"] > 0]
    if able.empty:
        return f"nothing fits: {rows['reason'].iloc[0]}"
    parts = []
    if aim.max_tpot_ms is not None:
        parts.append(f"{aim.max_tpot_ms:g} ms a token (best: {able['tpot_ms'].min():.1f})")
    if aim.max_miss_rate is not None:
        parts.append(f"a miss rate of {aim.max_miss_rate:g} (best: {able['miss_rate'].min():.3f})")
    return f"no candidate reaches {' and '.join(parts)}"


def _reasons(
    rows: pd.DataFrame, best: Mapping[str, Any], base: Mapping[str, Any], aim: Aim
) -> list[str]:
    same_buffer = rows[(rows["buffer"] == best["buffer"]) & (rows["requests"] > 0)]
    same_ratio = rows[(rows["ratio"] == best["ratio"]) & (rows["requests"] > 0)]
    out = [
        f"B {best['buffer']:,} and ratio {best['ratio']} run {best['batch']} requests/rank"
        f" (limited by {best['limit']}) at {best['tpot_ms']:.1f} ms a token:"
        f" {best['tokens_per_s']:,.0f} tokens/s"
    ]
    for name, table in (("ratio", same_buffer), ("buffer", same_ratio)):
        smaller = table[table[name] < best[name]].tail(1)
        larger = table[table[name] > best[name]].head(1)
        for side in (smaller, larger):
            for row in side.to_dict("records"):
                out.append(
                    f"{name} {row[name]:,} instead: {row['batch']} requests/rank ({row['limit']}),"
                    f" {row['tpot_ms']:.1f} ms, {row['tokens_per_s']:,.0f} tokens/s,"
                    f" {row['host_gb']:,.0f} GB pinned instead of {best['host_gb']:,.0f}"
                )
    if base["tokens_per_s"]:
        gain = best["tokens_per_s"] / base["tokens_per_s"]
        out.append(
            f"without HiSparse: {base['batch']} requests/rank ({base['limit']}),"
            f" {base['tpot_ms']:.1f} ms, {base['tokens_per_s']:,.0f} tokens/s; HiSparse gives"
            f" {gain:.2f} times as much at a concurrency of {aim.concurrency}"
        )
    else:
        out.append(f"without HiSparse the request does not fit: {base['reason']}")
    return out


def policy_value(
    setting: Setting, aim: Aim, misses_of: MissesOf, policies: Iterable[str]
) -> pd.DataFrame:
    """Tokens/s with the misses of other policies: what better eviction would be worth."""
    rows = []
    for policy in policies:
        other = replace(setting, misses=misses_of(policy, setting.device_buffer_size))
        row = _candidate(other, aim)
        rows.append(
            {"policy": policy} | {k: row[k] for k in ("miss_rate", "tpot_ms", "tokens_per_s")}
        )
    table = pd.DataFrame(rows)
    if len(table):
        table["more_tokens"] = table["tokens_per_s"] / table["tokens_per_s"].iloc[0] - 1
    return table
