"""What a rank is worth: 1 for the best, falling to 0 at `reach` times the length of the row."""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Floats, Longs, Setup, Step


class Gains(NamedTuple):
    of: Floats  # [T + 1] of every rank
    shape: Floats  # [3] reach, power, levels
    length: Longs  # [1] of the row that they were made for


def gains(setup: Setup, reach: float, power: float = 1.0, levels: int = 0) -> Gains:
    """Return gains of (1 - rank / (reach K)) ** power, K the length of the row.

    With `levels` they take so many values above 0 only, for what a kernel may hold in a few bits.
    """
    shape = np.array([reach, power, float(levels)])
    return Gains(np.zeros(setup.positions + 1), shape, np.full(1, -1))


@hook
def fit(gains: Gains, step: Step) -> int:
    """Make the gains those of this step; return how many ranks have one."""
    row, ranks = len(step.row), len(gains.of) - 1
    reach, power, levels = gains.shape
    end = min(int(np.ceil(reach * row)), ranks)
    if gains.length[0] != row:
        gains.length[0] = row
        gains.of[:] = 0.0
        for rank in range(end):
            gain = (1.0 - rank / (reach * row)) ** power
            gains.of[rank] = gain if levels == 0.0 else np.ceil(gain * levels) / levels
    return end
