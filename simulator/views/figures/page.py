"""The page of all figures of locality."""

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from hisparse_sim.simulator.views.figures.by_layer import (
    cross_layer_overlap,
    drift,
    sinks_and_recent,
)
from hisparse_sim.simulator.views.figures.locality_parts import check_measure
from hisparse_sim.simulator.views.figures.reuse import overlap, reuse_distance, working_set
from hisparse_sim.simulator.views.figures.style import origin, put_origin, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LETTERS = 150  # of a legend, that fit side by side


def locality_page(rows: pd.DataFrame, *, buffers: Sequence[int] | None = None) -> "Figure":
    """Draw all locality figures on one page; `buffers` as in `reuse_distance`.

    A figure for which no trace is long enough stays empty and states why."""
    from matplotlib.figure import Figure

    panels: tuple[Callable[..., Axes], ...] = (
        overlap,
        reuse_distance,
        working_set,
        cross_layer_overlap,
        sinks_and_recent,
        drift,
    )
    check_measure(rows, "working_set", "has no step")
    with styled():
        page = Figure(figsize=(11.0, 6.4))
        places = page.subplots(2, 3).ravel()
        for draw, axes in zip(panels, places, strict=True):
            options = {"buffers": buffers} if draw is reuse_distance else {}
            try:
                draw(rows, axes=axes, **options)
            except ValueError as why:
                axes.set_axis_off()
                text = textwrap.fill(str(why), 40)
                axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
        if rows["trace"].nunique() > 1:
            legends = [axes.get_legend() for axes in places]
            handles, names = places[2].get_legend_handles_labels()
            for legend in legends:
                if legend is not None:
                    legend.remove()
            columns = max(1, min(4, _LETTERS // (max(map(len, names)) + 8)))
            page.legend(handles, names, loc="outside upper center", ncols=columns)
        put_origin(places[0], origin(rows))
    return page
