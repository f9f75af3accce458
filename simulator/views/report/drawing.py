"""The charts and tables that a page hands to its script."""

from dataclasses import dataclass, field
from html import escape

from hisparse_sim.simulator.views.report.charts import Spec
from hisparse_sim.simulator.views.report.data import Columns


@dataclass
class Drawn:
    """Charts by the id of their place, and the tables that they are of."""

    tables: dict[str, Columns] = field(default_factory=dict)
    charts: dict[str, Spec] = field(default_factory=dict)

    def chart(self, name: str, spec: Spec, label: str, caption: str, zoom: str = "") -> str:
        """Keep a chart for the script and return its place; `zoom`: the field of its x axis."""
        self.charts[name] = spec
        keys = " Focus it and press + or - to zoom, arrows to move, 0 to reset." if zoom else ""
        return (
            f'<figure><div class="chart" id="{name}" role="img" tabindex="0"'
            f' aria-label="{escape(label)}" data-zoom="{zoom}"></div>'
            f'<figcaption>{escape(caption)}<span class="screen">{keys}</span></figcaption></figure>'
        )
