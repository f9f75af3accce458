"""Prompt files of the user's own."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hisparse_sim.traces import TraceError
from hisparse_sim.traces.capture.prompts import read_prompt_file


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_a_name_that_is_not_utf8_is_written_out(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.txt")
    try:
        path.write_text("text")
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    assert read_prompt_file(path) == [("caf\\xe9", "text")]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name here")
def test_a_pipe_is_no_prompt(tmp_path: Path) -> None:
    """Nobody writes to it: reading would never end."""
    os.mkfifo(tmp_path / "prompts.jsonl")
    with pytest.raises(TraceError, match="is a device or pipe, not a file"):
        read_prompt_file(tmp_path / "prompts.jsonl")
    with pytest.raises(TraceError, match=r"absent\.txt does not exist"):
        read_prompt_file(tmp_path / "absent.txt")


def test_ids_are_given_or_the_number_of_the_line(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"text": "a"}, {"text": "b", "request": "x"}, {"text": "c", "request": 9}
    )
    assert read_prompt_file(path) == [("1", "a"), ("x", "b"), ("9", "c")]


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        (["x", "x"], "line 2 has the request 'x', which line 1 has too"),
        (["2", None], "line 2: request is None"),
        ([2, {"id": 1}], "line 2: request is {'id': 1}, which is not a usable name"),
        (["x", ""], "line 2: request is '', which is not a usable name"),
        (["x", "\ud800"], "line 2: request is "),
        ([1, "1"], "line 2 has the request '1', which line 1 has too"),
    ],
)
def test_ids_that_cannot_stand_in_a_trace(
    requests: list[Any], message: str, tmp_path: Path
) -> None:
    """They would be refused by the trace file, but only after the capture."""
    path = written(tmp_path, *({"text": "a", "request": each} for each in requests))
    with pytest.raises(TraceError, match=message):
        read_prompt_file(path)
