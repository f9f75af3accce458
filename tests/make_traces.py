"""Seeded test traces: small demands with one property each, and files made of them.

Like a real trace they drift: a row keeps most positions of the row before it and the newest ones.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hisparse_sim.traces import Demand, Metadata, TraceWriter, open_trace
from hisparse_sim.traces.file.metadata import KEY


def metadata(**changes: Any) -> Metadata:
    """Return metadata of a synthetic trace: top_k 8, four layers."""
    plain = Metadata(model="test", provenance="synthetic", top_k=8, num_layers=4)
    return replace(plain, **changes)


def demand(
    rows: Iterable[Sequence[int] | np.ndarray],
    seq_len: Sequence[int] | int,
    *,
    request: str = "a",
    layer: int = 0,
    first_step: int = 0,
    prompt_len: int | None = None,
) -> Demand:
    """Return a demand written out by hand: one list of positions per step.

    A single `seq_len` is that of the first step and grows by one a step.
    """
    listed = [np.asarray(row, dtype=np.int32) for row in rows]
    steps = np.arange(len(listed), dtype=np.int32)
    lengths = np.asarray(seq_len, dtype=np.int32)
    if lengths.ndim == 0:
        lengths = lengths + steps
    return Demand(
        request=request,
        layer=layer,
        prompt_len=int(lengths[0]) - 1 if prompt_len is None else prompt_len,
        step=steps + np.int32(first_step),
        seq_len=lengths,
        offsets=np.cumsum([0, *map(len, listed)], dtype=np.int64),
        positions=np.concatenate([np.empty(0, dtype=np.int32), *listed]),
    )


def drift(
    *,
    steps: int = 40,
    top_k: int = 8,
    first_seq_len: int = 64,
    seed: int = 0,
    keep: float = 0.7,
    newest: bool | None = None,
    ragged: bool = False,
    shuffled: bool = False,
    growth: int = 1,
    request: str = "a",
    layer: int = 0,
    first_step: int = 0,
) -> Demand:
    """Return a drifting demand.

    keep: share of a row that the next row demands again.
    newest: demand the newest token always (True), never (False), or as it comes (None).
    ragged: rows of any length from 0 to top_k, else min(top_k, seq_len) positions each.
    shuffled: rows in random order, as an indexer lists them, else sorted.
    growth: tokens by which seq_len grows a step, 0 for a constant one.
    """
    random = np.random.default_rng([seed, layer, *request.encode()])
    rows: list[np.ndarray] = []
    lengths = first_seq_len + growth * np.arange(steps)
    previous = np.empty(0, dtype=np.int64)
    for seq_len in lengths:
        size = min(top_k, int(seq_len))
        if ragged:
            size = int(random.integers(0, size + 1))
        open_end = int(seq_len) - 1  # positions before the newest one
        chosen = previous[random.random(len(previous)) < keep]
        chosen = chosen[chosen < open_end]
        take_newest = newest if newest is not None else bool(random.random() < 0.5)
        wanted = min(size - (take_newest and size > 0), open_end)
        others = np.setdiff1d(np.arange(open_end), chosen)
        chosen = np.concatenate([random.permutation(chosen), random.permutation(others)])[:wanted]
        if take_newest and size > 0:
            chosen = np.append(chosen, open_end)
        rows.append(random.permutation(chosen) if shuffled else np.sort(chosen))
        previous = chosen
    return demand(rows, lengths.tolist(), request=request, layer=layer, first_step=first_step)


def growing(*, top_k: int = 8, buffer_size: int = 16, seed: int = 0, layer: int = 0) -> Demand:
    """Return a short request that starts below `buffer_size` tokens and grows past it."""
    return drift(
        steps=2 * buffer_size, top_k=top_k, first_seq_len=top_k // 2, seed=seed, layer=layer
    )


def several(
    *, requests: int = 3, layers: Sequence[int] = (0, 1, 3), seed: int = 0, **options: Any
) -> list[Demand]:
    """Return drifting demands of several requests and layers, in the order of a file.

    Requests differ in length, in their first step and in their first seq_len.
    """
    steps = options.pop("steps", 20)
    return [
        drift(
            request=f"request-{number}",
            layer=layer,
            steps=steps + 3 * number,
            first_step=10 * number,
            first_seq_len=40 + 25 * number,
            seed=seed,
            **options,
        )
        for number in range(requests)
        for layer in layers
    ]


def write(path: Path, demands: Iterable[Demand], about: Metadata | None = None) -> Path:
    """Write a trace file with the project's own writer."""
    demands = list(demands)
    if about is None:
        longest = max(int(np.diff(demand.offsets).max()) for demand in demands)
        about = metadata(top_k=max(8, longest))
    with TraceWriter(path, about) as writer:
        for each in demands:
            writer.write(each)
    return path


def table(demands: Iterable[Demand]) -> pa.Table:
    """Return the rows of demands as plain columns, to be spoilt or laid out in another way."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("request", "layer", "step", "seq_len", "positions")
    }
    for each in demands:
        columns["request"] += [each.request] * each.rows
        columns["layer"] += [each.layer] * each.rows
        columns["step"] += each.step.tolist()
        columns["seq_len"] += each.seq_len.tolist()
        columns["positions"] += [each.row(i).tolist() for i in range(each.rows)]
    types = (pa.string(), pa.int16(), pa.int32(), pa.int32(), pa.list_(pa.int32()))
    return pa.table(
        {name: pa.array(columns[name], kind) for name, kind in zip(columns, types, strict=True)}
    )


def write_table(
    path: str | os.PathLike[str],
    rows: pa.Table,
    about: Metadata | str | None,
    row_group_size: int | None = None,
    **options: Any,
) -> Path:
    """Write rows as another program would: unchecked, in row groups of any size.

    `about` is metadata, any text in its place, or None for none.
    """
    if about is not None:
        text = about if isinstance(about, str) else about.to_json()
        rows = rows.replace_schema_metadata({KEY: text})
    pq.write_table(rows, path, row_group_size=row_group_size, **options)
    return Path(path)


def assert_reads_as(url: str, local: Path) -> None:
    """Check that a URL holds the trace of a local file called t."""
    there, here = open_trace(url), open_trace(local)
    assert (there.name, there.parts, there.metadata) == ("t", here.parts, here.metadata)
    for part in here.parts:
        assert there.read(part).positions.tolist() == here.read(part).positions.tolist()
