"""How long a swap-in takes: one layer, one decode step, all requests of a batch at once.

    us   = plan + plan_slot * buffer           deciding hits, misses and victims
           + first + (own^3 + link^3)^(1/3)    the copy, if anything was missed
    own  = peak * (miss_ns + entry_bytes * miss_byte_ns)           the busiest request's own pace
    link = batch * misses * (entry_ns + entry_bytes / link_gb_s)    all items over the link

The slower of own and link sets the pace, and where they are alike they hold each other up: a sum of
cubes says both (the exponent was chosen on the fitted points). The figures come from links.toml:
fitted to measurements by `hisparse-sim gpu calibrate`, or modelled for links that were not at hand;
each carries its kind and source. With several GPUs of one host pulling at once, `Link.among` first
shares the host's ceiling among them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hisparse_sim.simulator.serving import profiles
from hisparse_sim.simulator.serving.profiles import Profile, find_profile

if TYPE_CHECKING:
    import pandas as pd

KERNELS = ("sglang", "native")


@dataclass(frozen=True)
class KernelCost:
    """What one swap-in kernel costs; times in us unless named otherwise."""

    plan_us: float  # a launch that misses nothing, less what grows with the buffer
    plan_slot_us: float  # for each slot of the buffer
    first_us: float  # once a position is missed: the link's and the tables' latency
    miss_ns: float  # each miss of one request, whatever its size
    miss_byte_ns: float  # each of its bytes beside that


@dataclass(frozen=True)
class Link:
    """A host link with the kernels that read over it."""

    name: str
    description: str
    kind: str  # of the link's rate: measured, published or modelled
    source: str
    entry_ns: float  # each item, whatever its size
    link_gb_s: float  # rate of items beside that
    bulk_gb_s: float  # one large copy from pinned memory
    kernels: dict[str, KernelCost]
    host_gb_s: float = inf  # large copies of all GPUs of one host together; inf: not known

    def among(self, gpus: int) -> Link:
        """The link as each of `gpus` sees it when all of them pull from one host at once.

        As it is while the host's ceiling allows the large copy to all; beyond that its rates fall
        in proportion. The kernels' own work stays.
        """
        share = min(1.0, self.host_gb_s / (gpus * self.bulk_gb_s))
        return replace(
            self,
            entry_ns=self.entry_ns / share,
            link_gb_s=self.link_gb_s * share,
            bulk_gb_s=self.bulk_gb_s * share,
        )


def measured_points() -> pd.DataFrame:
    """What the figures of h200-pcie5 were fitted to: medians on an H200, one layer and step.

    Columns: batch, misses (of each request), buffer, entry_bytes, sglang_us (the engine's kernel,
    SGLang 0.5.23), native_us (ours). All samples: benchmarks/results/swap-in-h200.json.
    """
    import pandas as pd

    with (files(profiles) / "swap-in-h200.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)


def load_link(name: str, path: str | Path | None = None) -> Link:
    """The link profile called `name`, shipped or in the profile file `path`.

    Raises ProfileError if it is unknown (the message lists the known) or lacks a figure.
    """
    profile = find_profile("links", name, path)
    return Link(
        name=profile.name,
        description=profile.labels.get("description", ""),
        kind=profile.sources["link_gb_s"].kind if "link_gb_s" in profile.sources else "",
        source=profile.sources["link_gb_s"].text if "link_gb_s" in profile.sources else "",
        entry_ns=profile.number("entry_ns"),
        link_gb_s=profile.number("link_gb_s", positive=True),
        bulk_gb_s=profile.number("bulk_gb_s", positive=True),
        kernels={kernel: _kernel(profile, kernel) for kernel in KERNELS},
        host_gb_s=profile.number("host_gb_s", inf, positive=True),
    )


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
        Slots of a request.
    entry_bytes
        Bytes of one position's KV item.
    peak
        Misses of the request that misses most; `misses` if not given.

    Raises ValueError for an unknown kernel, ProfileError for an unknown link.
    """
    link = load_link(link) if isinstance(link, str) else link
    if kernel not in link.kernels:
        raise ValueError(f"unknown kernel {kernel!r}; known: {', '.join(link.kernels)}")
    cost = link.kernels[kernel]
    misses = np.asarray(misses, np.float64)
    entry_bytes = np.asarray(entry_bytes, np.float64)
    peak = misses if peak is None else np.asarray(peak, np.float64)
    plan = cost.plan_us + cost.plan_slot_us * np.asarray(buffer, np.float64)
    own = peak * (cost.miss_ns + entry_bytes * cost.miss_byte_ns)
    # A byte each ns is a GB/s.
    every = np.asarray(batch, np.float64) * misses * (link.entry_ns + entry_bytes / link.link_gb_s)
    copy = cost.first_us + np.cbrt(own**3 + every**3) / 1e3
    total: npt.NDArray[np.float64] = plan + np.where(misses > 0, copy, 0.0)
    return total
