"""Which slot is evicted: one file per policy, one line each below."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hisparse_sim.policies.arc import ARC
from hisparse_sim.policies.belady import BELADY
from hisparse_sim.policies.blend import BLEND
from hisparse_sim.policies.bucketed_lru import BUCKETED_LRU
from hisparse_sim.policies.clock import CLOCK
from hisparse_sim.policies.clock_pro import CLOCK_PRO
from hisparse_sim.policies.decayed_frequency import DECAYED_FREQUENCY
from hisparse_sim.policies.decayed_rank import DECAYED_RANK
from hisparse_sim.policies.decayed_score import DECAYED_SCORE
from hisparse_sim.policies.fast_slow import FAST_SLOW
from hisparse_sim.policies.fifo import FIFO
from hisparse_sim.policies.from_file import names_a_file, policy_of_file
from hisparse_sim.policies.greedy_dual_score import GREEDY_DUAL_SCORE
from hisparse_sim.policies.holt import HOLT
from hisparse_sim.policies.hyperbolic import HYPERBOLIC
from hisparse_sim.policies.lecar import LECAR
from hisparse_sim.policies.lfu import LFU
from hisparse_sim.policies.lfuda import LFUDA
from hisparse_sim.policies.lhd import LHD
from hisparse_sim.policies.lirs import LIRS
from hisparse_sim.policies.lowest_score import LOWEST_SCORE
from hisparse_sim.policies.lru import LRU
from hisparse_sim.policies.lru_k import LRU_K
from hisparse_sim.policies.lru_lfu import LRU_LFU
from hisparse_sim.policies.lru_misses_last import LRU_MISSES_LAST
from hisparse_sim.policies.mq import MQ
from hisparse_sim.policies.next_rank import NEXT_RANK
from hisparse_sim.policies.parameters import configured, described, divided, parameter
from hisparse_sim.policies.policy import Policy, PolicyError, Setup, Step
from hisparse_sim.policies.random import RANDOM
from hisparse_sim.policies.s3_fifo import S3_FIFO
from hisparse_sim.policies.sampled_lru import SAMPLED_LRU
from hisparse_sim.policies.set_associative_lru import SET_ASSOCIATIVE_LRU
from hisparse_sim.policies.sieve import SIEVE
from hisparse_sim.policies.sink_recent import SINK_RECENT
from hisparse_sim.policies.slru import SLRU
from hisparse_sim.policies.textbook_lru import TEXTBOOK_LRU
from hisparse_sim.policies.two_q import TWO_Q
from hisparse_sim.policies.w_tinylfu import W_TINYLFU

if TYPE_CHECKING:
    import pandas as pd

POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        LRU,
        FIFO,
        CLOCK,
        LFU,
        ARC,
        RANDOM,
        BELADY,
        DECAYED_RANK,
        DECAYED_FREQUENCY,
        NEXT_RANK,
        LOWEST_SCORE,
        DECAYED_SCORE,
        GREEDY_DUAL_SCORE,
        HOLT,
        BLEND,
        SINK_RECENT,
        LRU_LFU,
        LRU_K,
        LFUDA,
        HYPERBOLIC,
        TEXTBOOK_LRU,
        LRU_MISSES_LAST,
        BUCKETED_LRU,
        SLRU,
        TWO_Q,
        SIEVE,
        S3_FIFO,
        SAMPLED_LRU,
        SET_ASSOCIATIVE_LRU,
        FAST_SLOW,
        MQ,
        W_TINYLFU,
        LIRS,
        CLOCK_PRO,
        LECAR,
        LHD,
    )
}

ALIASES = {"min": "belady"}  # other names in the literature -> ours

# What is replayed where no policy is named.
STANDARD = ("lru", "fifo", "clock", "lfu", "arc", "random", "belady")

__all__ = [
    "ALIASES",
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
    if isinstance(policy, Policy):
        return configured(policy, parameters)
    if not isinstance(policy, str):
        raise PolicyError(f"{policy!r} is not a policy: give a name or a Policy")
    name, written = divided(policy)
    return configured(_named(name), written | parameters)


def _named(name: str) -> Policy:
    if names_a_file(name):
        found = policy_of_file(name)
        if found.name.lower() in (*POLICIES, *ALIASES):
            raise PolicyError(f"policy {name}: the name {found.name!r} is taken; choose another")
        return found
    known = POLICIES.get(ALIASES.get(name.lower(), name.lower()))
    if known is None:
        raise PolicyError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    return known


def table() -> "pd.DataFrame":
    """Return the policies of the package, one row each: `policy, summary, parameters, reference`.

    `hisparse_sim.policies()` and `hisparse_sim.policies.table()` are the same.
    """
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "policy": policy.name,
                "summary": policy.summary,
                "parameters": described(policy),
                "reference": policy.reference,
            }
            for policy in POLICIES.values()
        ]
    )


class _Callable(ModuleType):
    """This module: it holds the policies, and called it lists them."""

    def __call__(self) -> "pd.DataFrame":
        return table()


sys.modules[__name__].__class__ = _Callable
