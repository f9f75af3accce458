"""What the models here give for one published figure: memory by arithmetic, rates by serving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import nan
from typing import Any, NamedTuple

import numpy as np

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.serving.demand import demand_beyond
from hisparse_sim.simulator.serving.deployment import Deployment, rank_weight_bytes
from hisparse_sim.simulator.serving.engines import load_engine
from hisparse_sim.simulator.serving.exposure import Exposure
from hisparse_sim.simulator.serving.hardware import load_hardware
from hisparse_sim.simulator.serving.latency import load_link, swap_in_on
from hisparse_sim.simulator.serving.memory import (
    baseline_pool_tokens,
    full_kv_bytes,
    hot_buffer_bytes,
)
from hisparse_sim.simulator.serving.misses import LayerMisses, layer_misses
from hisparse_sim.simulator.serving.models import Model, load_model
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.published import read_published
from hisparse_sim.simulator.serving.served import Served, serve
from hisparse_sim.simulator.serving.speculation import Stated
from hisparse_sim.simulator.serving.step_source import steps_for
from hisparse_sim.simulator.serving.steptimes import LAYOUTS
from hisparse_sim.simulator.serving.workload import Workload
from hisparse_sim.traces import Trace

GIB = 1 << 30
THEN = "sglang-0.5.16"  # most figures were published before 0.5.17 counted all indexer keys
ENOUGH = 8  # prefill nodes, enough to keep decode busy in every figure


class Answer(NamedTuple):
    """What the models give for a figure."""

    ours: float
    how: str
    host_low: float = nan  # with the lowest rate that the host may give all its GPUs together
    host_high: float = nan  # and with the highest


def memory_figure(entry: Mapping[str, Any]) -> Answer:
    """Return a figure of memory."""
    model = load_model(entry.get("model", "glm-5.1"))
    formula = entry["formula"]
    if formula == "request_gb":
        held = full_kv_bytes(model, "bf16", entry["tokens"])
        return Answer(held / 1e9, "KV entries and keys of all layers")
    if formula == "hot_buffer_gb":
        held = hot_buffer_bytes(model, "bf16", entry["buffer"])
        return Answer(held / 1e9, "KV entries of B + 64 slots")
    if formula == "weights_gb":
        weights = rank_weight_bytes(model, LAYOUTS[entry["layout"]])
        return Answer(weights / 1e9, "from the config's dimensions")
    if formula == "requests_in":
        pool = round(entry["pool_gb"] * 1e9)
        tokens = baseline_pool_tokens(model, "bf16", pool)
        return Answer(float(tokens // entry["tokens"]), "pool tokens over request tokens")
    # rule_of_thumb: host memory over the KV entries of a pool that does not shrink with the ratio.
    pool = baseline_pool_tokens(model, "bf16", 30 * GIB)
    held = 8 * pool * model.layers * model.entry_bytes("bf16")
    how = "host memory over the KV entries of 8 pools of 32.2 GB"
    return Answer(entry["host_tb"] * 1e12 / held, how)


class Runs:
    """Serving runs with the misses of a trace or of the demand of each model; each run is kept."""

    def __init__(
        self, trace: Trace | None, policy: str | Policy, engine: str | None = None
    ) -> None:
        self.engine = engine  # None: that of each figure
        self._trace = trace
        self._replay = cache(lambda trace, size: layer_misses(trace, policy, size))
        self._rates: dict[tuple[Any, ...], Answer] = {}

    def misses(self, model: Model, size: int, context: int) -> LayerMisses:
        trace = self._trace or demand_beyond(model, context, size)
        found: LayerMisses = self._replay(trace, size)
        return found

    def setting(self, entry: Mapping[str, Any], mode: str, pool_gib: float | None) -> Setting:
        model = load_model(entry.get("model", "glm-5.1"))
        hardware = load_hardware(entry.get("hardware", "h200"))
        layout = entry.get("layout", "dp8-tp8")
        pool = round(pool_gib * GIB) if pool_gib else None
        kv_dtype = entry.get("kv_dtype", "bf16")
        deployment = Deployment(
            model,
            hardware,
            LAYOUTS[layout],
            kv_dtype,
            pool_bytes=pool,
            draft_layers=int("draft_tokens" in entry),
            engine=load_engine(self.engine or entry.get("engine", THEN), memory=True),
        )
        size = entry.get("buffer", 4096)
        return Setting(
            deployment,
            steps_for(model, hardware, layout, kv_dtype),
            mode,
            size,
            entry.get("ratio", 8),
            self.misses(model, size, _context(entry)) if mode != "baseline" else None,
            disaggregated=entry.get("disaggregated", False),
            chunked_prefill_size=entry.get("chunked_prefill_size", 65_536),
            max_running_requests=entry.get("max_running_requests", 480),
            speculation=Stated(
                entry.get("draft_tokens"), entry.get("acceptance_length")
            ).speculation(),
        )

    def tokens_per_s(self, entry: Mapping[str, Any], mode: str, pool_gib: float | None) -> Answer:
        workload = load_of(entry)
        said = ("model", "hardware", "layout", "kv_dtype", "buffer", "ratio", "engine", *_LIMITS)
        key = (workload, mode, pool_gib, *(entry.get(name) for name in said))
        if key not in self._rates:
            setting = self.setting(entry, mode, pool_gib)
            served = serve(setting.server(), workload)
            low = high = nan
            how = f"{served.running:.0f} of {workload.concurrency} decode"
            if len(served.finished):
                shares = served.times
                how += (
                    f" at {served.tpot_ms(50):.1f} ms; prefill"
                    f" {shares.prefill / served.makespan:.0%}, swap-in"
                    f" {shares.swap_in / served.makespan:.0%} of the time"
                )
                if mode != "baseline" and (bounds := setting.host_range()):
                    rates = [
                        serve(replace(setting, host_gb_s=bound).server(), workload)
                        for bound in bounds
                    ]
                    low, high = (rate.output_tokens_per_s for rate in rates)
                    how += (
                        f"; {setting.link.bulk_gb_s * pulling(setting):.0f} GB/s from the host are"
                        f" assumed; with {bounds[0]:.0f} {low:,.0f}, with {bounds[1]:.0f}"
                        f" {high:,.0f} tokens/s"
                    )
            else:
                longest = min(setting.pool.device_tokens, setting.deployment.model.context) - 1
                how = f"every request refused: the longest is {longest:,} tokens"
            self._rates[key] = Answer(served.output_tokens_per_s, how, low, high)
        return self._rates[key]

    def serving(self, entry: Mapping[str, Any]) -> Answer:
        pool = entry.get("pool_gib")
        found = self.tokens_per_s(entry, entry["mode"], pool)
        if "against" not in entry:
            return found
        other = self.tokens_per_s(entry, entry["against"], pool).ours or nan
        how = f"{found.ours:,.0f} over {other:,.0f} tokens/s; {found.how}"
        return Answer(found.ours / other, how, found.host_low / other, found.host_high / other)

    def step(self, entry: Mapping[str, Any]) -> Answer:
        """A decode step in ms, without HiSparse, of a batch over all ranks."""
        setting = self.setting(entry, "baseline", None)
        each = -(-entry["batch"] // setting.ranks)
        context = entry["prompt"] + entry["output"] / 2
        how = f"{each} on each of {setting.ranks} rank{'s' * (setting.ranks > 1)}"
        return Answer(setting.step_us(each, context) / 1000, f"{how} at {context:,.0f} tokens")

    def hidden(self, entry: Mapping[str, Any]) -> Answer:
        """The share of copying that passes while decode steps compute, with prefetch, in %."""
        served = serve(self.setting(entry, "prefetch", None).server(), load_of(entry))
        hidden, waited = served.times.hidden, served.times.swap_in
        how = (
            f"copies take {(hidden + waited) / served.makespan:.0%} of the time, and"
            f" {waited / served.makespan:.0%} wait for them"
        )
        return Answer(100 * hidden / (hidden + waited), how)

    def steps(self, entry: Mapping[str, Any]) -> Answer:
        """Tokens/s of steps that take what the measured baseline takes and our swap-in."""
        base = read_published()["measured_baseline"]
        model = load_model("glm-5.1")
        hardware = load_hardware(base["hardware"])
        misses = self.misses(model, base["buffer"], base["context"])
        item = model.entry_bytes(base["kv_dtype"])
        link = load_link(hardware.link).among(hardware.gpus_per_host)
        swap_in = swap_in_on(link, "sglang", base["buffer"], item)
        exposure = Exposure("hisparse", model, base["buffer"], misses, swap_in)
        running, batch = base["running"], entry["batch"]
        step_ms = [1000 * n / rate for n, rate in zip(running, base["tokens_per_s"], strict=True)]
        compute = float(np.interp(batch, running, step_ms))
        if batch > running[-1]:
            slope = (step_ms[-1] - step_ms[-2]) / (running[-1] - running[-2])
            compute += slope * (batch - running[-1])
        wait = exposure.step_us(batch, base["context"], 0.0, 0.0) / 1000
        how = f"measured baseline {compute:.1f} ms, swap-in {wait:.1f} ms"
        return Answer(1000 * batch / (compute + wait), how)

    def decode(self, entry: Mapping[str, Any]) -> Answer:
        """The gain of decode alone, with as many requests as fit."""
        prompt, output = entry["prompt"], entry["output"]
        rates, batches = [], []
        for mode in ("hisparse", "baseline"):
            setting = replace(self.setting(entry, mode, None), disaggregated=True)
            held, _ = setting.resident(prompt, output)
            batches.append(min(held, entry["concurrency"] // setting.ranks))
            rates.append(setting.steady_tokens_per_s(prompt, output, batches[-1]))
        how = (
            f"{rates[0]:,.0f} over {rates[1]:,.0f} tokens/s with {batches[0]} and {batches[1]}"
            " requests per GPU, decode only"
        )
        return Answer(rates[0] / rates[1] if rates[1] else nan, how)

    def end_to_end(self, entry: Mapping[str, Any]) -> Answer:
        """Return the gain of the whole deployment, with one instance that prefills the prompts."""
        load = Workload(
            entry["prompt"],
            entry["output"],
            2 * entry["concurrency"],
            concurrency=entry["concurrency"],
        )

        def served(mode: str, prefill: int) -> Served:
            one = self.setting(entry, mode, None)
            return serve(replace(one, disaggregated=True, prefill_instances=prefill).server(), load)

        said, gains = [], []
        for count in (1, ENOUGH):
            ours, base = served("hisparse", count), served("baseline", count)
            gains.append(ours.output_tokens_per_s / base.output_tokens_per_s)
            said.append(
                f"{count} prefill node{'s' * (count > 1)} ({ours.prefill_busy:.0%} busy):"
                f" {ours.output_tokens_per_s:,.0f} over {base.output_tokens_per_s:,.0f} tokens/s,"
                f" {gains[-1]:.2f} times"
            )
            if count == 1:
                done = ours.output_tokens_per_s / entry["output"] * entry["prompt"]
                said.append(
                    f"it prefills {done / ours.prefill_busy:,.0f} tokens/s, and the published"
                    f" {entry['tokens_per_s']:,} take"
                    f" {entry['tokens_per_s'] / entry['output'] * entry['prompt']:,.0f}"
                )
        return Answer(gains[0], "; ".join(said))


_LIMITS = (
    "chunked_prefill_size",
    "max_running_requests",
    "draft_tokens",
    "acceptance_length",
)


def load_of(entry: Mapping[str, Any]) -> Workload:
    """Return the requests of a figure of serving."""
    return Workload(
        entry.get("prompt", 32_768),
        entry.get("output", 8192),
        entry["requests"],
        concurrency=entry["concurrency"],
        range_ratio=entry.get("range_ratio", 1.0),
    )


def pulling(setting: Setting) -> int:
    """Return the GPUs that share a host."""
    return setting.deployment.pulling_gpus


def _context(entry: Mapping[str, Any]) -> int:
    """Return the mean tokens of the requests of a figure."""
    return int(entry.get("prompt", 32_768) + entry.get("output", 8192) // 2)
