"""The cost of the misses of a sweep on a model and a GPU: bytes over the link, memory, and requests
that fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hisparse_sim.simulator.replay.metrics import Misses
from hisparse_sim.simulator.replay.swept import Sweep
from hisparse_sim.simulator.serving.deployment import Deployment
from hisparse_sim.simulator.serving.latency import Link, swap_in_us
from hisparse_sim.simulator.serving.models import Model, check_unit, load_model, other_model
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.scenario import GIB, MOST_GIB
from hisparse_sim.traces import Trace, TraceError
from hisparse_sim.traces.file.units import in_blocks, plural, refuse_blocks

_MOST_RATIO = 2**20


@dataclass(frozen=True)
class SwapIn:
    """From misses to time, as modelled by `hisparse_sim.simulator.serving.latency`."""

    link: Link
    kernel: str  # "sglang" or "native"
    batch: int  # requests that swap in together, with the same misses
    entry_bytes: int  # of a position in a layer
    position_tokens: int = 1

    def us(self, misses: Misses, buffer_size: int) -> npt.NDArray[np.float64]:
        """Return the swap-in time of every step, for `misses` [steps] of one layer and request."""
        return swap_in_us(self.link, self.kernel, self.batch, misses, buffer_size, self.entry_bytes)


def model_of(
    traces: Sequence[Trace], name: str | None = None, profiles: str | Path | None = None
) -> tuple[Model, str]:
    """Return the profile of the model for costs, and a note if the traces are of another one.

    The model called `name`, else that of the traces, else glm-5.1, the latter two with the top_k of
    the traces. Raises TraceError for traces whose positions are not what the model selects, or are
    blocks of a model without a profile, ValueError for an unknown name and for traces of several
    models of which any has a profile.
    """
    if name is not None:
        model = load_model(name, profiles)
        check_unit(traces, model.unit, model.name, profiles)
        return model, ""
    top_k = max(trace.metadata.top_k for trace in traces)
    models = list(dict.fromkeys(trace.metadata.model for trace in traces))
    profiled = {each: found for each in models if (found := _profile(each, profiles))}
    if profiled and len(models) > 1:
        raise ValueError("the traces are of several models; choose one with `model`")
    own = " and ".join(filter(None, models))
    if profiled:
        model, why = profiled[models[0]], ""
    else:
        for trace in filter(in_blocks, traces):
            raise TraceError(
                f"{trace.path} counts {plural(trace.metadata.unit)}, and"
                f" {trace.metadata.model or 'the trace'} has no profile, from which costs follow:"
                f" {other_model(trace, profiles)}"
            )
        model = load_model("glm-5.1")
        have = "have" if len(models) > 1 else "has"
        why = f"{own or 'the trace'} {have} no profile; `model` names another"
    check_unit(traces, model.unit, model.name, profiles)
    if top_k != model.top_k:
        why += (
            "; " * bool(why) + f"with the top_k of the trace, {top_k:,}, instead of {model.top_k:,}"
        )
    note = f"bytes and memory are those of {model.name} ({why})" if why else ""
    return replace(model, top_k=top_k), note


def _profile(name: str, profiles: str | Path | None) -> Model | None:
    try:
        return load_model(name, profiles)
    except ValueError:
        return None


def check_costs(ratios: Sequence[int], **gib: float | None) -> None:
    """Raise ValueError for arguments that `add_costs` refuses; called before long work starts."""
    for name, value in gib.items():
        if value is not None and not 0 < value <= MOST_GIB:
            raise ValueError(f"`{name}` is {value}; it must be between 0 and {MOST_GIB}")
    for ratio in ratios:
        if not 1 <= ratio <= _MOST_RATIO:
            raise ValueError(f"`ratio` is {ratio}; it must be between 1 and {_MOST_RATIO}")


def add_swap_in(swept: Sweep, rows: pd.DataFrame, swap_in: SwapIn) -> pd.DataFrame:
    """Return `rows` (those of `swept`, perhaps repeated) with the columns of swap-in time.

    `swap_in_us` is the mean over all (layer, step) of a row of the swap-in time of one layer in one
    step if nothing hides it; not the time of the mean misses, since it is not linear in them.
    Raises TraceError for traces whose positions are not tokens.
    """
    if swap_in.position_tokens == 1:
        refuse_blocks((piece.trace for piece in swept.pieces), "swap-in times need")
    times: dict[tuple[object, ...], list[npt.NDArray[np.float64]]] = {}
    keys = ["trace", "policy", "buffer", *(["request", "layer"] if swept.per_layer else [])]
    for piece in swept.pieces:
        part = (piece.part.request, piece.part.layer) if swept.per_layer else ()
        for run, misses in piece.misses.items():
            key = (piece.name, run.policy.name, run.buffer_size, *part)
            times.setdefault(key, []).append(swap_in.us(misses, run.buffer_size))
    means = {key: float(np.concatenate(values).mean()) for key, values in times.items()}
    return rows.assign(
        link=swap_in.link.name,
        swap_in_kernel=swap_in.kernel,
        batch=swap_in.batch,
        swap_in_us=[means[key] for key in rows[keys].itertuples(index=False, name=None)],
    )


def add_costs(
    swept: Sweep,
    deployment: Deployment,
    ratios: Sequence[int],
    *,
    output_len: int = 0,
    disaggregated: bool = False,
) -> pd.DataFrame:
    """Return the rows of `swept`, once per ratio, with the cost columns of docs/metrics.md.

    `bytes_per_step` and `bytes_per_request` (host to device) are those of all layers of the model,
    each with the mean misses of the replayed layers, in which one that others repeat counts for
    them, too; with `per_layer` those of the one layer of the row. A request makes as many steps as
    were replayed of it, and is as long as the longest of the traces plus `output_len`. The requests
    that fit on a GPU are those that `plan` gives. `disaggregated`: prefill runs on other GPUs.
    Raises ValueError for values that the engine refuses, TraceError for traces whose positions are
    not tokens.
    """
    rows, model = swept.rows, deployment.model
    if model.position_tokens == 1:
        refuse_blocks((piece.trace for piece in swept.pieces), "memory models need")
    check_costs(ratios)
    entry_bytes = deployment.entry_bytes * model.position_tokens
    tokens = swept.longest_request * model.position_tokens
    # A step is of one token, whatever a position holds; `seq_len` of a trace need not grow.
    generated = min(swept.longest_output, tokens - 1) + output_len
    priced = []
    for ratio in ratios:
        block = rows.copy()
        block["model"] = model.name
        block["kv_dtype"] = model.stored_as(deployment.kv_dtype)
        block["host_to_device_ratio"] = ratio
        layers = 1 if swept.per_layer else model.layers
        block["bytes_per_step"] = swept.misses_per_layer() * entry_bytes * layers
        block["bytes_per_request"] = block["bytes_per_step"] * block["steps"] / swept.parts_per_row
        block["device_pool_gib"] = deployment.device_pool_bytes / GIB
        block["host_gib"] = deployment.rank_host_bytes / GIB
        block["request_tokens"] = tokens + output_len
        block["hardware"] = deployment.hardware.name
        block["engine"] = deployment.engine.name
        fits = {
            size: _fitting(deployment, ratio, size, tokens + output_len, generated, disaggregated)
            for size in rows["buffer"].unique()
        }
        for column in (
            "hot_buffer_bytes",
            "host_bytes_per_request",
            "requests_per_gpu",
            "limit",
            "reason",
        ):
            values = {size: fit[column] for size, fit in fits.items()}
            block[column] = block["buffer"].map(values)
        priced.append(block)
    return pd.concat(priced, ignore_index=True) if priced else rows


def _fitting(
    deployment: Deployment, ratio: int, size: int, tokens: int, output: int, disaggregated: bool
) -> dict[str, Any]:
    """Return how many requests of `tokens`, `output` of them generated, one GPU runs, and the
    limit."""
    found = deployment.capacity(ratio, size, tokens, output)
    requests, limit, reason = found.requests, found.limit, found.reason
    if requests:
        one = Setting(deployment, None, "zero-cost", size, ratio, disaggregated=disaggregated)
        requests, limit = one.resident(tokens - output, output)
        reason = _REASONS[limit].format(
            requests=requests,
            more=requests + 1,
            prompt=tokens - output,
            tokens=tokens - output + found.output,
            device=found.pool_tokens,
            logical=found.logical_tokens,
            ratio=ratio,
        )
        if found.output < output:
            reason += f"; outputs are cut to {found.output:,} tokens"
    return {
        "hot_buffer_bytes": found.hot_buffer_bytes,
        "host_bytes_per_request": found.host_bytes_per_request,
        "requests_per_gpu": requests,
        "limit": limit,
        "reason": reason,
    }


_REASONS = {
    "prefill headroom": "a prompt of {prompt:,} tokens beside the hot buffers of {requests}"
    " requests and the output promised to them exceeds the device pool of {device:,} tokens",
    "device pool": "{more} hot buffers exceed the device pool of {device:,} tokens",
    "indexer keys": "{more} requests of up to {tokens:,} tokens exceed the {logical:,} tokens (pool"
    " x ratio {ratio}) whose indexer keys are on the GPU and whose entries the host pool holds",
    "max-running-requests": "{more} are more than --max-running-requests gives each rank",
}
