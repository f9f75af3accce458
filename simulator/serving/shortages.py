"""What a number of requests exhausts on one rank, when, and what the engine does then."""

from __future__ import annotations

from dataclasses import dataclass

from hisparse_sim.simulator.serving.deployment import RESERVE, Deployment
from hisparse_sim.simulator.serving.lengths import REFUSED, check_length
from hisparse_sim.simulator.serving.memory import device_tokens, pages, slot_table_bytes


@dataclass(frozen=True)
class Shortage:
    """One exhausted resource: what, when, and what the engine does then."""

    what: str
    when: str
    effect: str
    reason: str


def shortages(
    deployment: Deployment,
    ratio: int,
    device_buffer_size: int,
    prompt: int,
    output: int,
    requests: int,
    max_running_requests: int,
    colocated: bool = True,
) -> list[Shortage]:
    """Return what `requests` exhaust that decode together on one rank from their first token.

    Empty if they all finish without a shortage. `max_running_requests` is per rank. Activations and
    CUDA graphs share the reserve with the slot tables and are not counted: a table that takes more
    than half of the reserve is reported as a risk.
    """
    found = deployment.capacity(ratio, device_buffer_size, prompt + output, output)
    asked, output = output, found.output
    pool, logical = found.pool_tokens, found.logical_tokens
    out: list[Shortage] = []
    if found.limit == "host":
        out.append(Shortage("host memory", "at start", "the engine does not start", found.reason))
    if found.limit == RESERVE:
        out.append(Shortage(RESERVE, "at start", "out of GPU memory", found.reason))
    if found.limit == "length":
        length = check_length(prompt, asked, pool, deployment.model.context)
        refused = length.outcome == REFUSED
        effect = "the request is refused" if refused else "it is admitted, and generates nothing"
        out.append(Shortage("length", "at admission", effect, found.reason))
    tables = (max_running_requests + 1) * slot_table_bytes(
        deployment.model, device_buffer_size, deployment.engine
    )
    reserve = deployment.reserve_bytes - deployment.unbudgeted_bytes(ratio)
    if tables > reserve:
        out.append(
            Shortage(
                RESERVE,
                "at start",
                "out of memory while the slot tables are made",
                f"{max_running_requests + 1:,} slots take {tables / 1e9:.1f} GB, the reserve has"
                f" {reserve / 1e9:.1f} GB",
            )
        )
    elif tables > reserve / 2:
        out.append(
            Shortage(
                RESERVE,
                "in a large prefill",
                "may run out of memory",
                f"{max_running_requests + 1:,} slots take {tables / 1e9:.1f} of the"
                f" {reserve / 1e9:.1f} GB that activations need too",
            )
        )
    held = device_tokens(prompt, device_buffer_size)
    staged = pages(prompt) if colocated else 0
    if (requests - 1) * held + max(held, staged) > pool:
        room = max((pool - max(held, staged)) // held + 1, 0) if pool >= staged else 0
        out.append(
            Shortage(
                "device pool",
                "at admission",
                f"only {room} run, the others queue",
                f"{requests - 1:,} hot buffers of {held:,} tokens and"
                + (f" a prompt of {prompt:,}" if colocated else " one more")
                + f" exceed {pool:,} tokens",
            )
        )
    if requests * pages(prompt) > logical:
        out.append(
            Shortage(
                "indexer keys and host pool",
                "at admission",
                f"only {logical // pages(prompt)} run, the others queue",
                f"{requests:,} prompts of {prompt:,} tokens exceed {logical:,} tokens",
            )
        )
    elif requests * pages(prompt + output) > logical:
        step = logical // requests // 64 * 64 - prompt
        out.append(
            Shortage(
                "indexer keys and host pool",
                f"at step {step + 1:,} of decode",
                "requests are retracted and prefilled again",
                f"{requests:,} requests of {prompt + step + 1:,} tokens need another page each, the"
                f" pool has {logical:,} tokens",
            )
        )
    return out
