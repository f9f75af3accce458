"""Which slot is evicted: one file per policy, one line each below."""

from hisparse_sim.policies.arc import ARC
from hisparse_sim.policies.belady import BELADY
from hisparse_sim.policies.clock import CLOCK
from hisparse_sim.policies.fifo import FIFO
from hisparse_sim.policies.lfu import LFU
from hisparse_sim.policies.lru import LRU
from hisparse_sim.policies.policy import Policy, Setup, Step
from hisparse_sim.policies.random import RANDOM

POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (LRU, FIFO, CLOCK, LFU, ARC, RANDOM, BELADY)
}

ALIASES = {"min": "belady"}  # other names in the literature -> ours

__all__ = ["ALIASES", "POLICIES", "Policy", "Setup", "Step", "get_policy"]


def get_policy(name: str) -> Policy:
    """Return the policy called `name`.

    Raises ValueError, naming the known policies, if there is none.
    """
    policy = POLICIES.get(ALIASES.get(name.lower(), name.lower()))
    if policy is None:
        raise ValueError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    return policy
