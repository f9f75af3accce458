"""Assembles a report: sections of text, tables and charts, and the page around them."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd

from hisparse_sim.simulator.replay.joining import joined, joined_curves
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.views.report import charts, costs, data, findings, measured, plans, redo
from hisparse_sim.simulator.views.report.drawing import Drawn
from hisparse_sim.simulator.views.report.pieces import (
    Cells,
    buffer_swatch,
    contents,
    count,
    details,
    hint,
    more,
    named,
    options,
    policy_swatch,
    table,
    tenths,
)
from hisparse_sim.simulator.views.report.results import Result, rows_of
from hisparse_sim.traces import TraceError, atomic_path
from hisparse_sim.traces.errors import install

_BUNDLE_HELP = f"the report needs Vega-Lite from the package vl-convert-python: {install('report')}"


def write_report(
    results: Sequence[Result],
    path: Path,
    title: str | None = None,
    profiles: data.Profiles = None,
) -> list[str]:
    """Write the page about `results` to `path`, atomically; return notes for its reader.
    `profiles`: a file with models and links that are not shipped.

    Raises TraceError if vl-convert-python is missing, if results cannot be joined, or if they name
    a model or link that is in no available profile."""
    page = _Page(results, profiles)
    text = Template(_shipped("page.html")).substitute(
        version=escape(version("hisparse-sim")),
        title=escape(title or page.title),
        style=_shipped("page.css"),
        contents=contents(page.sections),
        sections="\n".join(
            f'<section id="{name}"><h2>{heading}</h2>\n{body}\n</section>'
            for name, heading, body in page.sections
        ),
        data=_script_json(page.embedded),
        library=_library(),
        script=_shipped("page.js"),
    )
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return page.notes


_LOOKS = ["policy", "buffer"]


class _Page:
    """The sections, and the data for the script of the page."""

    def __init__(self, results: Sequence[Result], profiles: data.Profiles) -> None:
        self.results, self.profiles = results, profiles
        self.rows = joined(rows_of(results, "sweep"))
        curves = rows_of(results, "curve")
        self.curves = curves if curves.empty else joined_curves(curves)
        summed, self.notes = data.sweep_table(self.rows)
        both = pd.concat([self.rows[_LOOKS], self.curves.reindex(columns=_LOOKS)])
        self.policies = list(dict.fromkeys(both["policy"]))
        self.sizes = sorted({int(size) for size in both["buffer"]})
        self.traces = list(dict.fromkeys(self.rows["trace"]))
        self.layers = sorted(int(layer) for layer in summed["layer"].dropna().unique())
        self.sums = totals(self.rows, ("trace", "policy", "buffer"))
        self.focus_buffer = findings.focus(self.sums)[1]
        self.drawn = Drawn()
        self.drawn.tables["sweep"] = data.columns(summed)
        which = f"{self.traces[0]}" if len(self.traces) == 1 else f"{len(self.traces)} traces"
        self.title = f"Hot buffer misses: {which}"
        signals = {
            "policies": self.policies,
            "buffers": self.sizes,
            "traces": self.traces[:1],  # one at a time: different series are not summed
            "layers": [self.layers[0], self.layers[-1]] if self.layers else [0, 1e9],
        }
        self.shared: list[charts.Spec] = [
            {"name": name, "value": value} for name, value in signals.items()
        ]
        self.sections = [
            ("question", "The question", self._question()),
            ("answer", "The answer", self._answer()),
            ("misses", "Misses", self._misses()),
            ("policies", "Policies and excess over MIN", self._policies()),
            ("layers", "Layers", self._layers()),
            ("cost", "Cost of misses", self._cost()),
            ("plan", "Plan", plans.section(results, self.rows, self.drawn, profiles)),
            *measured.sections(self.results),
            (
                "provenance",
                "Sources, and how to repeat this",
                redo.section(results, self.rows, self.notes),
            ),
        ]
        self.embedded = {
            "tables": self.drawn.tables,
            "charts": self.drawn.charts,
            "signals": signals,
        }

    def _question(self) -> str:
        text = f"<p>{escape(findings.question(self.rows))}</p>"
        steps = self.sums.groupby("trace", sort=False)["steps"].max()
        for name, own in self.rows.groupby("trace", sort=False):
            kinds = ", ".join(dict.fromkeys(map(str, own["provenance"])))
            covers = f"{int(steps[name]):,} pairs of layer and step, {findings.covered(own)}"
            text += f"<p>Replayed: {escape(f'{name} ({kinds}), {covers}')}.</p>"
            if "synthetic" in kinds:
                text += (
                    '<p class="synthetic">Synthetic trace: its figures are not those of a real'
                    " model.</p>"
                )
        return text

    def _answer(self) -> str:
        said = findings.answer(self.results, self.profiles)
        return "".join(f'<p class="answer">{escape(one)}</p>' for one in said)

    def _choices(self) -> str:
        def boxes(
            title: str,
            name: str,
            values: Sequence[Any],
            swatch: Callable[[int], str],
            one: bool = False,
        ) -> str:
            kind = "radio" if one else "checkbox"
            ticks = "".join(
                f'<label><input type="{kind}" name="{name}" value="{escape(str(value))}"'
                f"{' checked' if number == 0 or not one else ''}>"
                f"{swatch(number)}{escape(named(value))}</label>"
                for number, value in enumerate(values)
            )
            return f"<fieldset><legend>{title}</legend>{ticks}</fieldset>"

        found = boxes("Policies", "policy", self.policies, policy_swatch)
        found += boxes("Buffers", "buffer", self.sizes, buffer_swatch)
        if len(self.traces) > 1:
            found += boxes("Trace", "trace", self.traces, lambda number: "", one=True)
        if self.layers:
            first, last = self.layers[0], self.layers[-1]
            found += "<fieldset><legend>Layers</legend>" + "".join(
                f'<label>{word} <input type="number" id="{name}" min="{first}" max="{last}"'
                f' value="{value}"></label>'
                for word, name, value in (
                    ("from", "first-layer", first),
                    ("to", "last-layer", last),
                )
            )
            found += "</fieldset>"
        return (
            '<form id="choices" aria-label="Contents of the charts" onsubmit="return false">'
            f"{found}</form>"
        )

    def _misses(self) -> str:
        text = self._choices()
        text += "<h3>By buffer size</h3>" + self.drawn.chart(
            "miss-ratio",
            charts.miss_ratio(self.policies, self.shared),
            "Misses in per cent of selected positions by buffer size, a line per policy",
            "Misses over selected positions, summed over the layers chosen above.",
            "buffer",
        )
        text += "<h3>Misses over decode steps</h3>"
        if self.curves.empty:
            return text + hint(
                "There are no rolling curves among the results; add them with",
                "hisparse-sim curve TRACE -o curve.parquet",
            )
        thinned, notes = data.curve_table(self.curves)
        self.notes += notes
        self.drawn.tables["curve"] = data.columns(thinned)
        text += (
            '<p class="screen"><label><input type="checkbox" id="bands" checked>'
            " bands: 10 to 90 % of the layers</label></p>"
        )
        bands: list[charts.Spec] = [*self.shared, {"name": "bands", "value": True}]
        series = self.curves.groupby("trace", sort=False)
        for number, (name, own) in enumerate(series, 1):
            text += self.drawn.chart(
                "rolling" + f"-{number}" * (number > 1),
                charts.rolling(str(name), self.policies, self.sizes, bands),
                f"Misses per step and layer of {name} over decode steps",
                f"{name}: {findings.averaged(own)}; colours stand for policies, dashes for"
                " buffers. " + " ".join(notes),
                "step",
            )
        return text

    def _policies(self) -> str:
        text = self.drawn.chart(
            "bars",
            charts.policy_bars(self.policies, self.sizes, self.shared),
            "Misses per step and layer by buffer and policy",
            "Bars: misses per step and layer. Text: excess over MIN (Belady).",
        )
        cells: Cells = {
            "policy": ("policy", str),
            "buffer": ("buffer", count),
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
        shared: list[charts.Spec] = [*self.shared, {"name": "shown", "value": self.focus_buffer}]
        listed = options("shown", "Buffer", self.sizes, self.focus_buffer)
        layers = totals(self.rows, ("trace", "layer", "policy", "buffer"))
        own = layers[(layers["buffer"] == self.focus_buffer) & layers["layer"].notna()]
        wide = own.pivot(index=["trace", "layer"], columns="policy", values="misses_per_step")
        wide = wide.reindex(columns=self.policies)
        shown = wide.index.to_frame(index=False)
        cells: dict[str, tuple[str, Callable[[Any], str]]] = {"layer": ("layer", count)}
        if len(self.traces) > 1:
            cells = {"trace": ("trace", str), **cells}
        for name in self.policies:  # a policy may have the name of another column
            shown[f"by {name}"] = wide[name].to_numpy()
            cells[f"by {name}"] = (name, tenths)
        return (
            listed
            + self.drawn.chart(
                "by-layer",
                charts.by_layer(self.policies, shared),
                "Misses per step by layer, a line per policy",
                "Misses per step of every layer.",
                "layer",
            )
            + self.drawn.chart(
                "layer-map",
                charts.layer_map(self.policies, shared),
                "Heat map of misses per step by policy and layer",
                "The same as a heat map; brighter means more misses.",
            )
            + details(f"In a table (B = {self.focus_buffer:,})", table(shown, cells))
        )

    def _cost(self) -> str:
        first = next(result for result in self.results if result.kind == "sweep")
        return costs.section(
            self.rows, self.policies, first.parameters, self.shared, self.drawn, self.profiles
        )


def _shipped(name: str) -> str:
    return (files(__package__ or __name__) / name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script for use inside a page."""
    try:
        import vl_convert
    except ImportError:
        raise TraceError(_BUNDLE_HELP) from None
    bundle: str = vl_convert.javascript_bundle()
    return bundle.replace("</script", "<\\/script")


def _script_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
