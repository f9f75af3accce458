"""pandas, polars, DuckDB and `datasets` open both containers; each is tested where installed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from make_traces import metadata
from test_digest import PARTS

from hisparse_sim.traces import TraceWriter

Lists = list[list[int]]
POSITIONS: Lists = [part.row(row).tolist() for part in PARTS for row in range(part.rows)]


@pytest.fixture(params=["trace.parquet", "trace.arrow", "lz4.arrow"])
def trace(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path: Path = tmp_path / request.param
    about = metadata(prompt_len={"a": 19, "b": 19})
    with TraceWriter(path, about, lz4=path.stem == "lz4") as writer:
        for part in PARTS:
            writer.write(part)
    return path


def by_pandas(path: Path) -> Lists:
    read = pd.read_parquet if path.suffix == ".parquet" else pd.read_feather
    return [row.tolist() for row in read(path)["positions"]]


def by_polars(path: Path) -> Lists:
    polars = pytest.importorskip("polars")
    read = polars.read_parquet if path.suffix == ".parquet" else polars.read_ipc
    rows: Lists = read(path)["positions"].to_list()
    return rows


def by_duckdb(path: Path) -> Lists:
    duckdb = pytest.importorskip("duckdb")
    if path.suffix == ".parquet":
        found = duckdb.sql(f"select positions from '{path}'")
    else:
        rows = pa.ipc.open_file(str(path)).read_all().drop_columns(["scores"])  # float16: unknown
        found = duckdb.from_arrow(rows).select("positions")
    return [row for (row,) in found.fetchall()]


def by_datasets(path: Path) -> Lists:
    datasets: Any = pytest.importorskip("datasets")
    found = datasets.load_dataset(
        path.suffix[1:], data_files=str(path), cache_dir=str(path.parent / "cache")
    )
    rows: Lists = list(found["train"]["positions"])
    return rows


@pytest.mark.parametrize("read", [by_pandas, by_polars, by_duckdb, by_datasets])
def test_rows_are_the_same(read: Callable[[Path], Lists], trace: Path) -> None:
    assert read(trace) == POSITIONS
