"""Which slot is evicted: one file per policy, and one line per policy below."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hisparse_sim.policies.parameters import parameter
from hisparse_sim.policies.policy import Policy, PolicyError, Setup, Step
from hisparse_sim.policies.registry import find, table_of

# The registry: a line adds a policy. Listings keep this order.
# isort: off
# ruff: noqa: F401
from hisparse_sim.policies.lru import LRU
from hisparse_sim.policies.fifo import FIFO
from hisparse_sim.policies.clock import CLOCK
from hisparse_sim.policies.lfu import LFU
from hisparse_sim.policies.arc import ARC
from hisparse_sim.policies.random import RANDOM
from hisparse_sim.policies.belady import BELADY
from hisparse_sim.policies.decayed_rank import DECAYED_RANK
from hisparse_sim.policies.decayed_frequency import DECAYED_FREQUENCY
from hisparse_sim.policies.next_rank import NEXT_RANK
from hisparse_sim.policies.lowest_score import LOWEST_SCORE
from hisparse_sim.policies.decayed_score import DECAYED_SCORE
from hisparse_sim.policies.greedy_dual_score import GREEDY_DUAL_SCORE
from hisparse_sim.policies.holt import HOLT
from hisparse_sim.policies.blend import BLEND
from hisparse_sim.policies.sink_recent import SINK_RECENT
from hisparse_sim.policies.lru_lfu import LRU_LFU
from hisparse_sim.policies.lru_k import LRU_K
from hisparse_sim.policies.lfuda import LFUDA
from hisparse_sim.policies.hyperbolic import HYPERBOLIC
from hisparse_sim.policies.textbook_lru import TEXTBOOK_LRU
from hisparse_sim.policies.lru_misses_last import LRU_MISSES_LAST
from hisparse_sim.policies.bucketed_lru import BUCKETED_LRU
from hisparse_sim.policies.slru import SLRU
from hisparse_sim.policies.two_q import TWO_Q
from hisparse_sim.policies.sieve import SIEVE
from hisparse_sim.policies.s3_fifo import S3_FIFO
from hisparse_sim.policies.sampled_lru import SAMPLED_LRU
from hisparse_sim.policies.set_associative_lru import SET_ASSOCIATIVE_LRU
from hisparse_sim.policies.fast_slow import FAST_SLOW
from hisparse_sim.policies.mq import MQ
from hisparse_sim.policies.w_tinylfu import W_TINYLFU
from hisparse_sim.policies.lirs import LIRS
from hisparse_sim.policies.clock_pro import CLOCK_PRO
from hisparse_sim.policies.lecar import LECAR
from hisparse_sim.policies.lhd import LHD
# isort: on

if TYPE_CHECKING:
    import pandas as pd

POLICIES: dict[str, Policy] = {
    each.name: each for each in tuple(globals().values()) if isinstance(each, Policy)
}

ALIASES = {"min": "belady"}  # other names in the literature -> ours
ALL = "all"  # no policy: stands for all that apply to every trace

# What is replayed where no policy is named.
STANDARD = ("lru", "fifo", "clock", "lfu", "arc", "random", "belady")

__all__ = [
    "ALIASES",
    "ALL",
    "POLICIES",
    "STANDARD",
    "Policy",
    "PolicyError",
    "Setup",
    "Step",
    "get_policy",
    "parameter",
    "table",
]


def get_policy(policy: str | Policy, **parameters: Any) -> Policy:
    """Return the policy of this name, that of a file given as `FILE.py:NAME`, or `policy` itself,
    with these parameters; a name may have them, too: `NAME:FIELD=VALUE,FIELD=VALUE`.

    Raises PolicyError, a ValueError: it names the known policies or parameters, or says what is
    wrong with the file.
    """
    return find(policy, Policy, POLICIES, parameters, aliases=ALIASES, reserved=(ALL,))


def table() -> "pd.DataFrame":
    """Return the policies of the package, one row each: `policy, summary, parameters, reference`.

    `hisparse_sim.policies()` and `hisparse_sim.policies.table()` are the same.
    """
    return table_of(POLICIES, Policy.kind)


class _Callable(ModuleType):
    """This module: it holds the policies, and called it lists them."""

    def __call__(self) -> "pd.DataFrame":
        return table()


sys.modules[__name__].__class__ = _Callable
