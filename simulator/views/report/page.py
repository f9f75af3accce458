"""Assembles a report: sections of text, tables and charts."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from hisparse_sim.simulator.replay.joining import joined, joined_curves
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.views import palette
from hisparse_sim.simulator.views.report import (
    charts,
    choices,
    costs,
    data,
    findings,
    measured,
    plans,
    redo,
    titles,
)
from hisparse_sim.simulator.views.report.drawing import Drawn
from hisparse_sim.simulator.views.report.head import Head
from hisparse_sim.simulator.views.report.pieces import (
    Cells,
    count,
    details,
    hint,
    more,
    table,
    tenths,
)
from hisparse_sim.simulator.views.report.results import Result, rows_of
from hisparse_sim.simulator.views.report.series import Series
from hisparse_sim.simulator.views.report.vega import HEIGHT, Spec

_FIGURES = ["policy", "buffer", "miss_percent", "per_step", "excess_over_min"]  # of a CSV


class Page:
    """The sections, and the data for the script of the page."""

    def __init__(self, results: Sequence[Result], profiles: data.Profiles) -> None:
        self.results, self.profiles = results, profiles
        self.rows = joined(rows_of(results, "sweep"))
        curves = rows_of(results, "curve")
        self.curves = curves if curves.empty else joined_curves(curves)
        self.drawn = Drawn()
        self.notes: list[str] = []
        looks = ["policy", "buffer"]
        both = pd.concat([table.reindex(columns=looks) for table in (self.rows, self.curves)])
        self.policies = list(dict.fromkeys(both["policy"]))
        self.sizes = sorted({int(size) for size in both["buffer"]})
        self.layers: list[int] = []
        self.policy = ""
        self.shown: int | None = None
        self.traces: list[str] = []
        self.times: data.Times | None = None
        _, best = findings.planned(results)
        self.planned = int(best["buffer"]) if best else None
        self.series: dict[str, Series] = {}
        if not self.rows.empty:
            self._sum_up()
        self.head = Head(results, self.rows, self.series, self.times)
        signals = {
            "policies": self.policies,
            "buffers": self.sizes,
            "traces": self.traces[:1],  # one at a time: different series are not summed
            "layers": [self.layers[0], self.layers[-1]] if self.layers else [0, 1e9],
            "shown": self.shown or 0,
            "focus": "",
        }
        self.shared: list[Spec] = [
            {"name": name, "value": value} for name, value in signals.items()
        ]
        self.sections = [("answer", "The answer", self.head.text), *self._of_misses()]
        planned = plans.section(results, self.rows, self.drawn, profiles)
        if planned:
            of = findings.runs_of(results), findings.plans_of(results)
            heading = "Serving" if of[0] and not of[1] else "Plan and serving" if of[0] else "Plan"
            self.sections.append(("plan", heading, planned))
        self.sections += measured.sections(self.results, self.drawn)
        self.sections.append(
            ("provenance", "Sources, and how to repeat this",
             redo.section(results, self.rows, self.notes))
        )  # fmt: skip
        self.legend = choices.bar(self.policies, self.sizes, self.traces, self.layers, self.shown)
        self.embedded = {
            "tables": {name: data.packed(one) for name, one in self.drawn.tables.items()},
            "charts": self.drawn.charts,
            "titles": self.drawn.titles,
            "height": HEIGHT,
            "signals": signals,
            "policy": self.policy,
            "answers": self.head.by_choice([self.policy]),
        }

    @property
    def title(self) -> str:
        named = list(dict.fromkeys([*self.traces, *self.curves.get("trace", [])]))
        if not named:
            kinds = {"plan": "a plan", "serve": "serving", "reproduce": "published figures"}
            kind = self.results[0].kind
            return f"HiSparse: {kinds.get(kind, 'measurements')}"
        which = named[0] if len(named) == 1 else f"{len(named)} traces"
        return f"Hot buffer misses: {which}"

    def _sum_up(self) -> None:
        """What all sections on misses need of the rows of sweeps."""
        summed, notes = data.sweep_table(self.rows)
        self.notes += notes
        self.traces = list(dict.fromkeys(self.rows["trace"]))
        self.layers = sorted(int(layer) for layer in summed["layer"].dropna().unique())
        self.sums = totals(self.rows, ("trace", "policy", "buffer"))
        self.first = self.sums[self.sums["trace"] == self.traces[0]]
        self.policy, self.shown = findings.focus(self.first, self.planned)
        groups = self.rows.groupby("trace", sort=False)
        self.series = {str(name): Series.of(own) for name, own in groups}
        last = summed["policy"].eq(self.policy)  # lines are drawn in this order
        ordered = summed.loc[last.sort_values(kind="stable").index]
        self.drawn.tables["sweep"] = data.columns(ordered)
        priced = data.priced_rows(self.rows)
        if not priced.empty:
            sweep = next(result for result in self.results if result.kind == "sweep")
            self.times = data.times_table(priced, sweep.parameters, self.profiles)

    def _of_misses(self) -> list[tuple[str, str, str]]:
        """Return the sections on rows of sweeps and on rolling curves."""
        if self.rows.empty and self.curves.empty:
            return []
        found = [("misses", "Misses", self._misses())]
        if self.rows.empty:
            return found
        return [
            *found,
            ("policies", "Policies and excess over MIN", self._policies()),
            ("layers", "Layers", self._layers()),
            ("cost", "Cost of misses",
             costs.section(self.rows, self.times, self.policies, self.shared, self.drawn,
                           self.planned)),
        ]  # fmt: skip

    def _titles(
        self, title: Callable[[pd.DataFrame, str, int], str], sums: pd.DataFrame
    ) -> dict[str, str]:
        """Return a title for every trace and buffer, that of the first choice first."""
        found = {}
        for trace, own in sums.groupby("trace", sort=False):
            policy, buffer = findings.focus(own, self.planned)
            sizes = own.loc[own["policy"] == policy, "buffer"].unique()
            for size in sorted(sizes, key=lambda size: size != buffer):
                found[f"{trace}|{size}"] = title(own, policy, int(size))
        return found

    def _misses(self) -> str:
        text = ""
        if not self.rows.empty:
            swept = sorted(int(size) for size in self.rows["buffer"].unique())
            text += self.drawn.chart(
                "miss-ratio",
                charts.miss_ratio(self.policies, swept, self.shared),
                self._titles(titles.miss_ratio, self.sums),
                "Misses in per cent of selected positions by buffer size, a line per policy",
                "Misses over selected positions, summed over the layers chosen above. Where lines"
                " coincide, the engine's policy is drawn last.",
                _FIGURES,
                "buffer",
                legend=["policy"],
            )
        if self.curves.empty:
            shown = hint(
                "There are no rolling curves among the results; add them with",
                "hisparse-sim curve TRACE -o curve.parquet",
            )
            return text + f'<div class="card"><h3>Misses over decode steps</h3>{shown}</div>'
        thinned, notes = data.curve_table(self.curves)
        self.notes += notes
        self.drawn.tables["curve"] = data.columns(thinned, 1)
        series = self.curves.groupby("trace", sort=False)
        for number, (name, own) in enumerate(series, 1):
            banded = "; bands: 10 to 90 % of the layers" * bool((own["p10"] < own["p90"]).any())
            text += self.drawn.chart(
                "rolling" + f"-{number}" * (number > 1),
                charts.rolling(
                    str(name),
                    self.policies,
                    self.sizes,
                    list(dict.fromkeys(own["policy"])),
                    self.shared,
                ),
                (f"{name}: " if len(series) > 1 else "") + titles.rolling(own),
                f"Misses per step and layer of {name} over decode steps",
                f"{name}: {findings.averaged(own)}{banded}. " + " ".join(notes),
                ["trace", "policy", "buffer", "step", "misses_per_step", "p10", "p90"],
                "step",
                legend=["policy", "buffer"],
            )
        return text

    def _policies(self) -> str:
        text = self.drawn.chart(
            "dots",
            charts.policy_dots(self.policies, self.shared),
            self._titles(titles.policies, self.sums),
            "Misses per step and layer at the chosen buffer, a dot per policy",
            "Dots are means (in brackets the excess over MIN); lines span the layers, the thick"
            " part their middle half.",
            [*_FIGURES, "low", "q1", "q3", "high"],
            legend=["policy"],
        )
        cells: Cells = {
            "policy": ("policy", palette.named),
            "buffer": ("slots", count),
            "miss_rate": ("miss %", lambda value: f"{100 * value:.2f}"),
            "misses_per_step": ("per step", lambda value: f"{value:,.1f}"),
            "excess_over_min": ("over MIN", more),
        }
        if len(self.traces) > 1:
            cells = {"trace": ("trace", str), **cells}
        return text + details("All figures in a table (all layers)", table(self.sums, cells))

    def _layers(self) -> str:
        if len(self.layers) < 2:
            return hint(
                "The results have no layers; for this view write them with",
                "hisparse-sim sweep TRACE --per-layer -o rows.parquet",
            )
        shown = self.shown or 0
        layers = totals(self.rows, ("trace", "layer", "policy", "buffer"))
        own = layers[(layers["buffer"] == shown) & layers["layer"].notna()]
        wide = own.pivot(index=["trace", "layer"], columns="policy", values="misses_per_step")
        wide = wide.reindex(columns=self.policies)
        listed = wide.index.to_frame(index=False)
        cells: dict[str, tuple[str, Callable[[Any], str]]] = {"layer": ("layer", count)}
        if len(self.traces) > 1:
            cells = {"trace": ("trace", str), **cells}
        for name in self.policies:  # a policy may have the name of another column
            listed[f"by {name}"] = wide[name].to_numpy()
            cells[f"by {name}"] = (palette.named(name), tenths)
        return self.drawn.chart(
            "by-layer",
            charts.by_layer(self.policies, self.layers, self.shared),
            self._titles(titles.layers, layers),
            "Misses per step by layer, a line per policy",
            _joins(self.layers),
            ["layer", *_FIGURES],
            "layer",
            legend=["policy"],
        ) + details(
            f"In a table ({shown:,} slots)", f'<div id="layer-table">{table(listed, cells)}</div>'
        )


def _joins(layers: Sequence[int]) -> str:
    """Say what the lines of a chart by layer join."""
    apart = [after - before > 1 for before, after in pairwise(layers)]
    if all(apart):
        return "A point is a layer; those between were not sampled."
    if any(apart):
        return "Lines join neighbouring layers only, those between were not sampled."
    return ""
