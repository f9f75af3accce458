"""Sums of result rows over layers and requests, without counting anything twice."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hisparse_sim.simulator.replay.former_names import present_names
from hisparse_sim.simulator.replay.joining import FILE, joined
from hisparse_sim.traces import TraceError

_RUN = ("trace", "policy", "buffer")
_COUNTS = ["steps", "accesses", "misses"]


def totals(rows: pd.DataFrame, by: Sequence[str] = ("policy", "buffer")) -> pd.DataFrame:
    """Return one row per `by` with the sums of the rows of one or several sweeps.

    Rows that differ only in their costs (the ratio) or in their file count once, and so does a sum
    whose layers are listed as well. Rows of another start or seed have a name of their own, given
    by `joining.joined`. Columns: those of `by`, then
    `steps, accesses, misses, miss_rate, misses_per_step, excess_over_min`. The misses of MIN are
    summed too, so that `excess_over_min` is that of the sums; it is nan if a row has none.

    Raises ValueError if `rows` lacks a column of a sweep, or holds several traces or starts and
    `by` does not separate them; TraceError if rows cover different parts of a trace, or
    contradict each other.
    """
    needed = {*by, *_COUNTS}
    if missing := needed - set(rows.columns):
        raise ValueError(f"these are not rows of a sweep: they lack {', '.join(sorted(missing))}")
    rows = _counted_once(joined(present_names(rows.reset_index(drop=True))))
    if "trace" in rows and "trace" not in by and rows["trace"].nunique() > 1:
        names = ", ".join(list(dict.fromkeys(rows["trace"].astype(str)))[:5])
        raise ValueError(
            f"rows of several traces or starts ({names}) are not summed: choose one, or name"
            " trace in `by`"
        )
    compared = "excess_over_min" in rows
    excess = rows["excess_over_min"].astype(float) if compared else float("nan")
    rows = rows.assign(optimum=rows["misses"] / (1 + excess))
    groups = rows.groupby(list(by), sort=False, dropna=False)
    sums = groups[[*_COUNTS, "optimum"]].sum()
    _check_accesses(sums, rows, by)
    known = groups["optimum"].count() == groups.size()
    misses, optimum = sums["misses"], sums.pop("optimum").where(known)
    sums["miss_rate"] = misses / sums["accesses"]
    sums["misses_per_step"] = misses / sums["steps"]
    with np.errstate(divide="ignore", invalid="ignore"):
        least = optimum.round()
        sums["excess_over_min"] = (misses / least - 1).where((misses != 0) | (least != 0), 0.0)
    return sums.reset_index()


def _counted_once(rows: pd.DataFrame) -> pd.DataFrame:
    """Drop what is there twice, and what sums up other rows."""
    # Tables that are joined have several sorts of null.
    kinds = {"request": "string", "layer": "Int64", "first_step": "Int64"}
    rows = rows.astype({name: kind for name, kind in kinds.items() if name in rows})
    run = [name for name in _RUN if name in rows]
    place = run + [name for name in kinds if name in rows]
    if "excess_over_min" in rows:  # of two that are alike the one that knows it
        rows = rows.loc[rows["excess_over_min"].isna().sort_values(kind="stable").index]
    rows = rows.drop_duplicates([*place, *_COUNTS])
    if "method" in rows:  # what is counted goes before what lies between
        between = rows["method"].eq("interpolated").fillna(False)
        rows = rows[~(between & rows.duplicated(place, keep=False))]
    rows = rows.sort_index()
    twice = rows.duplicated(place)
    if twice.any():
        raise TraceError(_contradiction(rows[twice].iloc[0], rows))
    return _finest(rows, run)


def _finest(rows: pd.DataFrame, run: list[str]) -> pd.DataFrame:
    """Return the rows of single layers, or of windows of steps, where others sum them up."""
    told = [rows[name].notna() if name in rows else False for name in ("layer", "first_step")]
    level = 2 * told[0] + 1 * told[1] + pd.Series(0, rows.index)
    sums = rows.assign(level=level).groupby([*run, "level"], dropna=False)[_COUNTS].sum()
    if len(sums) == rows.groupby(run, dropna=False).ngroups:
        return rows
    differ = sums.groupby(level=run, dropna=False).nunique().gt(1).any(axis=1)
    if differ.any():
        at = pd.MultiIndex.from_frame(rows[run]).isin(differ.index[differ])
        raise TraceError(_contradiction(rows[at].iloc[0], rows))
    return rows[level == level.groupby([rows[name] for name in run], dropna=False).transform("max")]


def _contradiction(row: pd.Series, rows: pd.DataFrame) -> str:
    files = list(dict.fromkeys(rows[FILE].dropna())) if FILE in rows else []
    return (
        f"{' and '.join(files) or 'rows'} contradict each other: different counts of"
        f" {row['policy']} at {row['buffer']:,} slots for the same steps of"
        f" {row.get('trace', 'a trace')}; leave one out"
    )


def _check_accesses(sums: pd.DataFrame, rows: pd.DataFrame, by: Sequence[str]) -> None:
    """Raise TraceError unless all policies and buffers are summed over the same accesses: the
    accesses of a trace do not depend on the policy."""
    apart = [name for name in by if name not in ("policy", "buffer")]
    flat = sums.reset_index()
    alike = flat.groupby(apart, sort=False, dropna=False) if apart else [("", flat)]
    for _, own in alike:
        other = own[(own[["steps", "accesses"]] != own[["steps", "accesses"]].iloc[0]).any(axis=1)]
        if other.empty:
            continue
        files = ", ".join(dict.fromkeys(rows[FILE].dropna())) if FILE in rows else ""
        told = [
            " ".join(f"{row[name]}" for name in by) + f": {row['accesses']:,} of {row['steps']:,}"
            for row in (own.iloc[0], other.iloc[0])
        ]
        raise TraceError(
            f"{files or 'the rows'} cannot be compared: they hold different numbers of accesses and"
            f" steps ({'; '.join(told)}); sweep the same requests, layers and steps with all"
            " policies and buffers"
        )
