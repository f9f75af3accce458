"""Replay of a trace against one policy and buffer size (semantics: docs/semantics.md)."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hisparse_sim.policies import Policy, PolicyError, Setup, Step, get_policy
from hisparse_sim.simulator.replay.coverage import Covered, coverage
from hisparse_sim.simulator.replay.faults import Hook, called, check_hook, state_of
from hisparse_sim.simulator.replay.kernel import Output, Rows, compiled, next_accesses
from hisparse_sim.simulator.replay.metrics import tidy_row, tidy_rows
from hisparse_sim.simulator.replay.ranking import columns_for, ranked
from hisparse_sim.simulator.replay.starts import ALL_STARTS, STARTS, WARM, check_start, counted
from hisparse_sim.traces import Demand, OneTrace, Trace, TraceError, as_trace
from hisparse_sim.traces.arguments import step_range, whole_number
from hisparse_sim.traces.demand import Ragged
from hisparse_sim.traces.file.ahead import read_ahead
from hisparse_sim.traces.notebook import Shown

MAX_BUFFER_SIZE = 32767  # the engine holds slot ids in int16

# Entries of a table per position. A seq_len above it exceeds any context; rows list few positions.
_LARGEST_TABLE = 1 << 24

_NOTHING = np.empty(0, np.int32)


@dataclass(frozen=True, eq=False)
class PartReplay:
    """The result for one (request, layer)."""

    misses: npt.NDArray[np.int32]  # [n] misses of every row that is counted
    victims: npt.NDArray[np.int16] | None  # [misses.sum()] slot taken by each miss, in order


@dataclass(frozen=True, eq=False, repr=False)
class Replay(Shown):
    """The result for a trace under one policy and buffer size.

    `misses` int32 [rows replayed], in the order of the file. `rows`: one tidy row per (request,
    layer), columns as in docs/metrics.md. `victims` int16 [misses.sum()], only if asked for: the
    slot that each miss took; those of row r start at `misses[:r].sum()`."""

    misses: npt.NDArray[np.int32]
    rows: pd.DataFrame
    victims: npt.NDArray[np.int16] | None = None

    def _shown(self) -> tuple[str, Iterable[str], pd.DataFrame]:
        accesses, misses = int(self.rows["accesses"].sum()), int(self.misses.sum(dtype=np.int64))
        title = f"Replay: {misses:,} misses in {accesses:,} accesses"
        return title, [f"{misses / max(1, accesses):.2%} missed"], self.rows


def replay(
    trace: OneTrace,
    policy: str | Policy,
    buffer: int,
    start: str = "staged",
    *,
    seed: int = 0,
    requests: str | Iterable[str] | None = None,
    layers: int | Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    victims: bool = False,
) -> Replay:
    """Replay a trace, or the part of it that `requests`, `layers` and `steps` select.

    `trace`: a path or an opened trace. `policy`: a name of `hisparse_sim.policies.POLICIES` or a
    Policy. `buffer`: B, the `device_buffer_size` in slots. `start`: "staged" (prefill on the
    same GPU left the first B tokens in the buffer), "direct" (the buffer is empty) or "warm" (the
    last row of the prompt, for which the first step kept stands, has gone through the staged
    buffer, uncounted). `steps` = (first, stop) keeps first <= step < stop. `seed` is used by
    `random` only. `victims` asks for the slots.

    Raises TraceError for a bad trace, or one whose rows are longer than the buffer; ValueError for
    bad arguments."""
    trace = as_trace(trace)
    policy = get_policy(policy)
    buffer_size = index(buffer)
    check_arguments(buffer_size, start, ALL_STARTS)
    check_top_k(trace, buffer_size)
    steps, seed = step_range(steps), whole_number("seed", seed)
    parts = []
    covered = []
    rows = []
    columns = columns_for(trace, [policy])
    for part, demand in read_ahead(trace, trace.select(requests, layers), columns, steps):
        done = replay_part(demand, policy, buffer_size, start, seed=seed, victims=victims)
        demand = counted(demand, start)
        parts.append(done)
        covered.append(Covered(part, int(demand.step[0]) if demand.rows else 0, demand.rows))
        rows.append(
            {
                "trace": trace.name,
                "provenance": trace.metadata.provenance,
                "unit": trace.metadata.unit,
                "request": part.request,
                "layer": part.layer,
                "policy": policy.name,
                "buffer": buffer_size,
                "start": start,
                **tidy_row(done.misses, len(demand.positions)),
            }
        )
    if not any(len(part.misses) for part in parts):
        raise no_steps([trace], steps, start)
    covers = coverage(trace.sha256, trace.parts, covered, seed)
    return Replay(
        misses=np.concatenate([part.misses for part in parts]),
        rows=tidy_rows(row | covers for row in rows),
        victims=np.concatenate([part.victims for part in parts if part.victims is not None])
        if victims
        else None,
    )


def replay_part(
    demand: Demand,
    policy: str | Policy,
    buffer_size: int,
    start: str = "staged",
    *,
    seed: int = 0,
    victims: bool = False,
) -> PartReplay:
    """Replay one (request, layer) that is already in memory; arguments as for `replay`.

    `demand` must follow the rules of the trace file, as whatever `Trace.read` returns does.
    """
    policy = get_policy(policy)
    buffer_size = index(buffer_size)
    check_arguments(buffer_size, start, ALL_STARTS)
    uncounted = demand.rows - counted(demand, start).rows
    lengths = np.diff(demand.offsets)
    longest = int(lengths.max(initial=0))
    if longest > buffer_size:
        raise TraceError(
            f"request {demand.request!r}, layer {demand.layer}, step "
            f"{demand.step[int(lengths.argmax())]} selects {longest:,} positions, more than "
            f"a buffer of {buffer_size:,} holds; choose a larger buffer"
        )
    steps = len(demand.step)
    # Short steps come first, since seq_len never shrinks; everything is resident in them.
    first = int(np.searchsorted(demand.seq_len, buffer_size, side="right"))
    misses = np.zeros(steps, np.int32)
    long_accesses = int(demand.offsets[-1] - demand.offsets[first]) if victims else 0
    output = Output(misses, np.empty(long_accesses, np.uint16))
    if first < steps:
        demand, positions = _numbered(demand, buffer_size)
        rows, told = _rows(demand), ranked(demand, policy)
        filled = start != "direct" or demand.prompt_len <= buffer_size or first > 0
        slot = np.full(positions + 1, buffer_size, np.uint16)
        token = np.full(buffer_size + 1, positions, np.uint32)
        if filled:
            slot[:buffer_size] = np.arange(buffer_size)
            token[:buffer_size] = np.arange(buffer_size)
        next_access = first_access = _NOTHING
        if policy.needs_future:
            next_access = np.empty(len(demand.positions), np.int32)
            first_access = np.empty(positions, np.int32)
            next_accesses(rows, first, next_access, first_access)
        of = f"policy {policy.name!r}"
        hook = Hook(of, "step", policy.step, "(state, step, now)", Step)
        check_hook(hook)
        state = state_of(
            of,
            policy.state,
            Setup(
                buffer_size=buffer_size,
                positions=positions,
                steps=steps,
                filled=filled,
                seed=_stream(seed, demand, buffer_size),
                next_access=next_access,
                first_access=first_access,
                parameters=policy.parameters,
            ),
        )
        with called(hook, state, f"request {demand.request!r}, layer {demand.layer}"):
            total = compiled(policy)(rows, told, first, slot, token, state, output)
        if total < 0:
            raise PolicyError(
                f"policy {policy.name!r} chose a victim that is not a slot or is used in the same "
                f"step (request {demand.request!r}, layer {demand.layer}, step "
                f"{demand.step[-1 - total]}); it must give every miss another slot that is not hit"
            )
        output = Output(misses, output.victims[:total])
    taken = output.victims[misses[:uncounted].sum() :].view(np.int16) if victims else None
    return PartReplay(misses[uncounted:], taken)


def check_arguments(buffer_size: int, start: str, starts: Sequence[str] = STARTS) -> None:
    """Raise ValueError for a buffer size or start that cannot be replayed."""
    if not 1 <= buffer_size <= MAX_BUFFER_SIZE:
        raise ValueError(
            f"buffer size {buffer_size} is not in 1..{MAX_BUFFER_SIZE}: the engine holds slot ids "
            "in 16 bits"
        )
    check_start(start, starts)


def default_buffers(top_k: int) -> tuple[int, ...]:
    """Return the smallest buffer, the engine's default and a larger one, as far as slot ids
    allow."""
    sizes = (min(times * top_k, MAX_BUFFER_SIZE) for times in (1, 2, 3))
    return tuple(dict.fromkeys(max(top_k, size) for size in sizes))


def check_top_k(trace: Trace, buffer_size: int) -> None:
    """Raise TraceError if a step of `trace` may select more positions than the buffer holds."""
    if trace.metadata.top_k > buffer_size:
        raise TraceError(
            f"{trace.path} selects top_k = {trace.metadata.top_k:,} positions per step, more than "
            f"a buffer of {buffer_size:,} holds; choose `buffer` {trace.metadata.top_k} or more"
        )


def no_steps(
    traces: Iterable[Trace], steps: tuple[int, int] | None, start: str = "staged"
) -> TraceError:
    """Return the error for a selection of steps that no request has."""
    names = ", ".join(str(trace.path) for trace in traces)
    if start == WARM:
        return TraceError(
            f"{names} has no second step in the selection, and a warm start does not count the"
            " first; select more steps, or choose another start"
        )
    first, stop = steps or (0, 0)
    return TraceError(f"{names} has no steps from {first} to {stop - 1} in the selection")


def rows_of(demand: Demand, buffer_size: int) -> tuple[Rows, int]:
    """Return the rows as compiled code takes them, and T, above all positions and initial tokens.

    Where a table of T entries would be too large, positions are numbered anew.
    """
    demand, positions = _numbered(demand, buffer_size)
    return _rows(demand), positions


def _numbered(demand: Demand, buffer_size: int) -> tuple[Demand, int]:
    """Number positions by their place among those that occur, if there are too many others; return
    their count, too.

    The order is kept, and the tokens that may fill the buffer at the start keep their numbers.
    """
    count = max(int(demand.seq_len[-1]), buffer_size)
    if count <= _LARGEST_TABLE:
        return demand, count
    following = demand.next_positions
    known = np.union1d(np.arange(buffer_size, dtype=np.int32), demand.positions)
    if following is not None:
        known = np.union1d(known, following.values)
        numbers = np.searchsorted(known, following.values).astype(np.int32)
        following = Ragged(following.offsets, numbers)
    newest = demand.seq_len - 1
    rank = np.searchsorted(known, newest)
    rank[known[np.minimum(rank, len(known) - 1)] != newest] = len(known)
    positions = np.searchsorted(known, demand.positions).astype(np.int32)
    seq_len = (rank + 1).astype(np.int32)
    return replace(demand, positions=positions, seq_len=seq_len, next_positions=following), len(
        known
    )


def _rows(demand: Demand) -> Rows:
    """Hand arrays to compiled code in one layout, so that each policy is compiled once."""
    return Rows(
        _fixed(demand.offsets, np.int64),
        _fixed(demand.positions, np.uint32),
        _fixed(demand.seq_len, np.int32),
    )


def _fixed(array: npt.NDArray[Any], kind: type[np.generic]) -> npt.NDArray[Any]:
    view = np.ascontiguousarray(array).view(kind)
    view.flags.writeable = False
    return view


def _stream(seed: int, demand: Demand, buffer_size: int) -> int:
    """Return the 64 bits that seed a random stream of this (seed, request, layer, buffer)."""
    key = f"{seed}/{demand.request}/{demand.layer}/{buffer_size}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "little")
