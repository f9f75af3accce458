"""Shared parts of the locality figures, which all take the rows of `hs.locality`.

One trace is shown with its spread over layers, several as one line each; a corner names those too
short for a measure. Values are means over (request, layer)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from hisparse_sim.simulator.views.figures.style import (
    Look,
    legend_beside,
    looks,
    origin,
    put_origin,
    shortened,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = ["trace", "request", "layer", "measure", "at", "value"]


def check_measure(rows: pd.DataFrame, measure: str, why_not: str) -> list[str]:
    """Return a sentence for every trace that has no such measure; ValueError if none has it."""
    if missing := set(_COLUMNS) - set(rows):
        raise ValueError(
            f"these are not rows of hs.locality: they lack {', '.join(sorted(missing))}"
        )
    known = _known(rows, measure)
    left_out = [f"{trace} {why_not}" for trace in rows["trace"].unique() if trace not in known]
    if not known:
        raise ValueError(f"no {measure.replace('_', ' ')} to draw: {', '.join(left_out)}")
    return left_out


def _known(rows: pd.DataFrame, measure: str) -> set[str]:
    """Return the traces that have a measure."""
    return set(rows["trace"][(rows["measure"] == measure) & rows["value"].notna()])


def traces_with(rows: pd.DataFrame, measure: str) -> list[tuple[str, pd.DataFrame, Look]]:
    """Return name, rows and look of every trace that has a measure."""
    known, names = _known(rows, measure), list(dict.fromkeys(rows["trace"]))
    return [
        (name, rows[rows["trace"] == name], look)
        for name, look in looks(names).items()
        if name in known
    ]


def finish(
    axes: "Axes", rows: pd.DataFrame, place: Any, left_out: Sequence[str], columns: int = 1
) -> None:
    """Put the legend beside the figure for several traces, else in `place` (None: nowhere)."""
    if left_out:
        text = "\n".join(shortened(each) for each in left_out)
        axes.text(0.02, 0.02, text, fontsize=6.5, color="0.35", transform=axes.transAxes)
    if rows["trace"].nunique() > 1:
        legend_beside(axes)
    elif place and axes.get_legend_handles_labels()[0]:
        axes.legend(loc=place, ncols=columns)
    put_origin(axes, origin(rows))
