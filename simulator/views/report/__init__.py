"""One HTML page of results: self-contained, interactive, printable.

The plotting library is Vega-Lite, whose JavaScript comes with the Python package vl-convert-python.
The page holds it, the data and the chart specifications, and loads nothing."""

from hisparse_sim.simulator.views.report.results import Result, read_results
from hisparse_sim.simulator.views.report.shell import write_report

__all__ = ["Result", "read_results", "write_report"]
