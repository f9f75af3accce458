"""The one compiled replay loop, and the two passes over a trace that it needs.

A loop is specialised for a policy by closing over its hook; `STAMP` joins the closure so that
editing any policy or this file invalidates the machine code that Numba caches on disk (it watches
this file only, numba#1833).
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.core import event

from hisparse_sim.policies import policy as policy_types
from hisparse_sim.policies.hook import prefetch
from hisparse_sim.policies.lanes import LANES, look_up
from hisparse_sim.policies.policy import Indices, Policy, Positions, Slots, Step
from hisparse_sim.simulator.replay.ranking import Ranked
from hisparse_sim.traces import machine_code

Offsets = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """The rows of one (request, layer), as the compiled code takes them."""

    offsets: Offsets  # [n + 1] where each row starts in `positions`
    positions: Positions  # [N]
    seq_len: Indices  # [n]


class Output(NamedTuple):
    misses: Indices  # [n] output
    victims: Slots  # [capacity] output: victims of all misses in order; empty unless asked for


def digest_of_sources(*folders: Path) -> bytes:
    """Digest the source files in these folders, as what compiled code may come from."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(folder.glob("*.py")):
            digest.update(file.read_bytes())
    return digest.digest()


STAMP = int.from_bytes(
    digest_of_sources(Path(__file__).parent, Path(policy_types.__file__).parent)[:7], "little"
)


def compiled(policy: Policy) -> Callable[[Rows, Ranked, int, Slots, Positions, Any, Output], int]:
    """Return `run(rows, ranked, start, slot, token, state, output)`, specialised for one policy,
    whatever its parameters.

    It replays the rows from `start` on, all of them longer than the buffer, and returns the number
    of misses. `slot` [T + 1] and `token` [B + 1] are the contents at the start and, afterwards, at
    the end. Compilation happens at the first call and takes a second or two; for the policies of
    this package its result is cached on disk. The GIL is released.
    """
    return _compiled(policy.step, policy.base, policy.needs_next)


@cache
def _compiled(
    step: Callable[[Any, Step, int], None], name: str, follows: bool
) -> Callable[[Rows, Ranked, int, Slots, Positions, Any, Output], int]:
    stamp = STAMP
    here = step.__module__.startswith(policy_types.__package__ + ".")
    ours = here and step.__closure__ is None
    checked = not ours  # a wrong victim would overwrite other memory

    def run(
        rows: Rows,
        ranked: Ranked,
        start: int,
        slot: Slots,
        token: Positions,
        state: Any,
        output: Output,
    ) -> int:
        _ = stamp
        absent = len(token) - 1
        room = absent + LANES
        hits = np.empty(room, np.uint16)
        missed = np.empty(room, np.uint32)
        places = np.empty(room, np.int32)
        victims = np.empty(room, np.uint16)
        taken = np.zeros(len(token) if checked else 0, np.int64)
        total = 0
        behind = ranked.next_positions[:0]
        for now in range(start, len(rows.seq_len)):
            first = rows.offsets[now]
            row = rows.positions[first : rows.offsets[now + 1]]
            hit = look_up(row, rows.positions[first + len(row) :], slot, absent, hits, places)
            newest = rows.seq_len[now] - 1
            count = 0
            for i in range(len(row) - hit):
                place = places[i]
                position = row[place]
                missed[count] = position
                places[count] = place
                count += position != newest  # it is in the reserved page
            if follows:
                edge = ranked.next_offsets[now]
                behind = ranked.next_positions[edge : ranked.next_offsets[now + 1]]
            step(
                state,
                Step(
                    row,
                    first,
                    hits[:hit],
                    missed[:count],
                    places[:count],
                    victims[:count],
                    slot,
                    token,
                    newest,
                    ranked.ranks[first : first + len(row)],
                    ranked.scores[first : first + len(row)],
                    behind,
                ),
                now + 1,
            )
            if checked:
                for i in range(hit):
                    taken[hits[i]] = now + 1
                for i in range(count):
                    victim = victims[i]
                    if victim >= absent or taken[victim] == now + 1:
                        return -1 - now
                    taken[victim] = now + 1
            for i in range(count):
                victim = victims[i]
                slot[token[victim]] = absent
                slot[missed[i]] = victim
                token[victim] = missed[i]
            if len(output.victims) > 0:
                output.victims[total : total + count] = victims[:count]
            output.misses[now] = count
            total += count
        return total

    # Numba keeps an index per qualified name and unpickles all of it: one per policy, so that none
    # depends on the modules of the others. What comes from elsewhere, as a policy's hook or inside
    # one that `lift` made, is not in the stamp: not cached, stale code would count wrongly.
    run.__qualname__ = f"run.{name}"
    return machine_code.compiled(run, keep=ours)


@contextmanager
def on_compile(call: Callable[[], None]) -> Iterator[None]:
    """Call `call` once, when the first compilation inside the block begins."""

    class Listener(event.Listener):
        heard = False

        def on_start(self, _: Any) -> None:
            if not self.heard:
                self.heard = True
                call()

        def on_end(self, _: Any) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield


@machine_code.compiled
def next_accesses(rows: Rows, start: int, next_access: Indices, first_access: Indices) -> None:
    """Fill the two tables of `Policy.needs_future` for the rows from `start` on, reading backwards.

    `next_access` [N], `first_access` [T]; see `policies.policy.Policy` for the values.
    """
    steps = len(rows.seq_len)
    first_access[:] = steps + 1
    for now in range(steps - 1, start - 1, -1):
        newest = rows.seq_len[now] - 1
        first, end = rows.offsets[now], rows.offsets[now + 1]
        row, demands = rows.positions[first:end], next_access[first:end]
        for i in range(len(row)):
            prefetch(rows.positions, first - len(row) + i)
            position = row[i]
            if position == newest:
                demands[i] = steps + 3
            else:
                demands[i] = first_access[position]
                first_access[position] = now + 1
