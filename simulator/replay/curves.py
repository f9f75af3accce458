"""Rolling miss curves: misses per decode step, over the decode steps of a request."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from hisparse_sim.simulator.replay.coverage import SELECTED
from hisparse_sim.simulator.replay.metrics import Misses, rolling_mean
from hisparse_sim.simulator.replay.swept import Piece, Run, Sweep
from hisparse_sim.traces.file.units import refuse_blocks

_OF_TRACES = ("trace", "provenance", "unit", "rules")
_COVERS = ("start", "trace_sha256", *SELECTED)


class SwapIn(Protocol):
    """Turns misses into time; `hisparse_sim.simulator.serving.costs.SwapIn` does."""

    def us(self, misses: Misses, buffer_size: int) -> npt.NDArray[np.float64]:
        """Return the swap-in time of every step."""
        ...

    @property
    def position_tokens(self) -> int:
        """Tokens of a position that it is for."""
        ...


def rolling_curves(
    swept: Sweep, window: int = 100, skip_steps: int = 0, swap_in: SwapIn | None = None
) -> pd.DataFrame:
    """Return misses per step and layer, smoothed by a trailing window of `window` steps.

    With `swap_in` the curve shows modelled time: the column `swap_in_us` replaces
    `misses_per_step`.

    Each (request, layer) is smoothed on its own; its first value is at its step window - 1
    (after the first `skip_steps`, which leave out the start-up burst). Then the layers of all
    requests are averaged step by step; a request that has ended drops out. Columns: `trace,
    provenance, policy, buffer, step, misses_per_step, p10, p90` (of the smoothed layers), `layers`
    (how many were averaged), and what the curve covers: seed, start, trace, selection, window and
    steps skipped.

    Raises ValueError if no (request, layer) is as long as the window, TraceError if time is
    asked for and the positions of a trace are not tokens.
    """
    if swap_in is not None and swap_in.position_tokens == 1:
        refuse_blocks((piece.trace for piece in swept.pieces), "swap-in times need")
    rows = [len(misses) for piece in swept.pieces for misses in piece.misses.values()]
    check_window(max(rows, default=0), window, skip_steps)
    runs = {
        (run.policy.name, run.buffer_size): run for piece in swept.pieces for run in piece.misses
    }
    asked = swept.rows[["policy", "buffer"]].drop_duplicates().itertuples(index=False, name=None)
    curves = pd.concat(
        [_curve(swept, runs[names], window, skip_steps, swap_in) for names in asked],
        ignore_index=True,
    )
    for place, name in enumerate(name for name in _OF_TRACES if name in swept.rows):
        curves.insert(place, name, ", ".join(swept.rows[name].drop_duplicates()))
    covers = {name: ", ".join(swept.rows[name].drop_duplicates()) for name in _COVERS}
    return curves.assign(
        seed=swept.rows["seed"].iloc[0], **covers, window=window, skip_steps=skip_steps
    )


def check_window(longest: int, window: int, skip_steps: int) -> None:
    """Raise ValueError if a request of `longest` steps has no curve."""
    if skip_steps < 0:
        raise ValueError(f"`skip_steps` is {skip_steps}; it must not be negative")
    if longest < skip_steps + window:
        raise ValueError(
            f"the longest request has {longest:,} steps, too few for a window of {window:,} after "
            f"skipping {skip_steps:,}; choose a smaller `window`"
        )


def _curve(
    swept: Sweep, run: Run, window: int, skip_steps: int, swap_in: SwapIn | None
) -> pd.DataFrame:
    def values(piece: Piece) -> npt.NDArray[np.number]:
        misses = piece.misses[run][skip_steps:]
        return misses if swap_in is None else swap_in.us(misses, run.buffer_size)

    smoothed = [
        (
            piece.first_step + skip_steps + window - 1,
            rolling_mean(values(piece), window),
        )
        for piece in swept.pieces
        if len(piece.misses[run]) >= skip_steps + window
    ]
    first = min(start for start, _ in smoothed)
    last = max(start + len(means) for start, means in smoothed)
    aligned = np.full((len(smoothed), last - first), np.nan)
    for row, (start, means) in zip(aligned, smoothed, strict=True):
        row[start - first : start - first + len(means)] = means
    covered = ~np.isnan(aligned).all(axis=0)
    aligned = aligned[:, covered]
    low, high = np.nanpercentile(aligned, (10, 90), axis=0)
    return pd.DataFrame(
        {
            "policy": run.policy.name,
            "buffer": run.buffer_size,
            "step": np.arange(first, last)[covered],
            "misses_per_step" if swap_in is None else "swap_in_us": np.nanmean(aligned, axis=0),
            "p10": low,
            "p90": high,
            "layers": (~np.isnan(aligned)).sum(axis=0),
        }
    )
