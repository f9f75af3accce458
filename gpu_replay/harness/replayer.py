"""Replays a trace on a GPU as the engine decodes: one captured graph holds all layers of a step.

Emulated around the swap-in: the KV entry of the newest token is written into the reserved slot (or,
in a short request, into its own slot) before every step, and the host pool holds the KV entries of
all tokens. Not emulated: attention, the copy of each new token to the host, and the rest of the
model.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.gpu_replay.harness.batch import Batch, check_rows
from hisparse_sim.gpu_replay.harness.pools import make_pools
from hisparse_sim.gpu_replay.harness.slots import Outcome, SlotState
from hisparse_sim.gpu_replay.kernels.build import GpuError, import_torch
from hisparse_sim.gpu_replay.kernels.kernel import PAGE, Kernel


class Mismatch(GpuError):
    """The GPU and the simulator disagree; the message names layer, row, step and quantity."""


class Replayer:
    """One batch on one kernel.

    Parameters
    ----------
    kernel
        Which swap-in.
    batch
        The selected positions.
    buffer, top_k, entry_bytes
        Slots per request; columns of the row table; bytes of a KV entry.
    start
        `staged` or `direct`.
    padding
        Rows behind the real ones, as when a graph was captured for a larger batch.
    check
        Keep what `verify` needs: a copy of the host pools on the device, recorded plans, and a
        second device pool that is filled by replaying those plans.
    device
        `cuda`; `cpu` only with a kernel that runs there, which tests use.

    Raises ValueError if the buffer is smaller than a row, or if there are short rows and the kernel
    refuses them.
    """

    def __init__(
        self,
        kernel: Kernel,
        batch: Batch,
        *,
        buffer: int,
        top_k: int,
        entry_bytes: int = 1152,
        start: str = "staged",
        padding: int = 0,
        check: bool = False,
        device: str = "cuda",
    ) -> None:
        torch = import_torch()
        check_rows(kernel, batch, buffer, top_k)
        self.kernel, self.batch = kernel, batch
        self.buffer, self.top_k, self.check = buffer, top_k, check
        rows = batch.size + padding
        self.rows, self.device = rows, device

        last = batch.steps - 1
        lengths = [
            max(int(layer[row].seq_len[last]) for layer in batch.cells) for row in range(batch.size)
        ] + [PAGE] * padding
        self.pools = make_pools(
            lengths, layers=batch.layers, buffer=buffer, entry_bytes=entry_bytes, device=device
        )
        # Row b uses table row rows - 1 - b, so that a mix-up of the two is noticed.
        self._table_row = np.arange(rows)[::-1].copy()
        self.request = torch.from_numpy(self._table_row).to(device)

        def table(values: NDArray[Any]) -> Any:
            return torch.from_numpy(values).to(device)

        self._positions = [table(batch.positions(i, top_k)) for i in range(batch.layers)]
        self._seq_lens = [table(batch.seq_lens(i).astype(np.int64)) for i in range(batch.layers)]
        shape = (batch.layers, rows, top_k)
        self.top_k_tokens = torch.full(shape, -1, dtype=torch.int32, device=device)
        self.seq_lens = torch.ones(shape[:2], dtype=torch.int64, device=device)
        self.out = torch.full(shape, -1, dtype=torch.int32, device=device)
        self.real = torch.full((1,), batch.size, dtype=torch.int32, device=device)
        self._graph: Any = None

        self.states = [
            [SlotState(buffer, start, cell.prompt_len, int(cell.seq_len[last])) for cell in layer]
            for layer in batch.cells
        ]
        for layer, states in enumerate(self.states):
            for row, state in enumerate(states):
                tokens = self.pools.tokens[layer, int(self._table_row[row]), :buffer]
                tokens.copy_(torch.from_numpy(state.token))
        if check:
            self._start_checking(torch)

    def _start_checking(self, torch: Any) -> None:
        layers, rows = self.batch.layers, self.rows
        self._host_locs = self.pools.host_locs.cpu().numpy()
        self._locs = self.pools.locs[0].cpu().numpy()
        self._truth = [pool.to(self.device) for pool in self.pools.host]
        self._mirror = [pool.clone() for pool in self.pools.device]
        self._written = np.zeros((layers, rows), np.int64)  # tokens placed so far, or evicted
        for layer, cells in enumerate(self.batch.cells):
            for row, cell in enumerate(cells):
                before = int(cell.seq_len[0]) - 1
                if self.states[layer][row].token[0] >= 0:
                    self._write_items(layer, row, np.arange(min(self.buffer, before)))
                self._written[layer, row] = before
        shape = (layers, rows, self.top_k)
        self._plan_src = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self._plan_dst = torch.zeros(shape, dtype=torch.int32, device=self.device)
        self._plan_count = torch.zeros(shape[:2], dtype=torch.int32, device=self.device)

    def _write_items(
        self, layer: int, row: int, positions: NDArray[Any], slot: int | None = None
    ) -> None:
        """Put the KV entries of `positions` where attention would have: slot p, or the given
        slot."""
        torch = import_torch()
        request = self._table_row[row]
        slots = positions if slot is None else np.full(len(positions), slot)
        target = torch.from_numpy(self._locs[request, slots].astype(np.int64)).to(self.device)
        source = torch.from_numpy(self._host_locs[request, positions]).to(self.device)
        self.pools.device[layer][target] = self._truth[layer][source]
        self._mirror[layer][target] = self._truth[layer][source]

    def _append_tokens(self, step: int) -> None:
        for layer, cells in enumerate(self.batch.cells):
            for row, cell in enumerate(cells):
                seq_len = int(cell.seq_len[step])
                new = np.arange(self._written[layer, row], seq_len)
                own = new[new < self.buffer]
                if len(own):
                    self._write_items(layer, row, own)
                if seq_len > self.buffer:
                    self._write_items(layer, row, np.array([seq_len - 1]), self.buffer)
                self._written[layer, row] = seq_len

    def launch(self, layer: int) -> None:
        """One swap-in on the current stream, with what the step's tensors now hold."""
        plan = {}
        if self.check:
            plan = {
                "miss_src": self._plan_src[layer],
                "miss_dst": self._plan_dst[layer],
                "miss_count": self._plan_count[layer],
            }
        self.kernel.swap_in(
            top_k_tokens=self.top_k_tokens[layer],
            top_k_device_locs=self.out[layer],
            req_pool_indices=self.request,
            seq_lens=self.seq_lens[layer],
            num_top_k=self.top_k,
            num_real_reqs=self.real,
            **self.pools.arguments(layer),
            **self.more_arguments(layer),
            **plan,
        )
        if plan:
            self.kernel.copy_planned(
                **plan,
                num_real_reqs=self.real,
                host_cache=self.pools.host[layer],
                device_buffer=self._mirror[layer],
                item_size_bytes=self.pools.entry_bytes,
            )

    def more_arguments(self, layer: int) -> dict[str, Any]:
        """What a kernel with another rule than LRU takes besides."""
        return {}

    def capture(self) -> None:
        """Capture one step, all layers, into a graph; later steps replay it."""
        torch = import_torch()
        self.real.zero_()  # the warm-up sees padding only and changes no state
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for layer in range(self.batch.layers):
                self.launch(layer)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for layer in range(self.batch.layers):
                self.launch(layer)
        self.real.fill_(self.batch.size)

    def load_step(self, step: int) -> None:
        """Put the selected positions of a step where the kernel reads them."""
        size = self.batch.size
        for layer in range(self.batch.layers):
            self.top_k_tokens[layer, :size].copy_(self._positions[layer][step])
            self.seq_lens[layer, :size].copy_(self._seq_lens[layer][step])
        if self.check:
            self._append_tokens(step)

    def run_step(self) -> None:
        """Swap in, for all layers: the captured graph if there is one."""
        if self._graph is not None:
            self._graph.replay()
        else:
            for layer in range(self.batch.layers):
                self.launch(layer)

    def expect_step(self, step: int) -> list[list[Outcome]]:
        """The decisions of the simulator for this step, per layer and row. Steps go in order."""
        return [
            [
                state.step(int(cell.seq_len[step]), cell.row(step))
                for state, cell in zip(states, cells, strict=True)
            ]
            for states, cells in zip(self.states, self.batch.cells, strict=True)
        ]

    def verify(self, step: int, expected: list[list[Outcome]]) -> None:
        """Compare everything that the step left behind; Mismatch names the first difference."""
        for layer in range(self.batch.layers):
            self._verify_layer(step, layer, expected[layer])

    def _verify_layer(self, step: int, layer: int, expected: list[Outcome]) -> None:
        size, buffer = self.batch.size, self.buffer
        tokens = self.pools.tokens[layer].cpu().numpy()
        order = self.pools.order[layer].cpu().numpy()
        out = self.out[layer].cpu().numpy()
        count = self._plan_count[layer].cpu().numpy()
        source = self._plan_src[layer].cpu().numpy()
        target = self._plan_dst[layer].cpu().numpy()
        held, origin = [], []  # locations on the device with an entry, and the origin of each
        for row, outcome in enumerate(expected):
            request, state = self._table_row[row], self.states[layer][row]
            cell = self.batch.cells[layer][row]
            seq_len = int(cell.seq_len[step])
            locs, host_locs = self._locs[request], self._host_locs[request]
            place = np.full(self.top_k, -1, np.int64)
            place[: len(outcome.slots)] = locs[outcome.slots]
            misses = len(outcome.missed)
            where = f"{self.kernel.name}: step {int(cell.step[step])}, layer {layer}, row {row}"
            for quantity, actual, wanted in (
                ("misses", count[row : row + 1], np.array([misses])),
                ("token per slot", tokens[request, :buffer], state.token),
                ("LRU order", order[request], state.order),
                ("page table", out[row], place),
                ("plan source", source[row, :misses], host_locs[outcome.missed]),
                ("plan target", target[row, :misses], locs[outcome.victims]),
            ):
                _compare(f"{where}: {quantity}", actual, wanted)
            slots = np.flatnonzero((state.token >= 0) & (state.token < seq_len))
            held.append(locs[slots])
            origin.append(host_locs[state.token[slots]])
            if seq_len > buffer:
                held.append(locs[buffer : buffer + 1])
                origin.append(host_locs[seq_len - 1 : seq_len])
        where = f"{self.kernel.name}: step {step}, layer {layer}"
        _compare(f"{where}: page table of padded rows", out[size:], np.full_like(out[size:], -1))
        self._verify_items(where, layer, np.concatenate(held), np.concatenate(origin))

    def _verify_items(
        self, where: str, layer: int, held: NDArray[Any], origin: NDArray[Any]
    ) -> None:
        torch = import_torch()
        at = torch.from_numpy(held.astype(np.int64)).to(self.device)
        wanted = self._truth[layer].view(torch.int64)[torch.from_numpy(origin).to(self.device)]
        for name, pool in (("slots", self.pools.device), ("replayed plan", self._mirror)):
            differs = (pool[layer].view(torch.int64)[at] != wanted).any(dim=1)
            if bool(differs.any()):
                first = int(differs.nonzero()[0])
                raise Mismatch(
                    f"{where}: bytes in the {name}: {int(differs.sum())} KV entries differ, "
                    f"first at place {int(held[first])} of the device pool"
                )


def _compare(what: str, actual: NDArray[Any], wanted: NDArray[Any]) -> None:
    differs = np.argwhere(actual != wanted)
    if len(differs):
        at = tuple(differs[0])
        raise Mismatch(
            f"{what}: {len(differs)} values differ, first at {[int(i) for i in at]}: "
            f"GPU {int(actual[at])}, simulator {int(wanted[at])}"
        )
