"""The charts of misses and their time, as Vega-Lite specifications over named data sets."""

import json
from collections.abc import Sequence

from hisparse_sim.simulator.views.palette import named
from hisparse_sim.simulator.views.report.vega import (
    CHOSEN,
    FADED,
    HEIGHT,
    IN_BUFFERS,
    IN_POLICIES,
    MOST_TICKS,
    SHOWN,
    SUM_TIPS,
    ZOOM,
    Spec,
    base,
    by_place,
    by_policy,
    doubling,
    number,
    summed,
    summed_with_spread,
)

_MOST_ENDS = 8  # of lines that are all named
_SLOTS = "hot buffer, slots"


def _policy_lines(policies: Sequence[str], size: int = 55) -> Spec:
    """Lines with a point at every simulated place."""
    return {
        "mark": {
            "type": "line",
            "point": {"size": size, "filled": True, "opacity": FADED},
            "opacity": FADED,
            "clip": True,
        },
        "encoding": {
            "color": by_policy(policies, "color"),
            "shape": by_policy(policies, "shape"),
        },
    }


def miss_ratio(policies: Sequence[str], sizes: Sequence[int], shared: Sequence[Spec]) -> Spec:
    """Misses over selected positions by buffer, a line per policy."""
    lines = _policy_lines(policies)
    lines["encoding"] |= {
        "x": doubling("buffer", _SLOTS, sizes),
        "y": {
            "field": "miss_percent",
            "type": "quantitative",
            "title": "misses, % of selected positions",
            "scale": {"zero": True},
        },
        "tooltip": SUM_TIPS,
    }
    return base("sweep", [*shared, ZOOM]) | {"transform": summed(["policy", "buffer"])} | lines


def policy_dots(policies: Sequence[str], shared: Sequence[Spec]) -> Spec:
    """Misses per step and layer at the chosen buffer, a dot per policy; lines span the layers."""
    several = "datum.of_layers > 1"
    line: Spec = {"type": "rule", "opacity": FADED}
    x = {"field": "per_step", "type": "quantitative", "title": "misses per step and layer"}
    label = (
        "format(datum.per_step, ',.1f')"
        " + (isValid(datum.excess_over_min)"
        " ? '  (' + format(datum.excess_over_min, '+.0%') + ')' : '')"
    )
    return base("sweep", shared, max(HEIGHT, 26 * len(policies))) | {
        "transform": [
            *summed_with_spread(["policy", "buffer"], SHOWN),
            {"calculate": label, "as": "label"},
            {"calculate": f"{several} ? max(datum.high, datum.per_step) : datum.per_step",
             "as": "end"},
            {"joinaggregate": [{"op": "max", "field": "end", "as": "longest"}]},
            {"calculate": "datum.longest * (1 + 130 / max(width, 260))", "as": "room"},
        ],
        "encoding": {
            "y": {
                "field": "policy",
                "type": "nominal",
                "title": None,
                "sort": list(policies),
                "axis": {"grid": True, "gridDash": [1, 3], "labelExpr": _named(policies)},
            },
            "color": by_policy(policies, "color"),
            "tooltip": [
                *SUM_TIPS,
                number("low", "lowest layer"),
                number("high", "highest layer"),
            ],
        },
        "layer": [
            # Stretches the axis, so that the text behind the longest line fits.
            {"mark": {"type": "point", "opacity": 0, "tooltip": None},
             "encoding": {"x": {"field": "room", "type": "quantitative"}}},
            {"transform": [{"filter": several}], "mark": line | {"strokeWidth": 1.5},
             "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}}},
            {"transform": [{"filter": several}], "mark": line | {"strokeWidth": 5, "opacity": 0.45},
             "encoding": {"x": {**x, "field": "q1"}, "x2": {"field": "q3"}}},
            {"mark": {"type": "point", "filled": True, "size": 110, "opacity": FADED},
             "encoding": {"x": x, "shape": by_policy(policies, "shape")}},
            {"mark": {"type": "text", "align": "left", "dx": 8, "fontSize": 12},
             "encoding": {"x": {**x, "field": "end"}, "text": {"field": "label"},
                          "color": {"value": "var(--ink)"}}},
        ],
    }  # fmt: skip


def _named(policies: Sequence[str]) -> str:
    """An expression for the name of the policy of a label."""
    return f"{json.dumps({name: named(name) for name in policies})}[datum.value]"


def by_layer(policies: Sequence[str], layers: Sequence[int], shared: Sequence[Spec]) -> Spec:
    """Misses per step by layer at the chosen buffer; lines join neighbouring layers only."""
    axis: Spec = {"grid": False, "tickMinStep": 1}
    if len(layers) <= MOST_TICKS:
        axis["values"] = list(layers)
    neighbours: list[Spec] = [
        {
            "window": [{"op": "lag", "field": "layer", "as": "before"}],
            "sort": [{"field": "layer"}],
            "groupby": ["policy", "buffer"],
        },
        {"calculate": "isValid(datum.before) && datum.layer == datum.before + 1 ? 0 : 1",
         "as": "gap"},
        {
            "window": [{"op": "sum", "field": "gap", "as": "stretch"}],
            "sort": [{"field": "layer"}],
            "groupby": ["policy", "buffer"],
        },
    ]  # fmt: skip
    lines = _policy_lines(policies, 55 if len(layers) <= MOST_TICKS else 18)
    lines["params"] = [ZOOM]
    lines["encoding"] |= {
        "x": {
            "field": "layer",
            "type": "quantitative",
            "title": "layer",
            "scale": {"zero": False, "nice": False, "padding": 10},
            "axis": axis,
        },
        "y": {"field": "per_step", "type": "quantitative", "title": "misses per step"},
        "detail": {"field": "stretch"},
        "tooltip": [{"field": "layer"}, *SUM_TIPS],
    }
    spread: Spec = {
        "mark": {"type": "rule", "color": "var(--line)", "strokeWidth": 2, "clip": True},
        "encoding": {
            "x": lines["encoding"]["x"],
            "y": {"aggregate": "min", "field": "per_step"},
            "y2": {"aggregate": "max", "field": "per_step"},
        },
    }
    return base("sweep", shared) | {
        "transform": [*summed(["policy", "buffer", "layer"], SHOWN), *neighbours],
        "layer": [*([spread] if len(layers) <= MOST_TICKS else []), lines],
    }


def rolling(
    series: str,
    policies: Sequence[str],
    sizes: Sequence[int],
    drawn: Sequence[str],
    shared: Sequence[Spec],
) -> Spec:
    """Rolling miss curves of one series (a name in `trace`): colours are policies, dashes buffers.

    `drawn`: the policies that have curves. Bands, 10 to 90 % of layers: of all lines for at most
    two of them, else of the one in focus."""
    several = " + ".join(f"(indexof(policies, {json.dumps(name)}) >= 0 ? 1 : 0)" for name in drawn)
    x: Spec = {
        "field": "step",
        "type": "quantitative",
        "title": "decode step",
        "scale": {"zero": False, "nice": False},
        "axis": {"grid": False, "format": ",d"},
    }
    banded = f"{several} <= 2 ? 0.13 : focus == datum.policy ? 0.2 : 0"
    band: Spec = {
        "mark": {"type": "area", "opacity": {"expr": banded}, "clip": True},
        "encoding": {"y": {"field": "p10", "type": "quantitative"}, "y2": {"field": "p90"}},
    }
    y: Spec = {
        "field": "misses_per_step",
        "type": "quantitative",
        "title": "misses per step and layer",
    }
    line: Spec = {
        "params": [ZOOM],
        "mark": {"type": "line", "clip": True, "strokeWidth": 1.8, "opacity": FADED},
        "encoding": {
            "y": y,
            "strokeDash": by_place("buffer", sizes, "strokeDash"),
            "tooltip": [
                {"field": "policy"},
                {"field": "buffer", "format": ",d"},
                {"field": "step", "format": ",d"},
                number("misses_per_step", "misses per step"),
                number("p10", "10 % of layers below"),
                number("p90", "90 % below"),
            ],
        },
    }
    ends: list[Spec] = [
        {"joinaggregate": [{"op": "max", "field": "step", "as": "last"}],
         "groupby": ["policy", "buffer"]},
        {"filter": "datum.step == datum.last"},
        {"joinaggregate": [{"op": "distinct", "field": "buffer", "as": "of_buffers"}]},
    ]  # fmt: skip
    named = f"({several}) * datum.of_buffers <= {_MOST_ENDS} || focus == datum.policy ? 1 : 0"
    end: Spec = {
        "transform": ends,
        "mark": {
            "type": "text",
            "align": "left",
            "dx": 4,
            "fontSize": 11,
            "clip": False,  # else by the zoom
            "opacity": {"expr": named},
        },
        "encoding": {"y": y, "text": {"field": "buffer", "format": ",d"}},
    }
    return base("curve", shared) | {
        "padding": {"top": 18, "left": 4, "right": 44, "bottom": 4},  # for names of the ends
        "transform": [
            {"filter": {"field": "trace", "equal": series}},
            {"filter": f"{IN_POLICIES} && {IN_BUFFERS}"},
        ],
        "encoding": {
            "x": x,
            "color": by_policy(policies, "color"),
            "detail": [{"field": "buffer"}],
        },
        "layer": [band, line, end],
    }


def swap_in(
    policies: Sequence[str], sizes: Sequence[int], title: str, shared: Sequence[Spec]
) -> Spec:
    """Predicted swap-in time by buffer, for the chosen batch."""
    lines = _policy_lines(policies)
    lines["encoding"] |= {
        "x": doubling("buffer", _SLOTS, sizes),
        "y": {"field": "time", "type": "quantitative", "title": title},
        "tooltip": [
            {"field": "policy"},
            {"field": "buffer", "format": ",d"},
            {"field": "batch", "title": "requests together"},
            number("time", title),
        ],
    }
    chosen = {"filter": f"{CHOSEN} && {IN_BUFFERS} && datum.batch == batch"}
    return base("times", [*shared, ZOOM]) | {"transform": [chosen]} | lines
