"""The answers of plan and serve: their tables, and what they rest on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hisparse_sim.simulator.serving.load_and_targets import Aim
from hisparse_sim.simulator.serving.misses import Origin
from hisparse_sim.simulator.serving.plan import Plan
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.traces.notebook import Shown


@dataclass(frozen=True, kw_only=True, repr=False)
class Planned(Shown, Plan):
    """A plan and its purpose."""

    setting: Setting
    aim: Aim
    origin: Origin  # of the misses
    notes: tuple[str, ...]  # for the reader, a sentence each

    def document(self, every: bool = False) -> dict[str, Any]:
        """Everything, with its basis."""
        return super().document(every) | {"assumptions": [*self.notes, *self.setting.assumptions()]}

    def _shown(self) -> tuple[str, Iterable[str], pd.DataFrame]:
        title = "No plan"
        if self.best is not None:
            title = (
                f"Plan: device_buffer_size {self.best['buffer']},"
                f" host_to_device_ratio {self.best['ratio']}"
            )
        rows = self.rows().drop(columns="flags")
        return title, [*self.reasons, *self.notes, self.flags], rows

    def table(self, every: bool = False) -> pd.DataFrame:
        """The rows with `trace` and `provenance`, as the command writes them and figures need
        them."""
        return with_origin(self.origin, self.rows(every))


@dataclass(frozen=True, repr=False)
class Serving(Shown):
    """Serving runs, a row per mode and load, and their setting."""

    rows: pd.DataFrame
    setting: Setting
    aim: Aim  # of the first load
    origin: Origin  # of the misses
    notes: tuple[str, ...]
    buffer: int  # slots

    def _shown(self) -> tuple[str, Iterable[str], pd.DataFrame]:
        return "Serving", self.notes, self.rows


def with_origin(origin: Origin, rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(trace=origin.name, provenance=origin.provenance)
