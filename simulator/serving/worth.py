"""The value of a setting: compared with none, and with other misses, policies and links.

Every figure comes from serving the setting at the load in question; `served` has what was served
before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from hisparse_sim.simulator.mrc.counted import are_facts
from hisparse_sim.simulator.serving.hardware import Hardware
from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.misses import MissesOf
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.simulator.serving.serving_rows import ServedOnce
from hisparse_sim.simulator.serving.steptimes import LAYOUTS

OTHER_POLICIES = ("fifo", "lru", "arc", "belady")  # whose misses the best pair is tried with
MISSES_TIMES = (0.0, 0.5, 1.0, 1.5, 2.0)


def break_even(setting: Setting, aim: Aim, served: ServedOnce) -> int | None:
    """Smallest concurrency, in steps of one request per rank, from which HiSparse is ahead.

    Both are served at each concurrency tried, with the lengths of `aim` and four times as many
    requests. None: it is not ahead at the concurrency of `aim`.
    """
    baseline = replace(setting, mode="baseline", misses=None)
    ranks = setting.ranks * setting.instances

    def ahead(each: int) -> bool:
        load = replace(aim, concurrency=each * ranks, requests=None)
        ours, theirs = served.rows([setting, baseline], load)
        return bool(ours["tokens_per_s"] > theirs["tokens_per_s"])

    low, high = 0, -(-aim.concurrency // ranks)  # not ahead, ahead
    if not ahead(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if ahead(middle) else (middle, high)
    return high * ranks


def below_break_even(best: Mapping[str, Any]) -> int | None:
    """Return the load next below the break-even of a plan's best, at which HiSparse is not ahead;
    None for the lowest load, and where rows name no known layout."""
    even, layout = best.get("break_even"), LAYOUTS.get(str(best.get("layout")))
    if layout is None or even is None or pd.isna(even):
        return None
    step = layout.attention_dp * max(1, int(best.get("decode_instances") or 1))
    return int(even) - step or None


def scale_misses(setting: Setting, factor: float) -> Setting:
    """The same setting with every layer's misses multiplied."""
    if setting.misses is None:
        return setting
    return replace(setting, misses=setting.misses.times(factor))


def miss_sensitivity(setting: Setting, aim: Aim, served: ServedOnce) -> pd.DataFrame:
    """With the misses scaled: columns misses_times, miss_rate, tokens_per_s, tpot_ms."""
    scaled = [scale_misses(setting, factor) for factor in MISSES_TIMES]
    table = _table(scaled, aim, served)
    return pd.concat([pd.DataFrame({"misses_times": MISSES_TIMES}), table], axis=1)


def host_sensitivity(setting: Setting, aim: Aim, served: ServedOnce) -> pd.DataFrame:
    """With the lowest and the highest rate that the host may give all its GPUs together: columns
    host_gb_s, miss_rate, tokens_per_s, tpot_ms; no rows where no range is known."""
    rates = setting.host_range()
    table = _table([replace(setting, host_gb_s=rate) for rate in rates], aim, served)
    return pd.concat([pd.DataFrame({"host_gb_s": rates}), table], axis=1)


def policy_value(
    setting: Setting,
    aim: Aim,
    misses_of: MissesOf,
    policies: Iterable[str],
    served: ServedOnce,
) -> pd.DataFrame:
    """With the misses of policies: columns policy, miss_rate, tokens_per_s, tpot_ms, and
    `more_tokens`, tokens/s over those of the first, less 1."""
    names = list(policies)
    size, resident = setting.device_buffer_size, setting.resident_tokens
    missing = [replace(setting, misses=misses_of(name, size, resident)) for name in names]
    table = _table(missing, aim, served)
    table.insert(0, "policy", names)
    if len(table):
        table["more_tokens"] = table["tokens_per_s"] / table["tokens_per_s"].iloc[0] - 1
    return table


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


def over_link(setting: Setting, aim: Aim, hardware: Hardware, served: ServedOnce) -> dict[str, Any]:
    """Over the host link of `hardware`: its name, the link's rate, tokens/s."""
    linked = on_link(setting, hardware)
    return {
        "hardware": hardware.name,
        "link_gb_s": linked.link.bulk_gb_s,
        "tokens_per_s": served.rows([linked], aim)[0]["tokens_per_s"],
    }


def _table(settings: list[Setting], aim: Aim, served: ServedOnce) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "miss_rate": one.miss_rate(aim.lengths),
                "tokens_per_s": row["tokens_per_s"],
                "tpot_ms": row["tpot_ms"],
            }
            for one, row in zip(settings, served.rows(settings, aim), strict=True)
        ]
    )


def other_policies(asked: Scenario, setting: Setting) -> tuple[str, ...]:
    """Policies whose misses are known, too: none where a file or the engine's drafts fix them."""
    fixed = asked.miss_curve or are_facts(asked.trace)
    drafts = setting.speculation is not None and setting.speculation.replayed
    return () if fixed or drafts else OTHER_POLICIES
