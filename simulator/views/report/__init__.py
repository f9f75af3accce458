"""One HTML page of what was found: self-contained, interactive, printable.

The plotting library is Vega-Lite, whose JavaScript the Python package vl-convert-python ships; the
page holds it, the data and the specifications of the charts, and fetches nothing."""

from hisparse_sim.simulator.views.report.page import write_report
from hisparse_sim.simulator.views.report.results import Result, read_results

__all__ = ["Result", "read_results", "write_report"]
