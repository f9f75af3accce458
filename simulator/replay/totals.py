"""Result rows summed up: over layers and requests, without counting anything twice."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

_REPLAYED = ("trace", "trace_sha256", "request", "layer", "policy", "buffer", "start", "seed")


def totals(rows: pd.DataFrame, by: Sequence[str] = ("policy", "buffer")) -> pd.DataFrame:
    """Return one row per `by` with the sums of a sweep's rows.

    Rows that differ only in what they cost (the ratio) count once. Columns: those of `by`, then
    `steps, accesses, misses, miss_rate, misses_per_step, regret`. The optimum is summed too, so
    that `regret` is that of the sums; it is nan if a row has none.

    Raises ValueError if `rows` lacks a column of a sweep.
    """
    needed = {*by, "steps", "accesses", "misses"}
    if missing := needed - set(rows.columns):
        raise ValueError(f"these are no rows of a sweep: they lack {', '.join(sorted(missing))}")
    rows = rows.drop_duplicates([name for name in _REPLAYED if name in rows])
    regret = rows["regret"].astype(float) if "regret" in rows else float("nan")
    rows = rows.assign(optimum=rows["misses"] / (1 + regret))
    groups = rows.groupby(list(by), sort=False, dropna=False)
    sums = groups[["steps", "accesses", "misses", "optimum"]].sum()
    known = groups["optimum"].count() == groups.size()
    misses, optimum = sums["misses"], sums.pop("optimum").where(known)
    sums["miss_rate"] = misses / sums["accesses"]
    sums["misses_per_step"] = misses / sums["steps"]
    with np.errstate(divide="ignore", invalid="ignore"):
        least = optimum.round()
        sums["regret"] = (misses / least - 1).where((misses != 0) | (least != 0), 0.0)
    return sums.reset_index()
