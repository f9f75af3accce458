"""How the buffer of a request starts, and which of its steps count (docs/semantics.md)."""

from collections.abc import Sequence

from hisparse_sim.traces import Demand

STARTS = ("staged", "direct")
WARM = "warm"
ALL_STARTS = (*STARTS, WARM)


def check_start(start: str, starts: Sequence[str]) -> None:
    """Raise ValueError for a start that is none of `starts`."""
    if start == WARM and WARM not in starts:
        raise ValueError(
            "a warm start is of sweeps, curves and studies without drafts, resident tokens and"
            " vLLM's rules; choose staged or direct"
        )
    if start not in starts:
        raise ValueError(f"unknown start {start!r}; choose {' or '.join(starts)}")


def counted(demand: Demand, start: str) -> Demand:
    """Return the rows whose misses count: with a warm start all but those of the first step, which
    stands for the last row of the prompt."""
    if start != WARM or not demand.rows:
        return demand
    return demand.cut(int(demand.step[0]) + 1, int(demand.step[-1]) + 1)
