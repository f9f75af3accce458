"""Puts a report together: sections of text, tables and charts, and the page around them."""

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

from hisparse_sim.simulator.replay.metrics import blocks_of, origins
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.views import report
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


def write_report(results: Sequence[Result], path: Path, title: str | None = None) -> list[str]:
    """Write the page about `results` to `path`, atomically; return what it leaves out.

    Raises TraceError if vl-convert-python is missing."""
    page = _Page(results)
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


class _Page:
    """The sections, and what the script of the page gets."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = results
        self.rows = rows_of(results, "sweep")
        self.sums = totals(self.rows)
        summed, self.notes = data.sweep_table(self.rows)
        self.policies = list(dict.fromkeys(self.rows["policy"]))
        self.sizes = [int(size) for size in sorted(self.rows["buffer"].unique())]
        self.traces = list(dict.fromkeys(self.rows["trace"]))
        self.layers = sorted(int(layer) for layer in summed["layer"].dropna().unique())
        self.focus_policy, self.focus_buffer = findings.focus(self.sums)
        self.tables = {"sweep": data.columns(summed)}
        self.charts: dict[str, charts.Spec] = {}
        which = f"{self.traces[0]}" if len(self.traces) == 1 else f"{len(self.traces)} traces"
        self.title = f"Hot buffer misses: {which}"
        signals = {
            "policies": self.policies,
            "buffers": self.sizes,
            "traces": self.traces,
            "layers": [self.layers[0], self.layers[-1]] if self.layers else [0, 1e9],
        }
        self.shared: list[charts.Spec] = [
            {"name": name, "value": value} for name, value in signals.items()
        ]
        self.sections = [
            ("question", "The question", self._question()),
            ("answer", "The answer", self._answer()),
            ("misses", "Misses", self._misses()),
            ("policies", "Policies, and excess over MIN", self._policies()),
            ("layers", "Layers", self._layers()),
            ("cost", "What misses cost", self._cost()),
            ("plan", "Plan", self._plan()),
            *measured.sections(self.results),
            ("provenance", "Where this comes from, and how to redo it", self._provenance()),
        ]
        self.embedded = {"tables": self.tables, "charts": self.charts, "signals": signals}

    def _chart(self, name: str, spec: charts.Spec, label: str, caption: str, zoom: str = "") -> str:
        """Keep a chart for the script and return its place; `zoom`: the field of its x axis."""
        self.charts[name] = spec
        keys = " Focus it and press + or - to zoom, arrows to move, 0 to reset." if zoom else ""
        return (
            f'<figure><div class="chart" id="{name}" role="img" tabindex="0"'
            f' aria-label="{escape(label)}" data-zoom="{zoom}"></div>'
            f'<figcaption>{escape(caption)}<span class="screen">{keys}</span></figcaption></figure>'
        )

    def _question(self) -> str:
        starts = " and ".join(dict.fromkeys(self.rows["start"])) if "start" in self.rows else ""
        text = f"<p>{escape(findings.question(self.rows))}</p>"
        text += (
            f"<p>Replayed: {escape(', '.join(origins(self.rows)))}, "
            f"{int(self.sums['steps'].max()):,} pairs of layer and step"
            + (f", {escape(starts)} start" if starts else "")
            + ".</p>"
        )
        if synthetic := findings.synthetic(self.rows):
            text += f'<p class="synthetic">{escape(synthetic)}</p>'
        return text

    def _answer(self) -> str:
        return f'<p class="answer">{escape(" ".join(findings.answer(self.results)))}</p>'

    def _choices(self) -> str:
        def boxes(
            title: str, name: str, values: Sequence[Any], swatch: Callable[[int], str]
        ) -> str:
            ticks = "".join(
                f'<label><input type="checkbox" name="{name}" value="{escape(str(value))}" checked>'
                f"{swatch(number)}{escape(named(value))}</label>"
                for number, value in enumerate(values)
            )
            return f"<fieldset><legend>{title}</legend>{ticks}</fieldset>"

        found = boxes("Policies", "policy", self.policies, policy_swatch)
        found += boxes("Buffers", "buffer", self.sizes, buffer_swatch)
        if len(self.traces) > 1:
            found += boxes("Traces", "trace", self.traces, lambda number: "")
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
            '<form id="choices" aria-label="What the charts show" onsubmit="return false">'
            f"{found}</form>"
        )

    def _misses(self) -> str:
        text = self._choices()
        curve = rows_of(self.results, "curve")
        text += "<h3>By buffer size</h3>" + self._chart(
            "miss-ratio",
            charts.miss_ratio(self.policies, self.shared),
            "Misses in per cent of demanded positions by buffer size, a line per policy",
            "Misses over demanded positions, summed over the layers and traces chosen above.",
            "buffer",
        )
        text += "<h3>As a request goes on</h3>"
        if curve.empty:
            return text + hint(
                "No rolling curves among the results; add them with",
                "hisparse-sim curve TRACE -o curve.parquet",
            )
        thinned, notes = data.curve_table(curve)
        self.notes += notes
        self.tables["curve"] = data.columns(thinned)
        names = list(dict.fromkeys([*self.policies, *curve["policy"]]))
        sizes = sorted({*self.sizes, *map(int, curve["buffer"])})
        window = next(r.parameters.get("window") for r in self.results if r.kind == "curve")
        over = f" of {window} steps" if window else ""
        spec = charts.rolling(names, sizes, [*self.shared, {"name": "bands", "value": True}])
        return (
            text + '<p class="screen"><label><input type="checkbox" id="bands" checked>'
            " bands: 10 to 90 % of the layers</label></p>"
            + self._chart(
                "rolling",
                spec,
                "Misses per step and layer over decode steps",
                f"Mean over layers of the trailing mean{over}; colours are"
                " policies, dashes are buffers. " + " ".join(notes),
                "step",
            )
        )

    def _policies(self) -> str:
        text = self._chart(
            "bars",
            charts.policy_bars(self.policies, self.sizes, self.shared),
            "Misses per step and layer by buffer and policy",
            "Bars: misses per step and layer; text: excess over MIN (Belady).",
        )
        cells: Cells = {
            "policy": ("policy", str),
            "buffer": ("buffer", count),
            "miss_rate": ("miss %", lambda value: f"{100 * value:.2f}"),
            "misses_per_step": ("per step", lambda value: f"{value:,.1f}"),
            "excess_over_min": ("over MIN", more),
        }
        return text + details("All figures as a table (all layers)", table(self.sums, cells))

    def _layers(self) -> str:
        if len(self.layers) < 2:
            return hint(
                "The results do not tell layers apart; for this view write them with",
                "hisparse-sim sweep TRACE --per-layer -o rows.parquet",
            )
        shared: list[charts.Spec] = [*self.shared, {"name": "shown", "value": self.focus_buffer}]
        listed = options("shown", "Buffer", self.sizes, self.focus_buffer)
        layers = totals(self.rows, ("layer", "policy", "buffer"))
        own = layers[layers["buffer"] == self.focus_buffer]
        wide = own.pivot_table(index="layer", columns="policy", values="misses_per_step")
        wide = wide.reindex(columns=self.policies).reset_index()
        cells: Cells = {"layer": ("layer", count)} | {
            name: (name, lambda value: f"{value:,.1f}") for name in self.policies
        }
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
                "The same as a heat map: brighter is more misses.",
            )
            + details(f"As a table (B = {self.focus_buffer:,})", table(wide, cells))
        )

    def _cost(self) -> str:
        sweep = next(result for result in self.results if result.kind == "sweep")
        rows = data.token_rows(self.rows)
        text = ""
        if blocks := blocks_of(self.rows):
            text = (
                f"<p>Positions are {escape(blocks)}; bytes, time and memory are known for tokens"
                " only.</p>"
            )
        if rows.empty:
            return text
        times = data.times_table(rows, sweep.parameters)
        self.tables["times"] = data.columns(times.table, 4)
        batch: charts.Spec = {"name": "batch", "value": times.chosen}
        text += "<h3>Time</h3>" + options(
            "batch", "Requests decoding together", times.batches, times.chosen
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
                "No memory in the results; it comes with a ratio:",
                "hisparse-sim sweep TRACE --ratio 4,8 -o rows.parquet",
            )
        fits = rows.dropna(subset=["requests_per_gpu"])
        fits = fits.drop_duplicates(["trace", "buffer", "host_to_device_ratio"])
        cells: Cells = {
            "buffer": ("buffer", count),
            "host_to_device_ratio": ("ratio", count),
            "requests_per_gpu": ("requests per GPU", count),
            "hot_buffer_bytes": ("MB on the GPU, each", lambda value: f"{value / 1e6:,.1f}"),
            "host_bytes_per_request": ("GB on the host, each", lambda value: f"{value / 1e9:,.2f}"),
            "limit": ("limited by", str),
            "reason": ("because", str),
        }
        if len(self.traces) > 1:
            cells = {"trace": ("trace", str), **cells}
        first = fits.iloc[0]
        return (
            text
            + f"<p>{escape(str(first['model']))} with {escape(str(first['kv_dtype']))} KV.</p>"
            + table(fits, cells)
        )

    def _plan(self) -> str:
        plans, served = rows_of(self.results, "plan"), rows_of(self.results, "serve")
        if plans.empty:
            text = hint(
                "No plan among the results. This one weighs memory, misses and time:",
                "hisparse-sim plan --prompt 32768 --output-len 8192 -o plan.json",
            )
        else:
            text = self._planned(plans)
        if served.empty or (closed := data.serve_table(served)).empty:
            return text
        self.tables["serve"] = data.columns(closed)
        return (
            text
            + "<h3>Throughput by concurrency</h3>"
            + self._chart(
                "throughput",
                charts.throughput(list(dict.fromkeys(closed["mode"]))),
                "Output tokens per second by concurrent requests, a line per mode",
                "Simulated serving, closed loop.",
                "concurrency",
            )
        )

    def _planned(self, plans: pd.DataFrame) -> str:
        best = findings.choose_plan(plans)
        parameters = next(r.parameters for r in self.results if r.kind == "plan")
        if best is None:
            text = "<p>No candidate can run and meets the targets.</p>"
        else:
            load = ", ".join(
                f"{name.replace('_', ' ')} {parameters[name]}"
                for name in ("model", "hardware", "layout", "prompt", "output_len", "concurrency")
                if name in parameters
            )
            text = (
                f"<p>For {escape(load)}: {best['tokens_per_s']:,.0f} tokens/s at"
                f" {best['tpot_ms']:.1f} ms per token, {best['batch']:.0f} requests per rank,"
                f" limited by {escape(str(best['limit']))}; {best['host_gb']:,.0f} GB of host"
                f" memory are pinned.{escape(findings.worth(best))} Simulated.</p>"
                "<p>The engine's flags:</p>" + copy(findings.flags(best, parameters))
            )
        if not (plans["requests"] > 0).any():
            return text
        wanted = "buffer ratio requests batch tokens_per_s tpot_ms host_gb limit".split()
        self.tables["plan"] = data.columns(plans[wanted])
        return text + self._chart(
            "pareto",
            charts.pareto([int(size) for size in sorted(plans["buffer"].unique())]),
            "Candidates of the plan: tokens per second over time per token",
            "Candidates; upper left is better, larger points pin more host memory.",
            "tpot_ms",
        )

    def _provenance(self) -> str:
        wanted = [name for name in ("trace", "provenance", "trace_sha256") if name in self.rows]
        cells: Cells = {name: (name.replace("_", " "), str) for name in wanted}
        text = table(self.rows.drop_duplicates(wanted), cells)
        text += "<p>Computed by hisparse-sim; to redo it:</p>"
        for result in self.results:
            text += copy(findings.command(result))
        made = " ".join(str(result.path.name) for result in self.results)
        text += copy(f"hisparse-sim report {made} -o report.html")
        versions = {
            str(value)
            for result in self.results
            if "version" in result.rows
            for value in result.rows["version"].unique()
        }
        text += (
            f'<p class="note">Rows by hisparse-sim {escape(", ".join(sorted(versions)) or "?")},'
            f" page by {escape(version('hisparse-sim'))}. Rows do not hold paths: where a command"
            " names a file, put the trace with the SHA-256 above. Misses are replayed; times, plans"
            " and throughput are predicted by models.</p>"
        )
        if self.notes:
            text += f'<p class="note">Left out: {escape(" ".join(self.notes))}</p>'
        return text


def _shipped(name: str) -> str:
    return (files(report) / name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script that may stand inside a page."""
    try:
        import vl_convert
    except ImportError:
        raise TraceError(_BUNDLE_HELP) from None
    bundle: str = vl_convert.javascript_bundle()
    return bundle.replace("</script", "<\\/script")


def _script_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
