"""The charts and tables that the script of a page gets."""

from dataclasses import dataclass, field
from html import escape

from hisparse_sim.simulator.views.report.charts import Spec
from hisparse_sim.simulator.views.report.data import Columns


@dataclass
class Drawn:
    """Charts by the id of their element, and their tables."""

    tables: dict[str, Columns] = field(default_factory=dict)
    charts: dict[str, Spec] = field(default_factory=dict)

    def chart(self, name: str, spec: Spec, label: str, caption: str, zoom: str = "") -> str:
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
