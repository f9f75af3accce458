"""Buffers of different sizes: the same slots in all, spread over layers by their curves.

Each layer's curve (the textbook's LRU, in pages) is replaced by its lower convex hull. Slots go to
the hull segment that saves most misses per slot, until they are spent: the best that can be had at
the corners of hulls (Fox 1966, doi:10.1287/opre.14.2.210). The result is replayed under the
engine's LRU. The engine itself has one size for all layers: this is what another would save.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import index

import numpy as np
import pandas as pd

from hisparse_sim.policies import Policy, get_policy
from hisparse_sim.simulator.mrc.counting import mrc
from hisparse_sim.simulator.mrc.curves import ENGINE_LRU
from hisparse_sim.simulator.mrc.names import TEXTBOOK_LRU
from hisparse_sim.simulator.replay.ranking import columns_for
from hisparse_sim.simulator.replay.replaying import replay_part
from hisparse_sim.simulator.replay.sweeping import prepare
from hisparse_sim.traces import OneTrace, TraceError, as_trace
from hisparse_sim.traces.demand import Longs
from hisparse_sim.traces.file.ahead import read_ahead
from hisparse_sim.traces.file.units import TOKEN
from hisparse_sim.traces.notebook import Shown


@dataclass(frozen=True, eq=False, repr=False)
class Budget(Shown):
    """Buffers for the layers of a trace, or for each of its (request, layer).

    `rows`: `request` (null where a size is for all of them), `layer`, `buffer`, `steps`,
    `misses_alike` and `misses`: replayed with buffers that are all alike, and with these.
    """

    rows: pd.DataFrame
    trace: str
    provenance: str
    policy: str
    alike: int  # slots of each buffer if all are
    unit: str = TOKEN  # of positions and slots

    @property
    def saved(self) -> float:
        """Share of the misses that go: 0.1 is a tenth."""
        before = int(self.rows["misses_alike"].sum())
        return 1 - int(self.rows["misses"].sum()) / before if before else 0.0

    def _shown(self) -> tuple[str, Iterable[str], pd.DataFrame]:
        title = f"{self.policy}: {self.saved:.1%} of the misses of {self.alike:,} slots each saved"
        return title, [f"{self.provenance} trace {self.trace}"], self.rows


def budget(
    trace: OneTrace | None = None,
    buffer: int | None = None,
    start: str = "staged",
    *,
    policy: str | Policy = ENGINE_LRU,
    per_request: bool = False,
    on: OneTrace | None = None,
    largest: int | None = None,
    layers: int | Iterable[int] | None = None,
    seed: int = 0,
    jobs: int | None = None,
) -> Budget:
    """Spread the slots of equal buffers of size `buffer` (twice the top_k) over layers, and replay
    both.

    `per_request` spreads them over all (request, layer), which requires knowing the request.
    `on` replays another trace, of the same layers, than the one whose curves decide. The other
    arguments are those of `mrc` and `replay`.

    Raises what `mrc` raises, TraceError if `on` has other layers.
    """
    source = as_trace(trace)
    target = source if on is None else as_trace(on)
    size = 2 * source.metadata.top_k if buffer is None else index(buffer)
    curves = mrc(
        source, TEXTBOOK_LRU, start=start, largest=largest, per_layer=True, layers=layers, jobs=jobs
    )
    curves = curves if per_request else curves.summed(["layer"])
    counted = curves.of[TEXTBOOK_LRU]
    sizes = spread(counted.sizes, counted.misses, size)
    keys = curves.lines[["request", "layer"]].itertuples(index=False, name=None)
    chosen = {(key if per_request else key[1]): at for key, at in zip(keys, sizes, strict=True)}
    parts = target.select(layers=layers)
    for part in parts:
        if (part.request, part.layer) not in chosen and part.layer not in chosen:
            raise TraceError(
                f"{source.path} says nothing of request {part.request!r}, layer {part.layer} of"
                f" {target.path}"
            )
    policy = get_policy(policy)
    prepare([policy])
    rows = []
    for part, demand in read_ahead(target, parts, columns_for(target, [policy])):
        own = int(chosen[(part.request, part.layer) if per_request else part.layer])
        replays = partial(replay_part, demand, policy, start=start, seed=seed)
        rows.append(
            {
                "request": part.request if per_request else None,
                "layer": part.layer,
                "buffer": own,
                "steps": demand.rows,
                "misses_alike": int(replays(size).misses.sum(dtype=np.int64)),
                "misses": int(replays(own).misses.sum(dtype=np.int64)),
            }
        )
    by = ["request", "layer", "buffer"]
    return Budget(
        rows=pd.DataFrame(rows)
        .groupby(by, sort=False, dropna=False)
        .sum()
        .reset_index()
        .astype({"layer": "Int64"}),
        trace=target.name,
        provenance=target.metadata.provenance,
        policy=policy.name,
        alike=size,
        unit=target.metadata.unit,
    )


def spread(sizes: Longs, misses: Longs, alike: int) -> Longs:
    """Return a size [n] for each of n curves [n, S] over `sizes` [S], of together n times `alike`
    slots at most.

    By the curves no choice misses more than buffers that are all alike. Raises ValueError for an
    `alike` that is not one of the sizes.
    """
    if alike not in sizes:
        raise ValueError(
            f"a budget of {alike:,} slots per buffer: choose a multiple of {np.diff(sizes).min()}"
            f" from {sizes[0]:,} to {sizes[-1]:,}"
        )
    segments = []
    for number, curve in enumerate(misses):
        corners = _hull(sizes, curve)
        for corner, following in pairwise(corners):
            slots = int(sizes[following] - sizes[corner])
            saves = float(curve[corner] - curve[following])
            segments.append((-saves / slots, number, int(following), slots))
    left = len(misses) * (alike - int(sizes[0]))
    at = np.zeros(len(misses), np.int64)
    stopped = np.zeros(len(misses), bool)
    for _, number, following, slots in sorted(segments):
        if stopped[number]:
            continue
        if slots <= left:
            at[number], left = following, left - slots
        else:  # later corners of this curve stand behind it
            stopped[number] = True
    # What is left buys single steps where these save most.
    each = np.arange(len(misses))
    while True:
        after = np.minimum(at + 1, len(sizes) - 1)
        gains = misses[each, at] - misses[each, after]
        gains[(sizes[after] - sizes[at] > left) | (after == at)] = 0
        best = int(gains.argmax())
        if gains[best] <= 0:
            break
        left -= int(sizes[at[best] + 1] - sizes[at[best]])
        at[best] += 1
    equal = int(np.searchsorted(sizes, alike))
    if misses[each, at].sum() > misses[:, equal].sum():
        at[:] = equal
    found: Longs = sizes[at]
    return found


def _hull(sizes: Longs, curve: Longs) -> list[int]:
    """Return the corners of the lower convex hull as indices, as far as the curve falls."""
    corners: list[int] = []
    for point in range(int(curve.argmin()) + 1):
        while len(corners) > 1:
            before, last = corners[-2], corners[-1]
            rise = (curve[last] - curve[before]) * (sizes[point] - sizes[before])
            # Points on a straight line stay: a budget may end between its ends.
            if rise <= (curve[point] - curve[before]) * (sizes[last] - sizes[before]):
                break
            corners.pop()
        corners.append(point)
    return corners
