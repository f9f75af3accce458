"""Misses that the serving model needs: means over the steps of each layer of a replayed trace."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from hisparse_sim.policies import Policy, get_policy
from hisparse_sim.simulator.replay.former_names import present_names
from hisparse_sim.simulator.replay.replaying import replay_part
from hisparse_sim.traces import Part, Trace, open_trace, sample_path
from hisparse_sim.traces.file.units import TOKEN, plural, refuse_blocks
from hisparse_sim.traces.synth.generated import GeneratedTrace

QUANTILES = 65  # of a layer's misses per step: 0, 1/64, ..., 1
WARM_UP_STEPS = 16  # the burst of the first steps comes once a request, not once a step


@dataclass(frozen=True)
class LayerMisses:
    """Mean misses a step of each replayed layer, and what they were replayed from."""

    trace: str
    provenance: str
    sha256: str
    policy: str
    device_buffer_size: int
    start: str
    per_layer: tuple[float, ...]  # [layers of the trace], mean over requests and steps
    spread: tuple[tuple[float, ...], ...]  # [layers][QUANTILES], ascending, over requests and steps
    selected: float  # positions a step, mean
    context: float  # tokens of a request, mean over its steps
    weights: tuple[float, ...] | None = None  # [layers] that each stands for; None: as many each

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
        values = np.asarray(self.spread)
        middles: npt.NDArray[np.float64] = (values[:, 1:] + values[:, :-1]) / 2
        return middles @ share

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


MissesOf = Callable[[str, int], LayerMisses]  # (policy, buffer) -> its misses


def layer_misses(
    trace: str | PathLike[str] | Trace | None,
    policy: str | Policy,
    device_buffer_size: int,
    start: str = "staged",
    *,
    seed: int = 0,
    warm_up_steps: int = WARM_UP_STEPS,
) -> LayerMisses:
    """Replay `trace` (None: the bundled sample) and average each layer's misses.

    The first `warm_up_steps` of every request are replayed but not averaged. Raises TraceError
    for a bad trace or one that does not count tokens, ValueError for one that is no longer than the
    warm-up.
    """
    opened = trace if isinstance(trace, Trace) else open_trace(trace or sample_path())
    refuse_blocks([opened], "serving models price")
    chosen = get_policy(policy) if isinstance(policy, str) else policy

    def replay(part: Part) -> tuple[int, npt.NDArray[np.int32], float, float]:
        demand = opened.read(part)
        if len(demand.step) <= warm_up_steps:
            raise ValueError(
                f"{opened.name}, request {part.request!r} has {len(demand.step)} steps, no more"
                f" than the {warm_up_steps} of the warm-up"
            )
        misses = replay_part(demand, chosen, device_buffer_size, start, seed=seed).misses
        listed = float(np.mean(np.diff(demand.offsets)))
        return part.layer, misses[warm_up_steps:], float(np.mean(demand.seq_len)), listed

    by_layer: dict[int, list[npt.NDArray[np.int32]]] = {}
    contexts: list[float] = []
    selected: list[float] = []
    with ThreadPoolExecutor() as pool:
        for layer, misses, context, listed in pool.map(replay, opened.parts):
            by_layer.setdefault(layer, []).append(misses)
            contexts.append(context)
            selected.append(listed)
    grid = np.linspace(0, 1, QUANTILES)
    layers = [np.concatenate(parts) for _, parts in sorted(by_layer.items())]
    return LayerMisses(
        trace=opened.name,
        provenance=opened.metadata.provenance,
        sha256=opened.sha256,
        policy=chosen.name,
        device_buffer_size=device_buffer_size,
        start=start,
        per_layer=tuple(float(np.mean(misses)) for misses in layers),
        spread=tuple(tuple(np.quantile(misses, grid).tolist()) for misses in layers),
        selected=float(np.mean(selected)),
        context=float(np.mean(contexts)),
        weights=(
            tuple(float(opened.stands_for[layer]) for layer in sorted(by_layer))
            if isinstance(opened, GeneratedTrace)
            else None
        ),
    )


def read_miss_curve(path: str | Path, policy: str, context: float, top_k: int) -> MissesOf:
    """Misses from the rows of a sweep (csv, json, jsonl or parquet) instead of a replay.

    Needs the columns `buffer` and `miss_rate`; with a column `policy`, its rows are taken. A rate
    says nothing about layers or spread: all are taken alike. `context`: tokens of the requests that
    were swept. Raises ValueError if the file, a column or a buffer is missing, or the rows do not
    count tokens.
    """
    file, policy = Path(path), get_policy(policy).name
    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".csv": pd.read_csv,
        ".json": pd.read_json,
        ".jsonl": lambda path: pd.read_json(path, lines=True),
        ".parquet": pd.read_parquet,
    }
    if file.suffix not in readers:
        raise ValueError(f"{file} is none of {', '.join(readers)}")
    try:
        rows = present_names(readers[file.suffix](file))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the miss curve in {file}: {error}") from error
    for column in ("buffer", "miss_rate"):
        if column not in rows:
            raise ValueError(f"{file} has no column {column}: give the rows of a sweep")
    others = set(rows["unit"].fillna(TOKEN)) - {TOKEN} if "unit" in rows else set()
    if others:
        counted = " and ".join(map(plural, sorted(others)))
        raise ValueError(f"{file} counts {counted}, and serving models price single tokens")
    if "policy" in rows:
        rows = rows[rows["policy"] == policy]
    rates = rows.groupby("buffer")["miss_rate"].mean()

    def misses_of(wanted: str, size: int) -> LayerMisses:
        if get_policy(wanted).name != policy or size not in rates.index:
            known = ", ".join(str(buffer) for buffer in rates.index)
            raise ValueError(f"{file} has no {wanted} at buffer {size}; it has {policy} at {known}")
        mean = float(rates[size]) * top_k
        return LayerMisses(
            trace=file.stem,
            provenance="given",
            sha256="",
            policy=policy,
            device_buffer_size=size,
            start="",
            per_layer=(mean,),
            spread=((mean,) * QUANTILES,),
            selected=float(top_k),
            context=context,
        )

    return misses_of
