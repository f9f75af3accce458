"""The choice of device_buffer_size and host_to_device_ratio, and its value.

A quick estimate ranks all candidates; the event loop serves the finalists and decides: every rate
and latency in a plan is what `serve` gives for the same setting and the same requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from hisparse_sim.simulator.serving.buffers import check_buffer
from hisparse_sim.simulator.serving.candidates import (
    Candidates,
    Progress,
    check_number,
    front,
    instance_pairs,
)
from hisparse_sim.simulator.serving.hardware import Hardware
from hisparse_sim.simulator.serving.launch import hisparse_config, prefill_flags
from hisparse_sim.simulator.serving.load_and_targets import Aim, not_met
from hisparse_sim.simulator.serving.misses import MissesOf
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.worth import (
    break_even,
    host_sensitivity,
    miss_sensitivity,
    over_link,
    policy_value,
)

BUFFERS_TIMES = (1, 1.5, 2, 3, 4)  # the top-k of the model
DEFAULT_RATIOS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)


@dataclass(frozen=True)
class Plan:
    """The result of planning. Tables are tidy; `best` is a row of `candidates` or None, and has
    `hisparse_config` and `worth_it` besides (no slower per GPU at this load than without HiSparse,
    or a target is missed without it); its `flags` start what is recommended.

    Columns of `candidates`: what `candidates.describe` gives, those of `serving_rows.serve_one`,
    then `best` (whether it is the one recommended), `baseline_tokens_per_s, baseline_tpot_ms,
    baseline_ttft_s` (without HiSparse) and `break_even` (concurrent requests from which the best is
    ahead of that; missing: never here, or not sought). There is a row for every candidate that was
    served or cannot run.
    """

    candidates: pd.DataFrame
    best: Mapping[str, Any] | None
    reasons: tuple[str, ...]
    baseline: Mapping[str, Any]  # a row without HiSparse, with the best number of instances
    pareto: pd.DataFrame  # candidates that no other beats in tokens/s per GPU, TPOT and host memory
    smallest_buffer: int | None = None  # that meets the targets
    break_even: int | None = None  # of the best
    sensitivity: pd.DataFrame = field(default_factory=pd.DataFrame)  # of the best: misses scaled
    host: pd.DataFrame = field(default_factory=pd.DataFrame)  # of the best: other rates of the host
    flags: str = ""  # of the best, or without HiSparse where that is better
    prefill_flags: str = ""  # of the instances that prefill for others, if any do
    policies: pd.DataFrame = field(default_factory=pd.DataFrame)  # the best, other policies' misses
    linked: Mapping[str, Any] | None = None  # the best over another host link, see over_link

    def rows(self, every: bool = False) -> pd.DataFrame:
        """The best and the Pareto front, or every candidate; the best first."""
        if every or not len(self.pareto):
            return self.candidates
        kept = self.candidates["best"] | self.candidates.index.isin(self.pareto.index)
        return self.candidates[kept]

    def document(self, every: bool = False) -> dict[str, Any]:
        """Everything as names and plain values, for scripts: `recommendation` and its basis, then
        `candidates`."""
        return {
            "recommendation": dict(self.best) if self.best is not None else None,
            "reasons": list(self.reasons),
            "baseline": dict(self.baseline),
            "smallest_buffer": self.smallest_buffer,
            "sensitivity": self.sensitivity.to_dict("records"),
            "host": self.host.to_dict("records"),
            "policies": self.policies.to_dict("records"),
            "linked": dict(self.linked or {}),
            "candidates": self.rows(every).to_dict("records"),
        }


def make_plan(
    setting: Setting,
    aim: Aim,
    misses_of: MissesOf,
    policy: str = "lru",
    buffers: Iterable[int] | None = None,
    ratios: Iterable[int] = DEFAULT_RATIOS,
    *,
    residents: Iterable[int] = (0,),
    instances: Iterable[tuple[int, int]] | None = None,
    other_layouts: Iterable[Setting] = (),
    other_policies: Iterable[str] = (),
    linked: Hardware | None = None,
    every: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Search all buffers and ratios for `aim`; `setting` gives all the rest.

    `residents`: tokens that a request keeps on the GPU beside its buffer, each number tried.
    `instances`: pairs (prefill, decode) to try where prefill is apart; None: those about in
    balance. `other_layouts`: the same setting in other layouts, to be tried too. The best is also
    served with the misses of `other_policies`, and over the host link of the machine `linked`.
    `every`: serve all candidates, not the finalists alone.

    Raises ValueError if the model does not fit the engine refuses a buffer, or
    there are too many candidates.
    """
    layouts = tuple(replace(one, longest=aim.longest) for one in (setting, *other_layouts))
    if buffers is None:
        buffers = [round(setting.deployment.model.top_k * times) for times in BUFFERS_TIMES]
    buffers = sorted(set(buffers))
    ratios, residents = sorted(set(ratios)), sorted(set(residents))
    check_number(len(buffers) * len(residents), len(ratios))
    for size in buffers:
        check_buffer(setting.deployment.model, size)
    pairs = None if instances is None else tuple(instances)

    def apart(one: Setting) -> list[Setting]:
        """The setting with every number of instances to try."""
        if not one.disaggregated:
            return [one]
        tried = instance_pairs(one, aim) if pairs is None else pairs
        return [replace(one, prefill_instances=p, decode_instances=d) for p, d in tried]

    without = Candidates(
        [each for one in layouts for each in apart(replace(one, mode="baseline", misses=None))],
        aim,
    )
    found = Candidates(
        [
            each
            for one in layouts
            for size in buffers
            for ratio in ratios
            for resident in residents
            for each in apart(
                replace(
                    one,
                    device_buffer_size=size,
                    ratio=ratio,
                    resident_tokens=resident,
                    misses=misses_of(policy, size, resident),
                )
            )
        ],
        aim,
        progress,
        without.served,
    )
    served = without.served
    if setting.steps is None:
        reason = f"rates are not known: {setting.no_steps}; what follows is memory alone"
        table = found.table().assign(best=False)
        return Plan(table, None, (reason,), without.describe(0), table[:0])
    without.serve(without.able)
    base = without.rows[without.fastest()] if without.able else without.describe(0)
    if every:
        found.serve(found.able)
    place = found.search()
    table = found.table()
    table = table.assign(
        best=table.index == place,
        baseline_tokens_per_s=base.get("tokens_per_s", 0.0),
        baseline_tpot_ms=base.get("tpot_ms", math.nan),
        baseline_ttft_s=base.get("ttft_s", math.nan),
        break_even=pd.array([None] * len(table), dtype="Int64"),
    ).sort_values("best", ascending=False, kind="stable")
    met = table[table["meets"]]
    smallest = int(met["buffer"].min()) if len(met) else None
    if place is None:
        return Plan(table, None, (_why_none(found),), base, _pareto(table), smallest)
    chosen = found.settings[place]
    best = {str(name): value for name, value in table.loc[[place]].to_dict("records")[0].items()}
    gain = _gain(best, base)
    worth_it = gain is None or gain >= 1 or not base["meets"]
    crossing = None if aim.open_loop else break_even(chosen, aim, served)
    table.loc[place, "break_even"] = crossing
    best |= {
        "break_even": crossing,
        "flags": str(best["flags"] if worth_it else base["flags"]),
        "hisparse_config": hisparse_config(chosen),
        "worth_it": worth_it,
    }
    return Plan(
        table,
        best,
        tuple(_reasons(found, place, base)),
        base,
        _pareto(table),
        smallest,
        break_even=crossing,
        sensitivity=miss_sensitivity(chosen, aim, served),
        host=host_sensitivity(chosen, aim, served),
        flags=best["flags"],
        prefill_flags=prefill_flags(chosen) if chosen.disaggregated else "",
        policies=policy_value(
            chosen, aim, misses_of, dict.fromkeys((policy, *other_policies)), served
        ),
        linked=over_link(chosen, aim, linked, served) if linked else None,
    )


def _pareto(table: pd.DataFrame) -> pd.DataFrame:
    able = table[table["requests"] > 0]
    points = [
        (row["tokens_per_s_per_gpu"], -row["tpot_ms"], -row["host_gb"], i)
        for i, row in zip(able.index, able.to_dict("records"), strict=True)
    ]
    return able.loc[front(points)]


def _gain(row: Mapping[str, Any], base: Mapping[str, Any]) -> float | None:
    """Tokens/s per GPU over those without HiSparse; None if nothing runs there."""
    rate = base.get("tokens_per_s_per_gpu", 0.0)
    return float(row["tokens_per_s_per_gpu"] / rate) if rate else None


def _why_none(found: Candidates) -> str:
    aim, rows = found.aim, list(found.rows.values())
    if not rows:
        return f"nothing fits: {found.estimates[0].reason}"
    at = f"at the {aim.percentile:g}th percentile"
    targets = {
        "TPOT": (aim.max_tpot_ms, "tpot_ms", f"{{:g}} ms per token {at} (best: {{:.1f}})"),
        "TTFT": (aim.max_ttft_s, "ttft_s", f"{{:g}} s to the first token {at} (best: {{:.1f}})"),
        "miss rate": (aim.max_miss_rate, "miss_rate", "a miss rate of {:g} (best: {:.3f})"),
    }
    parts = [
        text.format(target, min(float(row[name]) for row in rows))
        for what, (target, name, text) in targets.items()
        if target is not None and any(what in row["missed"] for row in rows)
    ]
    if all(row["refused"] for row in rows):
        parts.append(f"the longest request ({rows[0]['refused']} refused)")
    return f"no candidate reaches {' and '.join(parts)}"


def _reasons(found: Candidates, place: int, base: Mapping[str, Any]) -> Iterable[str]:
    """The recommendation, its neighbours, and serving without HiSparse, a sentence each."""
    best, setting = found.rows[place], found.settings[place]
    at = f"(p{found.aim.percentile:g})"
    apart = (
        f" on {setting.prefill_instances} prefill and {setting.decode_instances} decode instances"
        if setting.disaggregated
        else ""
    )
    resident = best["resident_tokens"]
    share = f" with {resident:,} resident tokens" if resident else ""
    yield (
        f"B {best['buffer']:,} and ratio {best['ratio']}{share}{apart}: {best['tokens_per_s']:,.0f}"
        f" tokens/s, TPOT {best['tpot_ms']:.1f} ms and TTFT {best['ttft_s']:,.1f} s {at},"
        f" {best['running']:,.0f} requests decode on average; bottleneck: {best['bottleneck']}"
    )
    for name, i in found.beside(place):
        row = found.rows[i]
        value = {
            "buffer": f"{row['buffer']:,}",
            "ratio": str(row["ratio"]),
            "resident tokens": f"{row['resident_tokens']:,}",
            "instances": f"{row['prefill_instances']} + {row['decode_instances']}",
            "layout": row["layout"],
        }[name]
        missed = f"; {not_met(row['missed'])}" if row["missed"] else ""
        yield (
            f"{name} {value} instead: {row['tokens_per_s']:,.0f} tokens/s"
            + (f" ({row['tokens_per_s_per_gpu']:,.1f} per GPU)" if name == "instances" else "")
            + f", TPOT {row['tpot_ms']:.1f} ms{_pinned(row, best)}; bottleneck:"
            f" {row['bottleneck']}{missed}"
        )
    gain = _gain(best, base)
    if gain is None:
        yield f"without HiSparse the request does not fit: {base['reason']}"
    else:
        yield (
            f"without HiSparse: {base['tokens_per_s']:,.0f} tokens/s, TPOT {base['tpot_ms']:.1f}"
            f" ms, {base['running']:,.0f} requests decode on average; bottleneck:"
            f" {base['bottleneck']}; HiSparse gives {gain:.2f} times the tokens/s per GPU at"
            f" {found.aim.phrase}"
        )


def _pinned(row: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """The host memory of a neighbour beside that of the best, where the two differ as shown."""
    own, other = f"{row['host_gb']:,.0f}", f"{best['host_gb']:,.0f}"
    return "" if own == other else f", {own} GB pinned instead of {other}"
