"""Assembles a report: sections of text, tables and charts, and the page around them."""

import json
import shlex
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
from hisparse_sim.simulator.replay.metrics import blocks_of
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.views.report import charts, data, findings, measured
from hisparse_sim.simulator.views.report.pieces import (
    Cells,
    buffer_swatch,
    contents,
    copy,
    count,
    details,
    hint,
    more,
    named,
    options,
    policy_swatch,
    table,
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
# The setting of a memory table; what is the same in all of its lines goes above it.
_SETTING = (
    "trace",
    "model",
    "kv_dtype",
    "device_pool_gib",
    "host_gib",
    "request_tokens",
)


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
        self.tables = {"sweep": data.columns(summed)}
        self.charts: dict[str, charts.Spec] = {}
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
            ("plan", "Plan", self._plan()),
            *measured.sections(self.results),
            ("provenance", "Sources, and how to repeat this", self._provenance()),
        ]
        self.embedded = {"tables": self.tables, "charts": self.charts, "signals": signals}

    def _chart(self, name: str, spec: charts.Spec, label: str, caption: str, zoom: str = "") -> str:
        """Store a chart for the script and return its element; `zoom`: the field of its x axis."""
        self.charts[name] = spec
        keys = (
            " With the chart in focus, press + or - to zoom, arrows to move, 0 to reset."
            if zoom
            else ""
        )
        return (
            f'<figure><div class="chart" id="{name}" role="img" tabindex="0"'
            f' aria-label="{escape(label)}" data-zoom="{zoom}"></div>'
            f'<figcaption>{escape(caption)}<span class="screen">{keys}</span></figcaption></figure>'
        )

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
        text += "<h3>By buffer size</h3>" + self._chart(
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
        self.tables["curve"] = data.columns(thinned)
        text += (
            '<p class="screen"><label><input type="checkbox" id="bands" checked>'
            " bands: 10 to 90 % of the layers</label></p>"
        )
        bands: list[charts.Spec] = [*self.shared, {"name": "bands", "value": True}]
        series = self.curves.groupby("trace", sort=False)
        for number, (name, own) in enumerate(series, 1):
            text += self._chart(
                "rolling" + f"-{number}" * (number > 1),
                charts.rolling(str(name), self.policies, self.sizes, bands),
                f"Misses per step and layer of {name} over decode steps",
                f"{name}: {findings.averaged(own)}; colours are policies, dashes are buffers. "
                + " ".join(notes),
                "step",
            )
        return text

    def _policies(self) -> str:
        text = self._chart(
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
            cells[f"by {name}"] = (name, _per_step)
        return (
            listed
            + self._chart(
                "by-layer",
                charts.by_layer(self.policies, shared),
                "Misses per step by layer, a line per policy",
                "Misses per step of every layer.",
                "layer",
            )
            + self._chart(
                "layer-map",
                charts.layer_map(self.policies, shared),
                "Heat map of misses per step by policy and layer",
                "The same as a heat map; brighter means more misses.",
            )
            + details(f"In a table (B = {self.focus_buffer:,})", table(shown, cells))
        )

    def _cost(self) -> str:
        sweep = next(result for result in self.results if result.kind == "sweep")
        rows = data.token_rows(self.rows)
        text = ""
        if blocks := blocks_of(self.rows):
            text = (
                f"<p>Positions are {escape(blocks)}; bytes, time and memory are computed for tokens"
                " only.</p>"
            )
        if rows.empty:
            return text
        times = data.times_table(rows, sweep.parameters, self.profiles)
        self.tables["times"] = data.columns(times.table, 4)
        batch: charts.Spec = {"name": "batch", "value": times.chosen}
        text += "<h3>Time</h3>" + options(
            "batch", "Requests that decode together", times.batches, times.chosen
        )
        text += self._chart(
            "swap-in",
            charts.swap_in(self.policies, times.title, [*self.shared, batch]),
            f"{times.title} by buffer size, a line per policy",
            times.source,
            "buffer",
        )
        text += "<h3>Memory</h3>"
        if "requests_per_gpu" not in rows:
            return text + hint(
                "The results have no memory figures; a ratio adds them:",
                "hisparse-sim sweep TRACE --ratio 4,8 -o rows.parquet",
            )
        cells: dict[str, tuple[str, Callable[[Any], str]]] = {
            "trace": ("trace", str),
            "model": ("model", str),
            "kv_dtype": ("KV", str),
            "device_pool_gib": ("GiB of a GPU", _whole_gib),
            "host_gib": ("GiB of its host", _whole_gib),
            "request_tokens": ("tokens", count),
            "buffer": ("buffer", count),
            "host_to_device_ratio": ("ratio", count),
            "requests_per_gpu": ("requests per GPU", count),
            "hot_buffer_bytes": ("MiB on the GPU per request", _scaled(2**20, 1)),
            "host_bytes_per_request": ("GiB on the host per request", _scaled(2**30, 2)),
            "limit": ("limited by", str),
            "reason": ("because", str),
        }
        fits = rows.dropna(subset=["requests_per_gpu"]).reindex(columns=list(cells))
        fits = fits.drop_duplicates()
        alike = [name for name in _SETTING if fits[name].nunique(dropna=False) == 1]
        told = ", ".join(
            f"{cells[name][0]} {cells[name][1](fits[name].iloc[0])}"
            for name in alike
            if name != "trace" and pd.notna(fits[name].iloc[0])
        )
        shown = {name: cell for name, cell in cells.items() if name not in alike}
        return text + f"<p>{escape(told)}.</p>" + table(fits, shown)

    def _plan(self) -> str:
        plans = findings.plans_of(self.results)
        text = "".join(
            (f"<h3>{escape(plan.path.name)}</h3>" if len(plans) > 1 else "")
            + self._planned(plan, f"-{number}" * (number > 1))
            for number, plan in enumerate(plans, 1)
        )
        text = text or hint(
            "There is no plan among the results. This one weighs memory, misses and time:",
            "hisparse-sim plan --prompt 32768 --output-len 8192 -o plan.json",
        )
        for number, (runs, served) in enumerate(findings.runs_of(self.results), 1):
            if (closed := data.serve_table(served)).empty:
                continue
            suffix = f"-{number}" * (number > 1)
            self.tables[f"serve{suffix}"] = data.columns(closed)
            names = ", ".join(dict.fromkeys(run.path.name for run in runs))
            load = findings.load(runs[0].parameters)
            text += "<h3>Throughput by concurrency</h3>" + self._chart(
                f"throughput{suffix}",
                charts.throughput(list(dict.fromkeys(closed["mode"])), f"serve{suffix}"),
                "Output tokens per second by concurrent requests, a line per mode",
                f"{names}: simulated serving, closed loop"
                + f", for {load}" * bool(load)
                + "."
                + findings.elsewhere(runs[0], self.rows),
                "concurrency",
            )
        return text

    def _planned(self, plan: Result, suffix: str) -> str:
        plans, parameters = plan.rows, plan.parameters
        best = findings.choose_plan(plans)
        if best is None:
            text = "<p>No candidate can run and meets the targets.</p>"
        else:
            text = (
                f"<p>For {escape(findings.load(parameters))}: {best['tokens_per_s']:,.0f} tokens/s"
                f" at {best['tpot_ms']:.1f} ms per token, {best['batch']:.0f} requests per rank,"
                f" limited by {escape(str(best['limit']))}; {best['host_gb']:,.0f} GB of host"
                f" memory are pinned.{escape(findings.worth(best))} Simulated."
                f"{escape(findings.elsewhere(plan, self.rows))}</p>"
                "<p>The engine's flags:</p>" + copy(findings.flags(best, parameters, self.profiles))
            )
        if not (plans["requests"] > 0).any():
            return text
        wanted = "buffer ratio requests batch tokens_per_s tpot_ms host_gb limit".split()
        self.tables[f"plan{suffix}"] = data.columns(plans[wanted])
        return text + self._chart(
            f"pareto{suffix}",
            charts.pareto(
                [int(size) for size in sorted(plans["buffer"].unique())], f"plan{suffix}"
            ),
            "Candidates of the plan: tokens per second over time per token",
            "Upper left is better; larger points pin more host memory.",
            "tpot_ms",
        )

    def _provenance(self) -> str:
        wanted = [name for name in ("trace", "provenance", "trace_sha256") if name in self.rows]
        cells: Cells = {name: (name.replace("_", " "), str) for name in wanted}
        text = table(self.rows.drop_duplicates(wanted), cells)
        text += "<p>Computed by hisparse-sim. To repeat it:</p>"
        for result in self.results:
            text += copy(findings.command(result))
        made = " ".join(dict.fromkeys(shlex.quote(result.path.name) for result in self.results))
        text += copy(f"hisparse-sim report {made} -o report.html")
        versions = {
            str(value)
            for result in self.results
            if "version" in result.rows
            for value in result.rows["version"].dropna().unique()
        }
        text += (
            f'<p class="note">Rows by hisparse-sim {escape(", ".join(sorted(versions)) or "?")},'
            f" page by {escape(version('hisparse-sim'))}. Rows do not hold paths: where a command"
            " names a file, use the trace with the SHA-256 above. Misses are replayed; times, plans"
            " and throughput are predicted by models.</p>"
        )
        if self.notes:
            text += f'<p class="note">{escape(" ".join(self.notes))}</p>'
        return text


def _scaled(unit: float, digits: int) -> Callable[[Any], str]:
    return lambda value: "-" if pd.isna(value) else f"{value / unit:,.{digits}f}"


def _per_step(value: Any) -> str:
    return "-" if pd.isna(value) else f"{value:,.1f}"


def _whole_gib(value: Any) -> str:
    return "-" if pd.isna(value) else f"{value:g}"


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
