"""Positions that are blocks of tokens: the trace says so, and its lengths are blocks too."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from test_convert import sglang_answer, vllm_answer

from hisparse_sim.cli import cli
from hisparse_sim.simulator.replay import replay_part
from hisparse_sim.traces import TraceError, open_trace, validate
from hisparse_sim.traces.importers.convert import convert

PROMPT = 37  # tokens: nine blocks of four and one token of the tenth
STEPS = 9


# Every step lists the newest block, the first, and two behind the newest.
def listed(newest: Callable[[int], int]) -> list[list[int]]:
    at = [newest(query) for query in range(PROMPT, PROMPT + STEPS)]
    return [[block, 0, block - 2, block - 5] for block in at]


def in_block(query: int) -> int:
    return query // 4


BLOCKS = listed(in_block)


def saved(
    folder: Path, form: str, newest: Callable[[int], int] = in_block
) -> tuple[Path, dict[str, Any]]:
    """Write the same steps in one of the formats; return the file and what it does not say."""
    array = np.array(listed(newest), np.int32)[:, None, :]
    if form == "array":
        np.save(folder / "a.npy", array)
        return folder / "a.npy", {"prompt_len": PROMPT}
    if form == "jsonl":
        lines = [
            {"request_id": "a", "layer_id": 0, "step_idx": step,
             "seq_len_current": PROMPT + step + 1, "selected_token_pos": row}
            for step, row in enumerate(listed(newest))
        ]  # fmt: skip
        (folder / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return folder / "a.jsonl", {"prompt_len": PROMPT}
    whole = np.concatenate([np.full((PROMPT, 1, 4), -1, np.int32), array])
    answer = sglang_answer(whole, PROMPT) if form == "sglang" else vllm_answer(whole, PROMPT)
    (folder / "a.json").write_text(json.dumps(answer))
    return folder / "a.json", {"top_k": 4}


@pytest.mark.parametrize("form", ["array", "jsonl", "sglang", "vllm"])
def test_lengths_are_given_in_tokens_and_kept_in_blocks(tmp_path: Path, form: str) -> None:
    source, options = saved(tmp_path, form)
    doubts: list[str] = []
    convert(source, tmp_path / "o.parquet", provenance="synthetic", unit="block4",
            warn=doubts.append, **options)  # fmt: skip
    assert doubts == []
    assert validate(tmp_path / "o.parquet").ok
    trace = open_trace(tmp_path / "o.parquet")
    assert trace.metadata.unit == "block4"
    assert set(trace.metadata.prompt_len.values()) == {9}
    demand = trace.read(trace.parts[0])
    assert demand.seq_len.tolist() == [10, 10, 10, 11, 11, 11, 11, 12, 12]
    assert [demand.row(row).tolist() for row in range(STEPS)] == BLOCKS


def test_lines_without_a_length_of_the_prompt(tmp_path: Path) -> None:
    source, _ = saved(tmp_path, "jsonl")
    convert(source, tmp_path / "o.parquet", provenance="synthetic", unit="block4")
    trace = open_trace(tmp_path / "o.parquet")
    assert trace.read(trace.parts[0]).prompt_len == 9


def test_the_command(tmp_path: Path) -> None:
    source, _ = saved(tmp_path, "array")
    words = ["trace", "convert", source, "--prompt-len", PROMPT, "--provenance", "synthetic", "-o",
             tmp_path / "o.parquet", "--unit"]  # fmt: skip
    assert CliRunner().invoke(cli, [*map(str, words), "block4"]).exit_code == 0
    assert open_trace(tmp_path / "o.parquet").metadata.unit == "block4"
    (tmp_path / "o.parquet").unlink()
    for wrong in ("block1", "c8", "page"):
        found = CliRunner().invoke(cli, [*map(str, words), wrong])
        assert (found.exit_code, "expected token, block4" in found.output) == (2, True)
    assert not (tmp_path / "o.parquet").exists()


def test_token_is_the_default(tmp_path: Path) -> None:
    source, options = saved(tmp_path, "array")
    convert(source, tmp_path / "o.parquet", provenance="synthetic", **options)
    assert open_trace(tmp_path / "o.parquet").metadata.unit == "token"


@pytest.mark.parametrize("form", ["array", "jsonl", "sglang", "vllm"])
def test_compressed_groups_exist_once_they_are_complete(tmp_path: Path, form: str) -> None:
    """After 38 tokens there are nine groups of four, after 40 ten; the newest one stays 4 steps."""
    source, options = saved(tmp_path, form, newest=lambda query: (query + 1) // 4 - 1)
    convert(source, tmp_path / "o.parquet", provenance="synthetic", unit="c4", **options)
    assert validate(tmp_path / "o.parquet").ok
    trace = open_trace(tmp_path / "o.parquet")
    assert set(trace.metadata.prompt_len.values()) == {9}
    demand = trace.read(trace.parts[0])
    assert demand.seq_len.tolist() == [9, 9, 10, 10, 10, 10, 11, 11, 11]
    assert [demand.row(row)[0] for row in range(STEPS)] == [8, 8, 9, 9, 9, 9, 10, 10, 10]
    # Groups 0 to 3 have slots, the newest is free: 6 is fetched, then 7 and 4, then 8 and 5.
    assert replay_part(demand, "lru", 4, "staged").misses.tolist() == [1, 0, 2, 0, 0, 0, 2, 0, 0]


def test_the_newest_compressed_group_is_not_beyond_the_end(tmp_path: Path) -> None:
    source, options = saved(tmp_path, "array")
    with pytest.raises(TraceError, match=r"step 0 .* lists 9, and the query stands at 8"):
        convert(source, tmp_path / "o.parquet", provenance="synthetic", unit="c4", **options)
