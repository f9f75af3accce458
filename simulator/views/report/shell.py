"""The file around the sections of a report: style, script, library and data."""

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from hisparse_sim.simulator.views import palette
from hisparse_sim.simulator.views.report.data import Profiles
from hisparse_sim.simulator.views.report.page import Page
from hisparse_sim.simulator.views.report.pieces import contents
from hisparse_sim.simulator.views.report.results import Result
from hisparse_sim.traces import TraceError, atomic_path
from hisparse_sim.traces.errors import install

_BUNDLE_HELP = f"the report needs Vega-Lite from the package vl-convert-python: {install('report')}"


def write_report(
    results: Sequence[Result],
    path: Path,
    title: str | None = None,
    profiles: Profiles = None,
) -> list[str]:
    """Write the page about `results` to `path`, atomically; return notes for its reader.
    `profiles`: a file with models and links that are not shipped.

    Raises TraceError if vl-convert-python is missing, if results cannot be joined, or if they name
    a model or link that is in no available profile."""
    page = Page(results, profiles)
    with atomic_path(path) as temporary:
        temporary.write_text(whole(page, title), encoding="utf-8")
    return page.notes


def whole(page: Page, title: str | None = None, panel: str = "", live: Any = None) -> str:
    """Return the page as one file.

    `panel`: controls above the answer. `live`: what the script needs for them; with nothing in it
    the page asks its own server. Raises TraceError if vl-convert-python is missing."""
    return Template(_shipped("page.html")).substitute(
        version=escape(version("hisparse-sim")),
        title=escape(title or page.title),
        connect="'self'" if live == {} else "'none'",
        style=palette.css() + "\n" + _shipped("page.css"),
        contents=contents(page.sections),
        legend=page.legend,
        panel=panel,
        answer=_section(*page.sections[0]),
        sections="\n".join(_section(*one) for one in page.sections[1:]),
        data=_script_json(page.embedded | ({"live": live} if live is not None else {})),
        library=_library(),
        script=_shipped("page.js"),
    )


def _section(name: str, heading: str, body: str) -> str:
    return f'<section id="{name}"><h2>{heading}</h2>\n{body}\n</section>'


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
