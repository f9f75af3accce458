"""Demand with one extreme property each: worst cases, best cases, and stress tests of policies.

Positions never include the newest token, so every access is an ordinary hit or miss. With k = top_k
positions a row and a pool of `distinct` positions:

- cyclic: a scan through the pool, k further each step; LRU misses everything once the pool is
  larger than the buffer, MIN only the difference;
- thrash: k / 2 fixed positions, the rest scans the pool: recency and frequency disagree;
- all-new: k positions that no step selected before, from the end of the prompt backwards, until
  the prompt is used up (then again from its end);
- none-new: the same k positions in every step;
- step-change: one set in the first half of the steps, a disjoint one in the second.
"""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.metadata import Metadata
from hisparse_sim.traces.file.writer import TraceWriter
from hisparse_sim.traces.machine_memory import refuse_too_large

# (step, steps, k, distinct, prompt_len) -> k distinct positions below prompt_len
Positions = NDArray[np.signedinteger[Any]]
Shape = Callable[[int, int, int, int, int], Positions]


def _cyclic(step: int, steps: int, k: int, distinct: int, prompt_len: int) -> Positions:
    return (step * k + np.arange(k)) % distinct


def _thrash(step: int, steps: int, k: int, distinct: int, prompt_len: int) -> Positions:
    fixed, moving = k // 2, k - k // 2
    scan = (step * moving + np.arange(moving)) % (distinct - fixed)
    return np.concatenate([np.arange(fixed), fixed + scan])


def _all_new(step: int, steps: int, k: int, distinct: int, prompt_len: int) -> Positions:
    rows = prompt_len // k
    return prompt_len - 1 - ((step % rows) * k + np.arange(k))


def _none_new(step: int, steps: int, k: int, distinct: int, prompt_len: int) -> Positions:
    return prompt_len - k + np.arange(k)


def _step_change(step: int, steps: int, k: int, distinct: int, prompt_len: int) -> Positions:
    return np.arange(k) + (prompt_len - k if 2 * step >= steps else 0)


SHAPES: dict[str, Shape] = {
    "cyclic": _cyclic,
    "thrash": _thrash,
    "all-new": _all_new,
    "none-new": _none_new,
    "step-change": _step_change,
}


def generate_shape(
    name: str,
    *,
    top_k: int = 2048,
    steps: int = 500,
    prompt_len: int = 32_768,
    distinct: int | None = None,
    request: str = "synth-0",
    layer: int = 0,
) -> Demand:
    """Return one (request, layer) of a shape, sorted rows; `distinct` is 4 x top_k by default.

    Raises ValueError for an unknown shape, TraceError for one that the prompt, or the memory of the
    machine, has no room for.
    """
    if name not in SHAPES:
        raise ValueError(f"unknown shape {name!r}; known are {', '.join(SHAPES)}")
    distinct = min(prompt_len, 4 * top_k) if distinct is None else distinct
    if top_k < 1 or steps < 1:
        raise TraceError(f"top_k is {top_k} and steps {steps}, expected at least 1 of each")
    if not top_k <= distinct <= prompt_len or 2 * top_k > prompt_len:
        raise TraceError(
            f"a prompt of {prompt_len:,} tokens has no room for {distinct:,} distinct positions at "
            f"top_k {top_k}: top_k <= distinct <= prompt_len and 2 x top_k <= prompt_len must hold"
        )
    if prompt_len + steps >= 2**31:
        raise TraceError("prompt_len and steps together must stay below 2^31")
    # Three times int64, and an array for every step.
    refuse_too_large(24.0 * steps * top_k + 100 * steps, f"{steps:,} steps of {top_k:,} positions")
    rows = [SHAPES[name](step, steps, top_k, distinct, prompt_len) for step in range(steps)]
    positions = np.sort(np.stack(rows), axis=1).astype(np.int32)
    numbers = np.arange(steps, dtype=np.int32)
    return Demand(
        request=request,
        layer=layer,
        prompt_len=prompt_len,
        step=numbers,
        seq_len=numbers + np.int32(prompt_len + 1),
        offsets=np.arange(0, positions.size + 1, top_k, dtype=np.int64),
        positions=positions.ravel(),
    )


def synthesize_shape(path: str | os.PathLike[str], name: str, **options: int | None) -> None:
    """Write a trace of one request and layer; options as for `generate_shape`."""
    given = {key: value for key, value in options.items() if value is not None}
    demand = generate_shape(name, **given)  # type: ignore[arg-type]
    about = Metadata(
        model="",
        provenance="synthetic",
        top_k=int(np.diff(demand.offsets).max()),
        num_layers=1,
        source=f"hisparse-sim {version('hisparse-sim')}, shape {name}",
        prompt_len={demand.request: demand.prompt_len},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        notes={"shape": name, **given},
    )
    with TraceWriter(path, about) as writer:
        writer.write(demand)
