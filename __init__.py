"""hisparse-sim: cache-policy simulation and trace replay for the hot buffer of sparse attention.

Everything that a notebook needs, from one place: `import hisparse_sim as hs; hs.sweep().rows`.
Functions are called like the commands and take their options, with the same defaults; an option
that may be repeated is a plural argument (`--buffer 4096 --buffer 6144` is `buffers=[4096, 6144]`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hisparse_sim.policies import POLICIES, Policy, PolicyError, Setup, Step
    from hisparse_sim.policies.hook import hook
    from hisparse_sim.policies.per_token import lift
    from hisparse_sim.simulator.mrc import budget, mrc, sampled_mrc
    from hisparse_sim.simulator.replay import Replay, Sweep, replay
    from hisparse_sim.simulator.serving.api import check_config, plan, reproduce, serve
    from hisparse_sim.simulator.serving.curves import curve
    from hisparse_sim.simulator.serving.latency import measured_swap_ins, swap_in_us
    from hisparse_sim.simulator.serving.profiles.listing import profiles
    from hisparse_sim.simulator.serving.sweep_with_costs import sweep
    from hisparse_sim.simulator.study import study
    from hisparse_sim.simulator.views import figures
    from hisparse_sim.simulator.views.locality_view import locality
    from hisparse_sim.traces import (
        Trace,
        TraceError,
        open_trace,
        sample_path,
        trace_from_array,
        trace_from_frame,
    )
    from hisparse_sim.traces.capture.from_model import capture_hf

    __version__: str

# Name -> the module that holds it.
_MODULE_OF = {
    "POLICIES": "policies",
    "Policy": "policies",
    "PolicyError": "policies",
    "Replay": "simulator.replay",
    "Setup": "policies",
    "Step": "policies",
    "Sweep": "simulator.replay",
    "Trace": "traces",
    "TraceError": "traces",
    "budget": "simulator.mrc",
    "capture_hf": "traces.capture.from_model",
    "check_config": "simulator.serving.api",
    "curve": "simulator.serving.curves",
    "figures": "simulator.views.figures",
    "hook": "policies.hook",
    "lift": "policies.per_token",
    "locality": "simulator.views.locality_view",
    "measured_swap_ins": "simulator.serving.latency",
    "mrc": "simulator.mrc",
    "open_trace": "traces",
    "plan": "simulator.serving.api",
    "policies": "policies",
    "profiles": "simulator.serving.profiles.listing",
    "replay": "simulator.replay",
    "reproduce": "simulator.serving.api",
    "sample_path": "traces",
    "sampled_mrc": "simulator.mrc",
    "serve": "simulator.serving.api",
    "study": "simulator.study",
    "swap_in_us": "simulator.serving.latency",
    "sweep": "simulator.serving.sweep_with_costs",
    "trace_from_array": "traces",
    "trace_from_frame": "traces",
}

__all__ = [
    "POLICIES",
    "Policy",
    "PolicyError",
    "Replay",
    "Setup",
    "Step",
    "Sweep",
    "Trace",
    "TraceError",
    "__version__",
    "budget",
    "capture_hf",
    "check_config",
    "curve",
    "figures",
    "hook",
    "lift",
    "locality",
    "measured_swap_ins",
    "mrc",
    "open_trace",
    "plan",
    "policies",
    "profiles",
    "replay",
    "reproduce",
    "sample_path",
    "sampled_mrc",
    "serve",
    "study",
    "swap_in_us",
    "sweep",
    "trace_from_array",
    "trace_from_frame",
]

_MODULES = ("figures", "policies")  # names of modules, not of what one holds


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("hisparse-sim")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULE_OF[name]}")
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
