"""Choosing requests by name on the command line, whatever characters the names have."""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from make_traces import drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.simulator.views.tables import write_rows
from hisparse_sim.traces import open_trace

IDS = ("a", "b", "a,b", " c", "d ", ", ", "e\rf")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    return write(folder / "t.parquet", [drift(request=name) for name in IDS], metadata())


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        *(([name], [name]) for name in IDS),
        (["a, b"], ["a", "b"]),
        (["b,a"], ["a", "b"]),  # in the order of the file
        (["a", "b"], ["a", "b"]),
        (["a,b", "a"], ["a", "a,b"]),
        (["b, c,d "], ["b", " c", "d "]),
    ],
)
def test_request(path: Path, tmp_path: Path, given: list[str], chosen: list[str]) -> None:
    options = [word for text in given for word in ("--request", text)]
    sweep = ["sweep", str(path), "--policy", "lru", "--buffer", "16", "--no-min", "--per-layer"]
    result = CliRunner().invoke(cli, [*sweep, *options, "--format", "jsonl"])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["request"] for row in rows] == chosen
    cut = tmp_path / "cut.parquet"
    result = CliRunner().invoke(cli, ["trace", "sample", str(path), *options, "-o", str(cut)])
    assert result.exit_code == 0, result.output
    assert list(open_trace(cut).requests) == chosen


def test_request_that_is_not_there(path: Path) -> None:
    result = CliRunner().invoke(cli, ["sweep", str(path), "--request", "b,x"])
    assert result.exit_code == 1
    assert "has no request 'x'; it has 'a', " in result.stderr


def test_a_file_counts_once_however_it_is_written(path: Path) -> None:
    given = [str(path), f"{path.parent}/./{path.name}", f"{path.parent}/*.parquet"]
    options = ["--policy", "lru", "--buffer", "64", "--no-min", "--format", "jsonl"]
    result = CliRunner().invoke(cli, ["sweep", *given, *options])
    assert [json.loads(line)["trace"] for line in result.stdout.splitlines()] == ["t"]


def test_csv_with_a_carriage_return_in_a_name(tmp_path: Path) -> None:
    names = ["e\rf", 'g"h', "i\nj", "k,l", None]
    rows = pd.DataFrame(
        {"request": names, "misses": range(5), "excess_over_min": [0.5, None, 1, 2, 3]}
    )
    write_rows(rows, "csv", tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["request"] or None for row in read] == names
    assert [row["excess_over_min"] for row in read] == ["0.5", "", "1.0", "2.0", "3.0"]


def test_a_mask_of_layers_is_refused(tmp_path: Path) -> None:
    """True and False would select layers 1 and 0."""
    layers = [drift(layer=number) for number in range(3)]
    trace = open_trace(write(tmp_path / "t.parquet", layers, metadata()))
    mask = np.array([True, False, True])
    for refuse in (
        lambda: trace.select(layers=mask),  # type: ignore[arg-type]
        lambda: trace.select(layers=True),
        lambda: hs.sweep(trace, "lru", 16, layers=mask),  # type: ignore[arg-type]
        lambda: hs.mrc(trace, "lru", layers=mask),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="layers must be a whole number, not "):
            refuse()
    assert [part.layer for part in trace.select(layers=np.flatnonzero(mask))] == [0, 2]
    assert [part.layer for part in trace.select(layers=np.int64(1))] == [1]
