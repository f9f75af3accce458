"""The bar of choices, which is also the one legend of all charts and stays in view."""

from collections.abc import Sequence
from html import escape

from hisparse_sim.simulator.views.palette import named, places
from hisparse_sim.simulator.views.report.pieces import buffer_swatch, policy_swatch


def bar(
    policies: Sequence[str],
    sizes: Sequence[int],
    traces: Sequence[str],
    layers: Sequence[int],
    shown: int | None,
) -> str:
    """Return the form; empty if it has nothing to say. `shown`: the chosen buffer; None: no chart
    is of one buffer."""
    if not policies:
        return ""
    found = _fields(
        "Policies",
        [
            _tick("checkbox", "policy", name, f"{policy_swatch(place)}{escape(named(name))}", True,
                  f' data-focus="{escape(name)}"')
            for name, place in places(policies).items()
        ],
    )  # fmt: skip
    found += '<div class="more">' + _fields(
        "Buffers",
        [
            _tick("checkbox", "buffer", str(size), f"{buffer_swatch(number)}{size:,}", True)
            for number, size in enumerate(sizes)
        ],
    )
    if shown is not None and len(sizes) > 1:
        listed = "".join(
            f'<option value="{size}"{" selected" if size == shown else ""}>{size:,}</option>'
            for size in sizes
        )
        found += _fields(
            "Chosen buffer",
            [f'<select id="shown" aria-label="Buffer of charts of one">{listed}</select>'],
        )
    if len(traces) > 1:
        found += _fields(
            "Trace",
            [
                _tick("radio", "trace", name, escape(name), number == 0)
                for number, name in enumerate(traces)
            ],
        )
    if len(layers) > 1:
        first, last = layers[0], layers[-1]
        found += _fields(
            "Layers",
            [
                f'<label>{word} <input type="number" id="{name}" min="{first}" max="{last}"'
                f' value="{value}"></label>'
                for word, name, value in (
                    ("from", "first-layer", first),
                    ("to", "last-layer", last),
                )
            ],
        )
    return _form(found + "</div>")


def _form(fields: str) -> str:
    return (
        '<form id="choices" aria-label="Legend and contents of the charts"'
        f' onsubmit="return false">{fields}</form>'
    )


def _tick(kind: str, name: str, value: str, text: str, ticked: bool, more: str = "") -> str:
    checked = " checked" if ticked else ""
    return (
        f'<label{more} data-legend="{name}"><input type="{kind}" name="{name}"'
        f' value="{escape(value)}"{checked}>{text}</label>'
    )


def _fields(title: str, fields: Sequence[str]) -> str:
    return f"<fieldset><legend>{title}</legend>{''.join(fields)}</fieldset>"
