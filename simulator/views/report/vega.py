"""What the charts of a report have in common: one configuration, scales by name, sums, axes.

Policies, buffers, traces, layers, the chosen buffer and the policy in focus are parameters that the
page sets; sums and rates are computed in the page, so that figures are exact for every choice.
Colours are CSS variables of the page, which has a light and a dark set."""

from collections.abc import Sequence
from typing import Any

from hisparse_sim.simulator.views import palette

Spec = dict[str, Any]

DASHES = (
    [1, 0], [5, 2], [2, 2], [7, 2, 2, 2], [4, 1, 1, 1, 1, 1],
    [12, 3], [1, 4], [12, 2, 4, 2], [5, 5], [9, 2, 1, 2, 1, 2],
)  # fmt: skip
HEIGHT = 260  # of every chart, so that rows of the grid are even
MOST_TICKS = 24  # that name every simulated value
IN_POLICIES = "indexof(policies, datum.policy) >= 0"
CHOSEN = f"{IN_POLICIES} && indexof(traces, datum.trace) >= 0"
IN_BUFFERS = "indexof(buffers, datum.buffer) >= 0"
SHOWN = "datum.buffer == shown"
IN_LAYERS = "(datum.layer == null || (datum.layer >= layers[0] && datum.layer <= layers[1]))"
IN_FOCUS = "focus == '' || focus == datum.policy"
ZOOM: Spec = {
    "name": "zoom",
    "select": {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.shiftKey]"},
    "bind": "scales",
}
CONFIG: Spec = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "text": {"color": "var(--ink)"},
    "axis": {
        "labelColor": "var(--ink)",
        "titleColor": "var(--faint)",
        "gridColor": "var(--line)",
        "domainColor": "var(--faint)",
        "tickColor": "var(--faint)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "axisX": {"tickCount": {"expr": "ceil(width / 80)"}, "labelFlush": False, "labelOverlap": True},
    "axisY": {
        "titleAngle": 0,
        "titleAlign": "left",
        "titleAnchor": "end",
        "titleY": -10,
        "tickCount": 5,
        "domain": False,
        "ticks": False,
    },
    "legend": {
        "labelColor": "var(--ink)",
        "titleColor": "var(--faint)",
        "orient": "bottom",
        "labelFontSize": 12,
        "titleFontWeight": "normal",
        "symbolStrokeWidth": 2,
        "direction": "horizontal",
    },
}


def base(data: str, parameters: Sequence[Spec] = (), height: int = HEIGHT) -> Spec:
    return {
        "data": {"name": data},
        "width": "container",
        "height": height,
        "padding": {"top": 18, "left": 4, "right": 12, "bottom": 4},
        "params": list(parameters),
        "config": CONFIG,
    }


def by_policy(policies: Sequence[str], channel: str) -> Spec:
    """Colour or shape of the policies, those of `palette`."""
    places = palette.places(policies)
    looks = {
        "color": [f"var(--c{place.colour})" for place in places.values()],
        "shape": [palette.TABLE[place.mark].shape for place in places.values()],
    }
    scale = {"domain": list(places), "range": looks[channel]}
    return {"field": "policy", "type": "nominal", "scale": scale, "legend": None}


def by_place(field: str, names: Sequence[Any], channel: str) -> Spec:
    """Colour, shape or dash of names that are no policies, in their order."""
    looks_of: dict[str, list[Any]] = {
        "color": [f"var(--c{place})" for place in range(len(palette.TABLE))],
        "shape": [one.shape for one in palette.TABLE],
        "strokeDash": list(DASHES),
    }
    every = looks_of[channel]
    looks = [every[number % len(every)] for number in range(len(names))]
    scale = {"domain": list(names), "range": looks}
    return {"field": field, "type": "nominal", "scale": scale, "legend": None}


def number(field: str, title: str, form: str = ",.1f") -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "format": form}


def doubling(field: str, title: str, values: Sequence[float]) -> Spec:
    """An x axis to the base of 2, with ticks where something was simulated."""
    scale: Spec = {"type": "log", "base": 2, "nice": False, "padding": 16}
    if len(values) == 1:  # a logarithmic axis of one value has no extent
        scale = {"domain": [0.5 * values[0], 1.5 * values[0]], "nice": False}
    axis: Spec = {"format": ",d", "grid": False}
    if len(values) <= MOST_TICKS:
        axis["values"] = list(values)
    return {
        "field": field,
        "type": "quantitative",
        "title": title,
        "scale": scale,
        "axis": axis,
    }


def summed(by: Sequence[str], which: str = IN_BUFFERS) -> list[Spec]:
    """Sum the chosen rows and derive rates, as `totals` does."""
    return [
        {"filter": f"{CHOSEN} && {which} && {IN_LAYERS}"},
        {"aggregate": _sums(), "groupby": list(by)},
        *RATES,
    ]


def _sums() -> list[Spec]:
    names = ("steps", "accesses", "misses", "optimum")
    sums = [{"op": "sum", "field": name, "as": name} for name in names]
    return [
        *sums,
        {"op": "valid", "field": "optimum", "as": "known"},
        {"op": "count", "as": "rows"},
    ]


def summed_with_spread(by: Sequence[str], which: str) -> list[Spec]:
    """`summed`, with the spread of the layers: `low, q1, q3, high` and their number `of_layers`."""
    names = ("steps", "accesses", "misses", "optimum", "known", "rows")
    spread = (("min", "low"), ("q1", "q1"), ("q3", "q3"), ("max", "high"))
    return [
        *summed([*by, "layer"], which),
        {
            "aggregate": [
                *({"op": "sum", "field": name, "as": name} for name in names),
                *({"op": op, "field": "per_step", "as": name} for op, name in spread),
                {"op": "count", "as": "of_layers"},
            ],
            "groupby": list(by),
        },
        *RATES,
    ]


RATES: list[Spec] = [
    {"calculate": "100 * datum.misses / datum.accesses", "as": "miss_percent"},
    {"calculate": "datum.misses / datum.steps", "as": "per_step"},
    {
        "calculate": "datum.known == datum.rows && datum.optimum > 0"
        " ? datum.misses / datum.optimum - 1 : null",
        "as": "excess_over_min",
    },
]
SUM_TIPS = [
    {"field": "policy"},
    {"field": "buffer", "format": ",d"},
    number("miss_percent", "misses %", ".2f"),
    number("per_step", "per step and layer"),
    number("excess_over_min", "excess over MIN", "+.1%"),
]
FADED: Spec = {"expr": f"{IN_FOCUS} ? 1 : 0.15"}  # of a line that is not in focus
