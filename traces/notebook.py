"""Results on screen: what is the same in all rows once, then the rows."""

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 20  # more are cut in the middle; the table itself has them all


class Shown:
    """A result that a notebook shows as HTML and a Python shell as text."""

    def _shown(self) -> tuple[str, Iterable[str], "pd.DataFrame | None"]:
        """Return a title, notes of a line each, and rows."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return shown(*self._shown())

    def __repr__(self) -> str:
        lines, rows = _alike(*self._shown())
        if rows is None:
            return "\n".join(lines)
        table = rows.to_string(
            index=False, max_rows=MOST_ROWS, float_format=_value, na_rep="", line_width=100
        )
        return "\n".join([*lines, table])


def shown(title: str, notes: Iterable[str] = (), rows: "pd.DataFrame | None" = None) -> str:
    """Return HTML: a title, a line per note, and the columns of `rows` that differ.

    A column with a single value becomes a note; an empty one is left out.
    """
    (first, *others), rows = _alike(title, notes, rows)
    lines = [f"<b>{escape(first)}</b>", *map(escape, others)]
    table = ""
    if rows is not None:
        table = rows.to_html(
            index=False, border=0, max_rows=MOST_ROWS, float_format=_value, na_rep=""
        )
    return "<p>" + "<br>".join(lines) + "</p>" + table


def _alike(
    title: str, notes: Iterable[str], rows: "pd.DataFrame | None"
) -> tuple[list[str], "pd.DataFrame | None"]:
    """Return lines, among them what is alike in all rows, and the columns that differ."""
    lines = [title, *(note for note in notes if note)]
    if rows is None or rows.empty:
        return lines, None
    alike = [name for name in rows if len(rows) > 1 and rows[name].nunique(dropna=False) == 1]
    facts = [f"{name} {_value(rows[name].iloc[0])}" for name in alike if rows[name].notna().any()]
    if facts:
        lines.append("; ".join(facts))
    return lines, rows.drop(columns=alike)


def _value(value: Any) -> str:
    """Return a value for readers: four significant digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
