"""From misses per step to the figures of a result row and to rolling curves."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hisparse_sim.traces.file.units import TOKEN, plural

Misses = npt.NDArray[np.int32]


def tidy_row(misses: Misses, accesses: int) -> dict[str, Any]:
    """Return the replay columns of a result row.

    `misses` [samples]: misses of every (layer, step). `accesses` counts every listed position,
    those of short steps, the first step and the newest token included."""
    total = int(misses.sum(dtype=np.int64))
    p50, p95, largest = np.percentile(misses, (50, 95, 100)) if len(misses) else (0.0, 0.0, 0.0)
    return {
        "steps": len(misses),
        "accesses": accesses,
        "misses": total,
        "miss_rate": total / accesses if accesses else 0.0,
        "misses_per_step": total / len(misses) if len(misses) else 0.0,
        "p50": float(p50),
        "p95": float(p95),
        "max": int(largest),
        "excess_over_min": float("nan"),
    }


def tidy_rows(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return result rows as a table, with the column `unit` only if a trace has another unit than
    tokens."""
    table = pd.DataFrame(list(rows))
    if "layer" in table:
        table["layer"] = table["layer"].astype("Int64")  # null where a row covers several layers
    return without_tokens(table)


def without_tokens(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without its column `unit` if the positions of all traces are tokens."""
    if "unit" in table and (table["unit"] == TOKEN).all():
        return table.drop(columns="unit")
    return table


def blocks_of(rows: pd.DataFrame) -> str:
    """Return the unit of positions that are not tokens, and of which trace it is; "" if all are
    tokens."""
    if "unit" not in rows:
        return ""
    units = rows[["trace", "unit"]].drop_duplicates().dropna()
    units = units[units["unit"] != TOKEN]
    if rows["trace"].nunique() == 1:
        return ", ".join(map(plural, units["unit"]))
    return ", ".join(f"{plural(unit)} in {trace}" for trace, unit in units.to_numpy().tolist())


def slots_are(rows: pd.DataFrame) -> str:
    """Return a further line of a title that says what slots are, if not tokens; else ""."""
    blocks = blocks_of(rows)
    return f"\nPositions and slots are {blocks}" if blocks else ""


def origins(rows: pd.DataFrame) -> list[str]:
    """Return each trace of rows with its provenance: "sample (trained-indexer)"."""
    pairs = rows[["trace", "provenance"]].drop_duplicates().astype(str)
    return [f"{trace} ({provenance})" for trace, provenance in pairs.to_numpy().tolist()]


def excess_over_min(misses: int, least: int) -> float:
    """Return misses / `least`, those of MIN (Belady), - 1: 0.25 is a quarter more than necessary;
    infinite if MIN has none."""
    if least == 0:
        return 0.0 if misses == 0 else float("inf")
    return misses / least - 1


def rolling_mean(values: npt.NDArray[np.number], window: int) -> npt.NDArray[np.float64]:
    """Return the mean over the last `window` steps, [n - window + 1]; the first is of step window -
    1."""
    if window < 1:
        raise ValueError(f"the window is {window} steps; it must be at least 1")
    kind = np.int64 if np.issubdtype(values.dtype, np.integer) else np.float64
    total = np.concatenate(([0], np.cumsum(values, dtype=kind)))
    mean: npt.NDArray[np.float64] = (total[window:] - total[:-window]) / window
    return mean
