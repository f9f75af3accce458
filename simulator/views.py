"""How result rows look on a terminal of 80 columns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from hisparse_sim.simulator.tables import print_table

Columns = dict[str, tuple[str, Callable[[Any], str]]]


def _count(value: Any) -> str:
    return f"{value:,.0f}"


def _percent(value: Any) -> str:
    return "-" if pd.isna(value) else f"{100 * value:.2f}"


def _more(value: Any) -> str:
    return "-" if pd.isna(value) else f"{100 * value:+.1f} %"


def _mb(value: Any) -> str:
    return f"{value / 1e6:,.1f}"


def _gb(value: Any) -> str:
    return f"{value / 1e9:,.2f}"


def show_sweep(rows: pd.DataFrame, output: Path | None = None) -> None:
    """Print the rows of a sweep: misses, and below what they cost and what fits, if that was asked for."""
    columns: Columns = {}
    if rows["trace"].nunique() > 1:
        columns["trace"] = ("trace", str)
    if rows["request"].nunique() > 1:
        columns["request"] = ("request", str)
    if rows["layer"].notna().any():
        columns["layer"] = ("layer", lambda value: f"{value:.0f}")
    columns |= {
        "policy": ("policy", str),
        "buffer": ("buffer", _count),
        "miss_rate": ("miss %", _percent),
        "misses_per_step": ("per step", lambda value: f"{value:,.1f}"),
        "p50": ("p50", _count),
        "p95": ("p95", _count),
        "max": ("max", _count),
    }
    if rows["regret"].notna().any():
        columns["regret"] = ("vs best", _more)
    priced = "bytes_per_step" in rows
    if priced:
        columns |= {"bytes_per_step": ("MB/step", _mb), "bytes_per_request": ("GB/req", _gb)}
    keys = [name for name in columns if name != "regret"]
    print_table(rows.drop_duplicates(keys), columns, output, title=_title(rows))
    if priced:
        first = rows.iloc[0]
        fits = rows.drop_duplicates(["buffer", "host_to_device_ratio"])
        print_table(
            fits,
            {
                "buffer": ("buffer", _count),
                "host_to_device_ratio": ("ratio", _count),
                "hot_buffer_bytes": ("hot buffer MB", _mb),
                "host_bytes_per_request": ("host GB", _gb),
                "requests_per_gpu": ("requests/GPU", _count),
                "limit": ("limited by", str),
            },
            title=f"\nMemory per request and GPU: {first['model']}, {first['kv_dtype']} KV",
        )
        for reason in fits["reason"].drop_duplicates():
            print(f"  {reason}")


def _title(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    where = f"{rows['trace'].nunique()} traces" if rows["trace"].nunique() > 1 else first["trace"]
    origins = ", ".join(rows["provenance"].drop_duplicates())
    return f"Misses per decode step and layer: {where} ({origins}), {first['start']} start"


def show_policies(rows: pd.DataFrame, output: Path | None = None) -> None:
    """Print one policy a line."""
    print_table(
        rows,
        {"policy": ("policy", str), "summary": ("", str), "reference": ("reference", str)},
        output,
    )
