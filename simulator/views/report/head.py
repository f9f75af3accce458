"""The head of a page: verdict, tiles and lines, for every buffer and policy to choose."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import product
from typing import Any

import pandas as pd

from hisparse_sim.simulator.views.report import answer, data, facts, findings
from hisparse_sim.simulator.views.report.pieces import unbroken
from hisparse_sim.simulator.views.report.results import Result
from hisparse_sim.simulator.views.report.series import Series


class Head:
    """The answer of `results`. `rows`: those of sweeps, also as `series` by name; `times`: None
    without tokens."""

    def __init__(
        self,
        results: Sequence[Result],
        rows: pd.DataFrame,
        series: Mapping[str, Series],
        times: data.Times | None,
    ) -> None:
        self.results, self.rows, self.series, self.times = results, rows, series, times
        self.plan, self.best = findings.planned(results)
        self.facts: list[facts.Fact] = []  # of a single trace, and of settings
        self.text = self._text()

    def _text(self) -> str:
        tiles, self.facts = self._of_settings()
        rates = findings.rates_of(self.results, self.rows)
        planned = self.best is not None
        size = int(self.best["buffer"]) if self.best else None
        text = ""
        for name, series in self.series.items():
            policy, buffer = findings.focus(series.sums, size)
            shown = answer.of_choice(series, self.times, policy, buffer, planned)
            said = facts.of_choice(series, policy, buffer, planned)
            said.append(facts.of_source(series.rows, rates))
            if len(self.series) > 1:
                head = f"<h3>{escape(name)}</h3>{answer.tiles_html(shown)}{facts.html(said)}"
                text += f'<div data-trace="{escape(name)}">{head}</div>'
            else:
                tiles = [*shown, *tiles[: len(tiles) if planned else 1]]
                self.facts = [*self.facts, *said]
        verdict = answer.verdict(self.results, self.rows, size)
        return self.with_lines(
            (f'<p class="verdict">{unbroken(verdict)}</p>' if verdict else "")
            + text
            + (answer.tiles_html(tiles) if tiles else "")
        )

    def with_lines(self, text: str, leave_out: Sequence[str] = ()) -> str:
        """Return verdict and tiles, `text`, with the lines below them."""
        said = [one for one in self.facts if one.about not in leave_out]
        text += facts.html(said) if said else ""
        rows = self.rows
        if not rows.empty and rows["provenance"].astype(str).str.contains("synth").any():
            text += (
                '<p class="synthetic">Synthetic trace: its figures are not those of a real'
                " model.</p>"
            )
        names = list(self.series)
        of = f' data-trace="{escape(names[0])}"' if len(names) == 1 else ""
        return f'<div class="wide"{of}>{text}</div>'

    def by_choice(self, policies: Sequence[str]) -> dict[str, Any]:
        """Return, by "trace|buffer|policy", value and note of the tiles, and the lines, that follow
        the choice."""
        found = {}
        planned = self.best is not None
        for (name, series), policy in product(self.series.items(), policies):
            sizes = series.sums.loc[series.sums["policy"] == policy, "buffer"]
            for size in sizes.astype(int):
                tiles = answer.of_choice(series, self.times, policy, size, planned)
                lines = facts.of_choice(series, policy, size, planned)
                found[f"{name}|{size}|{policy}"] = {
                    "tiles": {one.name: [one.value, one.note] for one in tiles},
                    "lines": {one.about: one.said for one in lines},
                }
        return found

    def _of_settings(self) -> tuple[list[answer.Tile], list[facts.Fact]]:
        """Return tiles and lines of plans, serving runs and published figures."""
        tiles: list[answer.Tile] = []
        lines: list[facts.Fact] = []
        results, best = self.results, self.best
        served = next((data.serve_table(rows) for _, rows in findings.runs_of(results)), None)
        if best is not None and self.plan is not None:
            name = self.plan.path.name if len(findings.plans_of(results)) > 1 else ""
            tiles, lines = answer.of_plan(best, self.plan.parameters), [facts.of_plan(best, name)]
        elif served is not None and len(served):
            tiles = answer.of_served(served)
        redone = findings.published_of(results)
        if not redone.empty and not tiles:
            tiles = [] if len(self.rows) else answer.of_published(redone)
        if best is not None or served is not None or len(self.rows):
            lines.append(facts.of_load(results, best))
        if self.rows.empty:
            lines.append(facts.of_files(results, findings.rates_of(results, self.rows)))
        return tiles, lines
