"""Counts misses beside the swap-in, on the device, in tensors that a CUDA graph may hold.

One pass a step, behind the last layer's swap-in: by then the tables of all layers hold the outcome
of the step. The engine's kernel does not say how many positions it missed, so the slots are
compared with what they held before; our own kernel says it. Everything is an ordinary operation of
torch on tensors that stay where they are: no synchronisation, no allocation that outlives the step,
and the same code runs on the CPU, where the tests are.
"""

from collections.abc import Sequence
from typing import Any

from hisparse_sim.gpu_replay.kernels.build import import_torch

# Histograms count by powers of two: bucket 0 is 0, bucket i is [2^(i-1), 2^i).
MISS_BUCKETS = 17  # misses of one step of one layer: at most 32,767
AGE_BUCKETS = 22  # decode steps since admission: up to a million and more
STEPS, ACCESSES, MISSES = range(3)

# Slots that are compared at once; bounds the scratch memory of large batches.
_CHUNK_BYTES = 64 << 20


class Counters:
    """Counts of one coordinator.

    Attributes
    ----------
    by_layer
        int64 [layers, 3]: steps (of a request in a layer), accesses, misses.
    by_misses
        int64 [layers, MISS_BUCKETS]: steps by their misses.
    by_age
        int64 [AGE_BUCKETS, 2]: steps, and misses of all layers, by decode steps since admission.
    by_row
        int64 [rows + 1, 3]: steps and accesses, which are the same in every layer, and misses of
        all layers, of the request that now has the row. The last row is for padding.
    admitted
        bool [rows + 1]: whether a request has the row. Warm-up and padding have none.
    reported
        int32 [layers, rows]: misses of the running step as the kernel reports them; None if it
        does not, and slots are compared.
    """

    def __init__(
        self,
        tokens: Any,
        buffer: int,
        top_k: int,
        *,
        reported: bool,
        device: str,
        planned: Sequence[int] = (),
    ) -> None:
        """`tokens`: int32 [layers, rows, >= buffer], the positions that the engine's slots hold.

        `planned`: layers without slots of their own, which copy what the one before them missed.
        Their misses count as those of that one, and `by_layer` and `by_misses` of theirs are void.
        """
        torch = import_torch()
        self.tokens, self.buffer, self.top_k = tokens, buffer, top_k
        self.layers, self.rows = int(tokens.shape[0]), int(tokens.shape[1])

        def zeros(*shape: int) -> Any:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self.by_layer = zeros(self.layers, 3)
        self.by_misses = zeros(self.layers, MISS_BUCKETS)
        self.by_age = zeros(AGE_BUCKETS, 2)
        self.by_row = zeros(self.rows + 1, 3)
        self.admitted = torch.zeros(self.rows + 1, dtype=torch.bool, device=device)
        shape = (self.layers, self.rows)
        self.reported = torch.zeros(shape, dtype=torch.int32, device=device) if reported else None
        self._held = None if reported else tokens[:, :, :buffer].clone()
        stands_for = [0] * self.layers
        anchor = 0
        for layer in range(self.layers):
            anchor = anchor if layer in planned else layer
            stands_for[anchor] += 1
        self._weight = torch.tensor(stands_for, dtype=torch.int64, device=device)[:, None]
        self._index = torch.arange(self.rows, device=device)
        self._nobody = torch.tensor(self.rows, device=device)
        edges = [2**i for i in range(max(MISS_BUCKETS, AGE_BUCKETS) - 1)]
        self._edges = torch.tensor(edges, dtype=torch.int64, device=device)

    @property
    def device_bytes(self) -> int:
        """What the counters take on the device, without scratch."""
        held = [self.by_layer, self.by_misses, self.by_age, self.by_row]
        held += [each for each in (self.reported, self._held) if each is not None]
        return sum(each.numel() * each.element_size() for each in held)

    def admit(self, row: int) -> None:
        """A request has taken the row and its slots are filled; call again if they change."""
        self.by_row[row].zero_()
        self.admitted[row].fill_(True)
        if self._held is not None:
            self._held[:, row].copy_(self.tokens[:, row, : self.buffer])

    def release(self, row: int) -> None:
        """The request has left the row."""
        self.admitted[row].fill_(False)

    def live(self, request: Any, real: Any) -> Any:
        """bool [n]: rows of the batch that are neither padding nor of a warm-up."""
        return (self._index[: len(request)] < real) & self.admitted[request]

    def count(self, request: Any, seq_len: Any, live: Any) -> Any:
        """Count one step of all layers; returns its misses, int64 [layers, n].

        `request`: int64 [n], rows of the tables; `seq_len`: int64 [n]; `live`: from `live`.
        """
        torch = import_torch()
        ones = live.to(torch.int64)
        misses = self._misses(request) * ones  # without any while a request fits its slots
        accesses = seq_len.clamp(max=self.top_k) * ones  # every position below top_k is selected
        alike = torch.stack([ones, accesses])  # in all layers
        of_layer = [alike.sum(1).expand(self.layers, 2), misses.sum(1, keepdim=True)]
        self.by_layer += torch.cat(of_layer, 1)

        bucket = torch.bucketize(misses, self._edges[: MISS_BUCKETS - 1], right=True)
        self.by_misses.scatter_add_(1, bucket, ones * self._weight)

        of_row = torch.cat([alike, (misses * self._weight).sum(0, keepdim=True)]).T
        age = self.by_row[request, STEPS]
        bucket = torch.bucketize(age, self._edges[: AGE_BUCKETS - 1], right=True)
        # A step through the columns and no list of them: a list would be copied from the host.
        self.by_age.index_add_(0, bucket, of_row[:, STEPS :: MISSES - STEPS])
        self.by_row.index_add_(0, torch.where(live, request, self._nobody), of_row)
        return misses

    def _misses(self, request: Any) -> Any:
        torch = import_torch()
        count = len(request)
        if self._held is None:
            assert self.reported is not None
            return self.reported[:, :count].to(torch.int64)
        found = []
        layer_bytes = max(1, count) * self.buffer * self._held.element_size()
        size = max(1, min(self.layers, _CHUNK_BYTES // layer_bytes))
        for first in range(0, self.layers, size):
            held = self._held[first : first + size]
            now = self.tokens[first : first + size, :, : self.buffer].index_select(1, request)
            found.append((now != held.index_select(1, request)).sum(2))
            held.index_copy_(1, request, now)
        return found[0] if len(found) == 1 else torch.cat(found)
