"""Arrays that also hold rows of the prompt: these must not become decode steps without a word."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from test_convert import logical, sglang_answer, vllm_answer
from test_convert_lines import lines

from hisparse_sim.cli import cli
from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces.importers.convert import convert


def converted(folder: Path, array: np.ndarray, **options: Any) -> tuple[list[str], Path]:
    """Return what is doubted of an array of 40 prompt tokens, and the trace made of it."""
    np.save(folder / "array.npy", array)
    doubts: list[str] = []
    convert(
        folder / "array.npy", folder / "out.parquet", prompt_len=40, provenance="synthetic",
        warn=doubts.append, **options,
    )  # fmt: skip
    return doubts, folder / "out.parquet"


def stale(array: np.ndarray) -> np.ndarray:
    array[:16] = -1
    return array


@pytest.mark.parametrize(
    ("array", "query", "why"),
    [
        (logical(50, 2, 8, 0), 0, "row 0 lists nothing but the positions up to 0"),
        (logical(50, 2, 8, 3), 3, "row 0 lists nothing but the positions up to 3"),
        (stale(logical(50, 2, 8, 0)), 0, "of its first 40 none lists a position above its own"),
    ],
)
def test_rows_of_the_prompt_are_no_decode_steps(
    tmp_path: Path, array: np.ndarray, query: int, why: str
) -> None:
    """What a query within top_k lists tells where it stands; the remedy that is named works."""
    with pytest.raises(TraceError, match=why) as caught:
        converted(tmp_path, array)
    assert f"give `first_position` {query}, " in str(caught.value)
    assert "`first_position` 40 if row 0 is the first decode step" in str(caught.value)
    assert not (tmp_path / "out.parquet").exists()
    doubts, path = converted(tmp_path, array, first_position=query)
    assert doubts == []
    trace = open_trace(path)
    assert [part.rows for part in trace.parts] == [10 + query] * 2
    assert trace.read(trace.parts[1]).row(0).tolist() == array[40 - query, 1].tolist()
    doubts, path = converted(tmp_path, array, first_position=40)
    assert open_trace(path).parts[0].rows == 50
    assert len(doubts) == 1  # it is as the user says, and rows are short all the same
    assert "rows are short, and kept so" in doubts[0]


def test_rows_that_may_be_the_prompt_s_are_doubted(tmp_path: Path) -> None:
    short = logical(12, 2, 8, 40)
    short[5, 0, 3:] = -1
    doubts, _ = converted(tmp_path, short)
    assert len(doubts) == 1
    assert "row 5 lists 3 positions, and a decode step could list 8" in doubts[0]
    assert "`first_position`" in doubts[0]
    newest = np.arange(30)[:, None, None] + np.array([1, 4, 9, 20])
    doubts, _ = converted(tmp_path, newest)
    assert "the newest position of row 0 is 20, rising by 1 per row" in doubts[0]
    assert "give `first_position` 20 if" in doubts[0]
    assert converted(tmp_path, newest + 20)[0] == []  # the newest token itself
    (doubt,) = converted(tmp_path, newest + 19)[0]  # counted without it, or off by one
    assert "layer 0 lists in 30 of 30 rows as its newest the position 1 before its query" in doubt
    assert converted(tmp_path, logical(12, 2, 8, 40))[0] == []


def test_doubts_are_told_on_stderr(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.arange(30)[:, None] + np.array([1, 4, 9, 20]))
    arguments = ["--prompt-len", "40", "--provenance", "synthetic", "-o", tmp_path / "o.parquet"]
    found = CliRunner().invoke(
        cli, ["trace", "convert", *map(str, [tmp_path / "array.npy", *arguments, "--quiet"])]
    )
    assert found.exit_code == 0
    assert found.stderr.startswith("warning: ")


def saved(folder: Path, form: str, array: np.ndarray) -> dict[str, Any]:
    """Write 30 decode rows behind a prompt of 40 tokens; return options for `convert`."""
    if form == "array":
        np.save(folder / "source.npy", array)
        return {"source": folder / "source.npy", "prompt_len": 40}
    if form == "jsonl":
        return {"source": lines(folder, array, 40)}
    whole = np.concatenate([np.full((40, *array.shape[1:]), 7_000_000, np.int32), array])
    answer = (sglang_answer if form == "sglang" else vllm_answer)(whole, 40)
    (folder / "source.json").write_text(json.dumps(answer))
    return {"source": folder / "source.json", "top_k": array.shape[2]}


@pytest.mark.parametrize("form", ["array", "sglang", "vllm", "jsonl"])
def test_layers_that_no_indexer_lists(tmp_path: Path, form: str) -> None:
    """In any layer, by any importer: the same row in every step, and rows three tokens late."""
    random = np.random.default_rng(1)
    array = np.argsort(random.random((30, 3, 40)))[..., :8]
    array[..., 0] = np.arange(40, 70)[:, None]  # the query

    def doubts(rows: np.ndarray) -> list[str]:
        found: list[str] = []
        options = saved(tmp_path, form, rows.astype(np.int32))
        convert(options.pop("source"), tmp_path / "out.parquet", provenance="synthetic",
                warn=found.append, **options)  # fmt: skip
        return found

    assert doubts(array) == []
    frozen = array.copy()
    frozen[:, 1:] = array[0, 1:]
    (doubt,) = doubts(frozen)
    assert "layer 1 lists the same positions in all of its 30 rows" in doubt
    assert "(the same of 1 other layers)" in doubt
    late = array.copy()
    late[3:, 2] = array[:-3, 2]
    (doubt,) = doubts(late)
    assert "layer 2 lists in 27 of 30 rows as its newest the position 3 before its query" in doubt
