"""Figures: functions that take a tidy table and return a matplotlib Axes, in one style.

Colours are those of Okabe and Ito, which colour-blind readers tell apart; every line also has a
dash pattern of its own, so that a figure survives a greyscale printer."""

from contextlib import AbstractContextManager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hisparse_sim.traces import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1.5, 1.5)),
    (0, (6, 2, 1.5, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
SUFFIXES = (".png", ".svg", ".pdf")
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "figure.dpi": 150,
    "font.size": 9,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.title_fontsize": 8,
    "lines.linewidth": 1.6,
    "savefig.dpi": 200,
    "svg.hashsalt": "hisparse-sim",  # the same data gives the same file
}


def rolling_misses(
    curves: pd.DataFrame, *, window: int, provenance: str, axes: "Axes | None" = None
) -> "Axes":
    """Draw rolling miss curves (the columns of `curves.rolling_curves`), a line per policy and
    buffer.

    The band spans the 10th to 90th percentile of the smoothed layers. `provenance` stands in the
    corner. Draws into `axes`, or into a new figure in the project's style."""
    with styled():
        axes = axes or new_axes(7.2, 3.6)
        policies = list(dict.fromkeys(curves["policy"]))
        lines = curves.groupby(["buffer", "policy"], sort=False)
        for ((buffer, policy), line), colour, dash in zip(lines, cycle(COLOURS), cycle(DASHES)):
            name = f"B = {buffer:,}" if len(policies) == 1 else f"{policy}, B = {buffer:,}"
            axes.fill_between(
                line["step"], line["p10"], line["p90"], color=colour, alpha=0.12, linewidth=0
            )
            for edge in ("p10", "p90"):
                axes.plot(line["step"], line[edge], color=colour, linestyle=dash, linewidth=0.5)
            axes.plot(
                line["step"], line["misses_per_step"], color=colour, linestyle=dash, label=name
            )
        axes.set_xlabel("decode step")
        axes.set_ylabel(f"misses per step and layer\n(mean of the last {window} steps)")
        axes.set_ylim(bottom=0)
        axes.margins(x=0.01)
        axes.set_title("Misses in the hot buffer" + f", {policies[0]}" * (len(policies) == 1))
        _root(axes).supxlabel(provenance, x=1, ha="right", fontsize=6, color="0.35")
        axes.legend(
            title=f"mean of {int(curves['layers'].max())} layers\n(band: 10-90 % of them)",
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
        )
    return axes


def styled() -> AbstractContextManager[None]:
    """Return a context in which figures are drawn and saved in the project's style."""
    import matplotlib

    return matplotlib.rc_context(STYLE)


def new_axes(width_inches: float, height_inches: float) -> "Axes":
    """Return the axes of a new figure that needs no display; call it within `styled()`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches)).add_subplot()


def check_suffix(path: Path) -> None:
    """Raise ValueError if the suffix of `path` is none of SUFFIXES."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} has no suffix of a figure; choose one of {', '.join(SUFFIXES)}")


def save(axes: "Axes", path: Path) -> None:
    """Save the figure of `axes` in the format that the suffix of `path` names, atomically."""
    check_suffix(path)
    dates: Any = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    suffix = path.suffix.lower()
    with styled(), atomic_path(path) as temporary:
        _root(axes).savefig(temporary, format=suffix[1:], metadata=dates.get(suffix))


def _root(axes: "Axes") -> "Figure":
    """Return the figure that the axes are part of, however nested."""
    figure = axes.get_figure(root=True)
    assert figure is not None  # only axes that were removed have none
    return figure
