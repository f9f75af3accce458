"""What a policy is: a name, a state, and one hook that a replay calls for every decode step.

Letters used in shapes: B slots of the hot buffer, K positions in the row, H hits, M misses, F
positions ranked behind the row, T positions of the request (an exclusive upper bound), N positions
in all rows of the replayed (request, layer).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Slots: TypeAlias = npt.NDArray[np.uint16]
Positions: TypeAlias = npt.NDArray[np.uint32]
Indices: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]
Scores: TypeAlias = npt.NDArray[np.float32]


class Step(NamedTuple):
    """One decode step as a policy sees it: all of `row` is accessed at once.

    The newest token is neither a hit nor a miss: it is in the reserved page. A short step
    (`seq_len <= B`) never reaches a policy.
    """

    row: Positions  # [K] the selected positions in the order of the trace
    first: int  # index of row[0] among the N positions of the (request, layer)
    hits: Slots  # [H] the slots that hold selected positions, in the order of `row`
    missed: Positions  # [M] the absent positions, in the order of `row`
    places: Indices  # [M] where each of them stands in `row`
    victims: Slots  # [M] output: the slot that each missed position takes; never one of `hits`
    slot: Slots  # [T + 1] the slot of every position before this step, B where absent
    token: Positions  # [B + 1] the position in every slot before this step, T where empty
    newest: int  # the newest token, see above; `row` may contain it
    ranks: Indices  # [K] see `needs_ranks`; empty otherwise
    scores: Scores  # [K] see `needs_scores`; empty otherwise
    next_positions: Positions  # [F] see `needs_next`; empty otherwise


class Setup(NamedTuple):
    """What a state may be built from, before the first step that reaches the policy."""

    buffer_size: int  # B
    positions: int  # T
    steps: int  # rows of the (request, layer); `now` counts them from 1
    filled: bool  # True: slot i holds position i; False: every slot is empty
    seed: int  # 64 bits, distinct for every (seed, request, layer, buffer_size)
    next_access: Indices  # [N] see `needs_future`; empty otherwise
    first_access: Indices  # [T] likewise
    parameters: Any = None  # those of the policy


class PolicyError(ValueError):
    """A policy that cannot be found, compiled or replayed: one sentence that says what to fix."""


def check_texts(of: Any) -> None:
    """Raise PolicyError for a policy or prefetcher without a name, or with texts that are none."""
    for field in ("name", "summary", "reference"):
        text = getattr(of, field)
        if not isinstance(text, str):
            raise PolicyError(f"the {field} of a {of.kind} is {text!r}, expected a text")
    if not of.name.strip():
        raise PolicyError(f"a {of.kind} has no name")


@dataclass(frozen=True)
class Policy:
    """An eviction policy.

    `state(setup)` returns a NamedTuple of arrays (scalars are arrays of length 1).
    `step(state, step, now)` is a `hook`: it writes a victim for every miss and brings its own order
    up to date, as if hits were reported in the order of `row` and each miss were then given its
    victim before the next. Empty slots come first, in slot order. `now` is the number of the step,
    counted from 1 and growing by one.

    With `needs_future` the setup carries `next_access`: for each of the N positions the `now` of
    the next step that accesses the same position (`steps + 1` if none does), not counting accesses
    to a position while it is the newest token; an entry that is itself such an access holds
    `steps + 3`. `first_access` is the same for every position, seen from before the first step.
    `steps + 2` is left for empty slots.

    What the indexer told is passed on where asked for; a trace without it is refused. With
    `needs_ranks` a step has the rank of each of its positions, 0 the best: by their scores where
    the trace has them, else as the row lists them. `needs_scores`: their scores. `needs_next`: the
    positions ranked behind the row, best first, as far as the trace has them.

    `parameters` is an instance of a frozen dataclass whose fields have defaults (int, float or
    bool; `hisparse_sim.policies.parameter` gives them bounds), or None. The state must hold what
    the step needs of them: the step is compiled once for all values.
    """

    name: str
    summary: str  # one line
    reference: str  # paper or source
    state: Callable[[Setup], Any]
    step: Callable[[Any, Step, int], None]
    needs_future: bool = False
    seeded: bool = False  # its misses depend on the seed
    needs_ranks: bool = False
    needs_scores: bool = False
    needs_next: bool = False
    parameters: Any = None
    kind: ClassVar[str] = "policy"  # what messages call it

    def __post_init__(self) -> None:
        check_texts(self)

    @property
    def base(self) -> str:
        """The name without parameters."""
        return self.name if self.parameters is None else self.name.partition(":")[0]
