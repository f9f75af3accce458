"""The charts and tables that the script of a page gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from hisparse_sim.simulator.views.report.data import Columns
from hisparse_sim.simulator.views.report.pieces import unbroken
from hisparse_sim.simulator.views.report.vega import Spec

KEYS = "+ and - zoom, arrows move, 0 resets"


@dataclass
class Drawn:
    """Charts by the id of their element, and their tables."""

    tables: dict[str, Columns] = field(default_factory=dict)
    charts: dict[str, Spec] = field(default_factory=dict)
    titles: dict[str, dict[str, str]] = field(default_factory=dict)  # of charts, by choice

    def chart(
        self,
        name: str,
        spec: Spec,
        title: str | Mapping[str, str],
        label: str,
        caption: str,
        columns: Sequence[str],
        zoom: str = "",
        extra: str = "",
        legend: Sequence[str] = (),
    ) -> str:
        """Store a chart for the script and return its card.

        `title`: the finding; if it depends on what is chosen, the findings by "trace|buffer" or
        "trace|buffer|batch", that of the first choice first. `label`: what is drawn, for who cannot
        see it. `columns`: of the exported data. `zoom`: the field of its x axis. `extra`: controls,
        in HTML. `legend`: the parts of the page's legend that belong to it."""
        self.charts[name] = spec | {
            "description": label,  # else Vega calls every chart "Vega visualization"
            "usermeta": {"columns": [*columns], "legend": [*legend]},
        }
        if not isinstance(title, str):
            self.titles[name] = {key: text.replace(" %", "\u00a0%") for key, text in title.items()}
            title = next(iter(title.values()))
        keys = f' aria-keyshortcuts="+ - 0" title="{KEYS}"' if zoom else ""
        return (
            f'<figure class="card" id="{name}-card"><h3>{unbroken(title)}</h3>{extra}'
            f'<div class="chart" id="{name}" role="img" tabindex="0" data-zoom="{zoom}"{keys}'
            f' aria-label="{escape(label)}"></div>'
            f"<figcaption>{escape(caption)}"
            f'<span class="export screen"><button type="button" data-export="svg"'
            f' data-chart="{name}" aria-label="Save the chart {escape(name)} as SVG">SVG</button>'
            f'<button type="button" data-export="csv" data-chart="{name}"'
            f' aria-label="Save the data of {escape(name)} as CSV">CSV</button></span>'
            "</figcaption></figure>"
        )
