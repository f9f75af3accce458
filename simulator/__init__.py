"""What would happen: replay, sweeps, metrics, latency, memory and serving models, figures.

Names load their module when first used, so that the command line starts without compiled code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hisparse_sim.simulator.locality_view import locality
    from hisparse_sim.simulator.replaying import PartReplay, Replay, replay, replay_part
    from hisparse_sim.simulator.sweeping import Sweep, sweep

__all__ = ["PartReplay", "Replay", "Sweep", "locality", "replay", "replay_part", "sweep"]

# No module is called like one of its names: importing it would hide the name behind the module.
_MODULE_OF = {
    "locality": "locality_view",
    "PartReplay": "replaying",
    "Replay": "replaying",
    "replay": "replaying",
    "replay_part": "replaying",
    "Sweep": "sweeping",
    "sweep": "sweeping",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
