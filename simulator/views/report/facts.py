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
        f'<div><dt><a href="#{one.href}">{one.about}</a></dt><dd>{unbroken(one.said)}</dd></div>'
        for one in sorted(facts, key=lambda one: _ORDER.index(one.about))
    )
    return f'<dl class="facts">{lines}</dl>'


def of_series(rows: pd.DataFrame, best: Mapping[str, Any] | None) -> list[Fact]:
    """Return the lines about one trace. `best`: what a plan recommends."""
    sums = totals(rows)
    policy, buffer = findings.focus(sums)
    found = [Fact("Buffer", _buffer(rows, sums), "miss-ratio-card")] if best is None else []
    found.append(Fact("Policy", _policy(sums, policy, buffer), "policies"))
    if rows["layer"].notna().any():
        layers = totals(rows, ("layer", "policy", "buffer"))
        found.append(Fact("Layers", titles.layers(layers, policy, buffer) + ".", "layers"))
    steps = int(totals(rows, ("policy", "buffer"))["steps"].max())
    kinds = ", ".join(dict.fromkeys(map(str, rows["provenance"])))
    source = (
        f"{rows['trace'].iloc[0]} ({kinds}), replayed: {steps:,} pairs of layer and step,"
        f" {findings.covered(rows)}."
    )
    if blocks := blocks_of(rows):
        source += f" Positions and slots are {blocks}: no cost is computed."
    return [*found, Fact("Source", source, "provenance")]


def of_plan(best: Mapping[str, Any]) -> Fact:
    return Fact(
        "Buffer",
        f"{best['buffer']:,.0f} slots with a ratio of {best['ratio']:.0f}, the best of the plan:"
        f" {best['tokens_per_s']:,.0f} tokens/s at {best['tpot_ms']:.1f} ms per token.",
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
    said = f"From {even:,.0f} concurrent requests on HiSparse pays, below that it does not."
    return Fact("Load", said, "plan")


def of_files(results: Sequence[Result]) -> Fact:
    """Return where figures come from that are not of a sweep."""
    told = []
    for result in results:
        load = findings.load(result.parameters)
        told.append(f"{result.path.name}: {_KINDS[result.kind]}" + f" for {load}" * bool(load))
    return Fact("Source", "; ".join(dict.fromkeys(told)) + ".", "provenance")


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


def _buffer(rows: pd.DataFrame, sums: pd.DataFrame) -> str:
    """Say what the chosen buffer, the next smaller and the next larger cost."""
    policy, buffer = findings.focus(sums)
    own: dict[Any, float] = (
        sums[sums["policy"] == policy].set_index("buffer")["miss_rate"].to_dict()
    )
    sizes = sorted(own)
    at = sizes.index(buffer)
    fits: dict[Any, float] = (
        rows.groupby("buffer")["requests_per_gpu"].max().dropna().to_dict()
        if "requests_per_gpu" in rows
        else {}
    )

    def costs(size: int) -> str:
        runs = f", {fits[size]:,.0f} requests fit a GPU" if size in fits else ""
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
    said = f"{named(policy)} misses {misses[policy]:,.1f} a step with {buffer:,} slots"
    if len(misses) > 1:
        whom = listed([named(name) for name in misses if name != policy])
        said += (
            f", fewer than {whom}"
            if best == policy
            else (f", {named(best)} {percent(1 - misses[best] / misses[policy], 1)} fewer")
        )
    excess = float(at["excess_over_min"].to_dict()[policy])
    if policy != OPTIMUM and math.isfinite(excess):
        least = misses[policy] / (1 + excess)
        said += (
            f"; MIN, which knows the future, misses {least:,.1f},"
            f" {percent(excess / (1 + excess))} fewer"
        )
    return said + "."
