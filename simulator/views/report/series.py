"""One trace of a report: its rows, and their sums."""

from typing import NamedTuple

import pandas as pd

from hisparse_sim.simulator.replay.totals import totals


class Series(NamedTuple):
    """The rows of one trace, and what every choice of policy and buffer needs of them."""

    rows: pd.DataFrame
    sums: pd.DataFrame  # totals
    layers: pd.DataFrame | None  # totals by layer, if the rows have layers

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Series":
        by_layer = rows["layer"].notna().any()
        layers = totals(rows, ("layer", "policy", "buffer")) if by_layer else None
        return cls(rows, totals(rows), layers)
