"""Counters of a server beside a simulation of the same setting, and a profile fitted to them."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from hisparse_sim.simulator.serving.counters import SGLANG, Observed
from hisparse_sim.simulator.serving.engines import VLLM
from hisparse_sim.simulator.serving.models import Model, load_model, profile_name
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.simulator.serving.sweep_with_costs import sweep
from hisparse_sim.traces import Trace
from hisparse_sim.traces.file.layer_types import followers
from hisparse_sim.traces.synth.generated import GeneratedTrace
from hisparse_sim.traces.synth.generator import Parameters, Profile

_LAYERS = 3  # that stand for all of a profile
_STEPS = 192
_ROUNDS = 9  # of bisection: the scale is then known to half a percent
_WIDEST = 16.0  # scale of the amplitudes, up and down
_CLOSE = 0.002  # hit rates that agree


@dataclass(frozen=True)
class Setting:
    """How the server was started, as far as a simulation must know it."""

    buffer: int | None = None  # device_buffer_size; None: the server's default
    resident_tokens: int = 0  # of a request, see `sweep`
    ranks: int = 1  # of tensor parallelism: each counts
    kv_dtype: str = "fp8"


@dataclass(frozen=True)
class Simulated:
    """A replay by the server's rules, as its counters would show it."""

    hit_rate: float
    misses_per_token: float  # of a layer that counts
    resident_share: float  # of all listed positions
    buffer: int
    accepted_per_step: float
    counting_layers: int | None  # of the model: in vLLM those with an index, in SGLang all
    layers: int | None
    replayed: str  # of what: trace, requests and layers


@dataclass(frozen=True)
class Fit:
    """A profile whose amplitudes of noise and drift were scaled until its hit rate was that of the
    counters."""

    profile: str
    scale: float
    parameters: Parameters
    hit_rate: float  # achieved
    observed_hit_rate: float
    buffer: int
    context: int  # tokens
    queries: int
    acceptance_length: float  # tokens that a step yields

    @property
    def reached(self) -> bool:
        """Whether any scale gives the observed hit rate."""
        return abs(self.hit_rate - self.observed_hit_rate) < 5 * _CLOSE


def simulated(observed: Observed, trace: Trace, setting: Setting) -> Simulated:
    """Replay a trace with the queries and the acceptance that were counted.

    Raises what `sweep` raises.
    """
    rules: dict[str, Any] = {}
    if trace.metadata.draft_tokens == 1 and observed.queries > 1:
        accepted = _accepted(observed)
        rules = {"draft_tokens": observed.queries, "acceptance_length": accepted}
    sharing = followers(trace.metadata.layer_types)
    stands_for = getattr(trace, "stands_for", {})
    buffer = setting.buffer
    if observed.server == SGLANG:
        # Every layer counts; a buffer that is not given is that of the engine.
        buffer, rules["engine"] = buffer or 2 * trace.metadata.top_k, Scenario.engine
        repeats = sharing
    else:
        rules["engine"], rules["resident_tokens"] = VLLM.name, setting.resident_tokens
        repeats = {}
    swept = sweep(trace, "lru", buffer, compare_min=False, per_layer=True, **rules)
    if swept.interrupted:  # part of a trace is no prediction
        raise KeyboardInterrupt
    rows = swept.rows
    layer_weights = [
        stands_for.get(layer, 1) * (1 + repeats.get(layer, 0)) for layer in map(int, rows["layer"])
    ]
    weights = np.array(layer_weights, float)

    def total(name: str) -> float:
        return float((rows[name] * weights).sum()) if name in rows else 0.0

    asked = total("accesses") - total("resident_accesses")
    accepted = total("accepted_per_step") / weights.sum() if "accepted_per_step" in rows else 1.0
    layers = trace.metadata.num_layers
    return Simulated(
        hit_rate=1 - total("misses") / asked if asked else 1.0,
        misses_per_token=total("misses") / total("steps") / accepted,
        resident_share=total("resident_accesses") / total("accesses"),
        buffer=int(rows["buffer"].iloc[0]),
        accepted_per_step=accepted,
        counting_layers=layers if observed.server == SGLANG else len(sharing) or layers,
        layers=layers,
        replayed=_replayed_of(trace),
    )


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
    misses = bytes_ = per_miss = None
    if found is not None and counting:
        misses = found.misses_per_token * counting * setting.ranks
    if entry_bytes and layers and counting:
        per_miss = entry_bytes * layers / counting
        bytes_ = None if misses is None else misses * per_miss
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
        observed.accepted_per_step,
        found and found.accepted_per_step,
        "set to what was counted, unless the trace has drafts of its own",
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


def fitted(
    observed: Observed,
    profile: Profile,
    setting: Setting,
    context: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Fit, Simulated]:
    """Scale the noise and drift of a profile until its hit rate is the one observed.

    One number is fitted to one number: the shape of the profile stays what it is. `context`: mean
    tokens of a request, that of the profile if not given. Returns the fit and its replay; where no
    scale reaches the rate, the nearest is returned and `reached` is False.
    """
    tokens = context or profile.prompt_len
    low, high = -np.log(_WIDEST), np.log(_WIDEST)
    scale, found = 1.0, _replayed(observed, profile, setting, tokens)
    for number in range(_ROUNDS):
        if progress is not None:
            progress(number + 1, _ROUNDS)
        if abs(found.hit_rate - observed.hit_rate) <= _CLOSE:
            break
        if found.hit_rate > observed.hit_rate:  # too regular
            low = np.log(scale)
        else:
            high = np.log(scale)
        scale = float(np.exp((low + high) / 2))
        found = _replayed(observed, _scaled(profile, scale), setting, tokens)
    fit = Fit(
        profile.name,
        scale,
        _scaled(profile, scale).parameters,
        found.hit_rate,
        observed.hit_rate,
        found.buffer,
        tokens,
        observed.queries,
        _accepted(observed),
    )
    return fit, found


def document(
    observed: Observed, rows: pd.DataFrame, setting: Setting, fit: Fit | None
) -> dict[str, Any]:
    """Return all of it as a JSON object, as `trace synth --fit` reads it."""
    return {
        "observed": asdict(observed) | {"hit_rate": observed.hit_rate, "queries": observed.queries},
        "setting": asdict(setting),
        "comparison": rows.to_dict("records"),
        "fit": None if fit is None else asdict(fit),
    }


def _accepted(observed: Observed) -> float:
    return float(np.clip(observed.accepted_per_step, 1, observed.queries))


def _scaled(profile: Profile, scale: float) -> Profile:
    parameters = profile.parameters
    return replace(
        profile,
        parameters=replace(
            parameters,
            noise=parameters.noise * scale,
            drift=parameters.drift * scale,
            early_noise=parameters.early_noise * scale,
        ),
    )


def _replayed(observed: Observed, profile: Profile, setting: Setting, context: int) -> Simulated:
    steps = int(_STEPS * max(1.0, observed.accepted_per_step)) + observed.queries
    trace = GeneratedTrace(profile, context, steps, _LAYERS)
    return simulated(observed, trace, setting)
