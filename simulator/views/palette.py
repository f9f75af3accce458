"""The one table of colours, marks and names of policies: report, figures, notebooks and docs.

Colours after Okabe and Ito, which colour-blind readers can distinguish, darkened until each has a
contrast of 3 against white, five more for charts of many policies, and three for the modes of
serving, which are no policies; the second column is for a dark page. Every look also has a mark, so
that figures can be printed in grey. MIN is black, on a dark page white. The standard policies have
a line of the table each; other policies and prefetchers combine the colour of one line with the
mark of another, each in its own way."""

from collections.abc import Iterable
from itertools import cycle
from typing import NamedTuple

from hisparse_sim.policies import POLICIES, STANDARD
from hisparse_sim.simulator.mrc.names import BELADY, COMPULSORY, TEXTBOOK_LRU
from hisparse_sim.simulator.prefetch import PREFETCHERS


class Colour(NamedTuple):
    """One line of the table."""

    light: str
    dark: str
    marker: str  # Matplotlib's
    shape: str  # Vega's
    path: str  # of the shape in SVG, around (13, 6)
    hatch: str  # Matplotlib's


TABLE = (
    Colour("#0072B2", "#4DA3DB", "o", "circle", "M17 6a4 4 0 1 1-8 0a4 4 0 1 1 8 0Z", ""),
    Colour("#D55E00", "#F58442", "s", "square", "M9.5 2.5h7v7h-7Z", "////"),
    Colour("#008060", "#2BBF91", "^", "triangle-up", "M13 1.5l4.5 8.5h-9Z", "...."),
    Colour("#B9558F", "#E29AC6", "D", "diamond", "M13 1l4 5l-4 5l-4-5Z", "\\\\\\\\"),
    Colour("#2A8FC4", "#9BDCFF", "v", "triangle-down", "M13 10.5l4.5-8.5h-9Z", "xx"),
    Colour(
        "#A87900",
        "#F2B233",
        "P",
        "cross",
        "M11.5 2h3v2.500h2.500v3h-2.500v2.500h-3v-2.500h-2.500v-3h2.500Z",
        "--",
    ),
    Colour(
        "#6A3D9A",
        "#B79BE0",
        "*",
        "M0,-1L.23,-.31L.95,-.31L.36,.12L.59,.81L0,.38L-.59,.81L-.36,.12L-.95,-.31L-.23,-.31Z",
        "M13 1.5L14 4.6H17.300L14.600 6.500L15.700 9.600L13 7.700L10.300 9.600L11.400 6.500"
        "L8.700 4.600H12Z",
        "oo",
    ),
    Colour("#8C510A", "#D9A066", "<", "triangle-left", "M8.500 6l8-4.500v9Z", "||"),
    Colour(
        "#B2182B",
        "#F0808A",
        "p",
        "M0,-1L.95,-.31L.59,.81L-.59,.81L-.95,-.31Z",
        "M13 1.500L17.300 4.600L15.700 9.600H10.300L8.700 4.600Z",
        "**",
    ),
    Colour(
        "#4D6B00",
        "#A8C650",
        "h",
        "M1,0L.5,.87L-.5,.87L-1,0L-.5,-.87L.5,-.87Z",
        "M17.500 6L15.250 9.900H10.750L8.500 6L10.750 2.100H15.250Z",
        "++",
    ),
    Colour(
        "#5A5A5A", "#B0B0B0", "d", "M0,-1L.6,0L0,1L-.6,0Z", "M13 1L15.700 6L13 11L10.300 6Z", "OO"
    ),
    Colour(
        "#000000",
        "#FFFFFF",
        "X",
        "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z",
        "M9 3.600L10.600 2L13 4.400L15.400 2L17 3.600L14.600 6L17 8.400L15.400 10L13 7.600"
        "L10.600 10L9 8.400L11.400 6Z",
        "",
    ),
    Colour("#7A1F3D", "#E891AB", ">", "triangle-right", "M17.500 6l-8-4.500v9Z", "//"),
    Colour(
        "#66727F",
        "#AAB6C2",
        "8",
        "M.92,.38L.38,.92L-.38,.92L-.92,.38L-.92,-.38L-.38,-.92L.38,-.92L.92,-.38Z",
        "M16.700 7.500L14.500 9.700H11.500L9.300 7.500V4.500L11.500 2.300H14.500L16.700 4.500Z",
        "..",
    ),
    Colour(
        "#00707A",
        "#52C4CE",
        "H",
        "M0,-1L.87,-.5L.87,.5L0,1L-.87,.5L-.87,-.5Z",
        "M13 1.500L16.900 3.750V8.250L13 10.500L9.100 8.250V3.750Z",
        "\\\\",
    ),
)
OPTIMUM = BELADY
MODES = ("hisparse", "baseline", "zero-cost")  # of serving: the last lines of TABLE
OF_MIN = len(TABLE) - 1 - len(MODES)
PARTS = {  # of the time of an instance that decodes: its column, and its line of TABLE
    "prefill": ("prefill", 4),
    "decode attention": ("decode_attention", 0),
    "other decode": ("decode_rest", 2),
    "swap-in": ("swap_in", 1),
    "idle": ("idle", None),
}
_NAMES = {
    BELADY: "MIN",
    TEXTBOOK_LRU: "LRU (textbook)",
    COMPULSORY: "compulsory",
    "random": "random",
}


class Place(NamedTuple):
    """A look: the lines of TABLE of its colour, and of its mark, dash and hatch."""

    colour: int
    mark: int


_RING = (*range(len(STANDARD) - 1, OF_MIN), *range(1, len(STANDARD) - 1))  # all but LRU's, MIN's


def _turned(names: Iterable[str], turns: int, way: int) -> dict[str, Place]:
    """Return a place for every name: colours go round, and in each round others meet the marks."""
    size = len(_RING)
    rounds = ((number, turns + way * (number // size)) for number in range(size**2))
    return {
        name: Place(_RING[number % size], _RING[(number + turn) % size])
        for name, (number, turn) in zip(names, rounds, strict=False)
    }


def _fixed() -> dict[str, Place]:
    """Return the places of all policies and prefetchers of the package, and modes of serving.

    Those of prefetchers come from the other end, so that a further policy changes none."""
    online = [name for name in STANDARD if name != BELADY]
    fixed = {name: Place(line, line) for line, name in enumerate(online)}
    fixed |= {name: Place(line, line) for line, name in enumerate(MODES, OF_MIN + 1)}
    ahead = _turned(PREFETCHERS, len(_RING) - 1, -1)
    return (
        ahead
        | _turned((n for n in POLICIES if n not in STANDARD), 1, 1)
        | fixed
        | {BELADY: Place(OF_MIN, OF_MIN)}
    )


_FIXED = _fixed()


def places(names: Iterable[str]) -> dict[str, Place]:
    """Return the place of every name. Policies and prefetchers of the package, and the modes of
    serving, have the same one everywhere; others take what is left, first what none of them has.
    Where there are only others, as traces, they begin with the first line."""
    names = list(dict.fromkeys(names))
    fixed = [_FIXED[name] for name in names if name in _FIXED]
    taken = {line for place in fixed for line in place}
    left = [line for line in (_RING if fixed else range(OF_MIN)) if line not in taken]
    free = cycle(left or _RING[: OF_MIN - len(STANDARD) + 1])  # no fixed look has both of one line
    return {
        name: _FIXED[name] if name in _FIXED else Place(line := next(free), line) for name in names
    }


def named(policy: str) -> str:
    """Return a policy's name as papers write it: LRU, FIFO, MIN; a name of one's own stays."""
    if policy in _NAMES:
        return _NAMES[policy]
    return policy.upper() if policy in STANDARD else policy


def css() -> str:
    """Return the custom properties of a page: `--c0` .. of TABLE, light and dark."""
    light, dark = (
        " ".join(f"--c{number}: {one[shade]};" for number, one in enumerate(TABLE))
        for shade in (0, 1)
    )
    return f':root {{ {light} }}\n@media screen {{ :root[data-theme="dark"] {{ {dark} }} }}'
