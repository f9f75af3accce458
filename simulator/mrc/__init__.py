"""Miss-ratio curves: misses at every buffer size, from one pass over a trace.

`lru`, `optimum`, `one_pass`: the compiled passes.  `counting`: `hs.mrc`.  `curves`: what it
returns.  `facts`: files of that.  `counted`: sweeps of facts.  `budgeting`: sizes by layer.
`sampling`: curves of a part.

Names load their module when first used, so that the command line starts without compiled code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hisparse_sim.simulator.mrc.budgeting import Budget, budget
    from hisparse_sim.simulator.mrc.counting import mrc
    from hisparse_sim.simulator.mrc.curves import MissCurves
    from hisparse_sim.simulator.mrc.sampling import sampled_mrc

__all__ = ["Budget", "MissCurves", "budget", "mrc", "sampled_mrc"]

# A module called like one of its names would hide it.
_MODULE_OF = {
    "Budget": "budgeting",
    "MissCurves": "curves",
    "budget": "budgeting",
    "mrc": "counting",
    "sampled_mrc": "sampling",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
