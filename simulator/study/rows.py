"""The rows of a study: means with intervals, tests against LRU, regrets and time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hisparse_sim.simulator.mrc.curves import MissCurves
from hisparse_sim.simulator.mrc.names import TEXTBOOK_LRU
from hisparse_sim.simulator.prefetch import NO_PREFETCH
from hisparse_sim.simulator.replay.metrics import tidy_rows
from hisparse_sim.simulator.serving.costs import SwapIn
from hisparse_sim.simulator.study.batches import Batch, batches_of, busiest, least_us_of
from hisparse_sim.simulator.study.measured import Measured, Setting
from hisparse_sim.simulator.study.statistics import draws, interval_of_ratio, paired_p_value
from hisparse_sim.traces.file.queries import has_drafts

BELADY, LRU = "belady", "lru"
RESAMPLES = 2000
NAN = float("nan")
ALL = "all"  # the traces together; queries of a step
FIRST = "first"  # query of a step: rows of drafts are left out

Longs = npt.NDArray[np.int64]


def rows_of(
    measured: Measured,
    bounds: Measured,
    curves: MissCurves | None,
    swap_in: SwapIn,
    start: str,
    *,
    steps: tuple[int, int] | None = None,
    seed: int = 0,
    jobs: int | None = None,
) -> pd.DataFrame:
    """Return a row per trace (and for all together), policy, prefetch and buffer, see
    docs/metrics-study.md.

    `bounds` are of the same parts: MIN, and the other bounds as counts. `curves`: the textbook LRU
    of each trace at every size; None if it is not known.
    """
    found = []
    for name, parts in measured.groups().items():
        weights = draws(measured.requests[parts], RESAMPLES, seed)
        batches = {
            size: batches_of(measured, parts, size, start, steps, jobs)
            for size in dict.fromkeys(setting.buffer for setting in measured.misses)
        }
        pieces = [measured.pieces[part] for part in parts]
        about = {
            "trace": name or ALL,
            "provenance": "/".join(
                dict.fromkeys(piece.trace.metadata.provenance for piece in pieces)
            ),
            "trace_sha256": " ".join(dict.fromkeys(piece.trace.sha256 for piece in pieces)),
            "requests": len(set(measured.requests[parts].tolist())),
            "parts": len(parts),
            "queries": FIRST if any(has_drafts(piece.trace) for piece in pieces) else ALL,
        }
        curve = _lru_curve(curves, name)
        for setting in sorted(measured.misses, key=_place(measured)):
            found.append(
                about
                | _counted(measured, setting, parts, weights, start, seed)
                | {"lru_slots": _slots(curve, int(measured.sums(setting)[parts].sum()))}
                | _ahead(measured, setting, parts)
                | _regrets(measured, bounds, setting, parts, swap_in)
                | _busiest(measured, setting, batches[setting.buffer], swap_in)
            )
    return tidy_rows(found).assign(
        link=swap_in.link.name, swap_in_kernel=swap_in.kernel, batch=swap_in.batch
    )


def _place(measured: Measured) -> Any:
    """Return a key that orders settings by buffer, then as they were measured."""
    order = {setting: number for number, setting in enumerate(measured.misses)}
    return lambda setting: (setting.buffer, order[setting])


def _counted(
    measured: Measured,
    setting: Setting,
    parts: Sequence[int],
    weights: npt.NDArray[np.float64],
    start: str,
    seed: int,
) -> dict[str, Any]:
    """Return the misses with intervals, and the comparison with LRU at the same buffer."""
    own, accesses = measured.sums(setting)[parts], measured.accesses[parts]
    lru, least = (
        measured.sums(Setting(policy, NO_PREFETCH, 0, setting.buffer))[parts]
        for policy in (LRU, BELADY)
    )
    rate = interval_of_ratio(weights, own, accesses)
    change = interval_of_ratio(weights, own - lru, lru)
    gap = int((lru - least).sum())
    closed = interval_of_ratio(weights, lru - own, lru - least)
    steps = sum(len(measured.misses[setting][part]) for part in parts)
    differences = (own - lru) / np.maximum(1, accesses)
    return {
        "policy": setting.policy,
        "prefetcher": setting.prefetcher,
        "budget": setting.budget,
        "buffer": setting.buffer,
        "start": start,
        "steps": steps,
        "accesses": int(accesses.sum()),
        "misses": int(own.sum()),
        "miss_rate": own.sum() / max(1, accesses.sum()),
        "miss_rate_low": rate.low,
        "miss_rate_high": rate.high,
        "misses_per_step": own.sum() / steps,
        "change": (own - lru).sum() / lru.sum() if lru.sum() else NAN,
        "change_low": change.low,
        "change_high": change.high,
        "p_value": paired_p_value(differences, seed),
        "gap_closed": (lru - own).sum() / gap if gap else NAN,
        "gap_closed_low": closed.low,
        "gap_closed_high": closed.high,
    }


def _ahead(measured: Measured, setting: Setting, parts: Sequence[int]) -> dict[str, float]:
    """Return what a prefetch does, per step; nothing without one."""
    if setting.prefetcher == NO_PREFETCH:
        return {}
    steps = sum(len(measured.misses[setting][part]) for part in parts)
    counts = {
        name: int(measured.counted(setting, name)[parts].sum())
        for name in ("critical", "late", "useful", "fetched")
    }
    alone = measured.sums(Setting(setting.policy, NO_PREFETCH, 0, setting.buffer))[parts].sum()
    missed = counts["critical"] + counts["late"] + counts["useful"]
    counts["useless"] = counts["fetched"] - counts["useful"] - counts["late"]
    counts["pollution"] = missed - int(alone)
    found = {f"{name}_per_step": count / steps for name, count in counts.items()}
    return found | {"copies_per_step": (counts["critical"] + counts["fetched"]) / steps}


def _regrets(
    measured: Measured,
    bounds: Measured,
    setting: Setting,
    parts: Sequence[int],
    swap_in: SwapIn,
) -> dict[str, float]:
    """Return what is least, and how far from it this is, per step of a layer and in time.

    MIN is least of all copies, whether a step waits for them or not.
    """
    bound = Setting(BELADY, "bounds", 0, setting.buffer)
    steps = sum(len(measured.misses[setting][part]) for part in parts)
    per_step = float(measured.sums(setting)[parts].sum()) / steps
    least = float(bounds.sums(bound)[parts].sum()) / steps
    found = {"least_misses": least}
    for name in ("least_newest", "least_start", "least_newest_start", "least_exposed"):
        found[name] = float(bounds.counted(bound, name)[parts].sum()) / steps
    us, least_us = (
        float(np.concatenate([swap_in.us(each[part], setting.buffer) for part in parts]).mean())
        for each in (measured.misses[setting], bounds.misses[bound])
    )
    copies = per_step
    if setting.prefetcher != NO_PREFETCH:
        ahead = ("critical", "fetched")
        copies = sum(int(measured.counted(setting, name)[parts].sum()) for name in ahead) / steps
    exposed = found["least_exposed"]
    stall_us = least_us_of(swap_in, swap_in.batch, exposed, exposed, setting.buffer)
    return found | {
        "swap_in_us": us,
        "fetch_regret": copies - least,
        "fetch_regret_us": us - least_us,
        "stall_regret": per_step - exposed,
        "stall_regret_us": us - stall_us,
    }


def _busiest(
    measured: Measured, setting: Setting, batches: Sequence[Batch], swap_in: SwapIn
) -> dict[str, float]:
    """Return the misses of the busiest request and, without prefetch, how far they are from the
    least; nothing where no layer has several requests."""
    if not batches:
        return {}
    found = busiest(batches, measured.misses[setting], setting.buffer, swap_in)
    waits = {"busiest": found.misses, "busiest_us": found.us}
    if setting.prefetcher != NO_PREFETCH:  # its steps do not wait for all copies
        return waits
    return waits | {
        "least_busiest": found.least,
        "barrier_regret": found.misses - found.least,
        "barrier_regret_us": found.us - found.least_us,
    }


def _lru_curve(curves: MissCurves | None, name: str) -> tuple[Longs, Longs]:
    """Return the sizes and the misses of the textbook LRU on one trace, or on all."""
    if curves is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    curve = curves.of[TEXTBOOK_LRU]
    lines = (curves.lines["trace"] == name).to_numpy() if name else slice(None)
    return curve.sizes, curve.misses[lines].sum(axis=0)


def _slots(curve: tuple[Longs, Longs], misses: int) -> float:
    """Return the fewest slots with which LRU has no more misses; nan if none of the curve do."""
    sizes, of_lru = curve
    enough = np.flatnonzero(of_lru <= misses)
    return float(sizes[enough[0]]) if len(enough) else NAN
