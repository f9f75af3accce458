"""Traces of speculative decoding: several queries a step, from writer to reader and through tools.

And version 1 files without them, which are read for ever.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from make_traces import demand, drift, metadata, write, write_table

from hisparse_sim.cli import cli
from hisparse_sim.traces import (
    Demand,
    TraceError,
    TraceWriter,
    info,
    open_trace,
    sample,
    sample_path,
    validate,
)
from hisparse_sim.traces.drafts import drafted
from hisparse_sim.traces.file.in_memory import trace_from_frame
from hisparse_sim.traces.file.layer_types import followers
from hisparse_sim.traces.file.metadata import KEY, Metadata
from hisparse_sim.traces.importers.convert import convert

ABOUT = metadata(draft_tokens=3)
GOLDEN = Path(__file__).parent / "golden"


def verified(rows: list[list[int]], lengths: list[int], queries: list[int], **where: Any) -> Demand:
    """Return steps written out by hand: a new one begins wherever a query is 0."""
    plain = demand(rows, lengths, **where)
    query = np.array(queries, np.int32)
    step = np.cumsum(query == 0).astype(np.int32) - 1
    return replace(plain, query=query, step=step)


# Steps of 3, 3 and 2 queries; 2 and 1 of their tokens were accepted.
HAND = verified(
    [[1, 9], [2, 10], [3, 11], [4, 11], [5, 12], [6, 13], [7, 12], [8, 13]],
    [10, 11, 12, 12, 13, 14, 13, 14],
    [0, 1, 2, 0, 1, 2, 0, 1],
)


def drafts(layer: int = 0, request: str = "a") -> Demand:
    return drafted(drift(steps=12, layer=layer, request=request), 3, 2)


def assert_same(found: Demand, wanted: Demand) -> None:
    for name in ("step", "seq_len", "query", "offsets", "positions"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    assert (found.request, found.layer, found.prompt_len) == (
        wanted.request,
        wanted.layer,
        wanted.prompt_len,
    )


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_queries_are_read_as_they_were_written(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, [HAND, replace(HAND, layer=2)], ABOUT)
    trace = open_trace(path)
    assert trace.metadata.draft_tokens == 3
    assert trace.optional == ("row",)
    for part, layer in zip(trace.parts, (0, 2), strict=True):
        assert_same(trace.read(part, trace.optional), replace(HAND, layer=layer))
    assert_same(trace.read(trace.parts[0], ["row"], (1, 2)), HAND.cut(1, 2))
    assert HAND.cut(1, 2).query is not None
    assert HAND.first_rows.tolist() == [0, 3, 6]


def test_the_column_is_a_small_number(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [HAND], ABOUT)
    assert pq.read_schema(path).field("row") == pa.field("row", pa.int8(), nullable=False)
    assert pd.read_parquet(path)["row"].tolist() == HAND.query.tolist()  # type: ignore[union-attr]


def test_whoever_expects_one_query_a_step_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [HAND], ABOUT)
    trace = open_trace(path)
    with pytest.raises(
        TraceError, match=r"up to 3 queries a step .* `hisparse-sim sweep` and `curve`"
    ):
        trace.read(trace.parts[0])


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        ({"query": [0, 2, 1, 0, 1, 2, 0, 1]}, "step 0: row is 2, expected 1: queries count from 0"),
        ({"query": [1, 1, 2, 0, 1, 2, 0, 1]}, "step 0: row is 1, expected 0: queries count from 0"),
        ({"step": [0, 0, 0, 2, 2, 2, 3, 3]}, "step 2: the step before it is 0"),
        (
            {"seq_len": [10, 11, 13, 12, 13, 14, 13, 14]},
            "step 0: query 2 has seq_len 13, expected one more than the 11 of the query before it",
        ),
        (
            {"seq_len": [10, 11, 12, 14, 15, 16, 15, 16]},
            "step 1: seq_len grew by 4 since the step before, which had 3 queries",
        ),
        (
            {"seq_len": [10, 11, 12, 10, 11, 12, 11, 12], "positions": [1] * 16},
            "step 1: seq_len grew by 0 since the step before",
        ),
        (
            # 11 is a token of the step before, but of a later query than this one.
            {"positions": [1, 9, 2, 10, 3, 11, 4, 12, 5, 12, 6, 13, 7, 12, 8, 13]},
            "step 1: position 12 is outside [0, seq_len = 12)",
        ),
        (
            {"positions": [1, 9, 2, 2, 3, 11, 4, 11, 5, 12, 6, 13, 7, 12, 8, 13]},
            "step 0: position 2 is listed twice",
        ),
    ],
)
@pytest.mark.parametrize("way", ["reader", "writer"])
def test_broken_rules(tmp_path: Path, spoil: dict[str, list[int]], sentence: str, way: str) -> None:
    arrays = {name: np.array(values, np.int32) for name, values in spoil.items()}
    bad = replace(HAND, **arrays)  # type: ignore[arg-type]
    path = tmp_path / "t.parquet"
    if way == "writer":
        with pytest.raises(TraceError) as caught, TraceWriter(path, ABOUT) as writer:
            writer.write(bad)
        assert not path.exists()
    else:
        trace = open_trace(write_table(path, queries_table(bad), ABOUT))
        with pytest.raises(TraceError) as caught:
            trace.read(trace.parts[0], ["row"])
    assert sentence in str(caught.value)
    assert "request 'a', layer 0" in str(caught.value)


def queries_table(one: Demand) -> pa.Table:
    return pa.table(
        {
            "request": [one.request] * one.rows,
            "layer": np.full(one.rows, one.layer),
            "step": one.step,
            "seq_len": one.seq_len,
            "row": one.query,
            "positions": [one.row(index) for index in range(one.rows)],
        }
    )


def test_more_queries_than_the_metadata_says(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.parquet", queries_table(HAND), metadata(draft_tokens=2))
    trace = open_trace(path)
    with pytest.raises(TraceError, match="row is 2, and draft_tokens 2"):
        trace.read(trace.parts[0], ["row"])


@pytest.mark.parametrize("column", ["missing", "text"])
def test_the_column_must_be_there(tmp_path: Path, column: str) -> None:
    rows = queries_table(HAND)
    place = rows.schema.get_field_index("row")
    rows = rows.drop_columns("row")
    if column == "text":
        rows = rows.add_column(place, "row", pa.array(["0"] * len(rows)))
    with pytest.raises(TraceError, match=r"has (no )?column row"):
        open_trace(write_table(tmp_path / "t.parquet", rows, ABOUT))


def test_a_column_of_that_name_means_nothing_without_the_metadata(tmp_path: Path) -> None:
    """Version 1 ignored it; a data frame may number its rows."""
    plain = demand([[1], [2], [3]], 9)
    rows = queries_table(replace(plain, query=np.array([5, 6, 7], np.int32)))
    path = write_table(tmp_path / "t.parquet", rows, metadata())
    trace = open_trace(path)
    assert trace.optional == ()
    assert trace.read(trace.parts[0]).query is None


@pytest.mark.parametrize("wrong", [0, 64, "3", True, 2.0])
def test_metadata_that_cannot_be(wrong: Any) -> None:
    text = f'{{"version": 1, "draft_tokens": {wrong!r}}}'.replace("'", '"').replace("True", "true")
    with pytest.raises(TraceError, match=r"draft_tokens .* expected a whole number from 1 to 63"):
        Metadata.from_json(text)


def test_a_plain_file_does_not_mention_them() -> None:
    assert "draft_tokens" not in metadata().to_json()
    assert Metadata.from_json(ABOUT.to_json()).draft_tokens == 3


def test_the_writer_wants_what_the_metadata_says(tmp_path: Path) -> None:
    for about, one in ((metadata(), HAND), (ABOUT, drift())):
        with (
            pytest.raises(TraceError, match="a step has several queries if, and only if"),
            TraceWriter(tmp_path / "t.parquet", about) as writer,
        ):
            writer.write(one)


def test_tools_keep_them(tmp_path: Path) -> None:
    """Cut, written again in both containers, described, validated, taken as a frame."""
    parts = [drafts(0), drafts(1), drafts(0, "b")]
    path = write(tmp_path / "t.parquet", parts, ABOUT)
    cut = open_trace(sample(open_trace(path), tmp_path / "cut.parquet", steps=(1, 3)))
    assert_same(cut.read(cut.parts[2], ["row"]), replace(parts[2].cut(1, 3)))
    convert(path, tmp_path / "t.arrow", lz4=True)
    convert(tmp_path / "t.arrow", tmp_path / "again.parquet")
    again = open_trace(tmp_path / "again.parquet")
    for part, wanted in zip(again.parts, parts, strict=True):
        assert_same(again.read(part, ["row"]), wanted)
    found = validate(path)
    assert found.ok
    assert not any("differ from its first layer" in each for each in found.warnings)
    frame = trace_from_frame(pd.read_parquet(path), draft_tokens=3, top_k=8)
    assert_same(frame.read(frame.parts[1], ["row"]), parts[1])
    other = trace_from_frame(pd.read_parquet(path), draft_tokens=4, top_k=8)
    assert frame.sha256 != other.sha256
    frame.save(tmp_path / "frame.parquet")
    saved = open_trace(tmp_path / "frame.parquet")
    assert_same(saved.read(saved.parts[0], ["row"]), parts[0])


def test_they_are_described(tmp_path: Path) -> None:
    about = replace(ABOUT, layer_types=("full", "shared", "shared", "full"))
    path = write(tmp_path / "t.parquet", [HAND], about)
    described = info(open_trace(path))
    assert described.accepted_per_step == 1.5  # 2 and 1
    last = described.table().iloc[-1]
    assert (last["draft_tokens"], last["accepted_per_step"], last["rows"]) == (3, 1.5, 8)
    said = CliRunner().invoke(cli, ["trace", "info", str(path)]).output
    assert "up to 3 queries a step, 1.50 accepted on average" in said
    assert "in 2 layers; 2 layers repeat the one before them" in said
    assert "draft_tokens" not in info(open_trace(sample_path())).table()


@pytest.mark.parametrize("name", ["version-1.parquet", "version-1.arrow"])
def test_version_1_is_read_for_ever(name: str, tmp_path: Path) -> None:
    """Two files written before there were queries: their rows, and written again."""
    trace = open_trace(GOLDEN / name)
    assert trace.metadata.version == 1
    assert trace.metadata.draft_tokens == 1
    assert trace.has_digest
    first, second = (trace.read(part, trace.optional) for part in trace.parts)
    assert (first.request, first.layer, first.prompt_len) == ("r0", 0, 9)
    assert first.step.tolist() == [0, 1, 2]
    assert first.seq_len.tolist() == [10, 11, 12]
    assert [first.row(i).tolist() for i in range(3)] == [[3, 9], [3, 10], [4, 11]]
    assert second.layer == 2
    assert second.query is None
    convert(GOLDEN / name, tmp_path / name)
    again = open_trace(tmp_path / name)
    assert again.metadata.to_json() == trace.metadata.to_json()
    assert again.read(again.parts[0], ["scores"]).scores.tolist() == [0, 1, 2, 3, 4, 5]


def test_drafts_of_a_plain_trace_are_neighbouring_tokens() -> None:
    plain = demand([[t] for t in range(7)], 20, first_step=5)
    # 2.5 tokens accepted a step: 2, 3, 2, ... Steps begin at tokens 0, 2 and 5; the last would
    # want tokens 5, 6 and 7, of which there is no 7.
    found = drafted(plain, 3, 2.5)
    assert found.step.tolist() == [5, 5, 5, 6, 6, 6]
    assert found.query is not None
    assert found.query.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.positions.tolist() == [0, 1, 2, 2, 3, 4]
    assert found.seq_len.tolist() == [20, 21, 22, 22, 23, 24]
    assert drafted(plain, 3).positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert drafted(plain, 1).positions.tolist() == plain.positions.tolist()


def test_drafts_that_cannot_be() -> None:
    plain = drift(steps=5)
    with pytest.raises(ValueError, match="of 3 draft tokens 1 to 3 are accepted"):
        drafted(plain, 3, 3.5)
    with pytest.raises(TraceError, match="has 5 steps, too few for 6 queries"):
        drafted(plain, 6)
    with pytest.raises(TraceError, match="several queries a step already"):
        drafted(drafted(plain, 2), 2)
    with pytest.raises(TraceError, match="does not add one token a step"):
        drafted(drift(growth=0), 2)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5), st.floats(0, 1), st.integers(5, 30), st.booleans())
def test_drafts_follow_the_rules(n: int, share: float, steps: int, scored: bool) -> None:
    plain = drift(steps=steps, ragged=True)
    if scored:
        plain = replace(plain, scores=plain.positions.astype(np.float16))
    mean = 1 + share * (n - 1)
    found = drafted(plain, n, mean)
    heads = found.first_rows
    accepted = np.diff(found.seq_len[heads])
    assert ((accepted >= int(mean)) & (accepted <= min(n, int(mean) + 1))).all()
    for row in range(found.rows):
        token = int(found.seq_len[row] - plain.seq_len[0])
        assert found.row(row).tolist() == plain.row(token).tolist()
    if scored:
        assert found.scores is not None
        np.testing.assert_array_equal(found.scores, found.positions.astype(np.float16))


def test_followers_of_an_anchor() -> None:
    assert followers(("full", "full", "shared", "shared", "full")) == {0: 0, 1: 2, 4: 0}
    assert followers(("full", "full")) == {}
    assert followers(None) == {}
    assert followers(("shared", "full")) == {}  # nothing to repeat


def test_metadata_key_is_that_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [HAND], ABOUT)
    assert b'"draft_tokens": 3' in pq.read_schema(path).metadata[KEY]


def synth(tmp_path: Path, *options: str) -> Any:
    path = tmp_path / "synth.parquet"
    shape = ["--profile", "glm-5.1", "--context", "300", "--top-k", "16", "--steps", "9"]
    words = ["trace", "synth", *shape, *options, "-o", str(path), "--quiet"]
    return CliRunner().invoke(cli, words), path


def test_synthetic_drafts_are_neighbouring_tokens_of_the_same_model(tmp_path: Path) -> None:
    done, path = synth(
        tmp_path, "--layer", "3,9", "--draft-tokens", "3", "--acceptance-length", "1.5"
    )
    assert done.exit_code == 0, done.output
    trace = open_trace(path)
    assert trace.metadata.draft_tokens == 3
    assert trace.metadata.notes["drafts"]["accepted"] == 1.5
    one = trace.read(trace.parts[1], ["row"])
    assert (one.layer, len(one.first_rows)) == (9, 9)
    assert np.diff(one.seq_len[one.first_rows]).tolist() == [1, 2, 1, 2, 1, 2, 1, 2]
    plain, path = synth(tmp_path, "--layer", "9", "--steps", "15", "--force")
    assert plain.exit_code == 0, plain.output
    tokens = open_trace(path).read(open_trace(path).parts[0])
    np.testing.assert_array_equal(drafted(tokens, 3, 1.5).positions, one.positions)


def test_synthetic_layers_that_share_an_index(tmp_path: Path) -> None:
    done, path = synth(tmp_path, "--full-layers", "0-2,6", "--layer", "2-7")
    assert done.exit_code == 0, done.output
    trace = open_trace(path)
    assert trace.layers == (2, 6)
    sharing = followers(trace.metadata.layer_types)
    assert sharing == {0: 0, 1: 0, 2: 3, 6: 71}


@pytest.mark.parametrize(
    ("layers", "noted"),
    [
        ("0-2,6 --layer 2-7", "layer 6 stands for 72 of 78 layers in `plan` and `serve`, far more"),
        ("0-2,6 --layer 2-5", ""),  # one layer: there is no other
        ("0,20,40,60", ""),
    ],
)
def test_a_layer_that_stands_for_most_others_is_noted(
    layers: str, noted: str, tmp_path: Path
) -> None:
    words = (
        f"trace synth --profile glm-5.1 --context 300 --top-k 16 --steps 9 --full-layers {layers}"
    )
    done = CliRunner().invoke(cli, [*words.split(), "-o", str(tmp_path / "t.parquet")])
    assert done.exit_code == 0, done.output
    assert noted in done.output
    assert ("stands for" in done.output) == bool(noted)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--full-layers", "1,2"], "layer 0 must be one of --full-layers"),
        (["--full-layers", "0,78"], "there is no layer 78"),
        (["--full-layers", "0,2", "--layer", "5"], "has an index: choose from 0, 2"),
        (
            ["--draft-tokens", "2", "--acceptance-length", "2.5"],
            "of 2 draft tokens 1 to 2 are accepted",
        ),
        (["--acceptance-length", "2"], "--acceptance-length"),
    ],
)
def test_synthetic_traces_that_cannot_be(tmp_path: Path, options: list[str], sentence: str) -> None:
    done, path = synth(tmp_path, *options)
    assert done.exit_code in (1, 2)
    assert sentence in done.output
    assert not path.exists()
