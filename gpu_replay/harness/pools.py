"""Memory in the layout of the engine: pools of KV entries, and the tables of their locations.

Requests hold pages of 64 tokens, scattered over both pools. The tables are indexed by a request's
slot in the table, not by its row in the batch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.gpu_replay.harness.host_memory import fill_random
from hisparse_sim.gpu_replay.kernels.build import import_torch
from hisparse_sim.gpu_replay.kernels.kernel import PAGE


def scattered_places(lengths: list[int], width: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Give every request whole pages of a pool, in random order.

    `lengths` are tokens per request; the result is int64 [requests, width], the place of every
    token, and 0 behind the last page of a request (never accessed).
    """
    pages = [-(-length // PAGE) for length in lengths]
    shuffled = rng.permutation(sum(pages))
    table = np.zeros((len(lengths), width), np.int64)
    first = 0
    for request, count in enumerate(pages):
        own = shuffled[first : first + count, None] * PAGE + np.arange(PAGE)
        place = own.reshape(-1)[:width]
        table[request, : len(place)] = place
        first += count
    return table


@dataclass(frozen=True, eq=False)
class Pools:
    """Tensors that a swap-in works on, for `layers` layers and `requests` table rows."""

    host: Any  # uint8 [layers][entries, entry_bytes], pinned
    device: Any  # uint8 [layers][entries, entry_bytes]
    host_locs: Any  # int64 [requests, context]: place of every position in the host pool
    locs: Any  # int32 [layers, requests, buffer + PAGE]: place of every slot in the device pool
    tokens: Any  # int32 [layers, requests, buffer + PAGE]: position held by every slot
    order: Any  # int16 [layers, requests, buffer]: slots, next victim first
    entry_bytes: int
    buffer: int

    def arguments(self, layer: int) -> dict[str, Any]:
        """What a swap-in of that layer takes of the pools, by the engine's names."""
        return {
            "device_buffer_tokens": self.tokens[layer],
            "host_cache_locs": self.host_locs,
            "device_buffer_locs": self.locs[layer],
            "host_cache": self.host[layer],
            "device_buffer": self.device[layer],
            "lru_slots": self.order[layer],
            "item_size_bytes": self.entry_bytes,
            "hot_buffer_size": self.buffer,
        }


def make_pools(
    lengths: list[int],
    *,
    layers: int,
    buffer: int,
    entry_bytes: int,
    device: str = "cuda",
    seed: int = 0,
    host_memory: Any = None,
) -> Pools:
    """Pools for requests of `lengths` tokens, filled with random bytes; every slot empty.

    On `cuda` the host pools are pinned. Layers have pools of their own but share the tables, as in
    the engine. `host_memory`, uint8 [bytes], pinned and filled by the caller, is cut into host
    pools instead of allocating any; ValueError if it is too small.
    """
    torch = import_torch()
    rng = np.random.default_rng(seed)
    requests = len(lengths)
    host_locs = scattered_places(lengths, max(lengths), rng)
    locs = scattered_places([buffer + PAGE] * requests, buffer + PAGE, rng)
    host_items = sum(-(-length // PAGE) for length in lengths) * PAGE
    device_items = int(locs.max()) + PAGE

    host = []
    if host_memory is None:
        for _ in range(layers):
            pool = torch.empty(
                (host_items, entry_bytes), dtype=torch.uint8, pin_memory=device == "cuda"
            )
            fill_random(pool, device)
            host.append(pool)
    else:
        size = host_items * entry_bytes
        if layers * size > len(host_memory):
            raise ValueError(
                f"host pools of {layers * size:,} bytes do not fit {len(host_memory):,} bytes"
            )
        host = [
            host_memory[i * size : (i + 1) * size].view(host_items, entry_bytes)
            for i in range(layers)
        ]
    shape = (layers, requests, buffer + PAGE)
    return Pools(
        host=host,
        device=[
            torch.zeros((device_items, entry_bytes), dtype=torch.uint8, device=device)
            for _ in range(layers)
        ],
        host_locs=torch.from_numpy(host_locs).to(device),
        locs=torch.from_numpy(locs.astype(np.int32)).to(device).expand(shape).contiguous(),
        tokens=torch.full(shape, -1, dtype=torch.int32, device=device),
        order=torch.arange(buffer, dtype=torch.int16, device=device)
        .expand(layers, requests, buffer)
        .contiguous(),
        entry_bytes=entry_bytes,
        buffer=buffer,
    )
