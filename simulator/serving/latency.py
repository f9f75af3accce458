"""The time of a swap-in: one layer, one decode step, all requests of a batch at once.

    us   = plan + plan_slot * buffer           deciding hits, misses and victims
           + first + (own^3 + link^3)^(1/3)    the copy, if there are misses
    own  = peak * (miss_ns + entry_bytes * miss_byte_ns)           the busiest request's own pace
    link = batch * misses * (entry_ns + entry_bytes / link_gb_s)    all KV entries over the link

The slower of own and link dominates, and both matter where they are close: a sum of cubes does both
(the exponent was chosen on the fitted points). The figures come from links.toml: fitted to
measurements by `hisparse-sim gpu calibrate`, or modelled for links that could not be measured; each
states its kind and source. If several GPUs of one host read at once, `Link.among` first shares the
limit of the host among them.

A link whose profile names another's kernels (`kernels_of`) has their figures converted by
`KernelCost.over`: the rate of one request is the bytes that its block keeps in flight over the time
of a load (Little's law), so it depends on the round trip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from math import inf
from pathlib import Path
from reprlib import repr as clipped
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hisparse_sim.simulator.serving import profiles
from hisparse_sim.simulator.serving.profiles import Profile, ProfileError, find_profile

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
KERNELS = ("sglang", "native")


@dataclass(frozen=True)
class KernelCost:
    """Cost of one swap-in kernel; times in us unless stated."""

    plan_us: float  # a launch without misses, less the part that grows with the buffer
    plan_slot_us: float  # for each slot of the buffer
    first_us: float  # if there is a miss: latency of the link and the tables
    miss_ns: float  # each miss of one request, whatever its size
    miss_byte_ns: float  # each of its bytes beside that

    def over(self, here_ns: float, there_ns: float) -> KernelCost:
        """The kernel on another link, whose loads take `there_ns` instead of `here_ns`.

        The rate of a request changes with the round trip, since the bytes in flight stay the same.
        That counts all of the time of a miss as waiting, which favours the faster link by the part
        that is work on the GPU. The first entry takes one round trip. Planning stays the same.
        """
        ratio = there_ns / here_ns
        return replace(
            self,
            first_us=max(self.first_us + (there_ns - here_ns) / 1e3, 0.0),
            miss_ns=self.miss_ns * ratio,
            miss_byte_ns=self.miss_byte_ns * ratio,
        )

    def bytes_in_flight(self, round_trip_ns: float, entry_bytes: int) -> float:
        """Bytes that one request keeps in flight: rate x round trip."""
        return round_trip_ns * entry_bytes / (self.miss_ns + entry_bytes * self.miss_byte_ns)


@dataclass(frozen=True)
class Link:
    """A host link with the kernels that read over it."""

    name: str
    description: str
    kind: str  # of the link's rate: measured, published or modelled
    source: str
    entry_ns: float  # per KV entry, whatever its size
    link_gb_s: float  # rate of KV entries besides
    bulk_gb_s: float  # one large copy from pinned memory
    kernels: dict[str, KernelCost]
    host_gb_s: float = inf  # large copies of GPUs of one host together; inf: not known
    host_gpus: int = 0  # that share it: each further so many have as much of their own; 0: all
    host_low_gb_s: float = 0.0  # what all GPUs of one host may get together at least; 0: not known
    host_high_gb_s: float = inf  # and at most
    round_trip_ns: float = 0.0  # of a GPU's load from host memory; 0: not known
    round_trip_low_ns: float = 0.0  # the range of what was published
    round_trip_high_ns: float = 0.0

    def ceiling_gb_s(self, gpus: int) -> float:
        """Largest total rate of `gpus` that read from one host at once."""
        return self.host_gb_s * max(1.0, gpus / self.host_gpus if self.host_gpus else 1.0)

    def limited(self, host_gb_s: float) -> Link:
        """The link with this limit for all GPUs of a host together, whatever their number."""
        return replace(self, host_gb_s=host_gb_s, host_gpus=0)

    def among(self, gpus: int) -> Link:
        """The link as each of `gpus` sees it if all of them read from one host at once.

        Unchanged as long as the limit of the host allows all of them the large copy; beyond that
        its rates fall in proportion. The work of the kernels stays the same.
        """
        share = min(1.0, self.ceiling_gb_s(gpus) / (gpus * self.bulk_gb_s))
        return replace(
            self,
            entry_ns=self.entry_ns / share,
            link_gb_s=self.link_gb_s * share,
            bulk_gb_s=self.bulk_gb_s * share,
        )


def measured_swap_ins() -> pd.DataFrame:
    """The measurements to which h200-pcie5 was fitted: medians on an H200, one layer and step.

    Columns: batch, misses (of each request), buffer, entry_bytes, sglang_us (the engine's kernel,
    SGLang 0.5.23), native_us (ours). All samples: benchmarks/results/swap-in-h200.json.
    """
    import pandas as pd

    with (files(profiles) / "swap-in-h200.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)


def load_link(name: str, path: str | Path | None = None) -> Link:
    """The link profile called `name`, shipped or in the profile file `path`.

    One that names the kernels of another link (`kernels_of`) needs `bulk_gb_s` and `round_trip_ns`
    only: rates of entries go with the large copy, see `KernelCost.over` for the kernels. Raises
    ProfileError if it is unknown (the message lists the known ones) or lacks a figure.
    """
    profile = find_profile("links", name, path)
    of = profile.labels.get("kernels_of")
    link = _carried(profile, _kernels_of(of, profile, path)) if of else _own(profile)
    round_trip = profile.number("round_trip_ns", 0.0)
    return replace(
        link,
        host_gb_s=profile.number("host_gb_s", inf, positive=True),
        host_gpus=profile.count("host_gpus", 0),
        host_low_gb_s=profile.number("host_low_gb_s", 0.0),
        host_high_gb_s=profile.number("host_high_gb_s", inf, positive=True),
        round_trip_ns=round_trip,
        round_trip_low_ns=profile.number("round_trip_low_ns", round_trip),
        round_trip_high_ns=profile.number("round_trip_high_ns", round_trip),
    )


def _own(profile: Profile) -> Link:
    """Rates and kernels from the profile's own figures."""
    source = profile.sources.get("link_gb_s")
    return Link(
        name=profile.name,
        description=profile.labels.get("description", ""),
        kind=source.kind if source else "",
        source=source.text if source else "",
        entry_ns=profile.number("entry_ns"),
        link_gb_s=profile.number("link_gb_s", positive=True),
        bulk_gb_s=profile.number("bulk_gb_s", positive=True),
        kernels={kernel: _kernel(profile, kernel) for kernel in KERNELS},
    )


def _carried(profile: Profile, base: Link) -> Link:
    """Rates and kernels of `base`, carried over to this profile's large copy and round trip."""
    bulk = profile.number("bulk_gb_s", positive=True)
    there = profile.number("round_trip_ns", positive=True)
    return Link(
        name=profile.name,
        description=profile.labels.get("description", ""),
        kind="modelled",
        source=f"from {base.name}: rates with the large copy, kernels' pace with the round trip",
        entry_ns=base.entry_ns * base.bulk_gb_s / bulk,
        link_gb_s=base.link_gb_s * bulk / base.bulk_gb_s,
        bulk_gb_s=bulk,
        kernels={k: cost.over(base.round_trip_ns, there) for k, cost in base.kernels.items()},
    )


def _kernels_of(name: str, profile: Profile, path: str | Path | None) -> Link:
    base = find_profile("links", name, path)
    if "kernels_of" in base.labels or not base.number("round_trip_ns", 0.0):
        raise ProfileError(
            f"{profile.place} takes the kernels of {base.name}, which has none of its own or no"
            " round_trip_ns"
        )
    return load_link(base.name, path)


def _kernel(profile: Profile, kernel: str) -> KernelCost:
    return KernelCost(
        plan_us=profile.number(f"{kernel}_plan_us"),
        plan_slot_us=profile.number(f"{kernel}_plan_slot_us"),
        first_us=profile.number(f"{kernel}_first_us"),
        miss_ns=profile.number(f"{kernel}_miss_ns"),
        miss_byte_ns=profile.number(f"{kernel}_miss_byte_ns"),
    )


def swap_in_us(
    link: Link | str,
    kernel: str,
    batch: npt.ArrayLike,
    misses: npt.ArrayLike,
    buffer: npt.ArrayLike,
    entry_bytes: npt.ArrayLike,
    peak: npt.ArrayLike | None = None,
) -> npt.NDArray[np.float64]:
    """Microseconds of one layer's swap-in; arguments broadcast against each other.

    Parameters
    ----------
    link
        A profile or its name.
    kernel
        `sglang` (the engine's) or `native` (ours).
    batch
        Requests of the batch.
    misses
        Misses of a request in this layer and step, mean over the batch.
    buffer
        Slots per request.
    entry_bytes
        Bytes of a KV entry: one position in one layer.
    peak
        Misses of the request with the most; `misses` if not given.

    Raises ValueError for an unknown kernel and numbers that are negative or not finite,
    ProfileError for an unknown link.
    """
    given = {"batch": batch, "misses": misses, "buffer": buffer, "entry_bytes": entry_bytes}
    for name, value in {**given, **({} if peak is None else {"peak": peak})}.items():
        if not np.all(np.isfinite(found := np.asarray(value, np.float64)) & (found >= 0)):
            raise ValueError(f"{name} must be finite and at least 0, not {clipped(value)}")
    link = load_link(link) if isinstance(link, str) else link
    if kernel not in link.kernels:
        raise ValueError(f"unknown kernel {kernel!r}; known: {', '.join(link.kernels)}")
    cost = link.kernels[kernel]
    misses = np.asarray(misses, np.float64)
    entry_bytes = np.asarray(entry_bytes, np.float64)
    peak = misses if peak is None else np.asarray(peak, np.float64)
    plan = cost.plan_us + cost.plan_slot_us * np.asarray(buffer, np.float64)
    own = peak * (cost.miss_ns + entry_bytes * cost.miss_byte_ns)
    # One byte per ns is 1 GB/s.
    every = np.asarray(batch, np.float64) * misses * (link.entry_ns + entry_bytes / link.link_gb_s)
    copy = cost.first_us + np.cbrt(own * own * own + every * every * every) / 1e3
    total: npt.NDArray[np.float64] = plan + np.where(misses > 0, copy, 0.0)
    return total


def swap_in_on(
    link: Link, kernel: str, device_buffer_size: int, entry_bytes: int
) -> Callable[[Floats, Floats, Floats], Floats]:
    """Swap-in time of (requests, mean misses, misses of the busiest) on a link, in us."""

    def swap_in(requests: Floats, misses: Floats, most: Floats) -> Floats:
        return swap_in_us(
            link, kernel, requests, misses, device_buffer_size, entry_bytes, peak=most
        )

    return swap_in
