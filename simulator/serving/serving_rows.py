"""Serving runs as tidy rows, for `serve` and for the candidates of `plan`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hisparse_sim.simulator.serving.bottleneck import bottleneck
from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.misses import MissesOf
from hisparse_sim.simulator.serving.prediction import CannotRun, Setting
from hisparse_sim.simulator.serving.served import Served, serve
from hisparse_sim.simulator.serving.workload import Requests, drawn

Progress = Callable[[str, int, int], None]  # (what is served, requests finished, all)


def serve_one(setting: Setting, aim: Aim, progress: Progress | None = None) -> dict[str, Any]:
    """Serve a setting at a load; one row.

    Columns: mode, load, tokens_per_s (output tokens, of the whole deployment) and the same per GPU,
    percentiles of TPOT and TTFT, `tpot_ms` and `ttft_s` (at the percentile of the targets),
    `wait_p50_s` (the part of the TTFT before a request has memory),
    running and waiting (requests, means over time), the shares of the time of the instances that
    decode (prefill, decode_attention, decode_rest, swap_in, idle; sum 1), `hidden` (share in which
    copies run while decode steps compute), `prefill_busy` (share of the time of the instances that
    prefill for others), bottleneck, `goodput_per_s` (requests a
    second that meet the targets), meets (all targets) and `missed` (which not), `prefix_hits`
    (share of the prompt tokens that the prefix cache held), retractions, refused, cut, makespan_s,
    and `cost_per_million` output tokens where a price is given.
    """
    name = setting.mode

    def report(done: int, of: int) -> None:
        if progress:
            progress(f"{name}, {aim.label}", done, of)

    return row_of(setting, aim, serve(setting.server(), aim.load, report))


def row_of(setting: Setting, aim: Aim, served: Served) -> dict[str, Any]:
    """The row of a run, see `serve_one`."""
    span, times = served.makespan or 1.0, served.times
    rate = served.output_tokens_per_s
    missed = aim.missed(served, setting.miss_rate(aim.lengths))
    row: dict[str, Any] = {
        "mode": setting.mode,
        "load": aim.label,
        "tokens_per_s": rate,
        "tokens_per_s_per_gpu": rate / setting.gpus,
        **{f"tpot_p{p}_ms": served.tpot_ms(p) for p in (50, 95, 99)},
        **{f"ttft_p{p}_s": served.ttft_s(p) for p in (50, 95, 99)},
        "tpot_ms": served.tpot_ms(aim.percentile),
        "ttft_s": served.ttft_s(aim.percentile),
        "wait_p50_s": served.wait_s(50),
        "running": served.running,
        "waiting": served.waiting,
        "prefill": times.prefill / span,
        "decode_attention": times.decode_attention / span,
        "decode_rest": times.decode_rest / span,
        "swap_in": times.swap_in / span,
        "idle": times.idle / span,
        "hidden": times.hidden / span,
        "prefill_busy": served.prefill_busy,
        "bottleneck": bottleneck(setting, served),
        "goodput_per_s": aim.goodput_per_s(served),
        "meets": not missed,
        "missed": ", ".join(missed),
        "prefix_hits": served.prefix_hits,
        "retractions": served.retractions,
        "refused": served.refused,
        "cut": served.cut,
        "makespan_s": served.makespan,
    }
    if aim.gpu_hour is not None:
        hour = setting.gpus * aim.gpu_hour
        row["cost_per_million"] = hour / (rate * 3600) * 1e6 if rate else float("inf")
    return row


class ServedOnce:
    """Rows of settings at one kind of load, each served once, however often it is asked for.

    Loads may differ in concurrency and number of requests.
    """

    def __init__(self) -> None:
        self._known: list[tuple[Setting, int, int | None, dict[str, Any]]] = []

    def rows(
        self, settings: Sequence[Setting], aim: Aim, served: Callable[[], None] | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows, in this order; `served` is called after each setting."""
        new = [one for one in settings if self._find(one, aim) is None]
        with ThreadPoolExecutor() as pool:  # the event loop holds no lock of Python's
            for one, row in zip(new, pool.map(lambda one: serve_one(one, aim), new), strict=True):
                self._known.append((one, aim.concurrency, aim.requests, row))
                if served:
                    served()
        return [dict(self._find(one, aim) or {}) for one in settings]

    def _find(self, setting: Setting, aim: Aim) -> dict[str, Any] | None:
        for one, concurrency, requests, row in self._known:
            if (concurrency, requests) == (aim.concurrency, aim.requests) and one == setting:
                return row
        return None


def as_mode(
    setting: Setting, mode: str, device_buffer_size: int, ratio: int, resident_tokens: int = 0
) -> Setting:
    """The setting in a mode, its misses not replayed yet."""
    return replace(
        setting,
        mode=mode,
        device_buffer_size=device_buffer_size,
        ratio=ratio,
        resident_tokens=resident_tokens,
        misses=None,
    )


def refusals(ways: Iterable[Setting], aims: Iterable[Aim]) -> list[str]:
    """Sentences on the settings that refuse every request of the loads.

    Raises CannotRun if all of them do.
    """
    ways, loads = tuple(ways), [drawn(aim.load) for aim in aims]
    found = {way.mode: [why_none(way, load) for load in loads] for way in ways}
    said = [f"{mode}: {reasons[0]}" for mode, reasons in found.items() if all(reasons)]
    if said and len(said) == len(found):
        raise CannotRun("; ".join(said))
    return said


def why_none(setting: Setting, load: Requests) -> str:
    """Why none of the requests can run, by the shortest of them; empty if one can."""
    lengths = np.unique(np.stack([load.prompt_len, load.output_len]), axis=1)
    if any(setting.length(*each).output for each in lengths.T.tolist()):
        return ""
    shortest = lengths[:, np.argmin(lengths.sum(axis=0))].tolist()
    return f"none of {len(load):,} requests can run: {setting.length(*shortest).reason}"


def serve_all(
    ways: Iterable[Setting],
    misses_of: MissesOf,
    policy: str,
    aims: Iterable[Aim],
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Serve every setting, with its misses, at every load: a row each, see `serve_one`."""
    aims, rows = tuple(aims), []
    for one in ways:
        if one.mode != "baseline":
            misses = misses_of(policy, one.device_buffer_size, one.resident_tokens)
            longest = max(aim.longest for aim in aims)
            one = replace(one, misses=misses, longest=longest)
        rows += [serve_one(one, aim, progress) for aim in aims]
    return pd.DataFrame(rows)
