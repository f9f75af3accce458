"""Results in a notebook: what is the same in all rows once, then the rows."""

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 20  # more are cut in the middle; the table itself has them all


def shown(title: str, notes: Iterable[str] = (), rows: "pd.DataFrame | None" = None) -> str:
    """Return HTML: a title, a line per note, and the columns of `rows` that differ.

    A column with a single value becomes a note; an empty one is left out.
    """
    lines = [f"<b>{escape(title)}</b>", *(escape(note) for note in notes if note)]
    if rows is None or rows.empty:
        return "<p>" + "<br>".join(lines) + "</p>"
    alike = [name for name in rows if len(rows) > 1 and rows[name].nunique(dropna=False) == 1]
    facts = [f"{name} {_value(rows[name].iloc[0])}" for name in alike if rows[name].notna().any()]
    if facts:
        lines.append(escape("; ".join(facts)))
    table: str = rows.drop(columns=alike).to_html(
        index=False, border=0, max_rows=MOST_ROWS, float_format=_value, na_rep=""
    )
    return "<p>" + "<br>".join(lines) + "</p>" + table


def _value(value: Any) -> str:
    """Return a value for readers: four significant digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
