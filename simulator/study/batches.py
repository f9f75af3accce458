"""Requests that are computed at once: what the busiest of them fetches, and the least it could."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hisparse_sim.simulator.replay.metrics import Misses
from hisparse_sim.simulator.serving.costs import SwapIn
from hisparse_sim.simulator.serving.latency import swap_in_us
from hisparse_sim.simulator.study.barrier import least_barrier
from hisparse_sim.simulator.study.least import least_misses
from hisparse_sim.simulator.study.measured import Measured
from hisparse_sim.simulator.study.reuse import reuse_of
from hisparse_sim.traces.file.queries import read_first_queries


@dataclass(frozen=True)
class Batch:
    """The parts of one layer, in step from the first step of each that is longer than the buffer.

    Those that have ended miss nothing more.
    """

    parts: tuple[int, ...]
    lengths: tuple[int, ...]  # steps of each, without those that fit into the buffer
    least: float  # of the busiest, summed over the steps
    least_misses: int  # of all, as MIN has

    @property
    def steps(self) -> int:
        return max(self.lengths)


def batches_of(
    measured: Measured,
    parts: Iterable[int],
    buffer_size: int,
    start: str,
    steps: tuple[int, int] | None,
    jobs: int | None,
) -> list[Batch]:
    """Return the batches among the parts: those of a layer that several requests have."""

    def batch(together: Sequence[int]) -> Batch:
        found = []
        for number in together:
            piece = measured.pieces[number]
            demand = read_first_queries(piece.trace, piece.part, steps)
            found.append(reuse_of(demand, buffer_size, start))
        least = sum(int(least_misses(each).sum()) for each in found)
        lengths = tuple(each.steps for each in found)
        return Batch(tuple(together), lengths, least_barrier(found), least)

    with ThreadPoolExecutor(jobs) as pool:
        return [each for each in pool.map(batch, measured.batches(parts)) if each.steps]


@dataclass(frozen=True)
class Busiest:
    """Misses of the busiest request, per step of a layer, and the swap-in time of the batch."""

    misses: float
    us: float
    least: float
    least_us: float


def busiest(
    batches: Sequence[Batch], misses: Sequence[Misses], buffer_size: int, swap_in: SwapIn
) -> Busiest:
    """Compare a policy's misses, a list over all parts, with the least there could be."""
    steps = sum(batch.steps for batch in batches)
    most, us, least_us = 0, 0.0, 0.0
    for batch in batches:
        aligned = np.zeros((len(batch.parts), batch.steps))
        for row, part, length in zip(aligned, batch.parts, batch.lengths, strict=True):
            row[:length] = misses[part][len(misses[part]) - length :]
        peak = aligned.max(axis=0)
        most += int(peak.sum())
        us += float(_us(swap_in, len(aligned), aligned.mean(axis=0), peak, buffer_size).sum())
        # Time less what a swap-in takes at least is a norm of (mean, peak), so that the time of
        # the means is the least of the mean times.
        mean = batch.least_misses / len(batch.parts) / batch.steps
        one = least_us_of(swap_in, len(aligned), mean, batch.least / batch.steps, buffer_size)
        least_us += one * batch.steps
    least = sum(batch.least for batch in batches)
    return Busiest(most / steps, us / steps, least / steps, least_us / steps)


def least_us_of(
    swap_in: SwapIn, requests: int, mean: float, peak: float, buffer_size: int
) -> float:
    """Return a lower bound of the mean time of steps whose means of misses, and of the busiest's
    misses, are at least these."""
    us = float(_us(swap_in, requests, np.array([mean]), np.array([peak]), buffer_size)[0])
    first_us = swap_in.link.kernels[swap_in.kernel].first_us
    return us - first_us * (mean > 0)  # how many steps have misses at all is not known


def entries_in(us: float, swap_in: SwapIn) -> int:
    """Return the entries that the link copies for each request of a batch in a time."""
    link = swap_in.link
    each_ns = link.entry_ns + swap_in.entry_bytes / link.link_gb_s
    return int(us * 1e3 / (swap_in.batch * each_ns))


def _us(
    swap_in: SwapIn,
    requests: int,
    mean: npt.NDArray[np.float64],
    peak: npt.NDArray[np.float64],
    buffer_size: int,
) -> npt.NDArray[np.float64]:
    return swap_in_us(
        swap_in.link, swap_in.kernel, requests, mean, buffer_size, swap_in.entry_bytes, peak
    )
