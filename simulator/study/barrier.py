"""The least misses of the busiest request, summed over steps: a batch waits for that one.

MIN has the fewest misses of each request, but not in the steps where they cost nothing. A bound of
the sum over steps of the maximum over requests comes from its linear program, by duality. Give
every request r in step t a weight w[r, t], at least 0 and in all 1 per step: no maximum is below
the weighted mean. For fixed weights each request is on its own. It saves the weight of an access
where it keeps the position since the access before, and then holds a slot in the steps between,
where B less what the step accesses are free. With a price p[r, t] of such a slot, at least 0, no
schedule costs less than

    sum of w * accessed  -  sum of p * free  -  sum of max(0, w of the access - prices between)

which therefore is a bound, whatever the weights and prices. Good ones come from a primal-dual
iteration for linear programs (Chambolle and Pock 2011, doi:10.1007/s10851-010-0251-1, with step
sizes of Pock and Chambolle 2011, doi:10.1109/ICCV.2011.6126441). Only counts by (step, next step)
are needed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.simulator.study.reuse import WINDOW, Reuse
from hisparse_sim.traces.machine_code import compiled

Floats = npt.NDArray[np.float64]
ROUNDS = 1000
_CHECKED = 25  # rounds from one look at the bound to the next
_BLOCK = 64 * WINDOW  # steps that are bounded together


class Kept(NamedTuple):
    """How often a request may keep a position from one access to the next, by the two steps."""

    free: Floats  # [n] slots that a step does not need for what it accesses
    accessed: Floats  # [n]
    since: npt.NDArray[np.int32]  # [pairs] step of the first access; -1: in the buffer before
    until: npt.NDArray[np.int32]  # [pairs]
    most: Floats  # [pairs] positions with these two accesses


def least_barrier(requests: Sequence[Reuse], rounds: int = ROUNDS) -> float:
    """Return a lower bound of the misses of the busiest request, summed over the steps.

    `requests` are those of one layer, in step with each other: step i of all is computed at once,
    and those that have ended wait no more.
    """
    steps = max((request.steps for request in requests), default=0)
    return sum(
        _bound([_block(each, begin) for each in requests if each.steps > begin], rounds)
        for begin in range(0, steps, _BLOCK)
    )


def _block(request: Reuse, begin: int) -> Kept:
    """Return the steps from `begin` on; what the buffer holds before is free unless they are the
    first."""
    end = min(begin + _BLOCK, request.steps)
    before = request.known[begin // WINDOW] if begin else request.resident
    counts = np.vstack([before[begin:end], request.again[begin:end, begin:end]])
    since, until = np.nonzero(counts)
    accessed = request.accessed[begin:end].astype(float)
    return Kept(
        request.buffer_size - accessed,
        accessed,
        (since - 1).astype(np.int32),
        until.astype(np.int32),
        counts[since, until].astype(float),
    )


def _bound(requests: Sequence[Kept], rounds: int) -> float:
    count, steps = len(requests), max(len(request.free) for request in requests)
    alive = np.array([[step < len(each.free) for step in range(steps)] for each in requests])
    weights = alive / alive.sum(axis=0)
    prices = [np.zeros(len(each.free)) for each in requests]
    kept = [each.most.copy() for each in requests]
    ends, covers = zip(*(_degrees(each) for each in requests), strict=True)
    weight_step = 1 / np.max([np.pad(each, (0, steps - len(each))) for each in ends], axis=0)
    scale = np.mean([each.most.mean() if len(each.most) else 1.0 for each in requests])
    misses = np.zeros((count, steps))
    mean = [np.zeros_like(weights), *map(np.zeros_like, prices)]
    best = 0.0
    for number in range(1, rounds + 1):
        for each, request in enumerate(requests):
            n = len(request.free)
            over = np.zeros(n)
            _advance(
                request, weights[each, :n], prices[each], kept[each], scale, misses[each], over
            )
            prices[each] = np.maximum(0.0, prices[each] + over / (scale * covers[each]))
        moved = np.where(alive, weights + misses * weight_step / scale, -np.inf)
        weights = _on_simplex(moved)
        for total, value in zip(mean, [weights, *prices], strict=True):
            total += value
        if number % _CHECKED == 0:
            for duals in ([weights, *prices], [total / _CHECKED for total in mean]):
                bounds = [
                    _dual(request, duals[0][each, : len(request.free)], duals[1 + each])
                    for each, request in enumerate(requests)
                ]
                best = max(best, sum(bounds))
            mean = [np.zeros_like(weights), *map(np.zeros_like, prices)]
    return best


@compiled
def _degrees(request: Kept) -> tuple[Floats, Floats]:
    """Return how many pairs end in each step, and for how many it lies between; at least 1."""
    steps = len(request.free)
    ends, change = np.zeros(steps), np.zeros(steps + 1)
    for pair in range(len(request.most)):
        ends[request.until[pair]] += 1
        change[request.since[pair] + 1] += 1
        change[request.until[pair]] -= 1
    return np.maximum(ends, 1.0), np.maximum(np.cumsum(change[:steps]), 1.0)


@compiled
def _advance(
    request: Kept,
    weight: Floats,
    price: Floats,
    kept: Floats,  # [pairs] changed
    scale: float,
    misses: Floats,  # [n] output, of the extrapolated point
    over: Floats,  # [n] output: slots held beyond those that are free, likewise
) -> None:
    steps = len(price)
    paid = np.zeros(steps + 1)
    for step in range(steps):
        paid[step + 1] = paid[step] + price[step]
    misses[:steps] = request.accessed
    held = np.zeros(steps + 1)
    for pair in range(len(kept)):
        since, until = request.since[pair] + 1, request.until[pair]
        cost = paid[until] - paid[since] - weight[until]
        before = kept[pair]
        after = min(request.most[pair], max(0.0, before - cost * scale / (1 + until - since)))
        kept[pair] = after
        ahead = 2 * after - before
        misses[until] -= ahead
        held[since] += ahead
        held[until] -= ahead
    running = 0.0
    for step in range(steps):
        running += held[step]
        over[step] = running - request.free[step]


@compiled
def _dual(request: Kept, weight: Floats, price: Floats) -> float:
    """Return the bound of one request for these weights and prices."""
    steps = len(price)
    paid = np.zeros(steps + 1)
    total = 0.0
    for step in range(steps):
        paid[step + 1] = paid[step] + price[step]
        total += weight[step] * request.accessed[step] - price[step] * request.free[step]
    for pair in range(len(request.most)):
        until = request.until[pair]
        saved = weight[until] - (paid[until] - paid[request.since[pair] + 1])
        total -= request.most[pair] * max(0.0, saved)
    return total


def _on_simplex(weights: Floats) -> Floats:
    """Return the nearest weights, [r, n], that are at least 0 and 1 per step in all; 0 where they
    were minus infinity."""
    ordered = -np.sort(-weights, axis=0)
    excess = (np.cumsum(ordered, axis=0) - 1) / np.arange(1, len(weights) + 1)[:, None]
    used = (ordered > excess).sum(axis=0)
    found: Floats = np.maximum(0.0, weights - excess[used - 1, np.arange(weights.shape[1])])
    return found
