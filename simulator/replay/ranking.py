"""What policies are told of the indexer: ranks, scores and the positions ranked behind a row."""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies import PolicyError
from hisparse_sim.policies.policy import Indices, Positions, Scores
from hisparse_sim.traces import Demand, Trace, TraceError

_CAPTURE = "`trace capture hf --keep-ranks R --scores --order indexer` keeps them"


class Asks(Protocol):
    """What asks for them: a policy, or a prefetcher."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def needs_ranks(self) -> bool: ...
    @property
    def needs_scores(self) -> bool: ...
    @property
    def needs_next(self) -> bool: ...


class Ranked(NamedTuple):
    """What belongs to the rows of one (request, layer), as compiled code takes it; empty where the
    policy does not ask for it."""

    ranks: Indices  # [N]
    scores: Scores  # [N]
    next_offsets: npt.NDArray[np.int64]  # [n + 1]
    next_positions: Positions  # [next_offsets[n]]


def columns_for(trace: Trace, policies: Iterable[Asks]) -> tuple[str, ...]:
    """Return the optional columns to read for these policies.

    Raises TraceError for a trace that lacks what one of them needs.
    """
    wanted = {}
    for policy in policies:
        if policy.needs_scores and "scores" not in trace.optional:
            raise TraceError(f"{policy.kind} {policy.name} needs scores, and {_lacks(trace)}")
        if policy.needs_next and "next_positions" not in trace.optional:
            raise TraceError(
                f"{policy.kind} {policy.name} needs the positions ranked behind top_k, and"
                f" {_lacks(trace)}"
            )
        if policy.needs_ranks and "scores" not in trace.optional and not _is_listed_by_rank(trace):
            raise TraceError(
                f"{policy.kind} {policy.name} needs the ranks of the selected positions, and"
                f" {_lacks(trace)}"
            )
        if (policy.needs_scores or policy.needs_ranks) and "scores" in trace.optional:
            wanted["scores"] = True
        if policy.needs_next:
            wanted["next_positions"] = True
    return tuple(wanted)


def check_without_ranks(policy: Asks, where: str) -> None:
    """Raise PolicyError for a policy that asks for what is not there."""
    if policy.needs_ranks or policy.needs_scores or policy.needs_next:
        raise PolicyError(
            f"{policy.kind} {policy.name} needs ranks or scores, which {where} not have"
        )


def ranked(demand: Demand, policy: Asks) -> Ranked:
    """Return what the policy needs to know of the rows of `demand`.

    Raises TraceError if the demand lacks it. A demand without scores lists every row best first;
    where it has scores, equal ones keep the order of the row.
    """
    scores = np.empty(0, np.float32)
    ranks = np.empty(0, np.int32)
    offsets = np.zeros(1, np.int64)
    following = np.empty(0, np.uint32)
    of = f"request {demand.request!r}, layer {demand.layer}"
    if policy.needs_scores:
        if demand.scores is None:
            raise TraceError(
                f"{policy.kind} {policy.name} needs scores, and {of} has none; {_CAPTURE}"
            )
        scores = demand.scores.astype(np.float32)
    if policy.needs_ranks:
        ranks = _ranks(demand)
    if policy.needs_next:
        if demand.next_positions is None:
            raise TraceError(
                f"{policy.kind} {policy.name} needs the positions ranked behind top_k, and {of} has"
                f" none; {_CAPTURE}"
            )
        offsets, values = demand.next_positions
        following = values.view(np.uint32)
    for array in (arrays := Ranked(ranks, scores, offsets.view(), following.view())):
        array.flags.writeable = False
    return arrays


def _ranks(demand: Demand) -> npt.NDArray[np.int32]:
    if demand.scores is None:
        rows = np.repeat(demand.offsets[:-1], np.diff(demand.offsets))
        return (np.arange(len(demand.positions)) - rows).astype(np.int32)
    # As whole numbers of 16 bits, which NumPy sorts by radix: the best score is the lowest.
    bits = (demand.scores + np.float16(0)).view(np.uint16)  # no -0
    keys = np.where(bits & 0x8000, bits, ~bits & 0x7FFF).astype(np.uint16)
    ranks = np.empty(len(keys), np.int32)
    places = np.arange(int(np.diff(demand.offsets).max(initial=0)), dtype=np.int32)
    for start, stop in pairwise(demand.offsets.tolist()):
        best_first = np.argsort(keys[start:stop], kind="stable")
        ranks[start:stop][best_first] = places[: stop - start]
    return ranks


def _is_listed_by_rank(trace: Trace) -> bool:
    # Engines list what their kernels select, in no order of rank.
    return trace.metadata.order == "indexer" and trace.metadata.provenance != "dsa-serving"


def _lacks(trace: Trace) -> str:
    return f"{trace.path} has none; {_CAPTURE}"
