"""The bottleneck of a deployment: what its requests wait for, or else where its time goes."""

from __future__ import annotations

from hisparse_sim.simulator.serving.memory import HOST
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.served import Served

PREFILL, LINK, COMPUTE, TRANSFER, LOAD = "prefill", "link", "compute", "transfer", "load"
HOST_POOL, KEYS = "host pool", "indexer keys"
SATURATED = 0.9  # share of the time from which prefill elsewhere, or the network, is the limit
WAITING = 0.05  # of those that run: so many wait at least where memory is short
WORTH = 0.1  # of the time that twice the memory must save, to be the limit


def bottleneck(setting: Setting, served: Served) -> str:
    """One of `prefill`, `transfer` (the network, where prefill is apart), `device pool`, `indexer
    keys`, `host pool`, `max-running-requests`, `link` (to the host), `compute` (of decode) or
    `load` (the GPUs idle); empty if nothing was served.

    Prefill is it where it is saturated, or takes more than half of the time of GPUs that decode
    too. Memory is it if requests wait for it, and a batch of twice the size would be worth it. Else
    it is what takes most of the time.
    """
    if not len(served.finished):
        return ""
    if served.prefill_busy > SATURATED:
        return PREFILL
    if _network_busy(setting, served) > SATURATED:
        return TRANSFER
    times, span = served.times, served.makespan
    compute = times.decode_attention + times.decode_rest
    if times.prefill > span / 2:
        return PREFILL
    short = max(served.queued, key=lambda reason: served.queued[reason])
    waits = served.queued[short] > WAITING * served.running
    if waits and (compute + times.swap_in) / span * _shared(setting, served) > WORTH:
        return short if short != KEYS else _keys_or_host(setting)
    shares = {PREFILL: times.prefill, LINK: times.swap_in, COMPUTE: compute, LOAD: times.idle}
    return max(shares, key=lambda name: shares[name])


def _keys_or_host(setting: Setting) -> str:
    """Whether a larger ratio, which gives more keys, is ruled out by the host's memory."""
    more = setting.deployment.capacity(setting.ratio + 1, setting.device_buffer_size, 1)
    return HOST_POOL if more.limit == HOST else KEYS


def _shared(setting: Setting, served: Served) -> float:
    """Share of a decode step's time per request that a batch of twice the size saves."""
    ranks = setting.ranks * served.decoding
    busy = 1 - served.times.idle / served.makespan
    batch = max(served.running / ranks / max(busy, 1e-9), 1.0)
    requests = served.finished
    context = float((requests.prompt + requests.output / 2).mean())
    once, twice = setting.step_us(round(batch), context), setting.step_us(round(2 * batch), context)
    return max(1 - twice / (2 * once), 0.0)


def _network_busy(setting: Setting, served: Served) -> float:
    """Share of the time in which the links of the side with fewer ranks carry prompts."""
    server = setting.server()
    if not server.prefill_instances:
        return 0.0
    links = server.ranks * min(server.prefill_instances, server.instances)
    bytes_ = float(served.finished.prompt.sum()) * server.transfer_token_bytes
    return bytes_ / server.transfer_bytes_per_s / links / served.makespan
