"""The charts of plans, serving runs and published figures, as Vega-Lite specifications."""

from collections.abc import Sequence
from typing import Any

from hisparse_sim.simulator.views.palette import PARTS, TABLE, places
from hisparse_sim.simulator.views.report.vega import ZOOM, Spec, base, by_place, doubling, number

WITHIN = (0.10, 0.25)  # bands around published figures
_POWERS = [10.0**power for power in range(-6, 13)]


def pareto(sizes: Sequence[int], data: str, baseline: float | None) -> Spec:
    """Candidates of a plan: tokens per second over time per token, a shape per buffer.

    A ring marks the recommended one, texts are ratios of those that no other beats in both, the
    dashed line is the rate without HiSparse."""
    x: Spec = {
        "field": "tpot_ms",
        "type": "quantitative",
        "title": "time per output token, ms",
        "scale": {"zero": False, "padding": 14},
        "axis": {"grid": False},
    }
    y: Spec = {
        "field": "tokens_per_s",
        "type": "quantitative",
        "title": "output tokens per second",
        "scale": {"zero": False, "padding": 24},
    }
    tips: list[Spec] = [
        {"field": "buffer", "format": ",d"},
        {"field": "ratio"},
        number("tokens_per_s", "tokens/s", ",.0f"),
        number("tpot_ms", "ms per token"),
        number("host_gb", "host GB pinned", ",.0f"),
        {"field": "batch", "title": "requests per rank"},
        {"field": "limit", "title": "limited by"},
    ]
    listed = {"legend": {"title": "slots", "format": ",d", "columns": 6}}
    size = {
        "field": "host_gb",
        "type": "quantitative",
        "title": "host GB",
        "scale": {"range": [30, 200]},
        "legend": None,
    }
    layers: list[Spec] = [
        {
            "params": [ZOOM],
            "mark": {
                "type": "point",
                "filled": True,
                "opacity": 0.75,
                "color": "var(--c0)",
                "clip": True,
            },
            "encoding": {
                "x": x,
                "y": y,
                "shape": by_place("buffer", sizes, "shape") | listed,
                "size": size,
                "tooltip": tips,
            },
        },
        {
            "transform": [{"filter": "datum.front"}],
            "mark": {
                "type": "text",
                "dy": {"expr": "datum.best ? -18 : -12"},  # above its ring
                "fontSize": 11,
            },
            "encoding": {"x": x, "y": y, "text": {"field": "label"}},
        },
        {
            "transform": [{"filter": "datum.best"}],
            "mark": {"type": "point", "size": 420, "strokeWidth": 2.5, "color": "var(--c1)"},
            "encoding": {"x": x, "y": y},
        },
    ]
    if baseline is not None:
        level: Spec = {"data": {"values": [{"tokens_per_s": baseline}]}}
        told = f"without HiSparse: {baseline:,.0f}"
        layers += [
            level | {"mark": {"type": "rule", "strokeDash": [5, 3], "color": "var(--faint)"},
                     "encoding": {"y": y}},
            level | {"mark": {"type": "text", "align": "right", "x": {"expr": "width"}, "dy": -7,
                               "fontSize": 12},
                     "encoding": {"y": y, "text": {"value": told}}},
        ]  # fmt: skip
    return base(data) | {"transform": [{"filter": "datum.requests > 0"}], "layer": layers}


def throughput(modes: Sequence[str], loads: Sequence[float], data: str) -> Spec:
    """Output tokens per second over concurrency, a line per mode."""
    return base(data, [ZOOM]) | {
        "mark": {"type": "line", "point": {"size": 55, "filled": True}, "clip": True},
        "encoding": {
            "x": doubling("concurrency", "concurrent requests", loads),
            "y": {
                "field": "tokens_per_s",
                "type": "quantitative",
                "title": "output tokens per second",
            },
            **_modes(modes),
            "tooltip": [
                {"field": "mode"},
                {"field": "concurrency", "title": "concurrent"},
                number("tokens_per_s", "tokens/s", ",.0f"),
                number("tpot_p50_ms", "ms per token (median)"),
            ],
        },
    }


def percentiles(modes: Sequence[str], loads: Sequence[float], data: str, of: str) -> Spec:
    """`of` "tpot" or "ttft": the median over concurrency, a line per mode; rules reach to the 99th
    percentile, with a tick at the 95th."""
    unit = {"tpot": "ms", "ttft": "s"}[of]
    title = {"tpot": "time per output token, ms", "ttft": "time to first token, s"}[of]
    scale: Spec = {"zero": True}
    axis: Spec = {"labelExpr": "format(datum.value, '~s')"}  # a format would drop labels of a log
    if of == "ttft":  # grows by powers once requests wait
        scale = {"type": "log", "nice": False, "padding": 12}
        axis |= {"labelOverlap": False, "tickCount": 3 * len(_POWERS)}
        axis["values"] = [part * power for power in _POWERS for part in (1, 2, 5)]
    p50, p95, p99 = (f"{of}_p{percent}_{unit}" for percent in (50, 95, 99))
    x = doubling("concurrency", "concurrent requests", loads)
    tips = [
        {"field": "mode"},
        {"field": "concurrency", "title": "concurrent"},
        *(number(name, f"p{name[6:8]}, {unit}") for name in (p50, p95, p99)),
    ]
    colour = {"color": _modes(modes)["color"]}
    known = [{"filter": f"isValid(datum.{p99})"}]
    return base(data) | {
        "encoding": {"x": x, "tooltip": tips},
        "layer": [
            {"params": [ZOOM],
             "mark": {"type": "line", "point": {"size": 55, "filled": True}, "clip": True},
             "encoding": {"y": {"field": p50, "type": "quantitative", "title": title,
                                "scale": scale, "axis": axis},
                          **_modes(modes)}},
            {"transform": known, "mark": {"type": "rule", "strokeWidth": 1.5, "clip": True},
             "encoding": {"y": {"field": p50, "type": "quantitative"}, "y2": {"field": p99},
                          **colour}},
            {"transform": known,
             "mark": {"type": "tick", "orient": "horizontal", "thickness": 2, "size": 9,
                      "clip": True},
             "encoding": {"y": {"field": p95, "type": "quantitative"}, **colour}},
        ],
    }  # fmt: skip


def shares(data: str, rows: int) -> Spec:
    """Where the time of the instances that decode goes: a bar per mode and load, parts sum to 1."""
    return base(data, height=max(120, 20 * rows)) | {
        "mark": {"type": "bar", "height": {"band": 0.8}},
        "encoding": {
            "y": {
                "field": "run",
                "type": "nominal",
                "sort": None,
                "title": None,
                "axis": {"labelLimit": 180},
            },
            "x": {
                "field": "share",
                "type": "quantitative",
                "title": "share of the time",
                "stack": "zero",
                "axis": {"format": "%"},
                "scale": {"domain": [0, 1], "nice": False, "clamp": True},
            },
            "order": {"field": "place", "type": "quantitative"},
            "color": {
                "field": "part",
                "type": "nominal",
                "scale": {"domain": list(PARTS), "range": _part_colours()},
                "legend": None,
            },
            "tooltip": [
                {"field": "run"},
                {"field": "part"},
                number("share", "share of the time", ".1%"),
            ],
        },
    }


def reproduced(data: str, low: float, high: float, kinds: Sequence[str]) -> Spec:
    """Ours against published on logarithmic axes, with bands of 10 and 25 %.

    `kinds`: what the column `kind` may hold; rings are figures that shaped no model."""
    ends = [{"published": low}, {"published": high}]
    x: Spec = {
        "field": "published",
        "type": "quantitative",
        "title": "published",
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {"format": "~s", "grid": False, "values": _POWERS},
    }
    y: Spec = {
        "type": "quantitative",
        "title": "ours",
        "scale": {"type": "log", "domain": [low, high], "nice": False},
        "axis": {"format": "~s", "grid": False, "values": _POWERS, "domain": True, "ticks": True},
    }
    bands: list[Spec] = [
        {
            "data": {"values": ends},
            "transform": [
                {"calculate": f"datum.published * {1 - part}", "as": "low"},
                {"calculate": f"datum.published * {1 + part}", "as": "high"},
            ],
            "mark": {"type": "area", "opacity": 0.1, "color": "var(--c0)", "clip": True},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        }
        for part in WITHIN
    ]
    line: Spec = {
        "data": {"values": ends},
        "mark": {"type": "line", "color": "var(--faint)", "strokeWidth": 1, "clip": True},
        "encoding": {"x": x, "y": {**y, "field": "published"}},
    }
    listed: Spec = {"legend": {"title": None} if len(kinds) > 1 else None}
    points: Spec = {
        "mark": {"type": "point", "size": 60, "strokeWidth": 1.8, "clip": True},
        "encoding": {
            "x": x,
            "y": {**y, "field": "ours"},
            "color": by_place("kind", kinds, "color") | listed,
            "shape": by_place("kind", kinds, "shape") | listed,
            "tooltip": [
                {"field": "what", "title": "figure"},
                number("published", "published", ",.4~g"),
                number("ours", "ours", ",.4~g"),
                number("error", "error", "+.1%"),
            ],
        },
    }
    return base(data, height=340) | {"layer": [*bands, line, points]}


def _part_colours() -> list[str]:
    return ["var(--line)" if place is None else f"var(--c{place})" for _, place in PARTS.values()]


def _modes(modes: Sequence[str]) -> dict[str, Any]:
    """Colour and shape of the modes, those of `palette`."""
    found = places(modes)
    looks = {
        "color": [f"var(--c{place.colour})" for place in found.values()],
        "shape": [TABLE[place.mark].shape for place in found.values()],
    }
    return {
        channel: {
            "field": "mode",
            "type": "nominal",
            "scale": {"domain": list(found), "range": values},
            "legend": None,
        }
        for channel, values in looks.items()
    }
