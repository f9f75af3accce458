"""hisparse-sim: cache-policy simulation and trace replay for the hot buffer of sparse attention.

The names most used, from one place: `import hisparse_sim as hs; hs.replay(hs.sample_path(), "lru",
4096)`."""

import os
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hisparse_sim.policies import POLICIES, Policy
    from hisparse_sim.simulator.mrc import mrc
    from hisparse_sim.simulator.replay import Replay, Sweep, replay, sweep
    from hisparse_sim.simulator.views.locality_view import locality
    from hisparse_sim.traces import TraceError, open_trace, sample_path

__all__ = [
    "POLICIES",
    "Policy",
    "Replay",
    "Sweep",
    "TraceError",
    "locality",
    "mrc",
    "open_trace",
    "replay",
    "sample_path",
    "sweep",
]

_ROOM_OF = {
    "POLICIES": "policies",
    "Policy": "policies",
    "Replay": "simulator.replay",
    "Sweep": "simulator.replay",
    "locality": "simulator.views.locality_view",
    "mrc": "simulator.mrc",
    "replay": "simulator.replay",
    "sweep": "simulator.replay",
    "TraceError": "traces",
    "open_trace": "traces",
    "sample_path": "traces",
}


# Numba keeps machine code beside the source by default. There it outlives an uninstall, and what is
# left of the folders hides an editable install that follows.
def _cache_folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(given if Path(given).is_absolute() else os.path.expanduser("~/.cache"))
    user = os.getuid() if hasattr(os, "getuid") else 0
    shared = Path(tempfile.gettempdir())
    for folder in (home / "hisparse-sim", shared / f"hisparse-sim-{user}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # What lies there is run: in a folder that all may write to, it must be our own.
            ours = folder.parent != shared or folder.stat().st_uid == user
            if ours and os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError:
            pass  # no home, or one that nobody may write to
    try:
        return Path(tempfile.mkdtemp(prefix="hisparse-sim-"))
    except OSError:
        return Path(os.devnull)  # nothing is kept


os.environ.setdefault("NUMBA_CACHE_DIR", str(_cache_folder()))


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
