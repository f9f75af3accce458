"""Time of one layer's swap-in for a whole batch, on the host link of a machine.

From the engine's released kernel on an H200 (PCIe 5 x16, 960 threads a block, bf16 items of 1,152
bytes): one block serves one request, so few requests are bound by latency and many by the link.
"""

from __future__ import annotations

import numpy as np

from hisparse_sim.simulator.exposure import Floats, SwapIn
from hisparse_sim.simulator.hardware import Hardware

MEASURED_ITEM_BYTES = 1152
MEASURED_LINK_BYTES_PER_S = 55.4e9  # large pinned copies on that machine
# One request: (misses, us), the middle of what was measured at B = 2048 to 6144.
ONE_REQUEST = ((0.0, 20.0), (256.0, 46.0), (1024.0, 122.0))
# 64 requests with 512 misses each took 721 to 760 us, 13 to 28 us of it without any miss.
MANY_BYTES_PER_S = 64 * 512 * MEASURED_ITEM_BYTES / (740e-6 - 20e-6)


def measured_swap_in(hardware: Hardware, item_bytes: int) -> SwapIn:
    """Swap-in time in us of (requests, mean misses, most misses), from the points above.

    The larger of the time of the busiest block and the time of all bytes at the kernel's rate under
    load. Another link changes only the latter, in proportion to its large-copy bandwidth; the
    items' size changes it in proportion too. Both are assumptions for machines other than the H200.
    """
    link = hardware.link_bytes_per_s / MEASURED_LINK_BYTES_PER_S * MANY_BYTES_PER_S
    (m0, t0), (m1, t1), (m2, t2) = ONE_REQUEST
    first, later = (t1 - t0) / (m1 - m0), (t2 - t1) / (m2 - m1)

    def swap_in_us(requests: int, misses: Floats, most: Floats) -> Floats:
        block = t0 + first * np.minimum(most, m1) + later * np.maximum(most - m1, 0.0)
        together = t0 + requests * misses * item_bytes / link * 1e6
        return np.maximum(block, together)

    return swap_in_us
