"""What a step selected, kept on the device until it is copied out: a ring of steps of requests.

One entry is one step of one request: the positions of every recorded layer, and the misses of every
layer. An entry is written whole or dropped whole; a request of which one was dropped is recorded no
further, so that what is recorded of it has no gap, and all its later steps count as dropped.
Everything is an operation of torch on tensors that stay, as in `counters`.
"""

from collections.abc import Sequence
from typing import Any

from hisparse_sim.gpu_replay.kernels.build import import_torch

EPOCH, SEQ_LEN, FACTS = 0, 1, 2  # of an entry's head; its misses follow

# State of a row of the tables.
UNRECORDED, RECORDED, CUT = range(3)


def entry_bytes(recorded: int, layers: int, top_k: int) -> int:
    """Bytes of an entry: its head (int64), then its positions (int32)."""
    return 8 * (FACTS + layers) + 4 * recorded * top_k


class DeviceRing:
    """Entries behind each other; the consumer moves `tail`.

    Attributes
    ----------
    heads
        int64 [entries + 1, FACTS + layers]; the last is for what is not kept.
    positions
        int32 [entries + 1, recorded layers, top_k], -1 is padding.
    head, tail
        int64 [1]: entries ever written, and ever copied out.
    dropped
        int64 [1]: steps of requests that were to be recorded and found no room.
    """

    def __init__(
        self, recorded: Sequence[int], layers: int, rows: int, top_k: int, entries: int, device: str
    ) -> None:
        torch = import_torch()
        self.recorded, self.entries, self.top_k, self.rows = tuple(recorded), entries, top_k, rows
        self._index_of = {layer: index for index, layer in enumerate(self.recorded)}

        def zeros(*shape: int) -> Any:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.heads = zeros(entries + 1, FACTS + layers)
        shape = (entries + 1, len(self.recorded), top_k)
        self.positions = torch.full(shape, -1, dtype=torch.int32, device=device)
        self.head, self.tail, self.dropped = zeros(1), zeros(1), zeros(1)
        self._epoch, self._state = zeros(rows + 1), zeros(rows + 1)
        self._at = torch.full((rows,), entries, dtype=torch.int64, device=device)
        self._written = zeros(1)

    def admit(self, row: int, epoch: int, record: bool) -> None:
        """A request has taken the row; `epoch` is its number in this process."""
        self._epoch[row].fill_(epoch)
        self._state[row].fill_(RECORDED if record else UNRECORDED)

    def begin(self, request: Any, live: Any) -> None:
        """Find room for the step of every row of the batch, before its first layer."""
        torch = import_torch()
        state = self._state[request]
        wanted = live & (state == RECORDED)
        order = wanted.cumsum(0)
        fits = wanted & (order <= self.entries - (self.head - self.tail))
        at = torch.where(fits, (self.head + order - 1) % self.entries, self.entries)
        self._at[: len(request)].copy_(at)
        lost = live & (((state == RECORDED) & ~fits) | (state == CUT))
        self.dropped += lost.sum()
        # Rows that lost nothing write to the last one, which no request has.
        self._state.index_fill_(0, torch.where(lost, request, self.rows), CUT)
        self._written.copy_(fits.sum())

    def take(self, layer: int, top_k_tokens: Any) -> None:
        """Keep what the layer selects, [n, >= top_k]; others than the recorded are ignored."""
        index = self._index_of.get(layer)
        if index is None:
            return
        count = len(top_k_tokens)
        rows = top_k_tokens[:, : self.top_k].to(self.positions.dtype)
        self.positions[:, index].index_copy_(0, self._at[:count], rows)

    def end(self, request: Any, seq_len: Any, misses: Any) -> None:
        """Complete the entries of the step: only now the consumer may see them."""
        torch = import_torch()
        facts = torch.stack([self._epoch[request], seq_len], 1)
        self.heads.index_copy_(0, self._at[: len(request)], torch.cat([facts, misses.T], 1))
        self.head += self._written
