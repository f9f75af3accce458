"""Misses that the serving model needs: means over the steps of each layer of a replayed trace.

One file: a replay, facts and a miss curve are three sources of the same few numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from hisparse_sim.policies import ALIASES, Policy, get_policy
from hisparse_sim.simulator.mrc.counted import CountedTrace
from hisparse_sim.simulator.mrc.facts import is_facts, read_facts
from hisparse_sim.simulator.mrc.names import TEXTBOOK_LRU
from hisparse_sim.simulator.replay.modes import Mode, mode_of
from hisparse_sim.simulator.replay.ranking import columns_for
from hisparse_sim.simulator.replay.replaying import replay_part
from hisparse_sim.simulator.replay.result_files import read_rows
from hisparse_sim.simulator.replay.totals import totals
from hisparse_sim.traces import OneTrace, Part, Trace, TraceError, as_trace
from hisparse_sim.traces.demand import Ints
from hisparse_sim.traces.file.columns import QUERY
from hisparse_sim.traces.file.layer_types import stands_for
from hisparse_sim.traces.file.units import TOKEN, plural, refuse_blocks
from hisparse_sim.traces.remote import place_of
from hisparse_sim.traces.synth.generated import GeneratedTrace

QUANTILES = 65  # of a layer's misses per step: 0, 1/64, ..., 1
GIVEN = "given"  # provenance of rates of one's own
_OF_LAYERS = ("misses", "accesses")
WARM_UP_STEPS = 16  # the burst of the first steps comes once per request


@dataclass(frozen=True)
class LayerMisses:
    """Mean misses per step of each replayed layer, and their origin."""

    trace: str
    provenance: str
    sha256: str
    policy: str
    device_buffer_size: int
    start: str
    per_layer: tuple[float, ...]  # [layers of the trace], mean over requests and steps
    spread: tuple[tuple[float, ...], ...]  # [layers][QUANTILES], ascending, over requests and steps
    selected: float  # positions a step, mean over the steps of the misses
    context: float  # tokens of a request, mean over all steps
    weights: tuple[float, ...] | None = None  # [layers] that each stands for; None: as many each
    resident_tokens: int = 0

    @property
    def mean(self) -> float:
        """Misses of one request, layer and step."""
        return float(self.over_layers(np.asarray(self.per_layer)))

    def over_layers(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """[...] mean of [..., layers] over the layers of the model."""
        return np.asarray(np.average(values, axis=-1, weights=self.weights))

    def largest_of(self, requests: int) -> npt.NDArray[np.float64]:
        """[layers] mean of the largest of `requests` independent draws of a step's misses."""
        grid = np.linspace(0, 1, QUANTILES)
        share = np.diff(grid**requests)
        return self._middles @ share

    @cached_property
    def _middles(self) -> npt.NDArray[np.float64]:
        """[layers, QUANTILES - 1] between the quantiles."""
        values = np.asarray(self.spread)
        middles: npt.NDArray[np.float64] = (values[:, 1:] + values[:, :-1]) / 2
        return middles

    def times(self, factor: float) -> LayerMisses:
        """All misses multiplied."""
        return replace(
            self,
            per_layer=tuple(value * factor for value in self.per_layer),
            spread=tuple(tuple(value * factor for value in row) for row in self.spread),
        )

    @property
    def rate(self) -> float:
        """Misses over selected positions, the warm-up left out."""
        return self.mean / self.selected


class Origin(NamedTuple):
    """The origin of misses."""

    name: str  # of the trace
    provenance: str
    sha256: str  # of the trace; "" if that is not known

    @classmethod
    def of(cls, trace: Trace) -> Origin:
        return cls(trace.name, trace.metadata.provenance, trace.sha256)


class MissesOf(Protocol):
    """Where misses come from: those of a policy with a buffer and the newest tokens resident."""

    def __call__(
        self, policy: str, device_buffer_size: int, resident_tokens: int = 0
    ) -> LayerMisses: ...


def layer_misses(
    trace: OneTrace | None,
    policy: str | Policy,
    device_buffer_size: int,
    start: str = "staged",
    *,
    resident_tokens: int = 0,
    position_tokens: int = 1,
    seed: int = 0,
    warm_up_steps: int = WARM_UP_STEPS,
    draft_tokens: int | None = None,
    acceptance_length: float | None = None,
) -> LayerMisses:
    """Replay `trace` (None: the bundled sample) and average each layer's misses.

    The newest `resident_tokens` of a request never miss; a position of the trace holds
    `position_tokens`. The first `warm_up_steps` of every request are replayed but not averaged. Of
    a trace with drafts a step has the misses of all its queries, and the policy is the engine's for
    drafts, for which "lru" stands; so too with `draft_tokens`, of a trace that is regrouped
    (`traces.drafts`). Raises TraceError for a bad trace or one whose positions are not
    tokens, ValueError for one that is no longer than the warm-up, and another policy for drafts.
    """
    opened = as_trace(trace)
    if position_tokens == 1:
        refuse_blocks([opened], "serving models need")
    chosen = get_policy(policy)
    mode = mode_of(
        [opened],
        draft_tokens=draft_tokens,
        acceptance_length=acceptance_length,
        resident_tokens=resident_tokens,
    )
    if isinstance(opened, CountedTrace):
        if mode is not None:
            raise TraceError(
                f"{opened.path} was counted with nothing resident and no drafts: give the trace"
            )
        return _counted(opened, chosen.name, device_buffer_size, start, warm_up_steps)
    columns = columns_for(opened, [chosen])
    if mode is not None and mode.queries(opened) > 1:
        chosen = _drafts_policy(opened, mode, chosen)
        mode.check(opened, chosen, device_buffer_size)
        if opened.metadata.draft_tokens > 1:
            columns = (*columns, QUERY)

    def replay(part: Part) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.int64], Ints]:
        demand = opened.read(part, columns)
        if mode is not None:
            demand = mode.steps(opened, demand)
        first_rows = demand.first_rows
        if len(first_rows) <= warm_up_steps:
            raise ValueError(
                f"{opened.name}, request {part.request!r} has {len(first_rows)} steps, no more"
                f" than the {warm_up_steps} of the warm-up"
            )
        misses = (
            replay_part(demand, chosen, device_buffer_size, start, seed=seed)
            if mode is None
            else mode.replay(opened, demand, chosen, device_buffer_size, start, seed)
        ).misses
        listed = np.diff(demand.offsets[[*first_rows, demand.rows]])[warm_up_steps:]
        return part.layer, misses[warm_up_steps:], listed, demand.seq_len

    by_layer: dict[int, list[npt.NDArray[np.int32]]] = {}
    listed_by_layer: dict[int, list[npt.NDArray[np.int64]]] = {}
    contexts: list[float] = []
    steps: list[int] = []
    with ThreadPoolExecutor() as pool:
        for layer, misses, listed, seq_len in pool.map(replay, opened.parts):
            by_layer.setdefault(layer, []).append(misses)
            listed_by_layer.setdefault(layer, []).append(listed)
            contexts.append(float(np.mean(seq_len)) * position_tokens)
            steps.append(len(seq_len))
    grid = np.linspace(0, 1, QUANTILES)
    layers = [np.concatenate(parts) for _, parts in sorted(by_layer.items())]
    standing = (
        opened.stands_for
        if isinstance(opened, GeneratedTrace)
        else stands_for(opened.metadata.layer_types, by_layer)
    )
    weights = tuple(float(standing[layer]) for layer in sorted(by_layer))
    # Over the same steps as the misses, so that their quotient is misses over accesses.
    accesses = [np.mean(np.concatenate(parts)) for _, parts in sorted(listed_by_layer.items())]
    return LayerMisses(
        trace=opened.name,
        provenance=opened.metadata.provenance,
        sha256=opened.sha256,
        policy=chosen.name,
        device_buffer_size=device_buffer_size,
        start=start,
        per_layer=tuple(float(np.mean(misses)) for misses in layers),
        spread=tuple(tuple(np.quantile(misses, grid).tolist()) for misses in layers),
        selected=float(np.average(accesses, weights=weights)),
        context=float(np.average(contexts, weights=steps)),
        weights=weights,
        resident_tokens=resident_tokens,
    )


def _drafts_policy(trace: Trace, mode: Mode, asked: Policy) -> Policy:
    own = mode.policy(mode.own_policy([trace]))
    if own is None or asked.name not in ("lru", own.name):
        raise ValueError(
            f"the engine has a policy of its own for drafts, {mode.own_policy([trace])}, and their"
            f" misses are replayed with that alone: leave `policy` out"
        )
    return own


def _counted(
    trace: CountedTrace, policy: str, device_buffer_size: int, start: str, warm_up_steps: int
) -> LayerMisses:
    """Misses from facts: the textbook LRU stands for the engine's. The spread is that of the means
    of windows, which is smaller than that of steps."""
    name = TEXTBOOK_LRU if policy == "lru" and "lru" not in trace.curves.of else policy
    if start != trace.curves.start or name not in trace.curves.of:
        raise TraceError(
            f"{trace.path} holds {', '.join(trace.curves.of)} for the start {trace.curves.start};"
            f" for {policy} and the start {start} give the trace itself"
        )
    sizes = trace.curves.of[name].sizes
    if device_buffer_size not in sizes:
        raise ValueError(f"{trace.path} has no buffer of {device_buffer_size} slots")
    window = trace.curves.window
    skipped = warm_up_steps if window is None else -(-warm_up_steps // window) * window
    curves = trace.curves if window is None else trace.curves.without_first(skipped)
    lines = curves.lines
    at = int(np.searchsorted(sizes, device_buffer_size))
    means = lines.assign(misses=curves.of[name].misses[:, at] / lines["steps"])
    by_layer = [own for _, own in means.groupby("layer")]
    grid = np.linspace(0, 1, QUANTILES)
    return LayerMisses(
        trace=trace.name,
        provenance=trace.metadata.provenance,
        sha256=trace.sha256,
        policy=policy,
        device_buffer_size=device_buffer_size,
        start=start,
        per_layer=tuple(float(np.average(own["misses"], weights=own["steps"])) for own in by_layer),
        spread=tuple(tuple(np.quantile(own["misses"], grid).tolist()) for own in by_layer),
        selected=float(lines["accesses"].sum() / lines["steps"].sum()),
        context=float(np.average(lines["tokens"] - lines["steps"] / 2, weights=lines["steps"])),
    )


@dataclass(frozen=True)
class MissCurve:
    """Misses over accesses by buffer size, from the rows of a sweep; called like a replay."""

    file: Path
    origin: Origin
    start: str  # "" where the rows do not say it
    policy: str
    rates: Mapping[int, float]  # by buffer size
    context: float  # tokens of the requests that are asked about
    top_k: int
    weighted: bool = False  # whether a layer counts for those that repeat its index, too

    def __call__(
        self, policy: str, device_buffer_size: int, resident_tokens: int = 0
    ) -> LayerMisses:
        """Raises ValueError for a policy or buffer that was not swept, or a resident share."""
        if resident_tokens:
            raise ValueError(f"{self.file} says nothing of resident tokens: give a trace")
        if get_policy(policy).name != self.policy or device_buffer_size not in self.rates:
            known = ", ".join(map(str, self.rates))
            raise ValueError(
                f"{self.file} has no {policy} at buffer {device_buffer_size}; it has"
                f" {self.policy} at {known}"
            )
        mean = self.rates[device_buffer_size] * self.top_k
        return LayerMisses(
            trace=self.origin.name,
            provenance=self.origin.provenance,
            sha256=self.origin.sha256,
            policy=self.policy,
            device_buffer_size=device_buffer_size,
            start=self.start,
            per_layer=(mean,),
            spread=((mean,) * QUANTILES,),
            selected=float(self.top_k),
            context=self.context,
        )


def read_miss_curve(
    path: str | Path,
    policy: str,
    context: float,
    top_k: int,
    start: str = "staged",
    unit: str = TOKEN,
) -> MissCurve:
    """Misses from the rows of a sweep (csv, json, jsonl, parquet), or facts, in place of a replay.

    The rate at a buffer is misses over accesses, summed over the rows of `policy`, and where they
    tell it over the layers that repeat the index of another, too. Rows of one's own need `buffer`
    and `miss_rate` alone, one at every buffer. Of two starts that were swept, `start` is taken. A
    rate has no layers or distribution: all are taken as equal. `context`: tokens of the requests
    that were swept. `unit`: what their positions are.

    Raises TraceError if the file cannot be read, has no rows, has a rate that is none (missing,
    negative, above 1), holds several traces, starts, seeds or selections of one trace, counts no
    tokens, or follows other rules than those of the plain replay.
    """
    file, policy = place_of(path), get_policy(policy).name
    of_facts = file.suffix.lower() == ".parquet" and is_facts(file)
    try:
        rows = _counted_rows(file, start) if of_facts else read_rows(file)
    except TraceError as error:
        raise TraceError(f"cannot read the miss curve: {error}") from error
    if rows.empty:
        raise TraceError(f"{file} has no rows: give the rows of a sweep")
    counted = {"misses", "accesses", "steps"} <= set(rows.columns)
    for column in ("buffer", *(("misses", "accesses") if counted else ("miss_rate",))):
        if column not in rows:
            raise TraceError(f"{file} has no column {column}: give the rows of a sweep")
        if (missing := rows[column].isna()).any():
            row = int(missing.to_numpy().argmax()) + 1
            raise TraceError(f"{file}, row {row}: {column} is missing, which is not a rate of 0")
    others = set(rows["unit"].fillna(TOKEN)) - {unit} if "unit" in rows else set()
    if others:
        units = " and ".join(map(plural, sorted(others)))
        wanted = "single tokens" if unit == TOKEN else plural(unit)
        raise TraceError(
            f"{file} counts {units}, and the model that is served selects {wanted}: name with"
            f" `model` the one that was swept"
        )
    if "rules" in rows and rows["rules"].notna().any():
        rules = rows["rules"].dropna().iloc[0]
        raise TraceError(
            f"{file} has misses by the rules of {rules}, and a miss curve is of one query a step"
            f" with all KV on the host: sweep without drafts, resident tokens and vLLM, or give a"
            f" `trace`"
        )
    if "policy" in rows:
        swept = ", ".join(dict.fromkeys(rows["policy"].dropna()))
        rows = rows[rows["policy"].str.lower().replace(ALIASES) == policy]
        if rows.empty:
            raise TraceError(f"{file} has no rows of {policy}; it has {swept or 'none'}")
    if rows.empty:
        raise TraceError(f"{file} has no rows: give the rows of a sweep")
    if "start" in rows and start in set(rows["start"].dropna()):
        rows = rows[rows["start"] == start]
    weighted = counted and _weighed(rows)
    if weighted:
        rows = rows.assign(
            misses=rows["anchor_misses"] + rows["replayed_misses"],
            accesses=rows["anchor_accesses"] + rows["replayed_accesses"],
        )
    rates = _rates_by_counts(file, rows) if counted else _rates_as_given(file, rows)
    first = {str(name): value for name, value in rows.iloc[0].items() if pd.notna(value)}
    return MissCurve(
        file=file,
        origin=Origin(
            first.get("trace", file.stem),
            first.get("provenance", GIVEN),
            first.get("trace_sha256", ""),
        ),
        start=first.get("start", ""),
        policy=policy,
        rates=rates,
        context=context,
        top_k=top_k,
        weighted=weighted,
    )


def _weighed(rows: pd.DataFrame) -> bool:
    """Whether the counts of layers with an index, and of those that repeat it, are all known."""
    names = [f"{layers}_{count}" for layers in ("anchor", "replayed") for count in _OF_LAYERS]
    if not set(names) <= set(rows.columns):
        return False
    return bool(rows[names].notna().all(axis=None) and rows["anchor_accesses"].sum() > 0)


def _counted_rows(file: Path, start: str) -> pd.DataFrame:
    """Return the rows of a facts file; the textbook LRU stands for the engine's."""
    rows = read_facts(file, start).summed().rows
    if "lru" not in set(rows["policy"]):
        rows["policy"] = rows["policy"].replace(TEXTBOOK_LRU, "lru")
    return rows


def _rates_by_counts(file: Path, rows: pd.DataFrame) -> dict[int, float]:
    if "policy" not in rows:
        rows = rows.assign(policy="")
    try:
        sums = totals(rows, [name for name in ("trace", "policy", "buffer") if name in rows])
    except TraceError as error:
        raise TraceError(f"{file} is not a single miss curve: {error}") from error
    for name, noun in (("trace", "traces or starts"), ("policy", "seeds")):
        if name in sums and sums[name].nunique() > 1:
            found = ", ".join(dict.fromkeys(map(str, sums[name])))
            raise TraceError(
                f"{file} holds several {noun} ({found}), whose misses are those of different loads:"
                " give the rows of one"
            )
    if (sums["accesses"] == 0).any():
        raise TraceError(f"{file} has rows without any access: they have no miss rate")
    return dict(zip(sums["buffer"].astype(int), sums["miss_rate"].astype(float), strict=True))


_ONE_IN_A_CURVE = (
    *("trace", "trace_sha256", "request", "layer", "selected_layers", "selected_steps"),
    *("selected_requests", "first_step", "start", "seed", "engine", "draft_tokens"),
)


def _rates_as_given(file: Path, rows: pd.DataFrame) -> dict[int, float]:
    for name in _ONE_IN_A_CURVE:
        if name in rows and rows[name].nunique(dropna=False) > 1:
            found = ", ".join(list(dict.fromkeys(rows[name].astype(str)))[:5])
            raise TraceError(
                f"{file} is not a single miss curve: {name} is {found}; give the rows of one"
            )
    rates: dict[int, float] = {}
    for buffer, rate in zip(rows["buffer"].astype(int), rows["miss_rate"], strict=True):
        if rates.setdefault(buffer, float(rate)) != rate:
            raise TraceError(
                f"{file} has several rates at buffer {buffer} and no counts of misses and accesses"
                " to weigh them by: give one"
            )
    return rates
