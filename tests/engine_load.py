"""A random load for what runs inside an engine: requests that join and leave, step by step."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from hisparse_sim.gpu_replay.harness.slots import SlotState


@dataclass
class Running:
    """A request, and what its slots must hold."""

    rid: str
    req_pool_idx: int
    prompt_len: int
    states: list[SlotState]
    steps: int = 0
    misses: list[list[int]] = field(default_factory=list)  # of every step, by layer
    listed: list[list[np.ndarray]] = field(default_factory=list)  # of every step, by layer

    @property
    def kv(self) -> "Running":
        """Where releases from 0.5.19 on keep the row."""
        return self

    @property
    def seq_len(self) -> int:
        return self.prompt_len + self.steps


@dataclass
class Load:
    """Draws a load; sizes small enough that slots are contested."""

    layers: int = 3
    rows: int = 5  # the first is for padding
    top_k: int = 6
    buffer: int = 10
    context: int = 60
    seed: int = 0
    start: str = "staged"

    def __post_init__(self) -> None:
        self.draw = np.random.default_rng(self.seed)
        self.running: list[Running] = []
        self.ended: list[Running] = []
        self._made = 0

    def coordinator(self, **more: Any) -> Any:
        """The tables of a coordinator, as the engine's has them, on the CPU."""
        torch = __import__("torch")
        shape = (self.layers, self.rows, self.buffer + 4)
        return SimpleNamespace(
            device="cpu",
            top_k=self.top_k,
            device_buffer_size=self.buffer,
            is_dsv4_hisparse=False,
            item_size_bytes=16,
            tp_group=None,
            req_device_buffer_tokens=torch.full(shape, -1, dtype=torch.int32),
            num_real_reqs=torch.zeros(1, dtype=torch.int32),
            **more,
        )

    def joining(self, tables: Any) -> Running | None:
        """A new request in a free row, its slots filled; None if all are taken."""
        taken = {each.req_pool_idx for each in self.running}
        free = [row for row in range(1, self.rows) if row not in taken]
        if not free:
            return None
        prompt = int(self.draw.integers(3, self.context // 2))
        states = [
            SlotState(self.buffer, self.start, prompt, self.context) for _ in range(self.layers)
        ]
        request = Running(f"r{self._made}", int(self.draw.choice(free)), prompt, states)
        self._made += 1
        self.running.append(request)
        self.write(tables, request)
        return request

    def write(self, tables: Any, request: Running) -> None:
        """Put what the slots hold where the engine keeps it."""
        torch = __import__("torch")
        for layer, state in enumerate(request.states):
            held = torch.from_numpy(state.token.copy())
            tables.req_device_buffer_tokens[layer, request.req_pool_idx, : self.buffer] = held

    def leaving(self, tables: Any) -> Running | None:
        """A request that ends, its slots cleared; None if none runs."""
        if not self.running:
            return None
        request = self.running.pop(int(self.draw.integers(len(self.running))))
        tables.req_device_buffer_tokens[:, request.req_pool_idx] = -1
        self.ended.append(request)
        return request

    def step(self, tables: Any, padding: int = 1) -> Iterator[tuple[int, Any, Any, Any]]:
        """One decode step: layer, rows, seq_lens, top_k of every layer after its swap-in."""
        torch = __import__("torch")
        for request in self.running:
            request.steps += 1
            request.misses.append([])
            request.listed.append([])
        rows = torch.tensor([each.req_pool_idx for each in self.running] + [0] * padding)
        lengths = torch.tensor([each.seq_len for each in self.running] + [1] * padding)
        tables.num_real_reqs.fill_(len(self.running))
        for layer in range(self.layers):
            top_k = torch.full((len(rows), self.top_k), -1, dtype=torch.int32)
            for i, request in enumerate(self.running):
                row = self.draw.permutation(request.seq_len)[: self.top_k].astype(np.int32)
                top_k[i, : len(row)] = torch.from_numpy(row)
                outcome = request.states[layer].step(request.seq_len, row)
                request.misses[-1].append(len(outcome.missed))
                request.listed[-1].append(row)
                self.write(tables, request)
            yield layer, rows, lengths, top_k
