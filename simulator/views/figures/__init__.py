"""Figures: functions that take a tidy table and return a Matplotlib Axes, in one style.

Every function draws into `axes`, or into a new figure, and states the origin of the trace in the
corner; synthetic traces are marked."""

from hisparse_sim.simulator.views import FIGURE_SUFFIXES as SUFFIXES
from hisparse_sim.simulator.views.figures.by_layer import (
    cross_layer_overlap,
    drift,
    sinks_and_recent,
)
from hisparse_sim.simulator.views.figures.costs import (
    latency,
    ours_over_published,
    plan_pareto,
    throughput,
    throughput_beside_published,
)
from hisparse_sim.simulator.views.figures.kinds import KINDS, plot
from hisparse_sim.simulator.views.figures.misses import (
    layer_step_map,
    miss_ratio,
    policy_dots,
    rolling_misses,
)
from hisparse_sim.simulator.views.figures.page import locality_page
from hisparse_sim.simulator.views.figures.prefetched import (
    exposed_misses,
    exposed_misses_by_buffer,
)
from hisparse_sim.simulator.views.figures.reuse import overlap, reuse_distance, working_set
from hisparse_sim.simulator.views.figures.served import percentiles, time_shares
from hisparse_sim.simulator.views.figures.studied import study_dots, study_lines
from hisparse_sim.simulator.views.figures.style import (
    COLOURS,
    DASHES,
    MARKERS,
    STYLE,
    STYLES,
    check_suffix,
    looks,
    new_axes,
    save,
    styled,
)

__all__ = [
    "COLOURS",
    "DASHES",
    "KINDS",
    "MARKERS",
    "STYLE",
    "STYLES",
    "SUFFIXES",
    "check_suffix",
    "cross_layer_overlap",
    "drift",
    "exposed_misses",
    "exposed_misses_by_buffer",
    "latency",
    "layer_step_map",
    "locality_page",
    "looks",
    "miss_ratio",
    "new_axes",
    "ours_over_published",
    "overlap",
    "percentiles",
    "plan_pareto",
    "plot",
    "policy_dots",
    "reuse_distance",
    "rolling_misses",
    "save",
    "sinks_and_recent",
    "study_dots",
    "study_lines",
    "styled",
    "throughput",
    "throughput_beside_published",
    "time_shares",
    "working_set",
]
