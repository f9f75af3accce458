"""The page of `explore`: the report, with controls above its answer."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

from hisparse_sim.simulator.mrc.facts import is_facts
from hisparse_sim.simulator.mrc.names import TEXTBOOK_LRU
from hisparse_sim.simulator.views.explore.calculator import Calculator, Choice
from hisparse_sim.simulator.views.palette import named
from hisparse_sim.simulator.views.report.answer import Tile, tiles_html
from hisparse_sim.simulator.views.report.page import Page
from hisparse_sim.simulator.views.report.results import read_results
from hisparse_sim.simulator.views.report.shell import whole
from hisparse_sim.traces import TraceError

_LABELS = {
    "buffer": "Hot buffer, slots",
    "policy": "Policy",
    "link": "Host link",
    "model": "Model",
    "prompt": "Prompt, tokens",
    "concurrency": "Concurrent requests",
}
STATIC: Mapping[str, tuple[Any, ...]] = {  # of a page without a server: what may be chosen
    "policy": ("lru", "belady"),
    "link": ("h200-pcie5", "gh200-c2c"),
    "model": ("glm-5.1", "deepseek-v3.2"),
    "prompt": (32_768, 131_072),
    "concurrency": (16, 32, 64, 256),
}


def live_page(paths: Sequence[Path], title: str | None = None) -> tuple[str, Calculator]:
    """Return the page about result files for a server, and the calculator behind it.

    Raises TraceError as `read_results` and `Calculator` do, and if no file holds misses."""
    page, calculator = _page(paths)
    return _whole(page, calculator, calculator.first, title, {}), calculator


def static_page(paths: Sequence[Path], title: str | None = None) -> str:
    """Return a page that needs no server: it holds the answers of the choices in STATIC."""
    page, calculator = _page(paths)
    for name, wanted in STATIC.items():
        few = tuple(value for value in wanted if value in calculator.options[name])
        calculator.options[name] = few or calculator.options[name][:1]
    every = (Choice(*values) for values in product(*calculator.options.values()))
    answers = {"|".join(map(str, astuple(one))): _short(calculator.answer(one)) for one in every}
    return _whole(page, calculator, calculator.first, title, {"answers": answers})


def _page(paths: Sequence[Path]) -> tuple[Page, Calculator]:
    results = read_results(paths)
    swept = [result for result in results if result.kind == "sweep"]
    if not swept:
        raise TraceError("explore needs misses: name a file that sweep or mrc wrote with -o")
    page = Page(results, None)
    path = swept[0].path
    if not is_facts(path) and len(page.traces) > 1:
        raise TraceError(f"{path} holds several traces: explore one at a time")
    known = page.first[page.first["excess_over_min"].notna()]
    least = known["miss_rate"] / (1 + known["excess_over_min"])
    return page, Calculator(
        path, page.policies, page.sizes, dict(zip(known["buffer"], least, strict=True))
    )


def _whole(page: Page, calculator: Calculator, choice: Choice, title: str | None, live: Any) -> str:
    found = calculator.answer(choice)
    tiles = tiles_html([Tile(**tile) for tile in found["tiles"]])
    verdict = f'<p class="verdict" aria-live="polite">{escape(found["verdict"])}</p>'
    text = page.head.with_lines(verdict + tiles, ("Buffer", "Load"))
    page.sections[0] = (*page.sections[0][:2], text)
    selects = "".join(
        f'<label>{_LABELS[name]} <select name="{name}">'
        + "".join(
            f'<option value="{escape(str(value))}"'
            f"{' selected' if value == getattr(choice, name) else ''}>"
            f"{escape(_shown(name, value))}</option>"
            for value in values
        )
        + "</select></label>"
        for name, values in calculator.options.items()
    )
    panel = (
        f'<form id="controls" aria-label="The deployment" onsubmit="return false">{selects}</form>'
        f'<p class="note">{escape(calculator.note)}</p>'
    )
    answers = page.head.by_choice(page.policies)
    page.embedded["answers"] = {_as_priced(key): of for key, of in answers.items()}
    return whole(page, title or f"HiSparse calculator: {page.traces[0]}", panel, live)


def _as_priced(key: str) -> str:
    """Return the key of an answer by the name that the calculator has for its policy."""
    series, policy = key.rsplit("|", 1)
    return f"{series}|{'lru' if policy == TEXTBOOK_LRU else policy}"


def _shown(name: str, value: Any) -> str:
    if name == "policy":
        return named(str(value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _short(answer: Mapping[str, Any]) -> list[Any]:
    """Return an answer as the script of a page reads it: verdict, then value and note of tiles."""
    return [
        answer["verdict"],
        {one["name"]: [one["value"], one["note"]] for one in answer["tiles"]},
    ]
