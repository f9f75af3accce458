"""Refuses what cannot fit into memory, since Linux would end the program without a message."""

import os

from hisparse_sim.traces.errors import TraceError


def refuse_too_large(size_bytes: float, what: str) -> None:
    """Raise TraceError if `what` takes at least `size_bytes` and the machine has less."""
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not known, as on Windows
        return
    if size_bytes > there:
        raise TraceError(
            f"{what} take {size_bytes / 2**30:,.0f} GiB of memory at least, and this machine "
            f"has {there / 2**30:,.0f} GiB: ask for less"
        )
