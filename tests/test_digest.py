"""The digest of a trace file: whatever is changed is refused, or changes nothing that is read."""

import hashlib
import os
import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from make_traces import drift, metadata, several, table, write, write_table

from hisparse_sim.traces import Demand, Ragged, TraceError, open_trace, sample_path, validate
from hisparse_sim.traces.file.digest import MAGIC

# Of the bundled sample before it had a digest: results in benchmarks/results name it.
SAMPLE_SHA256 = "6913e74b5314d77fa77a15d5782d04e192e9e574a6632a7d447e892149f81693"


def full(request: str, layer: int) -> Demand:
    """Return a small demand with every column there is."""
    plain = drift(request=request, layer=layer, steps=3, top_k=4, first_seq_len=20)
    scores = np.arange(len(plain.positions)).astype(np.float16)
    following = Ragged(plain.offsets, (plain.positions % 5).astype(np.int32))
    return replace(plain, scores=scores, next_positions=following)


PARTS = [full(request, layer) for request in "ab" for layer in (0, 2)]


def written(path: Path) -> Path:
    return write(path, PARTS, metadata(prompt_len={"a": 19, "b": 19}))


def content(path: Path) -> list[Any]:
    """Return all that a trace says and holds."""
    trace = open_trace(path)
    found: list[Any] = [trace.metadata, trace.columns]
    for part in trace.parts:
        read = trace.read(part, ("scores", "next_positions"))
        assert read.scores is not None
        assert read.next_positions is not None
        arrays = (read.step, read.seq_len, read.offsets, read.positions, read.scores)
        found += [read.request, read.layer, read.prompt_len]
        found += [array.tolist() for array in (*arrays, *read.next_positions)]
    return found


def split(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return row groups, digest and footer of a trace file, by the layout on the page."""
    (footer_bytes,) = struct.unpack("<I", data[-8:-4])
    footer_start = len(data) - 8 - footer_bytes
    assert data[:footer_start].endswith(MAGIC)
    (count,) = struct.unpack("<I", data[footer_start - 44 : footer_start - 40])
    start = footer_start - 44 - 4 * count
    return data[:start], data[start:footer_start], data[footer_start:]


def chunks(path: Path) -> list[tuple[int, int]]:
    """Return where every column chunk begins, and its bytes."""
    footer = pq.read_metadata(path)
    found = [
        footer.row_group(group).column(column)
        for group in range(footer.num_row_groups)
        for column in range(footer.num_columns)
    ]
    return [
        (each.dictionary_page_offset or each.data_page_offset, each.total_compressed_size)
        for each in found
    ]


def test_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """5,000 of all bits; each of them was tried once, see docs/how-we-know.md."""
    whole = written(tmp_path / "trace.parquet").read_bytes()
    wanted = content(tmp_path / "trace.parquet")
    path = tmp_path / "flipped.parquet"
    body, digest, _ = split(whole)
    read = bytearray(len(body)) + b"\1" * (len(whole) - len(body))
    for first, size in chunks(tmp_path / "trace.parquet"):
        read[first : first + size] = b"\1" * size
    magic = len(body) + len(digest)
    read[magic - len(MAGIC) : magic] = bytes(len(MAGIC))  # without it there is no digest
    for bit in random.Random(7).sample(range(8 * len(whole)), 5000):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = content(path)
        except TraceError as error:
            assert "\n" not in str(error)  # noqa: PT017  (which of the two happens is chance)
        else:
            assert found == wanted, f"byte {bit // 8}, bit {bit % 8}"
            assert not read[bit // 8], f"byte {bit // 8}, bit {bit % 8}"


@pytest.mark.skipif(
    int(pa.__version__.split(".")[0]) < 20, reason="old ones write headers of chunks twice"
)
def test_every_byte_before_the_digest_is_covered(tmp_path: Path) -> None:
    """The column chunks lie side by side, from the first byte behind the head on."""
    body, digest, _ = split(written(tmp_path / "trace.parquet").read_bytes())
    found = chunks(tmp_path / "trace.parquet")
    at = 4
    for first, size in found:
        assert first == at
        at += size
    assert at == len(body)
    assert len(digest) == 4 * len(found) + 44


@pytest.mark.parametrize("column", ["request", "layer", "step", "seq_len", "positions", "scores"])
def test_pages_of_another_part(tmp_path: Path, column: str) -> None:
    """Each column chunk of two parts exchanged for the other's: sound pages, in the wrong place."""
    parts = [replace(PARTS[0], layer=layer, positions=PARTS[0].positions + layer)
             for layer in (0, 1)]  # fmt: skip
    parts = [replace(each, step=each.step + each.layer, request=name, layer=3 + each.layer,
                     seq_len=each.seq_len + each.layer, scores=each.scores + each.layer)
             for each, name in zip(parts, "ab", strict=True)]  # fmt: skip
    path = write(tmp_path / "trace.parquet", parts, metadata(num_layers=9))
    data, footer = bytearray(path.read_bytes()), pq.read_metadata(path)
    names = [footer.schema.column(i).path.split(".")[0] for i in range(footer.num_columns)]
    chunks = [footer.row_group(group).column(names.index(column)) for group in (0, 1)]
    sizes = {chunk.total_compressed_size for chunk in chunks}
    assert len(sizes) == 1
    places = [
        slice(first, first + max(sizes))
        for first in (chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks)
    ]
    assert data[places[0]] != data[places[1]]
    data[places[0]], data[places[1]] = data[places[1]], data[places[0]]
    path.write_bytes(data)
    with pytest.raises(TraceError, match=f"the checksum of {column} in row group 0 is wrong"):
        content(path)


def test_row_groups_of_another_footer(tmp_path: Path) -> None:
    """A footer that leaves out the last part, or lists it twice, is not the one written."""
    body, digest, footer = split(written(tmp_path / "all.parquet").read_bytes())
    write(tmp_path / "some.parquet", PARTS[:-1], metadata(prompt_len={"a": 19, "b": 19}))
    start, other_digest, other = split((tmp_path / "some.parquet").read_bytes())
    assert body.startswith(start)
    path = tmp_path / "mixed.parquet"
    path.write_bytes(body + digest + other)
    with pytest.raises(TraceError, match="was changed after it was written"):
        open_trace(path)
    path.write_bytes(body + other_digest + footer)
    with pytest.raises(TraceError, match="its footer has another digest"):
        open_trace(path)
    path.write_bytes(body + other_digest + other)  # one digest and footer: the file as it was
    assert len(open_trace(path).parts) == 3


def test_files_without_digest_still_open(tmp_path: Path) -> None:
    body, _, footer = split(written(tmp_path / "trace.parquet").read_bytes())
    old = tmp_path / "old.parquet"
    old.write_bytes(body + footer)
    assert content(old) == content(tmp_path / "trace.parquet")
    assert not open_trace(old).has_digest
    assert open_trace(tmp_path / "trace.parquet").has_digest
    assert "no digest" not in str(validate(tmp_path / "trace.parquet").warnings)
    warning = validate(old).warnings[-1]
    assert "there is no digest" in warning
    assert "`hisparse-sim trace sample` rewrites the file" in warning


def test_rows_of_the_footer_are_counted(tmp_path: Path) -> None:
    """Without a digest, too: of 999 and 888 rows, one row group loses or wins some."""
    parts = [drift(steps=999, top_k=2), drift(steps=888, top_k=2, layer=1)]
    path = write_table(tmp_path / "trace.parquet", table(parts), metadata(), 999)
    data = path.read_bytes()
    number = b"\x16" + varint(888)  # the third field of a row group, behind those of its columns
    before, found, after = data.rpartition(number)
    assert found
    for bit in range(12):
        path.write_bytes(before + b"\x16" + varint(888 ^ 1 << bit) + after)
        with pytest.raises(TraceError, match="is damaged: its footer counts 1887 rows"):
            open_trace(path)


def varint(number: int) -> bytes:
    """Return a number as Thrift's compact protocol writes it (zigzag, seven bits a byte)."""
    rest, found = 2 * number, b""
    while rest > 127:
        rest, found = rest >> 7, found + bytes([rest & 127 | 128])
    return found + bytes([rest])


def test_rewritten_by_another_program(tmp_path: Path) -> None:
    """It keeps the metadata and not the digest, which would be wrong for its rows."""
    write(tmp_path / "trace.parquet", several())
    rows = pq.read_table(tmp_path / "trace.parquet")
    pq.write_table(rows.slice(0, 20), tmp_path / "cut.parquet")
    trace = open_trace(tmp_path / "cut.parquet")
    assert (trace.rows, trace.has_digest) == (20, False)
    frame = pd.read_parquet(tmp_path / "trace.parquet")
    assert len(frame) == open_trace(tmp_path / "trace.parquet").rows


def test_the_bundled_sample_is_the_measured_one() -> None:
    body, _, footer = split(sample_path().read_bytes())
    assert hashlib.sha256(body + footer).hexdigest() == SAMPLE_SHA256
    assert open_trace(sample_path()).has_digest


def test_written_to_a_pipe(tmp_path: Path) -> None:
    """The digest needs the whole file; a pipe gets it in the end."""
    path = written(tmp_path / "trace.parquet")
    command = [sys.executable, "-m", "hisparse_sim.cli", "trace", "sample", str(path), "-o"]
    piped = subprocess.run([*command, "/dev/stdout"], check=True, stdout=subprocess.PIPE).stdout
    (tmp_path / "piped.parquet").write_bytes(piped)
    subprocess.run([*command, str(tmp_path / "file.parquet")], check=True)
    assert piped == (tmp_path / "file.parquet").read_bytes()
    assert content(tmp_path / "piped.parquet")[2:] == content(path)[2:]
    assert open_trace(tmp_path / "piped.parquet").has_digest


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name here")
def test_a_pipe_is_no_input(tmp_path: Path) -> None:
    """Nobody writes to it: reading would never end."""
    os.mkfifo(tmp_path / "trace.parquet")
    with pytest.raises(TraceError, match="is a device or pipe, not a trace file"):
        open_trace(tmp_path / "trace.parquet")
