"""Which slot is evicted: one file per policy, one line each below."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from hisparse_sim.policies.arc import ARC
from hisparse_sim.policies.belady import BELADY
from hisparse_sim.policies.clock import CLOCK
from hisparse_sim.policies.fifo import FIFO
from hisparse_sim.policies.from_file import names_a_file, policy_of_file
from hisparse_sim.policies.lfu import LFU
from hisparse_sim.policies.lru import LRU
from hisparse_sim.policies.policy import Policy, PolicyError, Setup, Step
from hisparse_sim.policies.random import RANDOM

if TYPE_CHECKING:
    import pandas as pd

POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (LRU, FIFO, CLOCK, LFU, ARC, RANDOM, BELADY)
}

ALIASES = {"min": "belady"}  # other names in the literature -> ours

__all__ = ["ALIASES", "POLICIES", "Policy", "PolicyError", "Setup", "Step", "get_policy", "table"]


def get_policy(policy: str | Policy) -> Policy:
    """Return the policy of this name, that of a file given as `FILE.py:NAME`, or `policy` itself.

    Raises PolicyError, a ValueError: it names the known policies, or says what is wrong with the
    file.
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise PolicyError(f"{policy!r} is not a policy: give a name or a Policy")
    if names_a_file(policy):
        found = policy_of_file(policy)
        if found.name.lower() in (*POLICIES, *ALIASES):
            raise PolicyError(f"policy {policy}: the name {found.name!r} is taken; choose another")
        return found
    known = POLICIES.get(ALIASES.get(policy.lower(), policy.lower()))
    if known is None:
        raise PolicyError(f"unknown policy {policy!r}; known are {', '.join(POLICIES)}")
    return known


def table() -> "pd.DataFrame":
    """Return the policies of the package, one row each: `policy, summary, reference`.

    `hisparse_sim.policies()` and `hisparse_sim.policies.table()` are the same.
    """
    import pandas as pd

    return pd.DataFrame(
        [
            {"policy": policy.name, "summary": policy.summary, "reference": policy.reference}
            for policy in POLICIES.values()
        ]
    )


class _Callable(ModuleType):
    """This module: it holds the policies, and called it lists them."""

    def __call__(self) -> "pd.DataFrame":
        return table()


sys.modules[__name__].__class__ = _Callable
