"""Misses that the serving model needs: means over the steps of each layer of a replayed trace."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

import numpy as np

from hisparse_sim.policies import Policy
from hisparse_sim.simulator.replaying import replay_part
from hisparse_sim.traces import Trace, open_trace, sample_path

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
    demanded: float  # positions a step, mean
    context: float  # tokens of a request, mean over its steps

    @property
    def mean(self) -> float:
        """Misses of one request, layer and step."""
        return sum(self.per_layer) / len(self.per_layer)

    @property
    def rate(self) -> float:
        """Misses over demanded positions, the warm-up left out."""
        return self.mean / self.demanded


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
    for a bad trace and ValueError for one that is no longer than the warm-up.
    """
    opened = trace if isinstance(trace, Trace) else open_trace(trace or sample_path())
    by_layer: dict[int, list[float]] = {}
    contexts, demanded, name = [], [], policy if isinstance(policy, str) else policy.name
    for part in opened.parts:
        demand = opened.read(part)
        if len(demand.step) <= warm_up_steps:
            raise ValueError(
                f"{opened.name}, request {part.request!r} has {len(demand.step)} steps, no more"
                f" than the {warm_up_steps} of the warm-up"
            )
        done = replay_part(demand, policy, device_buffer_size, start, seed=seed)
        by_layer.setdefault(part.layer, []).append(float(np.mean(done.misses[warm_up_steps:])))
        contexts.append(float(np.mean(demand.seq_len)))
        demanded.append(float(np.mean(np.diff(demand.offsets))))
    return LayerMisses(
        trace=opened.name,
        provenance=opened.metadata.provenance,
        sha256=opened.sha256,
        policy=name,
        device_buffer_size=device_buffer_size,
        start=start,
        per_layer=tuple(float(np.mean(values)) for _, values in sorted(by_layer.items())),
        demanded=float(np.mean(demanded)),
        context=float(np.mean(contexts)),
    )
