"""Lists of slots, or of positions, for policies that are defined by queues.

A node is in one list at most. Appending and unlinking take the same time wherever it stands. What a
step uses is passed when a victim is sought; `Lists.passed` remembers up to where, so that a step
passes it once.
"""

from typing import NamedTuple

import numpy as np

from hisparse_sim.policies.hook import hook
from hisparse_sim.policies.policy import Indices, Longs, Step


class Lists(NamedTuple):
    """Lists 0..L-1 of nodes 0..N-1; the node N + j begins and ends list j."""

    following: Indices  # [N + L] towards the newest
    preceding: Indices  # [N + L] towards the oldest
    of: Indices  # [N] the list that a node is in, -1 for none
    size: Longs  # [L]
    passed: Indices  # [L] the last node that this step passed
    last_use: Indices  # [N] the last step that used the node, kept by `use`


def lists(nodes: int, count: int, held: int = 0) -> Lists:
    """Return lists; the first holds the first `held` nodes in order, the others are empty."""
    ends = np.arange(nodes + count, dtype=np.int32)
    made = Lists(
        ends,
        ends.copy(),
        np.full(nodes, -1, np.int32),
        np.zeros(count, np.int64),
        ends[nodes:].copy(),
        np.zeros(nodes, np.int32),
    )
    circle = np.append(np.arange(held, dtype=np.int32), np.int32(nodes))
    made.following[circle] = np.roll(circle, -1)
    made.preceding[circle] = np.roll(circle, 1)
    made.of[:held] = 0
    made.size[0] = held
    return made


@hook
def append(lists: Lists, node: int, to: int) -> None:
    """Put a node that is in no list at the newest end of a list."""
    end = len(lists.of) + to
    last = lists.preceding[end]
    lists.following[last] = node
    lists.preceding[node] = last
    lists.following[node] = end
    lists.preceding[end] = node
    lists.of[node] = to
    lists.size[to] += 1


@hook
def unlink(lists: Lists, node: int) -> None:
    """Take a node out of its list."""
    after, before = lists.following[node], lists.preceding[node]
    lists.following[before] = after
    lists.preceding[after] = before
    lists.size[lists.of[node]] -= 1
    lists.of[node] = -1


@hook
def move(lists: Lists, node: int, to: int) -> None:
    """Put a node of any list at the newest end of a list."""
    unlink(lists, node)
    append(lists, node, to)


@hook
def oldest(lists: Lists, of: int) -> int:
    """Return the oldest node of a list that holds some."""
    return int(lists.following[len(lists.of) + of])


@hook
def use(lists: Lists, step: Step, now: int) -> None:
    """Mark the slots that a step hits, and begin to seek victims at the oldest ends.

    Called when the hits have been moved, and before anything is evicted.
    """
    for slot in step.hits:
        lists.last_use[slot] = now
    for each in range(len(lists.size)):
        lists.passed[each] = len(lists.of) + each


@hook
def evictable(lists: Lists, of: int, now: int) -> int:
    """Return the oldest slot of a list that the step does not use, -1 if there is none.

    The slots before it must not move while the step lasts.
    """
    nodes = len(lists.of)
    node = lists.following[lists.passed[of]]
    while node < nodes and lists.last_use[node] == now:
        lists.passed[of] = node
        node = lists.following[node]
    return int(node) if node < nodes else -1
