"""The scores of a step between 0 for its lowest and 1 for its highest, whatever their scale."""

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Step


@hook
def span(step: Step) -> tuple[float, float]:
    """Return the lowest score of a step, and what a score above it is divided by."""
    low, high = 0.0, 0.0
    for i in range(len(step.scores)):
        score = float(step.scores[i])
        low = score if i == 0 else min(low, score)
        high = score if i == 0 else max(high, score)
    return low, high - low if high > low else 1.0
