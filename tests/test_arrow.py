"""Traces in Arrow's container: the same rows as in Parquet, read in place, refused when damaged."""

import pickle
import random
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from make_traces import demand, drift, metadata, several, table, write
from test_digest import PARTS, content
from test_trace_reader import assert_holds, demands

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.traces import TraceError, TraceWriter, open_trace, sample, validate
from hisparse_sim.traces.file.arrow import MAGIC, Batches
from hisparse_sim.traces.file.checksum import crc32
from hisparse_sim.traces.file.metadata import KEY

ABOUT = metadata(prompt_len={"a": 19, "b": 19})


def written(path: Path, lz4: bool = False) -> Path:
    with TraceWriter(path, ABOUT, lz4=lz4) as writer:
        for part in PARTS:
            writer.write(part)
    return path


@pytest.mark.parametrize("lz4", [False, True])
def test_both_containers_hold_the_same(tmp_path: Path, lz4: bool) -> None:
    wanted = content(write(tmp_path / "trace.parquet", PARTS, ABOUT))
    path = written(tmp_path / "trace.arrow", lz4)
    assert content(path) == wanted
    assert open_trace(path).has_digest
    assert validate(path).ok


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_demands(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    wanted = data.draw(demands())
    path = tmp_path_factory.mktemp("any") / "trace.arrow"
    with TraceWriter(path, metadata(), lz4=data.draw(st.booleans())) as writer:
        for each in wanted:
            writer.write(each)
    assert_holds(open_trace(path), wanted)


def test_replays_are_the_same(tmp_path: Path) -> None:
    arrow = sample(open_trace(hs.sample_path()), tmp_path / "sample.arrow", layers=[4, 29])
    rows = hs.sweep(arrow, "lru", 4096).rows
    wanted = hs.sweep(hs.sample_path(), "lru", 4096, layers=[4, 29]).rows
    same = ["steps", "accesses", "misses", "p50", "p95", "max", "excess_over_min"]
    assert rows[same].to_dict() == wanted[same].to_dict()


# --- in place ------------------------------------------------------------------------------------


def test_positions_lie_in_the_mapped_file_and_may_be_written_to(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.arrow", several())
    bytes_before = path.read_bytes()
    trace = open_trace(path)
    rows = trace._groups
    assert isinstance(rows, Batches)
    mapped = np.frombuffer(rows._map, np.uint8)
    read = trace.read(trace.parts[4])
    assert np.shares_memory(mapped, read.positions)
    read.positions[:] = -7
    assert path.read_bytes() == bytes_before
    assert (open_trace(path).read(trace.parts[4]).positions != -7).all()


def test_threads_and_processes(tmp_path: Path) -> None:
    wanted = several(requests=4, steps=60)
    trace = open_trace(write(tmp_path / "trace.arrow", wanted))
    with ThreadPoolExecutor(4) as threads:
        for part, read in zip(
            trace.parts * 20, threads.map(trace.read, trace.parts * 20), strict=True
        ):
            assert (read.request, read.layer) == (part.request, part.layer)
    assert_holds(pickle.loads(pickle.dumps(trace)), wanted)


def test_a_part_may_be_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hisparse_sim.traces.file.writer.LARGEST_GROUP", 50)
    wanted = [drift(steps=30, ragged=True), drift(steps=7, layer=1)]
    path = write(tmp_path / "trace.arrow", wanted)
    with pa.ipc.open_file(str(path)) as reader:
        assert reader.num_record_batches == 4
    assert_holds(open_trace(path), wanted)


def test_a_name_for_the_rows_without_reading_them(tmp_path: Path) -> None:
    """The digest that the file holds: equal for equal files, another for other rows or metadata."""
    names = [
        open_trace(written(tmp_path / "one.arrow")).sha256,
        open_trace(written(tmp_path / "two.arrow")).sha256,
        open_trace(write(tmp_path / "three.arrow", PARTS[1:], ABOUT)).sha256,
        open_trace(write(tmp_path / "four.arrow", PARTS, replace(ABOUT, model="other"))).sha256,
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert len(names[0]) == 64


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lz4", [False, True])
def test_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path, lz4: bool) -> None:
    whole = written(tmp_path / "trace.arrow", lz4).read_bytes()
    wanted = content(tmp_path / "trace.arrow")
    path = tmp_path / "flipped.arrow"
    harmless = 0
    for bit in random.Random(11).sample(range(8 * len(whole)), 2500):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = content(path)
        except TraceError as error:
            assert "\n" not in str(error)  # noqa: PT017  (which of the two happens is chance)
            continue
        harmless += 1
        assert found == wanted
    # Without its magic there is no digest, and the batches are as they were.
    assert harmless <= 2 * 8 * len(MAGIC)


def test_whatever_is_cut_off_is_missed(tmp_path: Path) -> None:
    whole = written(tmp_path / "trace.arrow").read_bytes()
    path = tmp_path / "cut.arrow"
    for length in random.Random(3).sample(range(1, len(whole)), 300):
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError):
            open_trace(path)


def test_swapped_batches_are_refused(tmp_path: Path) -> None:
    """Two batches of one length, whole but in each other's place."""
    path = write(tmp_path / "trace.arrow", [drift(layer=0, seed=1), drift(layer=1, seed=2)])
    rows = open_trace(path)._groups
    assert isinstance(rows, Batches)
    assert rows.digest is not None
    first, second, end = rows.digest.starts.tolist()
    data = path.read_bytes()
    assert second - first == end - second
    path.write_bytes(data[:first] + data[second:end] + data[first:second] + data[end:])
    with pytest.raises(TraceError, match=r"the checksum of .* in batch 0 is wrong"):
        open_trace(path)


def test_a_batch_of_another_file_is_refused(tmp_path: Path) -> None:
    """Positions alone exchanged: request, layer and steps are right."""
    one = write(tmp_path / "one.arrow", [drift(layer=0, seed=1)])
    other = write(tmp_path / "two.arrow", [drift(layer=0, seed=2)])
    stop = open_trace(one)._groups.digest.starts[-1]
    one.write_bytes(other.read_bytes()[:stop] + one.read_bytes()[stop:])
    trace = open_trace(one)
    with pytest.raises(TraceError, match="the checksum of positions in batch 0 is wrong"):
        trace.read(trace.parts[0])


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path / "trace.arrow"))
    write(tmp_path / "trace.arrow", several())
    with pytest.raises(TraceError, match="has changed since it was opened"):
        trace.read(trace.parts[0])


def test_checksums_are_those_of_zlib() -> None:
    for size in (0, 1, 63, 64, 1000, 100_003):
        data = random.Random(size).randbytes(size)
        assert crc32(data) == zlib.crc32(data)


# --- files of others -----------------------------------------------------------------------------


def described(rows: pa.Table) -> pa.Table:
    return rows.replace_schema_metadata({KEY: metadata().to_json()})


def as_stream(path: Path, rows: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=7)


def as_file(path: Path, rows: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=7)


def as_feather(path: Path, rows: pa.Table) -> None:
    pyarrow.feather.write_feather(rows, path, compression="lz4", chunksize=11)


def with_dictionary(path: Path, rows: pa.Table) -> None:
    names = rows["request"].combine_chunks().dictionary_encode()
    as_file(path, rows.set_column(0, "request", names))


@pytest.mark.parametrize("how", [as_stream, as_file, as_feather, with_dictionary])
def test_other_writers(tmp_path: Path, how: Any) -> None:
    wanted = several()
    path = tmp_path / "theirs.arrow"
    how(path, described(table(wanted)))
    trace = open_trace(path)
    assert not trace.has_digest
    assert_holds(trace, wanted)
    assert any("there is no digest" in warning for warning in validate(path).warnings)


def test_rules_are_checked(tmp_path: Path) -> None:
    """Whatever the container: the same sentence, file, request, layer and step."""
    plain = table([demand([[1, 2], [3, 4], [5, 6]], 10, request="r", layer=1)])
    twice = plain.set_column(4, "positions", pa.array([[1, 2], [3, 3], [5, 6]]))
    outside = plain.set_column(4, "positions", pa.array([[1, 2], [3, 4], [5, 99]]))
    gap = plain.set_column(2, "step", pa.array([0, 1, 3]))
    null = plain.set_column(4, "positions", pa.array([[1, 2], None, [5, 6]]))
    for rows, sentence in (
        (twice, "step 1: position 3 is listed twice"),
        (outside, "step 2: position 99 is outside"),
        (gap, "step 3: the step before it is 1"),
        (null, "positions is null"),
    ):
        as_file(tmp_path / "bad.arrow", described(rows))
        trace = open_trace(tmp_path / "bad.arrow")
        with pytest.raises(TraceError, match=sentence) as found:
            trace.read(trace.parts[0])
        assert "request 'r', layer 1" in str(found.value)
    backwards = pa.concat_tables([table([drift(layer=2)]), table([drift(layer=1)])])
    as_stream(tmp_path / "bad.arrow", described(backwards))
    with pytest.raises(TraceError, match="goes back from layer 2 to 1"):
        open_trace(tmp_path / "bad.arrow")


def test_empty_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "empty.arrow"
    as_file(path, described(table(several())).slice(0, 0))
    with pytest.raises(TraceError, match="holds no rows"):
        open_trace(path)
    as_stream(path, described(table(several())).slice(0, 0))
    with pytest.raises(TraceError, match="holds no rows"):
        open_trace(path)
    as_file(path, pa.table({"a": [1, 2]}))
    with pytest.raises(TraceError, match="has no column request"):
        open_trace(path)
    as_file(path, table(several()))
    with pytest.raises(TraceError, match="no hisparse_trace metadata"):
        open_trace(path)
    path.write_bytes(b"ARROW1\0\0")
    with pytest.raises(TraceError, match="was cut off"):
        open_trace(path)


# --- commands ------------------------------------------------------------------------------------


def run(*arguments: object) -> Any:
    return CliRunner().invoke(cli, [*map(str, arguments)])


def test_convert_there_and_back(tmp_path: Path) -> None:
    first = write(tmp_path / "first.parquet", PARTS, ABOUT)
    arrow, back = tmp_path / "second.arrow", tmp_path / "third.parquet"
    assert run("trace", "convert", first, "-o", arrow).exit_code == 0
    assert run("trace", "convert", arrow, "-o", back).exit_code == 0
    assert content(arrow) == content(back) == content(first)
    assert "is an existing trace" in run("trace", "convert", first, "-o", arrow).output
    assert run("trace", "convert", first, "-o", arrow, "--force", "--lz4").exit_code == 0
    assert content(arrow) == content(first)
    assert run("trace", "validate", arrow).exit_code == 0


def test_what_convert_refuses(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.parquet", PARTS, ABOUT)
    out = tmp_path / "out.arrow"
    for options, sentence in (
        (("--model", "x"), "--model does not apply to a trace file"),
        (("--prompt-len", "7"), "--prompt-len does not apply to a trace file"),
    ):
        found = run("trace", "convert", path, "-o", out, *options)
        assert (found.exit_code, sentence in found.output) == (2, True), found.output
        assert not out.exists()
    found = run("trace", "convert", path, "-o", tmp_path / "x.parquet", "--lz4")
    assert "only these can be compressed by lz4" in found.output
    found = run("trace", "convert", path, "-o", path, "--force")
    assert "it is read for this" in found.output
    as_file(path, table(several()))  # says nothing about itself
    found = run("trace", "convert", path, "-o", out, "--provenance", "synthetic")
    assert found.exit_code == 0, found.output
    assert open_trace(out).metadata.provenance == "synthetic"
