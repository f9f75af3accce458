"""The lines below the tiles: which buffer, which policy, which layer, which load, which source.

Each answers a reader's question in one sentence and leads to its section."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from hisparse_sim.simulator.mrc.names import COMPULSORY
from hisparse_sim.simulator.replay.metrics import blocks_of
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.simulator.views.palette import OPTIMUM, named
from hisparse_sim.simulator.views.report import data, findings, titles
from hisparse_sim.simulator.views.report.pieces import listed, percent, unbroken
from hisparse_sim.simulator.views.report.results import Result
from hisparse_sim.simulator.views.report.series import Series
from hisparse_sim.traces.terminal import counted

_ORDER = ("Buffer", "Policy", "Layers", "Load", "Source")
_KINDS = {
    "curve": "replayed",
    "plan": "modelled",
    "serve": "modelled",
    "reproduce": "ours modelled, beside published figures with their sources",
    "bench": "measured",
    "bench of several": "measured",
}
_MOST_LOADS = 8  # that one line lists


class Fact(NamedTuple):
    """A line: what it is about, what it says, and the id of its section."""

    about: str
    said: str
    href: str


def html(facts: Sequence[Fact]) -> str:
    lines = "".join(
        f'<div data-line="{one.about}"><dt><a href="#{one.href}">{one.about}</a></dt>'
        f"<dd>{unbroken(one.said)}</dd></div>"
        for one in sorted(facts, key=lambda one: _ORDER.index(one.about))
    )
    return f'<dl class="facts">{lines}</dl>'


def of_choice(series: Series, policy: str, buffer: int, planned: bool) -> list[Fact]:
    """Return the lines about one trace that follow the chosen policy and buffer. `planned`: a plan
    tells the buffer."""
    found = [] if planned else [Fact("Buffer", _buffer(series, policy, buffer), "miss-ratio-card")]
    found.append(Fact("Policy", _policy(series.sums, policy, buffer), "policies"))
    if series.layers is not None:
        said = titles.layers(series.layers, policy, buffer)
        found.append(Fact("Layers", said + ".", "layers"))
    return found


def of_source(rows: pd.DataFrame, rates: str = "") -> Fact:
    """Return the line on the origin of one trace. `rates`: that of the misses behind plans and
    serving runs, if it is another."""
    kinds = ", ".join(dict.fromkeys(map(str, rows["provenance"])))
    source = f"{rows['trace'].iloc[0]} ({kinds}), replayed: {_size(rows)}"
    source = f"{source}, {findings.covered(rows)}."
    if rates:
        source = f"Misses: {source} Rates, load and verdict: the misses of {rates}."
    if blocks := blocks_of(rows):
        source += f" Positions and slots are {blocks}: no cost is computed."
    return Fact("Source", source, "provenance")


def _size(rows: pd.DataFrame) -> str:
    """Return "6 layers x 512 steps", of one policy and buffer; of layers with steps of their own
    the sum."""
    steps = int(totals(rows, ("policy", "buffer"))["steps"].max())
    if rows["layer"].notna().any():
        each = totals(rows, ("layer", "policy", "buffer")).groupby("layer")["steps"].max()
        if each.nunique() == 1 and each.sum() == steps:
            return f"{counted(len(each), 'layer')} x {counted(each.iloc[0], 'step')}"
    return f"{steps:,} steps, summed over layers"


def of_plan(best: Mapping[str, Any], name: str = "") -> Fact:
    """`name`: that of the plan's file, if there are several."""
    whose = f"the choice of {name}" if name else "the plan's choice"
    return Fact(
        "Buffer",
        f"{best['buffer']:,.0f} slots with a ratio of {best['ratio']:.0f}, {whose}: of"
        " all within 1 % of the most tokens/s that meet the targets, the one that pins the least"
        " host memory"
        f" ({best['tokens_per_s']:,.0f} tokens/s, {best['tpot_ms']:.1f} ms per token).",
        "plan",
    )


def of_load(results: Sequence[Result], best: Mapping[str, Any] | None) -> Fact:
    """Return at which loads HiSparse pays, as far as serving runs or the plan tell."""
    for _, served in findings.runs_of(results):
        rates = data.serve_table(served).pivot_table(
            index="concurrency", columns="mode", values="tokens_per_s"
        )
        if {"hisparse", "baseline"} <= set(rates) and len(rates.dropna()):
            both = rates.dropna()
            gains = both["hisparse"] / both["baseline"]
            return Fact("Load", _paying(gains.iloc[:: math.ceil(len(gains) / _MOST_LOADS)]), "plan")
    if best is None:
        return Fact("Load", "Whether it pays at a load takes a plan or a serving run.", "plan")
    even = best.get("break_even")
    if even is None or pd.isna(even):
        return Fact("Load", findings.worth(dict(best)).strip(), "plan")
    said = f"From {even:,.0f} concurrent requests on HiSparse pays{findings.behind(best)}."
    return Fact("Load", said, "plan")


def of_files(results: Sequence[Result], rates: str) -> Fact:
    """Return where figures come from that are not of a sweep; `rates`: their misses."""
    told = []
    for result in results:
        load = findings.load(result.parameters)
        told.append(f"{result.path.name}: {_KINDS[result.kind]}" + f" for {load}" * bool(load))
    said = "; ".join(dict.fromkeys(told)) + f". The misses are those of {rates}" * bool(rates) + "."
    return Fact("Source", said, "provenance")


def _paying(gains: "pd.Series[float]") -> str:
    """Say at which loads HiSparse pays. `gains`: the rate with it over that without, by load."""
    said = []
    for pays, own in ((False, gains[gains <= 1]), (True, gains[gains > 1])):
        if len(own):
            loads = listed([f"{load:,.0f}" for load in own.index])
            rates = listed([f"{gain:.2f}" for gain in own])
            verb = "pays" if pays else "does not pay"
            said.append(
                f"at {loads} concurrent requests HiSparse {verb}: {rates} times the rate without it"
            )
    text = "; ".join(said)
    return text[:1].upper() + text[1:] + "."


def _buffer(series: Series, policy: str, buffer: int) -> str:
    """Say what the chosen buffer, the next smaller and the next larger cost."""
    rows, sums = series.rows, series.sums
    own: dict[Any, float] = (
        sums[sums["policy"] == policy].set_index("buffer")["miss_rate"].to_dict()
    )
    sizes = sorted(own)
    at = sizes.index(buffer)

    def costs(size: int) -> str:
        fits = data.fitting(rows, size)
        told = [
            f"{counted(int(one['requests_per_gpu']), 'request')}{f' of {name}' * (len(fits) > 1)}"
            for name, one in fits.items()
        ]
        runs = f", {listed(told)} fit a rank" if told else ""
        return f"{size:,} slots: {percent(own[size], 1)} misses{runs}"

    near = [costs(size) for size in (*sizes[at + 1 : at + 2], *sizes[max(0, at - 1) : at])]
    whose = (
        " (the engine's default)"
        if buffer == findings.ENGINE_BUFFER and not blocks_of(rows)
        else ""
    )
    said = "; ".join([costs(buffer).replace(" slots", f" slots{whose}", 1), *near])
    return f"{said}. A plan weighs them."


def _policy(sums: pd.DataFrame, policy: str, buffer: int) -> str:
    """Say how a policy stands to the others, and to MIN."""
    at = sums[sums["buffer"] == buffer].set_index("policy")
    misses: dict[Any, float] = (
        at["misses_per_step"].drop(index=[OPTIMUM, COMPULSORY], errors="ignore").to_dict()
    )
    if not misses:
        return f"Only {named(policy)} was swept, which no policy can do better than."
    best = min(misses, key=lambda name: misses[name])
    if policy not in misses:
        least = float(at["misses_per_step"].to_dict()[policy])
        return (
            f"{named(policy)} misses {least:,.1f} a step with {buffer:,} slots; {named(best)}"
            f" misses {misses[best]:,.1f}."
        )
    said = f"{named(policy)} misses {misses[policy]:,.1f} a step with {buffer:,} slots"
    if len(misses) > 1:
        whom = listed([named(name) for name in misses if name != policy])
        if misses[policy] > misses[best]:
            said += f", {named(best)} {percent(1 - misses[best] / misses[policy], 1)} fewer"
        elif list(misses.values()).count(misses[best]) > 1:
            said += f", no more than {whom}"
        else:
            said += f", fewer than {whom}"
    excess = float(at["excess_over_min"].to_dict()[policy])
    if policy != OPTIMUM and math.isfinite(excess):
        least = misses[policy] / (1 + excess)
        said += (
            f"; MIN, which knows the future, misses {least:,.1f},"
            f" {percent(excess / (1 + excess))} fewer"
        )
    return said + "."
