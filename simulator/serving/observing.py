"""Counters of a server beside a simulation of the same setting."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hisparse_sim.simulator.serving.counters import SGLANG, Observed
from hisparse_sim.simulator.serving.engines import VLLM
from hisparse_sim.simulator.serving.models import Model, load_model, profile_name
from hisparse_sim.simulator.serving.replay_modes import replay_mode
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.simulator.serving.sweep_with_costs import sweep
from hisparse_sim.traces import Trace
from hisparse_sim.traces.file.layer_types import FULL, followers, stands_for

Weights = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """How the server was started, as far as a simulation must know it."""

    buffer: int | None = None  # device_buffer_size; None: the server's default
    resident_tokens: int = 0  # of a request, see `sweep`
    ranks: int = 1  # of tensor parallelism: each counts
    kv_dtype: str = Scenario.kv_dtype


@dataclass(frozen=True)
class Simulated:
    """A replay by the server's rules, as its counters would show it."""

    hit_rate: float
    misses_per_token: float  # of a layer that counts
    copies_per_token: float  # of a layer, those that repeat an index included
    resident_share: float  # of all listed positions
    buffer: int
    policy: str
    queries: int  # of a step
    accepted_per_step: float
    counting_layers: int | None  # of the model: in vLLM those with an index, in SGLang all
    layers: int | None
    replayed: str  # of what: trace, requests and layers


def simulated(observed: Observed, trace: Trace, setting: Setting) -> Simulated:
    """Replay a trace with the queries and the acceptance that were counted, under the policy that
    the server has for them.

    Raises what `sweep` raises.
    """
    rules: dict[str, Any] = {}
    if trace.metadata.draft_tokens == 1 and observed.queries > 1:
        accepted = accepted_by(observed)
        rules = {"draft_tokens": observed.queries, "acceptance_length": accepted}
    buffer = setting.buffer
    if observed.server == SGLANG:
        # Every layer counts; a buffer that is not given is that of the engine.
        engine, buffer = Scenario.engine, buffer or 2 * trace.metadata.top_k
    else:
        engine, rules["resident_tokens"] = VLLM.name, setting.resident_tokens
    mode = replay_mode([trace], engine, **rules)
    policy = "lru" if mode is None else mode.own_policy([trace])
    swept = sweep(trace, policy, buffer, engine=engine, compare_min=False, per_layer=True, **rules)
    if swept.interrupted:  # part of a trace is no prediction
        raise KeyboardInterrupt
    rows = swept.rows
    counting, copying = _layer_weights(trace, rows["layer"], observed.server)

    def total(name: str, weights: Weights = counting) -> float:
        return float((rows[name] * weights).sum()) if name in rows else 0.0

    asked = total("accesses") - total("resident_accesses")
    accepted = total("accepted_per_step") / counting.sum() if "accepted_per_step" in rows else 1.0
    layers = trace.metadata.num_layers
    with_index = len(followers(trace.metadata.layer_types))
    return Simulated(
        hit_rate=1 - total("misses") / asked if asked else 1.0,
        misses_per_token=total("misses") / total("steps") / accepted,
        copies_per_token=total("misses", copying) / total("steps", copying) / accepted,
        resident_share=total("resident_accesses") / total("accesses"),
        buffer=int(rows["buffer"].iloc[0]),
        policy=policy,
        queries=1 if mode is None else mode.queries(trace),
        accepted_per_step=accepted,
        counting_layers=layers if observed.server == SGLANG else with_index or layers,
        layers=layers,
        replayed=_replayed_of(trace),
    )


def _layer_weights(trace: Trace, layers: Iterable[Any], server: str) -> tuple[Weights, Weights]:
    """Return the weights of these layers, [rows] each, in what a server counts and in what it
    copies.

    vLLM counts layers with an index, and copies for those that repeat it, too; SGLang counts all.
    """
    types = trace.metadata.layer_types
    drawn = getattr(trace, "stands_for", {})
    standing = stands_for(types, trace.layers)
    numbers = [int(layer) for layer in layers]
    copying = np.array([drawn.get(layer, 1) * standing[layer] for layer in numbers], float)
    kinds = dict(enumerate(types or ()))
    counting = np.array(
        [drawn.get(layer, 1) * (kinds.get(layer, FULL) == FULL) for layer in numbers], float
    )
    return (copying if server == SGLANG or not counting.any() else counting), copying


def _replayed_of(trace: Trace) -> str:
    requests, layers = len(trace.requests), len(trace.layers)
    return (
        f"{requests} request{'s' * (requests > 1)} and {layers} layer{'s' * (layers > 1)} of"
        f" {trace.name} ({trace.metadata.model or 'model unknown'})"
    )


def compared(
    observed: Observed, found: Simulated | None, setting: Setting, model: Model | None = None
) -> pd.DataFrame:
    """Return `quantity, unit, measured, simulated, comparable`, a row each.

    What was not counted, or is not simulated, is missing. `model` tells bytes of a KV entry and, if
    the trace does not, how many layers have an index.
    """
    counts = observed.counts
    tokens = counts.get("generated_tokens", 0.0)
    layers = counting = entry_bytes = None
    whose = "the trace's model"
    if found is not None:
        layers, counting = found.layers, found.counting_layers
    if model is not None:
        entry_bytes = model.entry_bytes(setting.kv_dtype)
        layers, whose = model.layers, model.name
        counting = layers if observed.server == SGLANG else model.indexer_layers
    rows: list[tuple[str, str, float | None, float | None, str]] = []

    def add(name: str, unit: str, measured: Any, replayed: Any, comparable: str) -> None:
        rows.append((name, unit, measured, replayed, comparable))

    add(
        "hit rate",
        "",
        observed.hit_rate,
        found and found.hit_rate,
        "a rate: however many layers, requests and ranks there are, if what stays resident, buffer"
        " and context are the same" + (f"; mean of {found.replayed}" if found else ""),
    )
    if found is not None:
        whose_buffer = "as given"
        if setting.buffer is None:
            default = "SGLang's default" if observed.server == SGLANG else "vLLM's default"
            queries = f" for {found.queries} queries a step" * (found.queries > 1)
            whose_buffer = f"{default}{queries}, assumed: give another with --buffer"
        add("slots of a buffer", "", None, found.buffer, f"{whose_buffer}; policy {found.policy}")
    misses = bytes_ = per_miss = None
    if found is not None and counting:
        misses = found.misses_per_token * counting * setting.ranks
    if entry_bytes and layers and counting:
        per_miss = entry_bytes * layers / counting
        if found is not None and misses is not None:
            bytes_ = found.copies_per_token * layers * setting.ranks * entry_bytes
            per_miss = bytes_ / misses if misses else per_miss
    scaled = "of all layers that count and all ranks"
    if misses is not None:
        scaled = (
            f"simulated of a mean layer x {counting} layers of {whose} that count x {setting.ranks}"
            f" rank{'s' * (setting.ranks > 1)}: only if the server has as many (--model, --ranks)"
        )
    add(
        "misses per generated token",
        "",
        counts["misses"] / tokens if tokens else None,
        misses,
        f"{scaled}; requests that are all resident lower it",
    )
    add(
        "bytes per generated token",
        "B",
        counts["bytes"] / tokens if tokens and "bytes" in counts else None,
        bytes_,
        "of all layers and ranks: as the misses, and with the KV dtype",
    )
    add(
        "bytes per miss",
        "B",
        counts["bytes"] / counts["misses"] if counts["misses"] and "bytes" in counts else None,
        per_miss,
        "entries of a layer that counts and of those that count with it: tells the KV dtype",
    )
    add(
        "accepted tokens per step",
        "",
        None if observed.server == SGLANG else observed.accepted_per_step,
        found and found.accepted_per_step,
        "SGLang does not count it"
        if observed.server == SGLANG
        else "set to what was counted, unless the trace has drafts of its own",
    )
    if observed.server != SGLANG:
        share = found and found.resident_share
        add("read from resident pages", "", None, share, "vLLM does not count it")
    for name, value in observed.gauges.items():
        add(name.replace("_", " "), "", value, None, "not simulated: depends on all requests")
    for name, value in observed.means_s.items():
        add(
            name.removesuffix("_s").replace("_", " "),
            "s",
            value,
            None,
            "not simulated: mean of a sample of host blocks",
        )
    table = pd.DataFrame(rows, columns=["quantity", "unit", "measured", "simulated", "comparable"])
    return table.astype({"measured": float, "simulated": float})


def model_called(names: Iterable[str]) -> Model | None:
    """Return the model profile of the first of these names that has one, or None."""
    return next((load_model(name) for name in names if name and profile_name(name)), None)


def doubts(
    observed: Observed, found: Simulated | None, replayed: str, served: Model | None
) -> tuple[str, ...]:
    """Return what makes a replay another thing than what the server runs, a sentence each.

    `replayed`, `served`: the model of the trace or profile, and of the server.
    """
    if found is None:
        return ()
    said = []
    own = profile_name(replayed) or replayed
    if own and served is not None and own != served.name:
        said.append(
            f"the server runs {served.name}, and what is replayed is of {own}: only the rate can be"
            f" compared, as far as the two models select alike"
        )
    accepted, queries = found.accepted_per_step, found.queries
    counted, asked = observed.accepted_per_step, observed.queries
    apart = queries != asked or abs(accepted - counted) > 0.1 * counted
    if apart and observed.server != SGLANG:  # which counts no drafts
        said.append(
            f"the trace accepts {accepted:.2g} tokens of {queries} queries a step, and the server"
            f" {counted:.2g} of {asked}: give a trace of one query a step, which is replayed with"
            f" the drafts of the server"
        )
    return tuple(said)


def document(
    observed: Observed,
    rows: pd.DataFrame,
    setting: Setting,
    fit: Any = None,
    found: Simulated | None = None,
    notes: Iterable[str] = (),
) -> dict[str, Any]:
    """Return all of it as a JSON object, as `trace synth --fit` reads it; `fit`: a `Fit`."""
    used = setting if found is None else replace(setting, buffer=found.buffer)
    return {
        "observed": asdict(observed) | {"hit_rate": observed.hit_rate, "queries": observed.queries},
        "setting": asdict(used),
        "comparison": rows.to_dict("records"),
        "fit": None if fit is None else asdict(fit),
        "notes": list(notes),
    }


def accepted_by(observed: Observed) -> float:
    """Return the mean tokens that a step accepts, within what its queries allow."""
    return float(np.clip(observed.accepted_per_step, 1, observed.queries))
