"""The one style of all figures, and how they are made and saved.

Colours and marks of policies are those of `palette.py`; every line also has its own dash pattern or
marker, so that figures can be printed in grey."""

import math
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from hisparse_sim.simulator.replay.metrics import blocks_of, origins
from hisparse_sim.simulator.views import FIGURE_SUFFIXES, palette
from hisparse_sim.traces import atomic_path
from hisparse_sim.traces.remote import place_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LETTERS = 100  # of a line in the corner
COLOURS = tuple(one.light for one in palette.TABLE)
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 2)), (0, (1, 3)), (0, (9, 1.5, 3, 1.5)), (0, (4, 4)), (0, (7, 1.5, 1, 1.5, 1, 1.5)),
)  # fmt: skip
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
    "pdf.fonttype": 42,  # TrueType: venues refuse Type 3
    "ps.fonttype": 42,
    "savefig.dpi": 200,
    "svg.hashsalt": "hisparse-sim",  # the same data gives the same file
    "text.parse_math": False,  # a dollar sign in the name of a trace is one
}


SCREEN, PAPER, PAPER_WIDE = "screen", "paper", "paper-wide"
STYLES = (SCREEN, PAPER, PAPER_WIDE)
_WIDTH_INCHES = {PAPER: 3.35, PAPER_WIDE: 7.0}  # of a column, and of both
_PAPER: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "lines.linewidth": 1.2,
    "savefig.dpi": 300,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}
_style: ContextVar[str] = ContextVar("style", default=SCREEN)


class Look(NamedTuple):
    """The look of the line, points or bar of one name."""

    colour: str
    dash: Any
    marker: str
    hatch: str


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for every name. What is in the package looks the same in all figures."""
    return {name: look_at(place) for name, place in palette.places(names).items()}


def look_at(place: palette.Place) -> Look:
    colour, mark = place
    dash = (2 * mark - colour) % len(DASHES)  # another for each colour that has this mark
    return Look(COLOURS[colour], DASHES[dash], MARKERS[mark], HATCHES[mark])


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
            label=palette.named(str(name)),
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
    """Keep the origin of the data with the figure, for `save`, and on the screen write it into the
    lower right corner, in bold red if it is synthetic."""
    figure = root_figure(axes)
    figure.set_label(text)
    if _style.get() != SCREEN:
        return
    loud = SYNTHETIC in text
    figure.supxlabel(
        text,
        x=1,
        ha="right",
        fontsize=7 if loud else 6,
        color="#A30000" if loud else "0.35",
        weight="bold" if loud else "normal",
    )


def titled(axes: "Axes", text: str) -> None:
    """Give the axes a title; in a paper the caption says it."""
    if _style.get() == SCREEN:
        axes.set_title(text)


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


def powers_of_two(axes: "Axes", places: Sequence[float]) -> None:
    """Scale the x axis by powers of two, with ticks where something was replayed or modelled, and
    at the powers of two if that is nearly everywhere."""
    if len(places) > 1:
        axes.set_xscale("log", base=2)
    if len(places) > _MOST_TICKS:
        low, high = math.ceil(math.log2(min(places))), math.floor(math.log2(max(places)))
        places = [2**power for power in range(low, high + 1)]
    ticks = [math.log2(place) for place in places]
    names = [f"{place:,g}" for place in places]
    axes.set_xticks(places, spaced(ticks, names, 0.025 * max(map(len, names), default=1)))
    axes.minorticks_off()


def legend_beside(axes: "Axes", title: str = "") -> None:
    """Put the legend to the right of the axes, where it covers nothing; in a column above them."""
    if _style.get() != PAPER:
        axes.legend(title=title, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return
    names = axes.get_legend_handles_labels()[1]
    axes.legend(
        title=title.replace("\n", " "),
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=legend_columns(names),
        columnspacing=1.0,
        handlelength=2.0,
        borderaxespad=0.2,
    )


def legend_columns(names: Sequence[str]) -> int:
    """Return how many names stand side by side in a legend as wide as a column."""
    longest = max((len(line) for name in names for line in name.splitlines()), default=1)
    return max(1, min(4, len(names), _LETTERS_OF_COLUMN // (longest + 6)))


_MOST_TICKS = 10  # that each have a name
_LETTERS_OF_COLUMN = 52  # of a legend that fits above a column


@contextmanager
def styled(style: str | None = None) -> Iterator[None]:
    """Draw and save figures in a style of STYLES; None: that of the context around, or SCREEN.

    Raises ValueError for another style."""
    import matplotlib

    style = style or _style.get()
    if style not in STYLES:
        raise ValueError(f"unknown style {style!r}; known: {', '.join(STYLES)}")
    token = _style.set(style)
    try:
        with matplotlib.rc_context(STYLE | (_PAPER if style != SCREEN else {})):
            yield
    finally:
        _style.reset(token)


def current_style() -> str:
    return _style.get()


def width_of(width_inches: float) -> float:
    """Return the width of a figure that is so wide on the screen."""
    return _WIDTH_INCHES.get(_style.get(), width_inches)


def new_axes(width_inches: float, height_inches: float) -> "Axes":
    """Return the axes of a new figure that needs no display; call it within `styled()`.

    In a paper the width is that of one column or of both, and the height follows."""
    from matplotlib.figure import Figure

    width = width_of(width_inches)
    height = height_inches * min(1.0, max(0.62, width / width_inches))
    return Figure(figsize=(width, height)).add_subplot()


def check_suffix(path: Path) -> None:
    """Raise ValueError if the suffix of `path` is none of FIGURE_SUFFIXES."""
    if path.suffix.lower() not in FIGURE_SUFFIXES:
        known = ", ".join(FIGURE_SUFFIXES)
        raise ValueError(f"{path} has no suffix of a figure; choose one of {known}")


def save(drawn: "Axes | Figure", path: str | os.PathLike[str]) -> None:
    """Save a figure, or that of axes, in the format that the suffix of `path` names, atomically.

    The file's metadata name this program, its version and the origin of the data."""
    path = place_of(path)
    check_suffix(path)
    suffix = path.suffix.lower()
    figure = root_figure(drawn)
    with styled(), atomic_path(path) as temporary:
        figure.savefig(temporary, format=suffix[1:], metadata=_metadata(suffix, figure))


def _metadata(suffix: str, figure: "Figure") -> dict[str, Any]:
    """What a file of this suffix says of its figure; no date, so that the same data give the same
    file."""
    maker = f"hisparse-sim {version('hisparse-sim')}"
    text = str(figure.get_label()).replace("\n", " ")
    if suffix == ".png":
        return {"Software": maker, **({"Description": text} if text else {})}
    if suffix == ".svg":
        return {"Date": None, "Creator": maker, **({"Description": text} if text else {})}
    return {"CreationDate": None, "Creator": maker, **({"Subject": text} if text else {})}


def root_figure(drawn: "Axes | Figure") -> "Figure":
    """Return the outermost figure of axes, or of a figure."""
    within = drawn.figure
    assert within is not None  # only axes that were removed have none
    return within.figure  # a subfigure knows the whole, in Matplotlib 3.8, too
