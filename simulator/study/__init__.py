"""How far policies and prefetchers are from the least that is possible, and how certain that is.

`studying`: `hs.study`.  `rows`, `statistics`: what it returns.  `reuse`, `least`, `bounds`: the
fewest misses, and the fewest that prefetch leaves.  `barrier`, `batches`: the busiest of a batch.

Names load their module when first used, so that the command line starts without compiled code.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hisparse_sim.simulator.study.studying import Study, study

__all__ = ["Study", "study"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.studying"), name)
