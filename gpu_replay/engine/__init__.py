"""Inside a running SGLang server: counters, traces and our kernel, without a change to its files.

`releases`: what the plugin relies on in every known release, compared before the server starts.
`plugin`: the entry point that SGLang loads in each of its processes; does nothing unless
`engine run` has set its environment variable.
`watching`: one coordinator watched; `counters` and `device_ring` are what it keeps on the device,
`reading` copies that out, `host_ring` is where a recording waits in pinned memory.
`recording` makes trace files of it, in the process of `engine run`; `launching` is that process.
`checking` replays what was recorded and compares it with what was counted.

torch is needed inside the server only, and no NVIDIA GPU at import. The names below are loaded when
they are asked for: a process of the server must not load what only the recorder needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hisparse_sim.gpu_replay.engine.checking import check_folder
    from hisparse_sim.gpu_replay.engine.launching import Follower, check_server, run_server
    from hisparse_sim.gpu_replay.engine.options import Options
    from hisparse_sim.gpu_replay.engine.recording import Budget, Source
    from hisparse_sim.gpu_replay.engine.releases import EngineError

_MODULE_OF = {
    "Budget": "recording",
    "EngineError": "releases",
    "Follower": "launching",
    "Options": "options",
    "Source": "recording",
    "check_folder": "checking",
    "check_server": "launching",
    "run_server": "launching",
}

__all__ = [
    "Budget",
    "EngineError",
    "Follower",
    "Options",
    "Source",
    "check_folder",
    "check_server",
    "run_server",
]


def __getattr__(name: str) -> Any:
    """Import at first use: the plugin must not load a simulator into the engine's processes."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
