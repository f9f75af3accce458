"""Building blocks of the sections of a report. All text is escaped here."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

from hisparse_sim.simulator.views import palette
from hisparse_sim.simulator.views.report.vega import DASHES

Cells = Mapping[str, tuple[str, Callable[[Any], str]]]


def contents(sections: Sequence[tuple[str, str, str]]) -> str:
    items = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, heading, _ in sections)
    return f"<ul>{items}</ul>"


def table(rows: pd.DataFrame, cells: Cells) -> str:
    text = {name for name in cells if not pd.api.types.is_numeric_dtype(rows[name])}
    heads = "".join(
        f'<th scope="col"{_class(name in text, name)}>{escape(heading)}</th>'
        for name, (heading, _) in cells.items()
    )
    lines = []
    for record in rows[list(cells)].to_dict("records"):
        line = "".join(
            f"<td{_class(name in text, name)}>{escape(show(record[name]))}</td>"
            for name, (_, show) in cells.items()
        )
        lines.append(f"<tr>{line}</tr>")
    return (
        '<div class="scroll" tabindex="0"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _class(is_text: bool, name: str) -> str:
    if name in _WRAPPED:
        return ' class="wrap"'
    return ' class="text"' if is_text else ""


_WRAPPED = ("what", "meaning", "reason", "trace_sha256", "gap", "how", "source")


def unbroken(text: str) -> str:
    """Return text for HTML in which a per cent sign stays with its number."""
    return escape(text).replace(" %", "\u00a0%")


def listed(names: Sequence[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def details(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def copy(text: str) -> str:
    return f'<div class="copy"><pre>{escape(text)}</pre><button type="button">Copy</button></div>'


def hint(text: str, command: str) -> str:
    return f"<p>{escape(text)}</p>{copy(command)}"


def options(name: str, title: str, values: Sequence[int], chosen: int) -> str:
    options = "".join(
        f'<option value="{value}"{" selected" if value == chosen else ""}>{value:,}</option>'
        for value in values
    )
    return f'<p class="screen"><label>{title} <select id="{name}">{options}</select></label></p>'


def policy_swatch(place: palette.Place) -> str:
    """Return a line with the mark."""
    colour, shape = f"var(--c{place.colour})", palette.TABLE[place.mark].path
    return (
        f'<svg aria-hidden="true" viewBox="0 0 26 12" stroke="{colour}" fill="{colour}">'
        f'<path d="M0 6H26" stroke-width="2"/><path d="{shape}" stroke="none"/></svg>'
    )


def legend_of_modes(modes: Sequence[str]) -> str:
    """Return the legend of a chart of serving runs."""
    return _legend("mode", {name: policy_swatch(at) for name, at in palette.places(modes).items()})


def legend_of_parts() -> str:
    """Return the legend of a chart of the parts of a time."""
    return _legend("part", {name: _block(place) for name, (_, place) in palette.PARTS.items()})


def _legend(kind: str, swatches: Mapping[str, str]) -> str:
    entries = "".join(
        f'<span class="entry" data-legend="{kind}">{swatch}{escape(name)}</span>'
        for name, swatch in swatches.items()
    )
    return f'<div class="key">{entries}</div>'


def _block(place: int | None) -> str:
    colour = "var(--line)" if place is None else f"var(--c{place})"
    return (
        f'<svg aria-hidden="true" viewBox="0 0 26 12" fill="{colour}">'
        '<path d="M7 0h12v12h-12Z"/></svg>'
    )


def buffer_swatch(number: int) -> str:
    dash = DASHES[number % len(DASHES)]
    return (
        '<svg aria-hidden="true" viewBox="0 0 26 12" stroke="currentColor">'
        f'<path d="M0 6H26" stroke-width="2" stroke-dasharray="{dash[0]} {dash[1]}"/></svg>'
    )


def count(value: Any) -> str:
    return "-" if pd.isna(value) else f"{value:,.0f}"


def tenths(value: Any) -> str:
    return "-" if pd.isna(value) else f"{value:,.1f}"


def percent(value: float, digits: int = 0) -> str:
    return f"{100 * value:.{digits}f} %"


def more(value: Any) -> str:
    return "-" if pd.isna(value) else f"{100 * value:+.1f} %"
