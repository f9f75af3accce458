"""Replay of traces against policies: rows of a trace in, misses per step and tidy result rows out.

Names load their module on first use, so that the command line starts without compiled code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hisparse_sim.simulator.replay.curves import rolling_curves
    from hisparse_sim.simulator.replay.replaying import PartReplay, Replay, replay, replay_part
    from hisparse_sim.simulator.replay.sweeping import sweep
    from hisparse_sim.simulator.replay.swept import Sweep

__all__ = [
    "PartReplay",
    "Replay",
    "Sweep",
    "replay",
    "replay_part",
    "rolling_curves",
    "sweep",
]

# No module is called like one of its names: importing it would hide the name behind the module.
_MODULE_OF = {
    "PartReplay": "replaying",
    "Replay": "replaying",
    "replay": "replaying",
    "replay_part": "replaying",
    "rolling_curves": "curves",
    "Sweep": "swept",
    "sweep": "sweeping",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
