"""What a prefetcher is: a name, a state, and one hook that proposes positions before each step.

Letters used in shapes: K positions in a row, F ranked behind it, H positions of the hint, T
positions of the request (an exclusive upper bound), b positions that may be fetched per step, s
slots that hold them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import (
    Bytes,
    Indices,
    Longs,
    PolicyError,
    Positions,
    Scores,
    check_texts,
)
from hisparse_sim.simulator.replay.kernel import Rows


class View(NamedTuple):
    """What is known before the positions of a step are.

    `ranks`, `scores`, `next_positions`: of the step before, empty unless asked for; `rows` and
    `now`: only for `needs_future`.
    """

    row: Positions  # [K] selected in the step before, in the order of the trace; the first has none
    ranks: Indices  # [K] of its positions, 0 the best
    scores: Scores  # [K]
    next_positions: Positions  # [F] ranked behind the row, best first
    hint: Positions  # [H] selected elsewhere, see `Prefetcher`; empty if nothing is known
    present: Bytes  # [T + 1] 0: not on the GPU; 1: in the buffer; 2: proposed before, and in a slot
    newest: int  # the position of the newest token: only those below are on the host
    rows: Rows  # all rows of the (request, layer)
    now: int  # which of them is the step's, from 0


class Setup(NamedTuple):
    """What a state may be built from."""

    budget: int  # b
    slots: int  # that hold what is fetched ahead, at least b
    positions: int  # T
    steps: int
    seed: int  # 64 bits, distinct for every (request, layer)
    parameters: Any  # those of the prefetcher


class PrefetchError(PolicyError):
    """A prefetcher that cannot be found or replayed: one sentence that says what to fix."""


@dataclass(frozen=True)
class Prefetcher:
    """Proposes what to fetch before the positions of a step are known.

    `state(setup)` returns a NamedTuple of arrays. `propose(state, view, out)` is a `hook`, called
    once before every step that does not fit into the slots of the policy: it writes at most
    len(out) = s positions below `view.newest`, the best first, and returns how many. The first b
    that are absent are fetched; what was fetched before, and is listed again, makes room last.

    `layer(layers, layer, parameters)` names another layer whose row of the same step is known in
    time and becomes the hint; None if there is none for this layer. With `needs_drafts` the hint
    is what the drafts of the step before selected; the steps are then those of the first query of
    each. `needs_ranks`, `needs_scores`, `needs_next` and `parameters` are as for a policy.
    """

    name: str
    summary: str  # one line
    reference: str  # paper or source
    state: Callable[[Setup], Any]
    propose: Callable[[Any, View, Positions], int]
    layer: Callable[[Sequence[int], int, Any], int | None] | None = None
    needs_drafts: bool = False
    needs_future: bool = False
    needs_ranks: bool = False
    needs_scores: bool = False
    needs_next: bool = False
    parameters: Any = None
    kind: ClassVar[str] = "prefetcher"

    def __post_init__(self) -> None:
        check_texts(self)

    @property
    def base(self) -> str:
        """The name without parameters."""
        return self.name if self.parameters is None else self.name.partition(":")[0]


class Nothing(NamedTuple):
    """The state of a prefetcher that remembers nothing."""

    unused: Indices  # [0]


def nothing(setup: Setup) -> Nothing:
    return Nothing(np.zeros(0, np.int32))


@hook
def take(candidates: Positions, view: View, out: Positions) -> int:
    """Write the candidates that are not present, in their order, and return how many."""
    count = 0
    for position in candidates:
        if count == len(out):
            break
        if position < view.newest and view.present[position] == 0:
            out[count] = position
            count += 1
    return count


@hook
def take_best(candidates: Positions, values: Any, count: int, out: Positions) -> int:
    """Write the first `count` candidates by falling value, as many as there is room for; equal ones
    keep their order. Return how many."""
    heap = np.empty(min(count, len(out)), np.int64)  # of their numbers, the worst on top
    size = 0
    for i in range(count):
        if size < len(heap):
            child = size
            size += 1
            while child > 0 and _worse(values, i, heap[(child - 1) >> 1]):
                heap[child] = heap[(child - 1) >> 1]
                child = (child - 1) >> 1
            heap[child] = i
        elif size > 0 and _worse(values, heap[0], i):
            _replace_top(heap, size, values, i)
    for last in range(size - 1, -1, -1):
        out[last] = candidates[heap[0]]
        _replace_top(heap, last, values, heap[last])
    return size


@hook
def _worse(values: Any, one: int, other: int) -> bool:
    return bool(values[one] < values[other] or (values[one] == values[other] and one > other))


@hook
def _replace_top(heap: Longs, size: int, values: Any, new: int) -> None:
    """Put `new` in place of the worst of the first `size`."""
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _worse(values, heap[child + 1], heap[child]):
            child += 1
        if not _worse(values, heap[child], new):
            break
        heap[place] = heap[child]
        place = child
    if size > 0:
        heap[place] = new
