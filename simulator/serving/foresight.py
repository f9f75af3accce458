"""How well misses are foreseen by a guess, for modes of serving that copy ahead of need."""

from dataclasses import dataclass

from hisparse_sim.traces.documents import MOST_AMOUNT


@dataclass(frozen=True)
class Guess:
    """How good a guess of misses is: stated, none is replayed here."""

    recall: float  # share of the misses that are copied ahead
    waste: float = 0.0  # copies in vain for every one of them

    def __post_init__(self) -> None:
        if not 0 <= self.recall <= 1:
            raise ValueError(f"prefetch_recall must be from 0 to 1, not {self.recall}")
        if not 0 <= self.waste <= MOST_AMOUNT:
            raise ValueError(f"prefetch_waste must be finite and at least 0, not {self.waste}")
