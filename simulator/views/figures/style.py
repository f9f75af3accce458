"""The one style of all figures, and how they are made and saved.

Colours and marks of policies are those of `palette.py`; every line also has its own dash pattern or
marker, so that figures can be printed in grey."""

import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from hisparse_sim.simulator.replay.metrics import blocks_of, origins
from hisparse_sim.simulator.views import FIGURE_SUFFIXES, palette
from hisparse_sim.traces import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LETTERS = 100  # of a line in the corner
COLOURS = tuple(one.light for one in palette.TABLE)
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1.5, 1.5)),
    (0, (6, 2, 1.5, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
MARKERS = tuple(one.marker for one in palette.TABLE)
HATCHES = tuple(one.hatch for one in palette.TABLE)
SYNTHETIC = "synthetic"
_LONGEST_NAME = 36  # letters in a legend
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
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.title_fontsize": 8,
    "lines.linewidth": 1.6,
    "savefig.dpi": 200,
    "svg.hashsalt": "hisparse-sim",  # the same data gives the same file
    "text.parse_math": False,  # a dollar sign in the name of a trace is one
}


class Look(NamedTuple):
    """The look of the line, points or bar of one name."""

    colour: str
    dash: Any
    marker: str
    hatch: str


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for every name. A known policy looks the same in all figures."""
    every = [Look(*parts) for parts in zip(COLOURS, cycle(DASHES), MARKERS, HATCHES)]
    return {name: every[place] for name, place in palette.places(names).items()}


def draw_lines(axes: "Axes", table: pd.DataFrame, by: str, x: str, y: str) -> None:
    """Draw `y` over `x`, a line with a look and a name for every value of `by`."""
    look = looks(table[by])
    for name, line in table.groupby(by, sort=False):
        line = line.sort_values(x)
        colour, dash, marker, _ = look[str(name)]
        axes.plot(
            line[x],
            line[y],
            color=colour,
            linestyle=dash,
            marker=marker,
            markersize=4.5,
            label=name,
        )


def origin(table: pd.DataFrame) -> str:
    """Return what the corner of a figure says: provenance and name of the traces of `table`; of
    several kinds one by one."""
    if "trace" not in table:
        return ""
    traces = list(dict.fromkeys(table["trace"]))
    which = f"trace {traces[0]}" if len(traces) == 1 else f"{len(traces)} traces"
    if "provenance" not in table:
        return which
    kinds = list(dict.fromkeys(map(str, table["provenance"])))
    which = f"{kinds[0]} {which}" if len(kinds) == 1 else ", ".join(origins(table))
    blocks = blocks_of(table)
    return textwrap.fill(which, _LETTERS) + f"; positions are {blocks}" * bool(blocks)


def put_origin(axes: "Axes", text: str) -> None:
    """Write the origin of the data into the lower right corner, in bold red if it is synthetic."""
    loud = SYNTHETIC in text
    root_figure(axes).supxlabel(
        text,
        x=1,
        ha="right",
        fontsize=7 if loud else 6,
        color="#A30000" if loud else "0.35",
        weight="bold" if loud else "normal",
    )


def from_zero(axes: "Axes", room: float = 1.05) -> None:
    """Let the y axis run from 0 to `room` times the largest value, so that no marker is cut off."""
    top = float(axes.dataLim.y1)
    axes.set_ylim(0, room * top if 0 < top < float("inf") else 1)


def shortened(name: str) -> str:
    """Return the end of a name that is too long for a legend."""
    return name if len(name) <= _LONGEST_NAME else "…" + name[1 - _LONGEST_NAME :]


def spaced(places: Sequence[float], labels: Sequence[str], room: float = 0.11) -> list[str]:
    """Return tick labels without those that would overlap; `places` ascending, `room`: the share of
    the axis that a label takes. The first and the last are kept."""
    near = room * (places[-1] - places[0])
    shown, last = [], float("-inf")
    for place, label in zip(places, labels, strict=True):
        stays = place - last >= near and (place == places[-1] or places[-1] - place >= near)
        stays = stays or place in (places[0], places[-1])
        shown.append(label if stays else "")
        last = place if stays else last
    return shown


def legend_beside(axes: "Axes", title: str = "") -> None:
    """Put the legend to the right of the axes, where it covers nothing."""
    axes.legend(title=title, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def styled() -> AbstractContextManager[None]:
    """Return a context in which figures are drawn and saved in the project's style."""
    import matplotlib

    return matplotlib.rc_context(STYLE)


def new_axes(width_inches: float, height_inches: float) -> "Axes":
    """Return the axes of a new figure that needs no display; call it within `styled()`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches)).add_subplot()


def check_suffix(path: Path) -> None:
    """Raise ValueError if the suffix of `path` is none of FIGURE_SUFFIXES."""
    if path.suffix.lower() not in FIGURE_SUFFIXES:
        known = ", ".join(FIGURE_SUFFIXES)
        raise ValueError(f"{path} has no suffix of a figure; choose one of {known}")


def save(drawn: "Axes | Figure", path: Path) -> None:
    """Save a figure, or that of axes, in the format that the suffix of `path` names, atomically."""
    check_suffix(path)
    dates: Any = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    suffix = path.suffix.lower()
    with styled(), atomic_path(path) as temporary:
        root_figure(drawn).savefig(temporary, format=suffix[1:], metadata=dates.get(suffix))


def root_figure(drawn: "Axes | Figure") -> "Figure":
    """Return the outermost figure of axes, or of a figure."""
    within = drawn.figure
    assert within is not None  # only axes that were removed have none
    return within.figure  # a subfigure knows the whole, in Matplotlib 3.8, too
