"""The report with live controls: another buffer, policy, link, model, context or load, answered at
once; served on this machine only, or written as a page with the answers of a small grid."""

from hisparse_sim.simulator.views.explore.calculator import Calculator, Choice
from hisparse_sim.simulator.views.explore.panel import live_page, static_page
from hisparse_sim.simulator.views.explore.server import Server

__all__ = ["Calculator", "Choice", "Server", "live_page", "static_page"]
