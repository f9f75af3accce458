"""vLLM: a resident tier in front of the hot buffer, and the queries of a step resolved together.

- Pages of 64 tokens are resident on the GPU as a write-back cache of the host. The last two pages
  of a request are always there. What else is depends on memory: pages are released when the host
  has them, those of the prompt from its end to its beginning and then every page that decode fills,
  and are lost in that order. `resident_tokens` is how much of that queue a request keeps.
- A position of a resident page is read there: neither hit nor miss, and no slot.
- The other positions of all queries, each once in the order of their first listing, ask for the
  hot buffer, which starts empty, whatever ran before. Slots and victims are as in SGLang's LRU: the
  i-th miss takes the i-th slot of the order that the step does not use; afterwards come what was
  left alone, the fetched, the reused. There is no short path and no reserved page.
- A step that asks for nothing leaves the order as it is.

Keys are slots of the host pool. As long as a request lives they stand for its positions, so that
positions are replayed.

Reference: vLLM 0.33, `v1/hisparse/runtime.py`, `v1/hisparse/coordinator.py`, `v1/hisparse/types.py`
(ACTIVE_TAIL_PAGES); `csrc/hisparse_kernels.cu`, hisparse_resolve_residency_kernel.
"""

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.replay.modes.mode import ModeReplay, Request, Rules
from hisparse_sim.simulator.replay.modes.steps import steps_of, union_of
from hisparse_sim.simulator.replay.replaying import replay_part
from hisparse_sim.traces import Demand

PAGE_TOKENS = 64
TAIL_PAGES = 2  # never released


def resident_pages(
    committed: npt.NDArray[np.int64], draft_tokens: int, resident_tokens: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (lower, upper), [steps] tokens: positions in [lower, upper) are on the host only.

    A request has pages for the tokens that a step verifies and for those drafted after it.
    """
    pages = -(-(committed + 2 * draft_tokens - 1) // PAGE_TOKENS)
    released = np.maximum(0, pages - TAIL_PAGES)
    prompt = released[0]  # released before the first step, the last of them first
    lost = np.maximum(0, released - resident_tokens // PAGE_TOKENS)
    lower = np.maximum(0, prompt - lost)
    upper = np.maximum(prompt, lost)
    return lower * PAGE_TOKENS, np.minimum(upper, released) * PAGE_TOKENS


def _replay(request: Request, policy: Policy, buffer_size: int) -> ModeReplay:
    demand = request.demand
    committed = demand.seq_len[demand.first_rows].astype(np.int64) - 1
    steps = steps_of(
        demand, *resident_pages(committed, request.draft_tokens, request.resident_tokens)
    )
    offsets, positions = (
        (steps.offsets, steps.positions) if demand.query is None else union_of(steps)
    )
    count = len(committed)
    # Long enough for the plain rules to know neither a short request nor a newest token, and a
    # prompt that does not fit, so that the buffer starts empty.
    endless = max(int(demand.seq_len.max()), buffer_size + 1) + 1
    seen = Demand(
        demand.request,
        demand.layer,
        buffer_size + 1,
        np.arange(count, dtype=np.int32) + demand.step[0],
        np.full(count, endless, np.int32),
        offsets,
        positions,
    )
    done = replay_part(seen, policy, buffer_size, "direct", seed=request.seed)
    return ModeReplay(done.misses, steps.left_out)


def _default_buffer(draft_tokens: int, top_k: int) -> int:
    return (draft_tokens + 1) * top_k


def _least_buffer(draft_tokens: int, top_k: int) -> int:
    return draft_tokens * top_k


def _refused(draft_tokens: int, top_k: int, buffer_size: int) -> tuple[str, ...]:
    return ()


VLLM = Rules(
    name="vllm",
    engine="vLLM 0.33",
    start="direct",
    replay=_replay,
    default_buffer=_default_buffer,
    least_buffer=_least_buffer,
    refused=_refused,
)
