"""LRU of a continuous batch in one layer, whose buffers change their sizes while it runs."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hisparse_sim.traces import Demand

Longs = npt.NDArray[np.int64]
Rule = Callable[[Longs, Longs], Longs]  # (sizes, misses [requests, last steps]) -> sizes
EVERY, LAST = 16, 64  # steps from one move to the next, and those that it is decided by
LEAST = 2304  # slots of a buffer, of a top_k of 2,048


def alike(sizes: Longs, misses: Longs) -> Longs:
    """Move nothing: the engine's LRU."""
    return sizes


def by_misses(power: float) -> Rule:
    """Return the rule that what is above `LEAST` goes in proportion to a power of the misses."""

    def rule(sizes: Longs, misses: Longs) -> Longs:
        weights = (misses.mean(axis=1) + 1) ** power
        share = weights / weights.sum()
        return (LEAST + (sizes.sum() - LEAST * len(sizes)) * share).astype(np.int64)

    return rule


def to_busiest(slots: int) -> Rule:
    """Return the rule that the most often busiest request gets slots of the one that misses
    least."""

    def rule(sizes: Longs, misses: Longs) -> Longs:
        to = np.bincount(misses.argmax(axis=0)).argmax()
        source = np.where(sizes - slots >= LEAST, misses.mean(axis=1), np.inf).argmin()
        moved = sizes.copy()
        moved[to] += slots
        moved[source] -= slots
        return moved

    return rule


def replay_moving(
    demands: Sequence[Demand], late: Longs, size: int, rule: Rule | None
) -> npt.NDArray[np.float64]:
    """Return the misses [requests, steps] of requests that play `demands` in turn, in a loop, each
    `late` by so many steps; None: one pool of slots, of which the least recent of all is evicted.

    All demands have as many steps. They are played twice, and the second time is counted.
    """
    requests, steps = len(late), demands[0].rows
    rows = [
        [each.row(i)[each.row(i) < each.seq_len[i] - 1] for i in range(steps)] for each in demands
    ]
    needed = np.zeros(max(int(each.seq_len[-1]) for each in demands), bool)
    sizes = np.full(requests, size)
    held = [np.arange(size)] * requests  # least recent first
    used = [np.full(size, -1)] * requests  # step of the last access
    found = np.zeros((requests, 2 * steps), np.int64)
    for now in range(2 * steps):
        if rule is not None and now and now % EVERY == 0:
            sizes = rule(sizes, found[:, max(0, now - LAST) : now])
        hits, fetched = [], []
        for r in range(requests):
            place = (now - late[r]) % steps
            if place == 0:  # the next request, with what the last one had
                count = len(held[r]) if rule is None else sizes[r]
                held[r], used[r] = np.arange(count), np.full(count, now - 1)
            row = rows[r % len(demands)][place]
            needed[row] = True
            hits.append(needed[held[r]])
            needed[held[r]] = False
            fetched.append(row[needed[row]])
            needed[row] = False
            found[r, now] = len(fetched[r])
        if rule is None:
            over = sum(map(len, held)) + found[:, now].sum() - size * requests
            ages = np.concatenate([np.where(h, now, u) for h, u in zip(hits, used, strict=True)])
            oldest = np.partition(ages, over)[over] if over else -1
            gone = [
                int((np.where(h, now, u) < oldest).sum()) for h, u in zip(hits, used, strict=True)
            ]
            ties = over - sum(gone)  # of the step `oldest`, from the first requests
            for r in range(requests):
                same = min(ties, int(((used[r] == oldest) & ~hits[r]).sum()))
                gone[r] += same
                ties -= same
        else:
            gone = [max(0, len(held[r]) + found[r, now] - sizes[r]) for r in range(requests)]
        for r in range(requests):
            h = hits[r]
            fresh = len(fetched[r]) + int(h.sum())
            held[r] = np.concatenate([held[r][~h][gone[r] :], fetched[r], held[r][h]])
            used[r] = np.concatenate([used[r][~h][gone[r] :], np.full(fresh, now)])
    return found[:, steps:].astype(float)
