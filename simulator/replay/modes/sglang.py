"""SGLang: one query a step, or several that speculative decoding verifies together.

One query a step is the plain replay, here with a resident share. With n queries:

- the n tokens that are verified are in the reserved page and cost nothing, and so does the newest
  committed token, if it lies behind the first B; every other position is looked up once for all
  queries;
- m distinct missed positions are fetched, the first c of them into a scratch area;
- there is no order of slots. A slot remembers the step (epoch) of its last use. A miss looks at up
  to six slots of its own stride behind a cursor and takes the one used longest ago;
- if hits and misses together exceed the buffer, only what the last query selects is kept.

docs/semantics-modes.md has the cases in full. Where the kernel's
threads race, missed positions count in the order of their first listing, and of two misses the
earlier chooses first.

Reference: SGLang 0.5.23, `kernels/jit/csrc/kvcacheio/hisparse_spec.cuh` and
`srt/managers/hisparse_coordinator.py` (HiSparseSpecSwapManager).
"""

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies import Policy, PolicyError, Setup, Step
from hisparse_sim.simulator.replay import mode_names
from hisparse_sim.simulator.replay.modes.epoch_clock import replay_epoch_clock
from hisparse_sim.simulator.replay.modes.mode import ModeReplay, Request, Rules
from hisparse_sim.simulator.replay.modes.steps import Steps, steps_of, union_of
from hisparse_sim.simulator.replay.replaying import replay_part
from hisparse_sim.traces import Demand

MIN_SCRATCH_TOKENS = 1024
_MOST_ACCESSES = 8192  # of a step, for the kernel


def scratch_tokens(draft_tokens: int, top_k: int, buffer_size: int) -> int:
    """Return the places of the scratch area of a request and layer, in tokens."""
    accesses = draft_tokens * top_k
    return min(accesses, max(MIN_SCRATCH_TOKENS, accesses - buffer_size))


def _replay(request: Request, policy: Policy, buffer_size: int) -> ModeReplay:
    steps = _steps(request, buffer_size)
    if policy == EPOCH_CLOCK:
        if request.draft_tokens == 1:
            raise ValueError("epoch-clock is the engine's policy for two draft tokens and more")
        return replay_epoch_clock(
            steps,
            buffer_size,
            scratch_tokens(request.draft_tokens, request.top_k, buffer_size),
            filled=request.start == "staged" or request.demand.prompt_len <= buffer_size,
        )
    demand = request.demand
    if request.draft_tokens == 1:
        seen = _seen(demand, steps, demand.seq_len.astype(np.int64), request)
    else:
        # By the plain rules the newest token is the one in the reserved page: the last committed
        # one, except in the first step.
        lengths = steps.committed.copy()
        lengths[0] += lengths[0] > buffer_size
        seen = _seen(demand, steps, lengths, request)
    done = replay_part(seen, policy, buffer_size, request.start, seed=request.seed)
    return ModeReplay(done.misses, steps.left_out)


def _steps(request: Request, buffer_size: int) -> Steps:
    demand = request.demand
    first = demand.seq_len[demand.first_rows].astype(np.int64)
    upper = first.copy()  # one query: the plain rules know the newest token
    if request.draft_tokens > 1:
        committed = first - 1
        upper = committed - (committed - 1 >= buffer_size)
        upper[0] = committed[0]  # nothing was committed into the reserved page yet
    if request.resident_tokens:
        upper = np.minimum(upper, np.maximum(0, first - request.resident_tokens))
    return steps_of(demand, np.zeros_like(upper), upper)


def _seen(demand: Demand, steps: Steps, lengths: npt.NDArray[np.int64], request: Request) -> Demand:
    """Return what a policy of the registry is asked for: the positions of a step, each once."""
    offsets, positions = (
        (steps.offsets, steps.positions) if request.draft_tokens == 1 else union_of(steps)
    )
    numbers = np.arange(len(lengths), dtype=np.int32)
    return Demand(
        demand.request,
        demand.layer,
        demand.prompt_len,
        numbers + demand.step[0],
        lengths.astype(np.int32),
        offsets,
        positions,
    )


def _default_buffer(draft_tokens: int, top_k: int) -> int:
    return 2 * top_k


def _least_buffer(draft_tokens: int, top_k: int) -> int:
    return top_k


def _refused(draft_tokens: int, top_k: int, buffer_size: int) -> tuple[str, ...]:
    if draft_tokens == 1:
        return ()
    found = []
    if not 2 <= draft_tokens <= 4 or top_k < 1024:
        found.append("SGLang takes drafts of 2 to 4 tokens a step, and a top_k of at least 1,024")
    if draft_tokens * top_k > _MOST_ACCESSES:
        found.append(
            f"SGLang takes draft_tokens x top_k up to {_MOST_ACCESSES:,}, and this is"
            f" {draft_tokens * top_k:,}"
        )
    return tuple(found)


def _no_hook(*_: Any) -> NoReturn:
    raise PolicyError("epoch-clock replays traces with several queries a step only")


def _no_state(setup: Setup) -> Any:
    _no_hook(setup)


def _no_step(state: Any, step: Step, now: int) -> None:
    _no_hook(state, step, now)


# Some misses take no slot, which a hook of the plain loop cannot say.
EPOCH_CLOCK = Policy(
    name=mode_names.EPOCH_CLOCK,
    summary="the engine's for drafts: of six sampled slots the one used longest ago",
    reference="SGLang 0.5.23, kernels/jit/csrc/kvcacheio/hisparse_spec.cuh",
    state=_no_state,
    step=_no_step,
)

SGLANG = Rules(
    name="sglang",
    engine="SGLang 0.5.23",
    start=None,
    replay=_replay,
    default_buffer=_default_buffer,
    least_buffer=_least_buffer,
    refused=_refused,
    drafts_policy=EPOCH_CLOCK,
)
