"""Reproduced figures on a terminal."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from hisparse_sim.simulator.serving.reproduce import SHAPED, summary
from hisparse_sim.simulator.views.plan_view import Columns
from hisparse_sim.simulator.views.tables import print_table


def show_reproduced(rows: pd.DataFrame, output: Path | None = None) -> None:
    """Print published, ours and error; below, how each was obtained and what is unexplained."""
    numbered = rows.assign(number=range(1, len(rows) + 1))
    before = [
        f"{row['sample']}: {row['figures']} figures, error {100 * row['median']:.0f} % in the"
        f" median, at worst {100 * row['worst']:.0f} % ({row['what']})"
        for row in summary(rows).to_dict("records")
    ]
    columns: Columns = {
        "number": ("", str),
        "what": ("figure", str),
        "published": ("published", lambda value: f"{value:,.4g}"),
        "ours": ("modelled", lambda value: f"{value:,.4g}"),
        "error": ("error", lambda value: f"{100 * value:+.1f} %"),
        "sample": ("", lambda value: "shaped" if value == SHAPED else ""),
    }
    notes = []
    for row in numbered.to_dict("records"):
        notes.append(f"{row['number']}.  {row['how']}")
        for text in (row["causes"], row["gap"], f"{row['sample']}: {row['choice']}"):
            if text:
                notes.append(f"     {text}")
        notes.append(f"     published: {row['source']}")
    before += ["shaped: the figure shaped a choice in the model, which the notes name", ""]
    print_table(numbered, columns, output, before="\n".join(before), after="\n".join(notes))
