"""Describing, validating and cutting traces; writing files whole or not at all."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_traces import demand, drift, metadata, several, table, write, write_table

from hisparse_sim import traces
from hisparse_sim.traces import (
    Demand,
    Metadata,
    TraceError,
    TraceWriter,
    atomic_path,
    open_trace,
    validate,
)
from hisparse_sim.traces.importers.convert import convert


def test_info_by_hand(tmp_path: Path) -> None:
    wanted = [
        demand([[0, 5, 9], [5, 6], [], [5, 6, 1, 700]], [10, 300, 300, 800]),
        demand([[0], [0]], 10, layer=2),
        demand([[3], [4]], 10, layer=2, request="b"),
    ]
    trace = open_trace(write(tmp_path / "trace.parquet", wanted))
    info = traces.info(trace)
    first, second = info.per_layer
    assert (first.layer, first.requests, first.rows, first.positions) == (0, 1, 4, 9)
    assert (first.row_min, first.row_max) == (0, 4)
    assert (first.seq_len_min, first.seq_len_max) == (10, 800)
    # Rows 1 to 3: {5} of two, an empty row has none, nothing of four after an empty row.
    assert first.overlap == pytest.approx((1 / 2 + 0 / 4) / 2)
    assert first.first_4_share == pytest.approx(2 / 9)  # 0 and 1
    # All of the first row; from 44 on nothing of the second; from 544 on 700 of the last.
    assert first.recent_256_share == pytest.approx(4 / 9)
    assert (second.layer, second.requests, second.rows) == (2, 2, 4)
    assert second.overlap == pytest.approx(1 / 2)
    total = info.total
    assert (total.layer, total.requests, total.rows, total.positions) == (None, 2, 8, 13)
    assert total.overlap == pytest.approx((1 / 2 + 0 / 4 + 1 + 0) / 4)
    assert info.requests == ("a", "b")
    assert info.size_bytes == trace.path.stat().st_size
    assert info.sha256 == trace.sha256


@pytest.mark.parametrize("shuffled", [False, True])
def test_info_against_sets(tmp_path: Path, shuffled: bool) -> None:
    wanted = several(ragged=True, shuffled=shuffled)
    info = traces.info(open_trace(write(tmp_path / "trace.parquet", wanted)))

    def overlaps(each: Demand) -> list[float]:
        rows = [set(each.row(i).tolist()) for i in range(each.rows)]
        return [len(rows[i] & rows[i - 1]) / len(rows[i]) for i in range(1, each.rows) if rows[i]]

    for layer in info.per_layer:
        samples = [x for each in wanted if each.layer == layer.layer for x in overlaps(each)]
        assert layer.overlap == pytest.approx(np.mean(samples))
    assert info.total.overlap == pytest.approx(np.mean([x for w in wanted for x in overlaps(w)]))


def test_info_without_pairs(tmp_path: Path) -> None:
    info = traces.info(open_trace(write(tmp_path / "trace.parquet", [demand([[]], 9)])))
    assert info.total.overlap is None
    assert info.total.first_4_share is None


def test_the_bundled_sample() -> None:
    trace = open_trace(traces.sample_path())
    assert trace.layers == (4, 9, 14, 19, 24, 29)
    assert trace.rows == 6 * 512
    assert trace.metadata.provenance == "trained-indexer"
    assert validate(trace.path) == traces.Validation((), (), complete=True)
    info = traces.info(trace)
    assert info.total.positions == 6 * 512 * 2048
    assert 0.7 < (info.total.overlap or 0) < 0.8


def test_validate_tells_all(tmp_path: Path) -> None:
    good = [drift(request="a"), drift(request="b")]
    bad = [demand([[1, 1]], 9, request=f"bad-{i}") for i in range(30)]
    path = write_table(tmp_path / "trace.parquet", table([*good, *bad]), metadata(), 1)
    found = validate(path)
    assert not found.ok
    assert not found.complete
    assert len(found.problems) == 20
    assert "request 'bad-0', layer 0, step 0: position 1 is listed twice" in found.problems[0]
    everything = validate(path, limit=100)
    assert everything.complete
    assert len(everything.problems) == 30
    assert validate(tmp_path / "none").problems == (f"{tmp_path / 'none'} does not exist",)


def test_validate_warns(tmp_path: Path) -> None:
    rows = [
        demand([[5, 3, -1], [], [1, 2, 3]], 9),
        demand([[1], [2]], 9, layer=1),
    ]
    about = metadata(top_k=3, prompt_len={"gone": 4})
    path = write_table(tmp_path / "trace.parquet", table(rows), about)
    found = validate(path)
    assert found.ok
    warnings = "\n".join(found.warnings)
    for sentence in (
        "1 entries of -1 are skipped",
        "1 rows are not sorted",
        "1 rows list no position",
        "3 rows list fewer positions than min(top_k, seq_len), top_k being 3",
        "request 'a', layer 1: steps or seq_len differ from its first layer",
        "no prompt_len for 1 of 1 requests",
        "prompt_len names 1 request that has no rows",
        "1 row groups hold several (request, layer)",
    ):
        assert sentence in warnings


def test_validate_compares_the_layers_of_a_request(tmp_path: Path) -> None:
    """Layer 1 shares the index of layer 0: it may list the same positions in another order."""
    rows = [[5, 3], [1, 2], [4, 6]]
    types = ("full", "shared", "full")
    for changed, more, sentence in (
        ([[3, 5], [1, 2], [6, 4]], True, None),
        ([[5, 3], [1, 0], [4, 6]], True, "layer 1: is marked as shared, and its rows are not"),
        (rows, False, "request 'b', layer 1: has no rows, which other requests have"),
    ):
        parts = [demand(rows, 9), demand(changed, 9, layer=1), demand(rows, 9, request="b")]
        if more:
            parts.append(demand(rows, 9, layer=1, request="b"))
        about = metadata(num_layers=3, layer_types=types, prompt_len={"a": 8, "b": 8})
        found = validate(write_table(tmp_path / "t.parquet", table(parts), about))
        assert found.ok
        told = [each for each in found.warnings if "request '" in each]
        assert len(told) == (sentence is not None)
        assert all(str(sentence) in each for each in told)
    lengths = [demand(rows, [9, 10, 12]), demand(rows, [9, 11, 12], layer=1)]
    found = validate(write_table(tmp_path / "t.parquet", table(lengths), metadata()))
    assert any("steps or seq_len differ from its first layer" in each for each in found.warnings)


def test_sample(tmp_path: Path) -> None:
    wanted = several(requests=3, layers=(0, 1, 3))
    about = metadata(
        prompt_len={"request-0": 7, "request-2": 8}, notes="by hand", source="engine 1"
    )
    trace = open_trace(write(tmp_path / "whole.parquet", wanted, about))
    path = traces.sample(
        trace, tmp_path / "cut.parquet", ["request-1", "request-2"], [3, 0], (22, 30)
    )
    cut = open_trace(path)
    assert [(part.request, part.layer) for part in cut.parts] == [
        ("request-1", 0),
        ("request-1", 3),
        ("request-2", 0),
        ("request-2", 3),
    ]
    for part in cut.parts:
        whole = next(p for p in trace.parts if (p.request, p.layer) == (part.request, part.layer))
        found, same = cut.read(part), trace.read(whole, steps=(22, 30))
        assert found.step.tolist() == same.step.tolist() == list(range(22, 30))
        assert found.positions.tolist() == same.positions.tolist()
        assert found.prompt_len == same.prompt_len
    # Not named before, known from the first row, which is cut off now.
    assert cut.metadata.prompt_len == {"request-1": 64, "request-2": 8}
    assert cut.metadata.source == "engine 1"
    assert cut.metadata.notes == {
        "cut": {
            "from": "whole.parquet",
            "sha256": trace.sha256,
            "requests": ["request-1", "request-2"],
            "layers": [0, 3],
            "steps": [22, 30],
        },
        "original": "by hand",
    }
    assert not validate(path).warnings


def test_names_that_are_not_utf8_are_written_out(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.parquet")
    try:
        path.write_bytes(write(tmp_path / "t.parquet", [drift()]).read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    cut = traces.sample(open_trace(path), tmp_path / "cut.parquet")
    assert open_trace(cut).metadata.notes["cut"]["from"] == "caf\\xe9.parquet"
    array = path.with_suffix(".npy")
    np.save(array, np.arange(6, dtype=np.int32).reshape(2, 3))
    convert(array, cut, prompt_len=9, provenance="synthetic")
    found = open_trace(cut)
    assert found.requests == ("caf\\xe9",)
    assert found.metadata.notes["converted_from"] == "caf\\xe9.npy"


def test_a_file_of_many_requests_is_described_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    to_json = Metadata.to_json
    monkeypatch.setattr(Metadata, "to_json", lambda self: asked.append(1) or to_json(self))
    write(tmp_path / "many.parquet", several(requests=20, layers=(0, 1)))
    assert len(asked) == 1


def test_sample_drops_requests_without_rows(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "whole.parquet", several(requests=3, layers=(0,))))
    cut = open_trace(traces.sample(trace, tmp_path / "cut.parquet", steps=(0, 10)))
    assert cut.requests == ("request-0",)
    with pytest.raises(TraceError, match="has no rows with steps 500 to 599"):
        traces.sample(trace, tmp_path / "none.parquet", steps=(500, 600))
    with pytest.raises(TraceError, match="has no layer 7"):
        traces.sample(trace, tmp_path / "none.parquet", layers=[7])
    with pytest.raises(TraceError, match="it is read for this"):
        traces.sample(trace, trace.path)
    assert not (tmp_path / "none.parquet").exists()


def test_atomic_path(tmp_path: Path) -> None:
    target = tmp_path / "result.csv"
    target.write_text("old")
    os.link(target, tmp_path / "other name")
    with atomic_path(target) as path:
        assert path.suffix == ".csv"
        assert path.parent == tmp_path
        path.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert (tmp_path / "other name").read_text() == "old"  # replaced, not written over
    with pytest.raises(KeyboardInterrupt), atomic_path(target) as path:  # noqa: PT012
        path.write_text("half")
        raise KeyboardInterrupt
    assert target.read_text() == "new"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["other name", "result.csv"]


def test_atomic_path_follows_links_and_writes_devices(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with atomic_path(tmp_path / "link") as path:
        path.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    with atomic_path(os.devnull) as path:
        path.write_text("gone")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"provenance": "bogus"}, 'gives provenance as "bogus"'),
        ({"provenance": ""}, 'gives provenance as ""'),
        ({"top_k": 99_999_999_999}, "gives top_k as 99999999999"),
        ({"num_layers": 0}, "gives num_layers as 0"),
        ({"layer_types": ("full",)}, "gives 1 layer_types for 4 layers"),
        ({"prompt_len": {"a": -1}}, 'gives prompt_len as {"a": -1}'),
        ({"version": 2}, "has version 2"),
        ({"notes": {"x": np.int64(3)}}, "int64 is not JSON"),
        ({"model": "\ud800"}, "with a lone surrogate"),
    ],
)
def test_metadata_that_no_reader_takes_is_not_written(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.parquet"
    with pytest.raises(TraceError, match="cannot be written: ") as caught:
        TraceWriter(path, metadata(**change)).__enter__()
    assert said in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_unwritable(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be written: it is a folder"):
        write(tmp_path, [drift()])
    with pytest.raises(TraceError, match="cannot be written: its name is too long"):
        write(tmp_path / ("é" * 125), [drift()])
    with pytest.raises(TraceError, match="cannot be written: there is no folder"):
        write(tmp_path / "none" / "trace.parquet", [drift()])
    with (  # noqa: PT012
        pytest.raises(TraceError, match=r"cannot be written: No space"),
        atomic_path(tmp_path / "full") as path,
    ):
        path.write_text("half")
        raise OSError(28, "No space left on device")
    assert not list(tmp_path.iterdir())
