"""Which input would explain a published figure that ours is far from: one changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.profiles import ProfileError
from hisparse_sim.simulator.serving.published_runs import Runs, load_of
from hisparse_sim.simulator.serving.served import serve
from hisparse_sim.simulator.serving.worth import scale_misses

FAR = 0.25  # error from which inputs are changed
NEAR = 0.1  # error at which a change explains a figure
FACTORS = (0.5, 2.0)


def causes(runs: Runs, entry: Mapping[str, Any]) -> str:
    """Return what changed inputs give for a figure of serving, the nearest first.

    Changed are times of prefill and decode, memory for KV, and with HiSparse the misses, each
    halved and doubled.
    """
    value = float(entry["value"])
    found = []
    for name, mode_rates in _changed(runs, entry):
        ours, *other = mode_rates
        result = ours / other[0] if other and other[0] else ours
        error = result / value - 1
        found.append((abs(error), f"{name}: {result:,.4g} ({error:+.0%})"))
    found.sort()
    if not found:
        return ""
    start = "explained by" if found[0][0] <= NEAR else "nearest to it, none within 10 %:"
    return f"one input changed, {start} {'; '.join(text for _, text in found)}"


def _changed(runs: Runs, entry: Mapping[str, Any]) -> Iterator[tuple[str, list[float]]]:
    modes = [entry["mode"], *([entry["against"]] if "against" in entry else [])]
    pool = entry.get("pool_gib")

    def rates(change: Callable[[Setting], Setting]) -> list[float]:
        settings = [change(runs.setting(entry, mode, pool)) for mode in modes]
        return [serve(one.server(), load_of(entry)).output_tokens_per_s for one in settings]

    for factor in FACTORS:
        changes = {
            "prefill time": partial(timed, decode=1.0, prefill=factor),
            "decode time": partial(timed, decode=factor, prefill=1.0),
            "memory for KV": partial(with_pool, factor=factor),
        }
        if entry["mode"] != "baseline":
            changes["misses"] = partial(scale_misses, factor=factor)
        for name, change in changes.items():
            with suppress(ValueError):  # the engine does not start with that much
                yield f"{name} x {factor:g}", rates(change)


def timed(setting: Setting, decode: float, prefill: float) -> Setting:
    """Return the setting whose steps take so many times as long."""
    if (steps := setting.steps) is None:  # not `known_steps`: those already count drafts
        raise ProfileError(setting.no_steps)
    return replace(setting, steps=steps.scaled(steps.hardware, decode, prefill, "to compare"))


def with_pool(setting: Setting, factor: float) -> Setting:
    """Return the setting with so many times the memory for KV on every GPU."""
    bytes_ = round(setting.deployment.device_pool_bytes * factor)
    return replace(setting, deployment=replace(setting.deployment, pool_bytes=bytes_))
