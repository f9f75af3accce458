"""How many requests a rank runs together in a steady state."""

from __future__ import annotations

from hisparse_sim.simulator.serving.admission import (
    CLIP_NEW_TOKENS,
    FINAL_RATIO,
    TRANSFER_RESERVE_TOKENS,
    Pool,
)
from hisparse_sim.simulator.serving.memory import PAGE_TOKENS, device_tokens, pages


def residents(pool: Pool, most: int, prompt: int, output: int, apart: bool) -> tuple[int, str]:
    """Requests that one rank runs together if others always wait, and their limit.

    All at their mean length, so that growth and endings balance; the last one admitted also
    needs room for its prompt in the device pool if prefill runs on the same GPUs, not `apart`.
    `most` run at once. `output` is cut as the engine does, and 0 run if it refuses them.
    """
    output = pool.length(prompt, output).output
    if output < 1:
        return 0, "length"
    mean = pages(prompt + output // 2)
    found = {"max-running-requests": most}
    if apart:
        each = mean + TRANSFER_RESERVE_TOKENS
        found["device pool"] = pool.device_tokens // each
        if pool.hierarchical:
            held = pool.device_buffer_size + PAGE_TOKENS + pool.scratch_tokens
            found["device pool"] = pool.device_tokens // held
            found["indexer keys"] = pool.logical_tokens // each
    else:
        found |= _beside_a_prompt(pool, prompt, output, mean)
    limit = min(found, key=lambda name: found[name])
    return found[limit], limit


def _beside_a_prompt(pool: Pool, prompt: int, output: int, mean: int) -> dict[str, int]:
    """Requests that run while the last one admitted still has its prompt in the device pool.

    Ends spread evenly over time, except where whole outputs are promised without HiSparse:
    there equal requests stay in step.
    """
    clipped = min(output, CLIP_NEW_TOKENS)
    promise = clipped * (1 - clipped / (2 * output))  # the mean of min(left, 4096)
    arriving = pages(prompt)
    if pool.engine.admits_with_page or not pool.ignore_eos:
        arriving += PAGE_TOKENS
    if not pool.ignore_eos:
        arriving += clipped
    if pool.scaled:
        promise *= FINAL_RATIO

    def beside(tokens: int, each: float) -> int:
        return max(int((tokens - arriving) // each) + 1, 1)

    if not pool.hierarchical:
        room = beside(pool.device_tokens, mean + promise)
        if pool.ignore_eos:
            room = max(min(room, pool.device_tokens // pages(prompt + output)), 1)
        return {"device pool": room}
    held = device_tokens(prompt + output, pool.device_buffer_size, pool.scratch_tokens)
    return {
        "prefill headroom": beside(pool.device_tokens, held + promise),
        "indexer keys": beside(pool.logical_tokens, mean + promise),
    }
