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

from hisparse_sim.simulator.deployment import pinned_bytes, shortages
from hisparse_sim.simulator.hardware import Hardware
from hisparse_sim.simulator.memory import MAX_BUFFER, PAGE_TOKENS
from hisparse_sim.simulator.missing import MissesOf
from hisparse_sim.simulator.models import Model
from hisparse_sim.simulator.prediction import Setting

DEFAULT_BUFFERS = (2048, 3072, 4096, 6144, 8192)
DEFAULT_RATIOS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
NEARLY_EQUAL = 0.01  # throughputs closer than this are alike: the smaller memory wins
CONFIG_KEYS = ("top_k", "device_buffer_size", "host_to_device_ratio", "swap_in_block_size")


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


@dataclass(frozen=True)
class Plan:
    """The result of planning. Tables are tidy; `best` is a row of `candidates` or None."""

    candidates: pd.DataFrame  # every (buffer, ratio)
    best: Mapping[str, Any] | None
    reasons: tuple[str, ...]
    baseline: Mapping[str, Any]
    pareto: pd.DataFrame  # candidates that no other beats in tokens/s, TPOT and host memory
    smallest_buffer: int | None  # that meets the targets
    break_even: int | None  # concurrency from which HiSparse is ahead; None: never here
    sensitivity: pd.DataFrame  # misses scaled
    flags: str


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
            setting.ratio, setting.device_buffer_size, aim.prompt + aim.output
        )
        if found.requests == 0:
            return row | {"limit": found.limit, "reason": found.reason}
    resident, limit = setting.resident(aim.prompt, aim.output)
    if resident == 0:
        tokens = setting.pool.device_tokens
        return row | {
            "limit": limit,
            "reason": f"{aim.prompt + aim.output:,} tokens exceed the pool of {tokens:,}",
        }
    wanted = -(-aim.concurrency // setting.ranks)
    batch = min(resident, wanted)
    tpot = setting.step_us(batch, aim.prompt + aim.output / 2) / 1000
    meets = (aim.max_tpot_ms is None or tpot <= aim.max_tpot_ms) and (
        aim.max_miss_rate is None or row["miss_rate"] <= aim.max_miss_rate
    )
    return row | {
        "requests": resident,
        "limit": limit if resident < wanted else "concurrency",
        "batch": batch,
        "tokens_per_s": setting.steady_tokens_per_s(aim.prompt, aim.output, batch),
        "tpot_ms": tpot,
        "meets": meets,
    }


def _best(rows: pd.DataFrame) -> Mapping[str, Any] | None:
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
    """Smallest concurrency, in steps of one request a rank, from which HiSparse is ahead."""
    most, _ = setting.resident(prompt, output)
    held, _ = baseline.resident(prompt, output)
    for batch in range(1, most + 1):
        ours = setting.steady_tokens_per_s(prompt, output, batch)
        if ours > baseline.steady_tokens_per_s(prompt, output, min(batch, held)):
            return batch * setting.ranks
    return None


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
    if setting.disaggregated:
        flags.append("--disaggregation-mode decode")
    if setting.mode != "baseline":
        config = {
            "top_k": deployment.model.top_k,
            "device_buffer_size": setting.device_buffer_size,
            "host_to_device_ratio": setting.ratio,
        }
        flags.append(f"--enable-hisparse --hisparse-config '{json.dumps(config)}'")
    return " ".join(flags)


def make_plan(
    setting: Setting,
    aim: Aim,
    misses_of: MissesOf,
    policy: str = "lru",
    buffers: Iterable[int] = DEFAULT_BUFFERS,
    ratios: Iterable[int] = DEFAULT_RATIOS,
) -> Plan:
    """Try every buffer and ratio for `aim`; `setting` gives all the rest.

    Raises ValueError if the model does not fit or a buffer is smaller than its top-k.
    """
    baseline = replace(setting, mode="baseline", misses=None)
    settings = [
        replace(setting, device_buffer_size=size, ratio=ratio, misses=misses_of(policy, size))
        for size in sorted(set(buffers))
        for ratio in sorted(set(ratios))
    ]
    candidates = pd.DataFrame([_candidate(one, aim) for one in settings])
    base = _candidate(baseline, aim)
    best = _best(candidates)
    met = candidates[candidates["meets"]]
    chosen = setting
    reasons = [_why_none(candidates, aim)]
    crossing, sensitivity = None, pd.DataFrame()
    if best is not None:
        chosen = next(
            s
            for s in settings
            if (s.device_buffer_size, s.ratio) == (best["buffer"], best["ratio"])
        )
        reasons = _reasons(candidates, best, base, aim)
        crossing = break_even(chosen, baseline, aim.prompt, aim.output)
        sensitivity = pd.DataFrame(
            [
                {"misses_times": factor}
                | {
                    name: value
                    for name, value in _candidate(scale_misses(chosen, factor), aim).items()
                    if name in ("miss_rate", "tokens_per_s", "tpot_ms")
                }
                for factor in (0.0, 0.5, 1.0, 1.5, 2.0)
            ]
        )
    return Plan(
        candidates=candidates,
        best=best,
        reasons=tuple(reasons),
        baseline=base,
        pareto=_pareto(candidates),
        smallest_buffer=int(met["buffer"].min()) if len(met) else None,
        break_even=crossing,
        sensitivity=sensitivity,
        flags=launch_flags(chosen) if best is not None else "",
    )


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
        f"B {best['buffer']:,} and ratio {best['ratio']} run {best['batch']} requests a rank"
        f" ({best['limit']} limits it) at {best['tpot_ms']:.1f} ms a token:"
        f" {best['tokens_per_s']:,.0f} tokens/s"
    ]
    for name, table in (("ratio", same_buffer), ("buffer", same_ratio)):
        smaller = table[table[name] < best[name]].tail(1)
        larger = table[table[name] > best[name]].head(1)
        for side in (smaller, larger):
            for row in side.to_dict("records"):
                out.append(
                    f"{name} {row[name]:,} instead: {row['batch']} a rank ({row['limit']}),"
                    f" {row['tpot_ms']:.1f} ms, {row['tokens_per_s']:,.0f} tokens/s,"
                    f" {row['host_gb']:,.0f} GB pinned instead of {best['host_gb']:,.0f}"
                )
    if base["tokens_per_s"]:
        gain = best["tokens_per_s"] / base["tokens_per_s"]
        out.append(
            f"without HiSparse: {base['batch']} a rank ({base['limit']}),"
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


@dataclass(frozen=True)
class Finding:
    """One thing wrong with a configuration: an error stops the engine, a warning costs."""

    severity: str  # error or warning
    text: str


def read_config(text: str, model: Model) -> tuple[dict[str, int], list[Finding]]:
    """A --hisparse-config with the engine's defaults filled in, and what is wrong with it."""
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the configuration is not valid JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError("the configuration must be a JSON object")
    findings = []
    for key in sorted(set(given) - set(CONFIG_KEYS)):
        known = ", ".join(CONFIG_KEYS)
        findings.append(Finding("error", f"unknown key {key!r}; known: {known}"))
    top_k = given.get("top_k", 2048)
    config = {
        "top_k": top_k,
        "device_buffer_size": given.get(
            "device_buffer_size", 2 * top_k if isinstance(top_k, int) else 4096
        ),
        "host_to_device_ratio": given.get("host_to_device_ratio", 2),
        "swap_in_block_size": given.get("swap_in_block_size", 960),
    }
    for key, value in config.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{key} must be a whole number, not {value!r}")
    size = config["device_buffer_size"]
    if config["top_k"] != model.top_k:
        findings.append(
            Finding("error", f"top_k {config['top_k']} is not the {model.top_k} of {model.name}")
        )
    if size < config["top_k"]:
        findings.append(Finding("error", f"device_buffer_size {size} is below top_k"))
    if size > MAX_BUFFER:
        findings.append(Finding("error", f"device_buffer_size {size} is above {MAX_BUFFER}"))
    if size % PAGE_TOKENS:
        findings.append(
            Finding("error", f"device_buffer_size {size} is no multiple of the page, {PAGE_TOKENS}")
        )
    if config["host_to_device_ratio"] < 1:
        findings.append(Finding("error", "host_to_device_ratio must be at least 1"))
    if not 1 <= config["swap_in_block_size"] <= 1024:
        findings.append(Finding("error", "swap_in_block_size must be between 1 and 1024"))
    return config, findings


def check_config(text: str, setting: Setting, aim: Aim) -> list[Finding]:
    """What is wrong with a --hisparse-config for this deployment and load; empty: nothing."""
    config, findings = read_config(text, setting.deployment.model)
    if any(finding.severity == "error" for finding in findings):
        return findings
    wanted = -(-aim.concurrency // setting.ranks)
    for shortage in shortages(
        setting.deployment,
        config["host_to_device_ratio"],
        config["device_buffer_size"],
        aim.prompt,
        aim.output,
        wanted,
        max(setting.max_running_requests // setting.ranks, 1),
        colocated=not setting.disaggregated,
    ):
        severity = "error" if shortage.what in ("host memory", "length") else "warning"
        if shortage.what == "GPU reserve" and shortage.when == "at start":
            severity = "error"
        findings.append(
            Finding(
                severity, f"{shortage.what}, {shortage.when}: {shortage.effect}; {shortage.reason}"
            )
        )
    return findings
