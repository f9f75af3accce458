"""Replay with the eviction of `policies/fast_slow.py` in place of the engine's LRU.

The worth of every position in a step, one byte each, is put where the kernel reads it; a server
would write it while the indexer ranks.
"""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.gpu_replay.harness.batch import Batch
from hisparse_sim.gpu_replay.harness.replayer import Replayer
from hisparse_sim.gpu_replay.harness.slots import Ints, Outcome, SlotState
from hisparse_sim.gpu_replay.kernels.build import import_torch
from hisparse_sim.gpu_replay.kernels.kernel import Kernel
from hisparse_sim.gpu_replay.kernels.native import NATIVE
from hisparse_sim.policies.fast_slow import FAST_SLOW, worth
from hisparse_sim.simulator.replay.ranking import Ranked, ranked
from hisparse_sim.traces import Demand

Bytes = NDArray[np.uint8]


@functools.cache
def _worths(ranks: int) -> Bytes:
    return np.array([worth(rank, ranks) for rank in range(ranks)], np.uint8)


class Worths:
    """What the positions of one (request, layer) are worth, step by step."""

    def __init__(self, demand: Demand) -> None:
        """Raises TraceError for a demand without positions ranked behind its rows."""
        self._demand = demand
        self._told: Ranked = ranked(demand, FAST_SLOW)

    def of(self, step: int, context: int) -> Bytes:
        """Return the worth of every position, uint8 [context]."""
        first, stop = self._demand.offsets[step : step + 2]
        begin, end = self._told.next_offsets[step : step + 2]
        row, listed = int(stop - first), int(stop - first + end - begin)
        ranks = np.append(self._told.ranks[first:stop], np.arange(row, listed))
        positions = np.append(self._demand.row(step), self._told.next_positions[begin:end])
        result = np.zeros(context, np.uint8)
        result[positions] = _worths(listed)[ranks]
        return result


class FastSlowState(SlotState):
    """Slots and the two sums of each for one (request, layer), in NumPy.

    `order` is what the kernel keeps there: int16 [buffer], 7 bits of the fast sum below 9 of the
    slow one.
    """

    def __init__(self, buffer: int, start: str, prompt_len: int, context: int) -> None:
        super().__init__(buffer, start, prompt_len, context)
        self.fast: Ints = np.zeros(buffer, np.int32)
        self.slow: Ints = np.zeros(buffer, np.int32)
        self._pack()

    def _pack(self) -> None:
        self.order = (self.slow << 7 | self.fast).astype(np.uint16).view(np.int16)

    def step_by_worth(self, seq_len: int, row: Ints, worths: Bytes) -> Outcome:
        """Access the positions of `row` at once; `worths` uint8 [context] of all positions."""
        nothing = np.empty(0, np.int32)
        if seq_len <= self.buffer:
            return Outcome(row.copy(), nothing, nothing)
        demanded = row[row != seq_len - 1]
        held = self.token >= 0
        now = np.where(held, worths[np.maximum(self.token, 0)], 0).astype(np.int32)
        self.fast = self.fast // 4 + now
        tick = int((seq_len - 1) % 16 == 0)
        self.slow = np.maximum(self.slow - np.maximum(self.slow // 8, tick), 0) + now
        missed = demanded[~np.isin(demanded, self.token)]
        # Empty slots, then the lowest sums; ties by number. Each kind is handed out by number.
        keys = np.where(held, self.slow + 6 * self.fast, -1)
        slots = np.flatnonzero(~np.isin(self.token, demanded))
        chosen = slots[np.argsort(keys[slots], kind="stable")[: len(missed)]]
        victims = np.array(sorted(chosen, key=lambda slot: (held[slot], slot)), np.int32)
        self.token[victims] = missed
        start = worths[missed].astype(np.int32)
        self.fast[victims] = 5 * start // 4
        self.slow[victims] = start // 2
        self._pack()
        slot_of = dict(zip(self.token.tolist(), range(self.buffer), strict=True))
        slots_used = [self.buffer if p == seq_len - 1 else slot_of[p] for p in row.tolist()]
        return Outcome(np.array(slots_used, np.int32), missed, victims)


class FastSlowReplayer(Replayer):
    """As `Replayer`, of the native kernel (or one that calls it) with `worth`."""

    def __init__(
        self,
        batch: Batch,
        *,
        buffer: int,
        start: str = "staged",
        kernel: Kernel = NATIVE,
        **options: Any,
    ) -> None:
        super().__init__(kernel, batch, buffer=buffer, start=start, **options)
        torch = import_torch()
        self.worths = [[Worths(cell) for cell in layer] for layer in batch.cells]
        shape = (batch.layers, self.rows, batch.context)
        self.worth = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        self.pools.order.zero_()
        last = batch.steps - 1
        self.fast_slow = [
            [
                FastSlowState(buffer, start, cell.prompt_len, int(cell.seq_len[last]))
                for cell in layer
            ]
            for layer in batch.cells
        ]
        self.states = [list(layer) for layer in self.fast_slow]

    def more_arguments(self, layer: int) -> dict[str, Any]:
        return {"worth": self.worth[layer]}

    def load_step(self, step: int) -> None:
        super().load_step(step)
        torch = import_torch()
        for layer, worths in enumerate(self.worths):
            table = np.stack([each.of(step, self.batch.context) for each in worths])
            self.worth[layer, : self.batch.size].copy_(torch.from_numpy(table))

    def expect_step(self, step: int) -> list[list[Outcome]]:
        return [
            [
                state.step_by_worth(
                    int(cell.seq_len[step]), cell.row(step), each.of(step, self.batch.context)
                )
                for state, cell, each in zip(states, cells, worths, strict=True)
            ]
            for states, cells, worths in zip(
                self.fast_slow, self.batch.cells, self.worths, strict=True
            )
        ]
