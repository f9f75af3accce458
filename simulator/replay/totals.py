"""Result rows summed up: over layers and requests, without counting anything twice."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hisparse_sim.simulator.replay.former_names import present_names

_REPLAYED = ("trace", "trace_sha256", "request", "layer", "policy", "buffer", "start", "seed")


def totals(rows: pd.DataFrame, by: Sequence[str] = ("policy", "buffer")) -> pd.DataFrame:
    """Return one row per `by` with the sums of a sweep's rows.

    Rows that differ only in what they cost (the ratio) count once. Columns: those of `by`, then
    `steps, accesses, misses, miss_rate, misses_per_step, excess_over_min`. The misses of MIN are
    summed too, so that `excess_over_min` is that of the sums; it is nan if a row has none.

    Raises ValueError if `rows` lacks a column of a sweep.
    """
    needed = {*by, "steps", "accesses", "misses"}
    if missing := needed - set(rows.columns):
        raise ValueError(f"these are no rows of a sweep: they lack {', '.join(sorted(missing))}")
    rows = present_names(rows.drop_duplicates([name for name in _REPLAYED if name in rows]))
    swept = "excess_over_min" in rows
    excess = rows["excess_over_min"].astype(float) if swept else float("nan")
    rows = rows.assign(optimum=rows["misses"] / (1 + excess))
    groups = rows.groupby(list(by), sort=False, dropna=False)
    sums = groups[["steps", "accesses", "misses", "optimum"]].sum()
    known = groups["optimum"].count() == groups.size()
    misses, optimum = sums["misses"], sums.pop("optimum").where(known)
    sums["miss_rate"] = misses / sums["accesses"]
    sums["misses_per_step"] = misses / sums["steps"]
    with np.errstate(divide="ignore", invalid="ignore"):
        least = optimum.round()
        sums["excess_over_min"] = (misses / least - 1).where((misses != 0) | (least != 0), 0.0)
    return sums.reset_index()
