"""The compiled loop of a replay with prefetch (semantics: docs/prefetch.md).

It takes the evictions of a policy as they were replayed without prefetch, in the slots that are
left to the policy: what is fetched ahead has slots of its own and changes none of its decisions.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hisparse_sim.policies import policy as policy_types
from hisparse_sim.policies.policy import Bytes, Indices, Positions
from hisparse_sim.simulator.prefetch.prefetcher import View
from hisparse_sim.simulator.replay import kernel as replay_kernel
from hisparse_sim.simulator.replay.kernel import Rows, digest_of_sources
from hisparse_sim.simulator.replay.ranking import Ranked
from hisparse_sim.traces import machine_code


class Hints(NamedTuple):
    """A list of positions for every row; all are empty if nothing is known elsewhere."""

    offsets: npt.NDArray[np.int64]  # [n + 1]
    positions: Positions  # [offsets[n]]


class Counted(NamedTuple):
    """Per step, [n] output. Misses of the policy = critical + late + useful."""

    critical: Indices  # copied because the step asks for it
    late: Indices  # proposed, but not copied yet when the step asks for it
    useful: Indices  # there when the step asks for it
    fetched: Indices  # copied ahead, and late


# Of what the loop and the prefetchers of the package are compiled from.
_FOLDERS = (Path(file).parent for file in (__file__, replay_kernel.__file__, policy_types.__file__))
STAMP = digest_of_sources(*_FOLDERS).hex()[:14]


@cache
def compiled(propose: Callable[[Any, View, Positions], int], name: str) -> Callable[..., int]:
    """Return the loop, specialised for the hook of a prefetcher.

    It returns -1, or the number of the row at which the prefetcher named a position that it may
    not name.
    """
    stamp = int(STAMP, 16)
    here = propose.__module__.startswith(__package__ + ".")
    ours = here and propose.__closure__ is None

    def run(
        rows: Rows,
        told: Ranked,
        hints: Hints,
        seen: Rows,  # `rows` for who needs the future, else none
        first: int,
        victims: npt.NDArray[np.int16],  # of all misses from `first` on
        token: Positions,  # [B + 1] position in every slot before, T where empty; changed
        present: Bytes,  # [T + 1] see View; changed
        state: Any,
        budget: int,
        slots: int,
        in_time: int,  # that the link copies ahead of each step
        counted: Counted,
    ) -> int:
        _ = stamp
        out = np.empty(slots, np.uint32)
        ahead = np.empty(slots + budget, np.uint32)  # has a slot of the prefetch, the oldest first
        held = 0
        listed = np.full(len(present), -1, np.int32)  # the row before which it was proposed last
        copied = np.zeros(len(present), np.uint8)  # of what is in `ahead`
        missed = 0
        for now in range(first, len(rows.seq_len)):
            newest = rows.seq_len[now] - 1
            before, begin, end = max(0, now - 1), rows.offsets[max(0, now - 1)], rows.offsets[now]
            behind = told.next_positions[:0]
            if len(told.next_offsets) > 1:
                edge = told.next_offsets[before]
                behind = told.next_positions[edge : told.next_offsets[now]]
            proposed = propose(
                state,
                View(
                    rows.positions[begin:end],
                    told.ranks[begin:end],
                    told.scores[begin:end],
                    behind,
                    hints.positions[hints.offsets[now] : hints.offsets[now + 1]],
                    present,
                    newest,
                    seen,
                    now,
                ),
                out,
            )
            if not 0 <= proposed <= slots:
                return now
            for i in range(proposed):
                if out[i] >= newest:
                    return now
                listed[out[i]] = now
            # What was used has moved to the buffer; what is proposed again moves to the end.
            older = 0
            for i in range(held):
                ahead[older] = ahead[i]
                older += present[ahead[i]] == 2 and listed[ahead[i]] != now
            held, left = older, budget
            for i in range(proposed):
                position = out[i]
                if present[position] == 1 or listed[position] != now:
                    continue
                listed[position] = -1  # named twice, it counts once
                if present[position] == 0:
                    if left == 0:
                        continue
                    left -= 1
                    present[position] = 2
                    copied[position] = 0
                ahead[held] = position
                held += 1
            gone = max(0, held - slots)  # the oldest make room
            for i in range(gone):
                present[ahead[i]] = 0
            held -= gone
            older -= gone
            for i in range(held):
                ahead[i] = ahead[i + gone]
            for i in range(held):  # the link takes this step's proposals first
                position = ahead[(older + i) % held]
                if copied[position] == 0 and counted.fetched[now] < in_time:
                    copied[position] = 1
                    counted.fetched[now] += 1

            for i in range(rows.offsets[now], rows.offsets[now + 1]):
                position = rows.positions[i]
                if position == newest or present[position] == 1:
                    continue
                if present[position] == 0:
                    counted.critical[now] += 1
                elif copied[position] == 0:
                    counted.late[now] += 1
                    counted.fetched[now] += 1
                else:
                    counted.useful[now] += 1
                victim = victims[missed]
                present[token[victim]] = 0
                present[position] = 1
                token[victim] = position
                missed += 1
        return -1

    run.__qualname__ = f"run.{name}"
    return machine_code.compiled(run, keep=ours)
