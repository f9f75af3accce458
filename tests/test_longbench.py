"""LongBench v2: every source, the prompt, selection, truncation, and honest errors."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from longbench_items import ROWS, row

from hisparse_sim.traces import TraceError
from hisparse_sim.traces.capture.longbench import HUB_ID, load_longbench, select, truncate_middle


def write(path: Path) -> Path:
    if path.name == "object.json":
        path.write_text(json.dumps({"data": ROWS}))
    elif path.suffix == ".json":
        path.write_text(json.dumps(ROWS))
    elif path.suffix == ".jsonl":
        path.write_text("\n\n".join(map(json.dumps, ROWS)))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        table = pa.Table.from_pylist(ROWS)
        form = pa.ipc.new_file if path.name == "file.arrow" else pa.ipc.new_stream
        with form(str(path), table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize(
    "name", ["list.json", "object.json", "t.jsonl", "t.parquet", "file.arrow", "stream.arrow"]
)
def test_local_files(tmp_path: Path, name: str) -> None:
    items = load_longbench(write(tmp_path / name))
    assert [item.id for item in items] == [each["_id"] for each in ROWS]
    assert items[3].context == "\nDocument 3.\n"
    assert items[3].choice_D == "fourth"


def test_prompt(tmp_path: Path) -> None:
    prompt = load_longbench(write(tmp_path / "t.jsonl"))[5].prompt()
    pieces = ["Document 5.", "What is it?", "(A) first", "(B) second", "(C) third", "(D) fourth"]
    places = [prompt.index(piece) for piece in pieces]
    assert places == sorted(places)
    assert "The correct answer is (letter)" in prompt


def test_select(tmp_path: Path) -> None:
    items = load_longbench(write(tmp_path / "t.jsonl"))
    assert select(items) == items
    assert {item.length for item in select(items, lengths=["long"])} == {"long"}
    assert len(select(items, domains=["Code"])) == 6
    assert len(select(items, domains=["Novel", "Code"])) == 8
    few = select(items, count=5, seed=1)
    assert few == select(items, count=5, seed=1)
    assert few != select(items, count=5, seed=2)
    assert len({item.id for item in few}) == 5
    assert len(select(items, count=99)) == 12
    with pytest.raises(TraceError, match="domains are Code, Single-Document QA; lengths are long"):
        select(items, domains=["Cod"])


def test_truncation() -> None:
    ids = list(range(11))
    assert truncate_middle(ids, None) == ids
    assert truncate_middle(ids, 11) == ids
    assert truncate_middle(ids, 4) == [0, 1, 9, 10]
    assert truncate_middle(ids, 5) == [0, 1, 9, 10]  # n/2 from either end, as the benchmark does
    with pytest.raises(TraceError, match="2 are the least"):
        truncate_middle(ids, 1)


def test_spoilt_files(tmp_path: Path) -> None:
    for name, content, reason in (
        ("a.json", "{", "cannot be read"),
        ("a.json", '{"data": 3}', "neither a list"),
        ("a.json", "[3]", "item 0 is not an object"),
        ("a.json", json.dumps([row(0), row(1, context=None)]), "item 1 has no column context"),
        ("a.json", json.dumps([row(0, answer=3)]), "does not hold text in its column answer"),
        ("a.jsonl", "nonsense", "cannot be read"),
        ("a.parquet", "PAR1", "cannot be read"),
        ("a.arrow", "ARROW1", "cannot be read"),
        ("a.txt", "", "neither .json"),
    ):
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(TraceError, match=reason) as caught:
            load_longbench(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(TraceError, match="does not exist"):
        load_longbench(tmp_path / "absent.json")
    (tmp_path / "a.json").write_text('[{"_id": "x"}]')
    with pytest.raises(TraceError) as caught:  # names all, not one after the other
        load_longbench(tmp_path / "a.json")
    assert all(column in str(caught.value) for column in row(0))


def test_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both names reach `datasets`; without it, or offline, the way out is a local file."""
    asked: list[tuple[str, str]] = []
    module = types.ModuleType("datasets")

    def load_dataset(name: str, split: str) -> list[dict[str, Any]]:
        asked.append((name, split))
        return ROWS

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert len(load_longbench()) == len(load_longbench("THUDM/LongBench-v2")) == 12
    assert asked == [(HUB_ID, "train"), ("THUDM/LongBench-v2", "train")]

    def offline(name: str, split: str) -> None:
        raise ConnectionError("Couldn't reach\nthe hub")

    module.load_dataset = offline  # type: ignore[attr-defined]
    with pytest.raises(TraceError, match=r"Couldn.t reach the hub.*local file"):
        load_longbench()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TraceError, match=r"pip install '\.\[traces\]' in a clone.*local file"):
        load_longbench()
