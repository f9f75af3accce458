"""Checks of the rows of facts files: the values of each, and that several agree."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from hisparse_sim.traces import TraceError
from hisparse_sim.traces.file.units import is_unit

_OF_A_TRACE = ("provenance", "unit", "model", "top_k")
_OF_A_WINDOW = ("steps", "tokens", "accesses")


def check_values(rows: pd.DataFrame) -> None:
    """Raise ValueError for counts that no trace has: out of range, or more misses than accesses."""
    for column, least in (
        ("first_step", 0), ("seed", 0), ("accesses", 0), ("steps", 1), ("tokens", 1), ("top_k", 1),
    ):  # fmt: skip
        if (rows[column] < least).any():
            raise ValueError(f"{column} is below {least}")
    for unit in rows["unit"].unique():
        if not is_unit(unit):
            raise ValueError(f"its unit is {unit}")
    of_row = rows["sizes"].map(len).to_numpy()
    misses = np.concatenate(rows["misses"].to_list())
    if (np.array([sizes[0] for sizes in rows["sizes"]]) < 1).any():
        raise ValueError("a buffer has fewer slots than 1")
    if (misses < 0).any():
        raise ValueError("misses are negative")
    if (misses > np.repeat(rows["accesses"].to_numpy(), of_row)).any():
        raise ValueError("there are more misses than accesses")
    if (rows.groupby("trace_sha256")["accesses"].sum() == 0).any():
        raise ValueError("a trace has no accesses")


def refuse_contradictions(
    rows: pd.DataFrame, of_a_count: Sequence[str], of_a_window: Sequence[str]
) -> None:
    """Raise TraceError for rows of one or more files that cannot stand in one table.

    `rows` have a column `file`, its number. `of_a_count`: the columns that name what was counted;
    `of_a_window`: those of them that name the window.
    """
    _refuse_windows(rows)
    for columns, keys in ((_OF_A_TRACE, ["trace_sha256"]), (_OF_A_WINDOW, list(of_a_window))):
        several = rows.groupby(keys)[list(columns)].nunique() > 1
        for column in columns:
            if several[column].any():
                raise TraceError(
                    f"facts of {_name(rows)} contradict each other in {column}: leave one file out"
                )
    begins = rows.groupby([*(name for name in of_a_count if name != "first_step"), "file"])
    first = begins["first_step"].min().reset_index()
    for key, own in first.groupby(["trace_sha256", "request", "layer"], sort=False):
        if own["first_step"].nunique() > 1:
            least, other = sorted(own["first_step"].unique())[:2]
            raise TraceError(
                f"request {key[1]!r}, layer {key[2]} was counted from step {least} on and from step"
                f" {other} on, each with a buffer as after the prompt: such counts are not those"
                " of one replay; count all steps at once"
            )
    repeated = rows[rows.duplicated(list(of_a_count), keep=False)]
    for _, own in repeated.groupby(list(of_a_count), sort=False):
        known: dict[int, int] = {}
        for sizes, misses in zip(own["sizes"], own["misses"], strict=True):
            for size, count in zip(sizes.tolist(), misses.tolist(), strict=True):
                if known.setdefault(size, count) != count:
                    one = own.iloc[0]
                    raise TraceError(
                        f"facts of {one['trace']} contradict each other: request"
                        f" {one['request']!r}, layer {one['layer']}, {one['policy']} at {size:,}"
                        f" slots has {known[size]:,} misses and {count:,}; leave one file out"
                    )


def _refuse_windows(rows: pd.DataFrame) -> None:
    """Windows have one size in all rows; the last one of a request may be shorter."""
    keys = ["trace_sha256", "request", "layer", "start", "seed", "policy"]
    ordered = rows.sort_values([*keys, "first_step"], kind="stable")
    own = ordered.groupby(keys, sort=False)
    later = own["first_step"].shift(-1)
    ends = ordered["first_step"] + ordered["steps"]
    if (later[later > ordered["first_step"]] < ends[later > ordered["first_step"]]).any():
        raise TraceError(_windows(rows, "overlap"))
    of_one = [*keys, "first_step"]
    if (ordered.groupby(of_one)["steps"].nunique() > 1).any():
        raise TraceError(_windows(rows, "overlap"))
    full = ordered[(later > ordered["first_step"]).to_numpy()]["steps"]
    if full.nunique() > 1 or (len(full) and (ordered["steps"] > full.iloc[0]).any()):
        raise TraceError(_windows(rows, "have several sizes"))


def _windows(rows: pd.DataFrame, what: str) -> str:
    return (
        f"the windows of facts of {_name(rows)} {what}: merge facts that were counted with one"
        " window"
    )


def _name(rows: pd.DataFrame) -> str:
    return str(rows["trace"].iloc[0])
