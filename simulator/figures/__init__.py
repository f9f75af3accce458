"""Figures: functions that take a tidy table and return a matplotlib Axes, in one style.

Every function draws into `axes`, or into a new figure, and puts the origin of the trace in the
corner; a synthetic trace is marked."""

from hisparse_sim.simulator.figures.costs import latency, plan_pareto, throughput
from hisparse_sim.simulator.figures.misses import (
    layer_step_map,
    miss_ratio,
    policy_bars,
    reuse_histogram,
    rolling_misses,
)
from hisparse_sim.simulator.figures.style import (
    COLOURS,
    DASHES,
    MARKERS,
    STYLE,
    SUFFIXES,
    check_suffix,
    looks,
    new_axes,
    save,
    styled,
)

__all__ = [
    "COLOURS",
    "DASHES",
    "MARKERS",
    "STYLE",
    "SUFFIXES",
    "check_suffix",
    "latency",
    "layer_step_map",
    "looks",
    "miss_ratio",
    "new_axes",
    "plan_pareto",
    "policy_bars",
    "reuse_histogram",
    "rolling_misses",
    "save",
    "styled",
    "throughput",
]
