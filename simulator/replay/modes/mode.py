"""What a mode of replay is: the rules of an engine for steps that the plain loop does not know.

Letters: n queries of a step (draft tokens), S tokens committed before it, B slots of the buffer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.replay.metrics import Misses
from hisparse_sim.traces import Demand


class Request(NamedTuple):
    """One (request, layer) and how it is replayed."""

    demand: Demand
    draft_tokens: int  # n
    top_k: int  # largest number of positions in a row
    resident_tokens: int  # in positions of the trace
    start: str
    seed: int


@dataclass(frozen=True, eq=False)
class ModeReplay:
    """The result for one (request, layer)."""

    misses: Misses  # [steps] distinct positions that are fetched in a step
    resident_accesses: int  # listed positions that were read without asking the hot buffer
    unloaded: int = 0  # misses for which no place was found: the engine reads nothing for them
    victims: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))


@dataclass(frozen=True)
class Rules:
    """The rules of an engine: one module each.

    `replay(request, policy, B)` replays a (request, layer). `default_buffer(n, top_k)` and
    `least_buffer(n, top_k)` are in slots. `refused(n, top_k, B)`: what the engine refuses of
    such a setting though it can be replayed, a sentence each.
    """

    name: str
    engine: str  # what they were read from
    start: str | None  # the only start that there is; None: as asked for
    replay: Callable[[Request, Policy, int], ModeReplay]
    default_buffer: Callable[[int, int], int]
    least_buffer: Callable[[int, int], int]
    refused: Callable[[int, int, int], tuple[str, ...]]
    drafts_policy: Policy | None = None  # the engine's own for drafts, outside the registry
