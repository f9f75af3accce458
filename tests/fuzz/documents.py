"""Targets besides traces: result files, profiles, configurations, tables of step times."""

import csv
import io
import json
import math
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.mutate import JSON, TEXT, Mutator
from fuzz.mutate_files import ANY, change_cells_of, flip_in_footer, flip_in_page_header
from fuzz.oracles import Unsound
from fuzz.target import Target
from hisparse_sim.simulator.replay.joining import joined
from hisparse_sim.simulator.replay.result_files import read_rows
from hisparse_sim.simulator.serving.config_check import read_config as read_hisparse_config
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.profiles import find_profile
from hisparse_sim.simulator.serving.steptimes import load_step_times
from hisparse_sim.simulator.views.report.results import read_results, rows_of
from hisparse_sim.traces.file.model_config import read_config

# --- result files --------------------------------------------------------------------------------

_TEXTS = ("trace", "request", "policy", "start")
_COUNTS = ("layer", "buffer", "steps", "accesses", "misses")


def _rows() -> list[dict[str, Any]]:
    """Return rows as `sweep --per-layer` writes them."""
    return [
        {
            "trace": trace, "trace_sha256": "0" * 64, "provenance": "synthetic", "request": request,
            "layer": layer, "policy": policy, "buffer": 64, "start": "staged", "steps": 10,
            "accesses": 80, "misses": misses, "miss_rate": misses / 80,
            "misses_per_step": misses / 10, "p50": 1.0, "p95": 2.0, "max": 3,
            "excess_over_min": 0.25, "version": "0.1.0", "parameters": json.dumps({"seed": 0}),
            "seed": 0, "selected_layers": "", "unit": "token",
        }
        for trace, request in (("a", "NA"), ("7", "=1+1"))
        for layer in (0, 3)
        for policy, misses in (("lru", 20), ("min", 16))
    ]  # fmt: skip


def _as_csv() -> list[bytes]:
    frame = pd.DataFrame(_rows())
    return [
        frame.to_csv(index=False).encode(),
        frame.drop(columns=["layer"]).iloc[:2].to_csv().encode(),
    ]


def _as_json() -> list[bytes]:
    rows = _rows()
    document = {"rows": rows, "parameters": {"seed": 0}, "version": "0.1.0"}
    return [json.dumps(rows).encode(), json.dumps(document).encode()]


def _as_jsonl() -> list[bytes]:
    return [b"\n".join(json.dumps(row).encode() for row in _rows())]


def _as_parquet() -> list[bytes]:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(_rows()), file, write_page_checksum=True)
    return [file.getvalue()]


def _read_result(path: Path) -> list[dict[str, str]]:
    """Read rows; whoever joins them must refuse them in one sentence, too, or take them."""
    rows = read_rows(path, ["policy", "buffer", "misses", "accesses"])
    sums = rows["misses"].sum()
    try:
        found = rows_of(read_results([path]), "sweep")
        assert len(joined(found)) == len(found)
        assert found["misses"].sum() <= sums
    except ValueError as error:
        if not str(error).isprintable():
            raise RuntimeError(f"no sentence: {str(error)!r}") from error
    return [
        {name: _text(row[name]) for name in (*_TEXTS, *_COUNTS) if name in row}
        for row in rows.to_dict("records")
    ]


def _text(value: Any) -> str:
    """Return a cell as one text whatever the file says it in."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return str(int(value)) if value == int(value) else repr(float(value))
    return str(value)


def _expected_result(path: Path, data: bytes, seed: bytes) -> list[dict[str, str]]:
    """Read rows by the csv module, json and pyarrow, and see that no count is out of range."""
    rows: list[dict[str, Any]]
    if path.suffix == ".csv":
        text = data.decode("utf-8-sig")
        rows = [*csv.DictReader(io.StringIO(text, newline=""))]
        rows = [row for row in rows if any(row.values())]
    elif path.suffix == ".parquet":
        rows = pq.ParquetFile(io.BytesIO(data)).read(use_threads=False).to_pylist()
    elif path.suffix == ".jsonl":
        rows = [json.loads(line) for line in data.split(b"\n") if line.strip()]
    else:
        read = json.loads(data)
        rows = read.get("candidates", read.get("rows")) if isinstance(read, dict) else read
    found = []
    names = {name for row in rows for name in row}
    for row in rows:
        cells = {name: row.get(name) for name in (*_TEXTS, *_COUNTS) if name in names}
        for name in _COUNTS:
            if name in cells and cells[name] not in (None, ""):
                cells[name] = float(cells[name])
                if not 0 <= cells[name] <= 2**53 or cells[name] != int(cells[name]):
                    raise Unsound(f"{name} is {cells[name]}")
        for name in _TEXTS:
            cell = cells.get(name)
            if path.suffix == ".csv" and isinstance(cell, str) and cell[:1] == "'":
                cells[name] = cell[1:] if cell.lstrip("'")[:1] in tuple("=+-@\t\r") else cell
        if cells["misses"] > cells["accesses"]:
            raise Unsound("more misses than accesses")
        found.append({name: _text(cell) for name, cell in cells.items()})
    return found


def _result(suffix: str, seeds: Callable[[], list[bytes]], mutators: Sequence[Mutator]) -> Target:
    return Target(f"result {suffix}", suffix, seeds, mutators, _read_result, _expected_result)


# --- profiles and configurations -----------------------------------------------------------------


def _profiles() -> list[bytes]:
    """Return profiles with the figures that the first shipped model has."""
    shipped = find_profile("models", "glm-5.1")
    lines = ["[models.mine]", 'repository = "me/mine"', 'aliases = ["also mine"]',
             "[[models.mine.figures]]", 'kind = "published"', 'source = "config.json"']  # fmt: skip
    lines += [f"{key} = {json.dumps(value)}" for key, value in shipped.figures.items()]
    return ["\n".join(lines).encode()]


def _read_profile(path: Path) -> dict[str, Any]:
    load_model("mine", path)
    return dict(find_profile("models", "mine", path).figures)


def _expected_profile(path: Path, data: bytes, seed: bytes) -> dict[str, Any]:
    models = tomllib.loads(data.decode("utf-8-sig"))["models"]
    named = [name for name in models if name.casefold() == "mine"]
    aliased = [n for n, table in models.items()
               if "mine" in map(str.casefold, table.get("aliases", []))]  # fmt: skip
    table = models[(named or aliased)[-1]]
    figures = {
        key: value
        for group in table["figures"]
        for key, value in group.items()
        if key not in ("kind", "source")
    }
    for key, value in figures.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise Unsound(f"{key} is {value}")
    return figures


def _hisparse_configs() -> list[bytes]:
    full = {"top_k": 2048, "device_buffer_size": 4096, "host_to_device_ratio": 8,
            "swap_in_block_size": 960}  # fmt: skip
    return [json.dumps(full).encode(), b"{}"]


def _read_hisparse_config(path: Path) -> dict[str, int]:
    config, findings = read_hisparse_config(path.read_bytes().decode(), load_model("glm-5.1"))
    assert all(finding.text.isprintable() for finding in findings)
    return config


def _expected_hisparse_config(path: Path, data: bytes, seed: bytes) -> dict[str, int]:
    given = json.loads(data)
    top_k = given.get("top_k", 2048)
    defaults = {"top_k": 2048, "device_buffer_size": 2 * top_k, "host_to_device_ratio": 2,
                "swap_in_block_size": 960}  # fmt: skip
    found = {key: given.get(key, default) for key, default in defaults.items()}
    if any(type(value) is not int for value in found.values()):
        raise Unsound(str(found))
    return found


def _model_configs() -> list[bytes]:
    plain = {"num_hidden_layers": 4, "index_topk": 64, "index_topk_freq": 2, "architectures": ["x"]}
    types = {**plain, "indexer_types": ["full", "shared", "full", "full"]}
    return [json.dumps(plain).encode(), json.dumps({"text_config": types}).encode()]


def _read_model_config(path: Path) -> tuple[int, int]:
    found = read_config(path)
    assert len(found.layer_types) == found.num_layers
    assert found.layer_types[0] == "full"
    return found.num_layers, found.top_k


def _expected_model_config(path: Path, data: bytes, seed: bytes) -> tuple[int, int]:
    found = json.loads(data.decode("utf-8-sig"))
    if isinstance(found.get("text_config"), dict):
        found = found["text_config"]
    layers, top_k = found["num_hidden_layers"], found["index_topk"]
    if type(layers) is not int or type(top_k) is not int or min(layers, top_k) < 1:
        raise Unsound(f"{layers} layers, top_k {top_k}")
    return layers, top_k


def _step_times() -> list[bytes]:
    table = {
        "model": "m", "hardware": "h", "layout": "dp8-tp8", "kv_dtype": "bf16", "source": "none",
        "batch": [1, 8], "context": [1024, 4096], "attention_us": [[1.5, 2.0], [3.0, 4.0]],
        "rest_us": [5.0, 6.0], "prefill_tokens": [128, 1024],
        "prefill_attention_us": [1.0, 2.0], "prefill_rest_us": [1.0, 2.0],
    }  # fmt: skip
    return [json.dumps(table).encode()]


def _read_step_times(path: Path) -> list[float]:
    table = load_step_times("m", "h", path=path)
    grids = (table.batch, table.context, *table.attention_us, table.rest_us, table.prefill_tokens)
    return [float(value) for grid in grids for value in grid]


def _expected_step_times(path: Path, data: bytes, seed: bytes) -> list[float]:
    table = json.loads(data.decode("utf-8-sig"))
    grids = [table["batch"], table["context"], *table["attention_us"], table["rest_us"],
             table["prefill_tokens"]]  # fmt: skip
    found = [float(value) for grid in grids for value in grid]
    if not all(0 < value < math.inf for value in found):
        raise Unsound("a time that is none")
    return found


DOCUMENTS = [
    _result(".csv", _as_csv, TEXT),
    _result(".json", _as_json, JSON),
    _result(".jsonl", _as_jsonl, JSON),
    _result(".parquet", _as_parquet, [change_cells_of, flip_in_footer, flip_in_page_header, *ANY]),
    Target("profile", ".toml", _profiles, TEXT, _read_profile, _expected_profile),
    Target("hisparse-config", ".json", _hisparse_configs, JSON,
           _read_hisparse_config, _expected_hisparse_config),
    Target("config.json", ".json", _model_configs, JSON,
           _read_model_config, _expected_model_config),
    Target("step times", ".json", _step_times, JSON, _read_step_times, _expected_step_times),
]  # fmt: skip
