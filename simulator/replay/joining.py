"""Rows of several sweeps or curves in one table: what differs gets a name of its own, and what can
neither be summed nor told apart is refused.

A series is one trace, known by its digest, replayed from one start; a curve also has a window, a
number of steps skipped and a selection. Rows without these columns (older versions wrote none) are
not joined with others of their trace. Where rows come from files, a column `file` names them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pandas as pd

from hisparse_sim.policies import POLICIES
from hisparse_sim.simulator.replay.coverage import ALL, SELECTED
from hisparse_sim.traces import TraceError

FILE = "file"
_DIGITS = 8  # of a digest in a name
_NOUN = {
    "selected_requests": "requests",
    "selected_layers": "layers",
    "selected_steps": "steps",
}


def selected(column: str, value: Any) -> str:
    """Return a value of one of SELECTED in words: "layers 9,24"."""
    noun = _NOUN[column]
    if pd.isna(value):
        return f"{noun} unknown"
    return f"all {noun}" if value == ALL else f"{noun} {value}"


def _start(value: Any) -> str:
    return "start unknown" if pd.isna(value) else f"{value} start"


def _rules(value: Any) -> str:
    return "plain replay" if pd.isna(value) else str(value)


_SWEEP: Mapping[str, Callable[[Any], str]] = {"start": _start, "rules": _rules}
_CURVE: Mapping[str, Callable[[Any], str]] = {
    **_SWEEP,
    "window": lambda value: "window unknown" if pd.isna(value) else f"window {value}",
    "skip_steps": lambda value: "skipped unknown" if pd.isna(value) else f"{value} steps skipped",
    **{name: partial(selected, name) for name in SELECTED},
    FILE: lambda value: "" if pd.isna(value) else str(value),
}


def joined(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of sweeps with a name of its own in `trace` for every series, and in `policy`
    for every seed where several are replayed.

    Raises TraceError if two rows of a series cover different requests, layers or steps, or if one
    of several files does not say what it covers: their counts can be neither summed nor compared.
    """
    rows = _seeds_apart(_told_apart(rows, _SWEEP))
    for _, own in rows.groupby("trace", sort=False) if "trace" in rows else [("", rows)]:
        told = own.reindex(columns=[*SELECTED, FILE]).drop_duplicates()
        kinds = told[list(SELECTED)].drop_duplicates()
        if len(kinds) > 1 or (kinds.isna().any(axis=None) and told[FILE].nunique() > 1):
            raise TraceError(_conflict(own["trace"].iloc[0] if "trace" in own else "", told))
    return rows


def joined_curves(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the points of curves with a name of its own in `trace` for every series, and in
    `policy` for every seed where several are replayed; a repeated point counts once.

    Raises TraceError if two points at one place differ.
    """
    unknown = curves.reindex(columns=["window", *SELECTED]).isna().any(axis=1)
    if "trace" in curves:
        files = curves[FILE] if FILE in curves else pd.Series(pd.NA, curves.index)
        named = _told_apart(curves.assign(**{FILE: files.where(unknown)}), _CURVE)
        curves = _seeds_apart(curves.assign(trace=named["trace"]))
    place = [name for name in ("trace", "policy", "buffer", "step") if name in curves]
    values = [name for name in ("misses_per_step", "swap_in_us", "p10", "p90") if name in curves]
    curves = curves.drop_duplicates([*place, *values])
    twice = curves[curves.duplicated(place)]
    if not twice.empty:
        one = twice.iloc[0]
        raise TraceError(
            f"two curves of {one.get('trace', 'a trace')} that cover the same steps differ:"
            f" {one['policy']} at {one['buffer']:,} slots, step {one['step']:,}; leave one out"
        )
    return curves


def _told_apart(rows: pd.DataFrame, aspects: Mapping[str, Callable[[Any], str]]) -> pd.DataFrame:
    """Name every series by its trace and, where another one has that name, by those aspects in
    which they differ. Doing it again changes nothing."""
    if "trace" not in rows:
        return rows
    names = rows["trace"].astype("string")
    digests = rows.get("trace_sha256", pd.Series(pd.NA, rows.index)).astype("string")
    keys = rows.reindex(columns=list(aspects)).assign(of=digests.fillna("trace " + names))
    keys["number"] = keys.groupby(list(keys), dropna=False, sort=False).ngroup()
    keys["name"] = names.groupby(keys["number"]).transform("first")  # a copy may have another
    keys["digest"] = digests
    labels: dict[int, str] = {}
    taken: set[str] = set()
    for name, own in keys.drop_duplicates("number").groupby("name", sort=False):
        differ = [aspect for aspect in aspects if own[aspect].nunique(dropna=False) > 1]
        several = own["of"].nunique() > 1
        for series in own.to_dict("records"):
            known = "unknown" if pd.isna(series["digest"]) else series["digest"][:_DIGITS]
            parts = [f"{name} (sha256 {known})" if several else str(name)]
            parts += [aspects[aspect](series[aspect]) for aspect in differ]
            label = ", ".join(filter(None, parts))
            while label in taken:  # a trace may be called like that
                label += " (another)"
            taken.add(label)
            labels[series["number"]] = label
    return rows.assign(trace=keys["number"].map(labels))


def _seeds_apart(rows: pd.DataFrame) -> pd.DataFrame:
    if "seed" not in rows:
        return rows
    fixed = {policy.name for policy in POLICIES.values() if not policy.seeded}
    bases = rows["policy"].astype(str).str.partition(":")[0]  # without parameters
    by = [name for name in ("trace", "policy") if name in rows]
    several = rows.groupby(by)["seed"].transform("nunique") > 1
    named = rows["policy"].astype(str) + " (seed " + rows["seed"].astype(str) + ")"
    return rows.assign(policy=rows["policy"].where(bases.isin(fixed) | ~several, named))


def _conflict(trace: str, told: pd.DataFrame) -> str:
    files = list(dict.fromkeys(told[FILE].dropna()))
    silent = told[told[list(SELECTED)].isna().any(axis=1)]
    if not silent.empty:
        who = ", ".join(dict.fromkeys(silent[FILE].dropna())) or "a part of the rows"
        others = [name for name in files if name not in set(silent[FILE])]
        beside = f" beside {', '.join(others)}" if others else ""
        return (
            f"{who} does not say which requests, layers and steps of {trace} it covers{beside}"
            " (older versions did not write it): use it alone, or run the sweep again"
        )
    ways = [
        f"{_NOUN[name]} {' and '.join(map(str, values[:3]))}"
        for name in SELECTED
        if len(values := list(dict.fromkeys(told[name]))) > 1
    ]
    who = " and ".join(files) if len(files) > 1 else f"the rows of {files[0]}" if files else "rows"
    return (
        f"{who} cover different parts of {trace}: {'; '.join(ways)}. Such counts are not summed:"
        " sweep the same requests, layers and steps, or use one of them"
    )
