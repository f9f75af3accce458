"""The charts of a report, as Vega-Lite specifications over named data sets.

Policies, buffers, traces and layers are parameters that the page sets from its check boxes; sums
and rates are computed in the page, so that figures are exact for every choice. Colours are CSS
variables of the page, which has a light and a dark set. One file, since every chart is made of the
same few pieces."""

import math
from collections.abc import Sequence
from typing import Any

Spec = dict[str, Any]

SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
DASHES = ([1, 0], [5, 2], [2, 2], [7, 2, 2, 2], [4, 1, 1, 1, 1, 1])
COLOURS = 7  # CSS variables --c0 .. --c6
IN_POLICIES = "indexof(policies, datum.policy) >= 0"
CHOSEN = f"{IN_POLICIES} && indexof(traces, datum.trace) >= 0"
IN_BUFFERS = "indexof(buffers, datum.buffer) >= 0"
SHOWN = "datum.buffer == shown"
IN_LAYERS = "(datum.layer == null || (datum.layer >= layers[0] && datum.layer <= layers[1]))"
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
        "titleColor": "var(--ink)",
        "gridColor": "var(--line)",
        "domainColor": "var(--faint)",
        "tickColor": "var(--faint)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "axisX": {"tickCount": {"expr": "ceil(width / 80)"}, "labelFlush": False},
    "axisY": {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleY": -10},
    "legend": {
        "labelColor": "var(--ink)",
        "titleColor": "var(--ink)",
        "orient": "bottom",
        "labelFontSize": 12,
    },
}


def _scale(names: Sequence[Any], kind: str) -> Spec:
    ranges: dict[str, list[Any]] = {
        "color": [f"var(--c{index % COLOURS})" for index in range(len(names))],
        "shape": [SHAPES[index % len(SHAPES)] for index in range(len(names))],
        "strokeDash": [DASHES[index % len(DASHES)] for index in range(len(names))],
    }
    return {"domain": list(names), "range": ranges[kind]}


def _coded(field: str, names: Sequence[Any], kind: str) -> Spec:
    return {"field": field, "type": "nominal", "scale": _scale(names, kind), "legend": None}


def _base(data: str, height: int, parameters: Sequence[Spec] = ()) -> Spec:
    return {
        "data": {"name": data},
        "width": "container",
        "height": height,
        "padding": {"top": 18, "left": 4, "right": 12, "bottom": 4},
        "params": list(parameters),
        "config": CONFIG,
    }


def _rows(height: int, **counts: Sequence[Any]) -> Spec:
    """Return a height for so many rows, which the page adapts to the choice."""
    rows = math.prod(len(names) for names in counts.values())
    return {"height": height * rows, "usermeta": {"row_height": height, "rows": list(counts)}}


def _number(field: str, title: str, form: str = ",.1f") -> Spec:
    return {"field": field, "type": "quantitative", "title": title, "format": form}


def _summed(by: Sequence[str], which: str = IN_BUFFERS) -> list[Spec]:
    """Sum the chosen rows and derive rates, as `totals` does."""
    return [
        {"filter": f"{CHOSEN} && {which} && {IN_LAYERS}"},
        {
            "aggregate": [
                {"op": "sum", "field": name, "as": name}
                for name in ("steps", "accesses", "misses", "optimum")
            ]
            + [{"op": "valid", "field": "optimum", "as": "known"}, {"op": "count", "as": "rows"}],
            "groupby": list(by),
        },
        {"calculate": "100 * datum.misses / datum.accesses", "as": "miss_percent"},
        {"calculate": "datum.misses / datum.steps", "as": "per_step"},
        {
            "calculate": "datum.known == datum.rows && datum.optimum > 0"
            " ? datum.misses / datum.optimum - 1 : null",
            "as": "excess_over_min",
        },
    ]


_SUM_TIPS = [
    {"field": "policy"},
    {"field": "buffer", "format": ",d"},
    _number("miss_percent", "misses %", ".2f"),
    _number("per_step", "per step and layer"),
    _number("excess_over_min", "excess over MIN", "+.1%"),
]


def miss_ratio(policies: Sequence[str], shared: Sequence[Spec]) -> Spec:
    """Misses over selected positions by buffer, a line per policy."""
    return _base("sweep", 260, [*shared, ZOOM]) | {
        "transform": _summed(["policy", "buffer"]),
        "mark": {"type": "line", "point": {"size": 60, "filled": True}, "clip": True},
        "encoding": {
            "x": {
                "field": "buffer",
                "type": "quantitative",
                "title": "hot buffer, slots",
                "scale": {"zero": False, "nice": False, "padding": 12},
                "axis": {"format": ",d", "grid": False},
            },
            "y": {
                "field": "miss_percent",
                "type": "quantitative",
                "title": "misses, % of selected positions",
                "scale": {"zero": True},
            },
            "color": _coded("policy", policies, "color"),
            "shape": _coded("policy", policies, "shape"),
            "tooltip": _SUM_TIPS,
        },
    }


def policy_bars(policies: Sequence[str], sizes: Sequence[int], shared: Sequence[Spec]) -> Spec:
    """Misses per step and layer, bars by buffer and policy, the excess over MIN at their ends."""
    bars: Spec = {"mark": {"type": "bar", "height": {"band": 0.85}}}
    # Stretches the axis, so that the text behind the longest bar fits.
    room: Spec = {
        "mark": {"type": "point", "opacity": 0, "tooltip": None},
        "encoding": {"x": {"field": "room", "type": "quantitative"}},
    }
    texts: Spec = {
        "mark": {
            "type": "text",
            "align": "left",
            "dx": 4,
            "dy": {"expr": "bandwidth('yOffset') / 2"},
            "fontSize": 11,
        },
        "encoding": {
            "text": {"field": "label"},
            "color": {"value": "var(--ink)"},
        },
    }
    rows = _rows(16, policies=policies, buffers=sizes)
    return (
        _base("sweep", 0, shared)
        | rows
        | {
            "transform": [
                *_summed(["policy", "buffer"]),
                {
                    "calculate": "datum.policy"
                    " + (isValid(datum.excess_over_min)"
                    " ? ' ' + format(datum.excess_over_min, '+.0%') : '')",
                    "as": "label",
                },
                {"joinaggregate": [{"op": "max", "field": "per_step", "as": "longest"}]},
                {"calculate": "1.4 * datum.longest", "as": "room"},
            ],
            "encoding": {
                "y": {
                    "field": "buffer",
                    "type": "ordinal",
                    "title": "hot buffer, slots",
                    "axis": {"format": ",d", "titleX": -36, "titleY": -6},
                    "scale": {"paddingInner": 0.12},
                },
                "yOffset": {"field": "policy", "type": "nominal", "sort": list(policies)},
                "x": {
                    "field": "per_step",
                    "type": "quantitative",
                    "title": "misses per step and layer",
                },
                "color": _coded("policy", policies, "color"),
                "tooltip": _SUM_TIPS,
            },
            "layer": [room, bars, texts],
        }
    )


def by_layer(policies: Sequence[str], shared: Sequence[Spec]) -> Spec:
    """Misses per step by layer, a line per policy, for the buffer shown."""
    return _base("sweep", 260, [*shared, ZOOM]) | {
        "transform": _summed(["policy", "buffer", "layer"], SHOWN),
        "mark": {"type": "line", "point": {"size": 35, "filled": True}, "clip": True},
        "encoding": {
            "x": {
                "field": "layer",
                "type": "quantitative",
                "title": "layer",
                "scale": {"zero": False, "nice": False, "padding": 8},
                "axis": {"grid": False, "tickMinStep": 1},
            },
            "y": {"field": "per_step", "type": "quantitative", "title": "misses per step"},
            "color": _coded("policy", policies, "color"),
            "shape": _coded("policy", policies, "shape"),
            "tooltip": [{"field": "layer"}, *_SUM_TIPS],
        },
    }


def layer_map(policies: Sequence[str], shared: Sequence[Spec]) -> Spec:
    """Misses per step as a heat map of policies and layers, for the buffer shown."""
    return (
        _base("sweep", 0, shared)
        | _rows(22, policies=policies)
        | {
            "transform": _summed(["policy", "buffer", "layer"], SHOWN),
            "mark": {"type": "rect", "stroke": None},
            "encoding": {
                "x": {
                    "field": "layer",
                    "type": "ordinal",
                    "title": "layer",
                    "axis": {"labelOverlap": True, "labelAngle": 0},
                    "scale": {"paddingInner": 0.02},
                },
                "y": {"field": "policy", "type": "nominal", "sort": list(policies), "title": None},
                "color": {
                    "field": "per_step",
                    "type": "quantitative",
                    "scale": {"scheme": "cividis", "zero": True},
                    "legend": {"title": "misses per step", "gradientLength": 160},
                },
                "tooltip": [{"field": "layer"}, *_SUM_TIPS],
            },
        }
    )


def rolling(
    series: str, policies: Sequence[str], sizes: Sequence[int], shared: Sequence[Spec]
) -> Spec:
    """Rolling miss curves of one series (a name in `trace`): colours are policies, dashes buffers,
    bands 10 to 90 % of layers."""
    x: Spec = {
        "field": "step",
        "type": "quantitative",
        "title": "decode step",
        "scale": {"zero": False, "nice": False},
        "axis": {"grid": False, "format": ",d"},
    }
    colour = _coded("policy", policies, "color")
    band: Spec = {
        "transform": [{"filter": "bands"}],
        "mark": {"type": "area", "opacity": 0.13, "clip": True},
        "encoding": {"y": {"field": "p10", "type": "quantitative"}, "y2": {"field": "p90"}},
    }
    line: Spec = {
        "params": [ZOOM],
        "mark": {"type": "line", "clip": True, "strokeWidth": 1.8},
        "encoding": {
            "y": {
                "field": "misses_per_step",
                "type": "quantitative",
                "title": "misses per step and layer",
            },
            "strokeDash": _coded("buffer", sizes, "strokeDash"),
            "tooltip": [
                {"field": "policy"},
                {"field": "buffer", "format": ",d"},
                {"field": "step", "format": ",d"},
                _number("misses_per_step", "misses per step"),
                _number("p10", "10 % of layers below"),
                _number("p90", "90 % below"),
            ],
        },
    }
    return _base("curve", 300, shared) | {
        "transform": [
            {"filter": {"field": "trace", "equal": series}},
            {"filter": f"{IN_POLICIES} && {IN_BUFFERS}"},
        ],
        "encoding": {"x": x, "color": colour, "detail": [{"field": "buffer"}]},
        "layer": [band, line],
    }


def swap_in(policies: Sequence[str], title: str, shared: Sequence[Spec]) -> Spec:
    """Predicted swap-in time by buffer, for the chosen batch."""
    return _base("times", 240, [*shared, ZOOM]) | {
        "transform": [{"filter": f"{CHOSEN} && {IN_BUFFERS} && datum.batch == batch"}],
        "mark": {"type": "line", "point": {"size": 60, "filled": True}, "clip": True},
        "encoding": {
            "x": {
                "field": "buffer",
                "type": "quantitative",
                "title": "hot buffer, slots",
                "scale": {"zero": False, "nice": False, "padding": 12},
                "axis": {"format": ",d", "grid": False},
            },
            "y": {"field": "time", "type": "quantitative", "title": title},
            "color": _coded("policy", policies, "color"),
            "shape": _coded("policy", policies, "shape"),
            "tooltip": [
                {"field": "policy"},
                {"field": "buffer", "format": ",d"},
                {"field": "batch", "title": "requests together"},
                _number("time", title),
            ],
        },
    }


def pareto(sizes: Sequence[int], data: str = "plan") -> Spec:
    """Candidates of a plan: tokens per second over time per token, a colour per buffer."""
    return _base(data, 300, [ZOOM]) | {
        "transform": [{"filter": "datum.requests > 0"}],
        "mark": {"type": "point", "filled": True, "opacity": 0.85, "clip": True},
        "encoding": {
            "x": {
                "field": "tpot_ms",
                "type": "quantitative",
                "title": "time per output token, ms",
                "scale": {"zero": False, "padding": 10},
            },
            "y": {
                "field": "tokens_per_s",
                "type": "quantitative",
                "title": "output tokens per second",
                "scale": {"zero": False, "padding": 10},
            },
            "color": _coded("buffer", sizes, "color")
            | {"legend": {"title": "slots", "format": ",d", "columns": 3}},
            "shape": _coded("buffer", sizes, "shape")
            | {"legend": {"title": "slots", "format": ",d", "columns": 3}},
            "size": {
                "field": "host_gb",
                "type": "quantitative",
                "title": "host GB",
                "scale": {"range": [30, 200]},
                "legend": None,
            },
            "tooltip": [
                {"field": "buffer", "format": ",d"},
                {"field": "ratio"},
                _number("tokens_per_s", "tokens/s", ",.0f"),
                _number("tpot_ms", "ms per token"),
                _number("host_gb", "host GB pinned", ",.0f"),
                {"field": "batch", "title": "requests per rank"},
                {"field": "limit", "title": "limited by"},
            ],
        },
    }


def throughput(modes: Sequence[str], data: str = "serve") -> Spec:
    """Output tokens per second over concurrency, a line per mode."""
    return _base(data, 260, [ZOOM]) | {
        "mark": {"type": "line", "point": {"size": 60, "filled": True}, "clip": True},
        "encoding": {
            "x": {
                "field": "concurrency",
                "type": "quantitative",
                "title": "concurrent requests",
                "scale": {"type": "log", "base": 2, "nice": False, "padding": 10},
            },
            "y": {
                "field": "tokens_per_s",
                "type": "quantitative",
                "title": "output tokens per second",
            },
            "color": _coded("mode", modes, "color") | {"legend": {"title": None}},
            "shape": _coded("mode", modes, "shape") | {"legend": {"title": None}},
            "tooltip": [
                {"field": "mode"},
                {"field": "concurrency", "title": "concurrent"},
                _number("tokens_per_s", "tokens/s", ",.0f"),
                _number("tpot_p50_ms", "ms per token (median)"),
            ],
        },
    }
