"""LongBench v2: every source, the prompt, selection, truncation, and honest errors."""

import json
import os
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

FORMS = (".json", ".jsonl", ".parquet", ".arrow")


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
        ("a.txt", "", "none of .json, .jsonl, .parquet, .arrow"),
        *((f"empty{form}", "", f"empty{form} is empty$") for form in FORMS),
        ("blank.json", " \n", "holds no items"),
        ("blank.jsonl", " \n\n", "holds no items"),
        ("none.json", "[]", "holds no items"),
    ):
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(TraceError, match=reason) as caught:
            load_longbench(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(TraceError, match="does not exist"):
        load_longbench(tmp_path / "absent.json")
    with pytest.raises(TraceError, match="lb_disk does not exist"):
        load_longbench(tmp_path / "lb_disk")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(TraceError, match="is a device or pipe"):
        load_longbench(tmp_path / "pipe.jsonl")
    (tmp_path / "a.json").write_text('[{"_id": "x"}]')
    with pytest.raises(TraceError) as caught:  # names all, not one after the other
        load_longbench(tmp_path / "a.json")
    assert all(column in str(caught.value) for column in row(0))


def saved(folder: Path, pieces: int = 1, **state: Any) -> Path:
    """What `datasets.Dataset.save_to_disk` writes: streams, and a list of them."""
    folder.mkdir(parents=True)
    names = [f"data-{piece:05}-of-{pieces:05}.arrow" for piece in range(pieces)]
    each = len(ROWS) // pieces
    for piece, name in enumerate(names):
        table = pa.Table.from_pylist(ROWS[piece * each : (piece + 1) * each])
        with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table)
    about = {"_data_files": [{"filename": name} for name in names], "_split": "train", **state}
    (folder / "state.json").write_text(json.dumps(about))
    return folder


def test_saved_folders(tmp_path: Path) -> None:
    """A data set in one piece and in three, and one with splits, as the hub's has."""
    wanted = [each["_id"] for each in ROWS]
    one, three = saved(tmp_path / "one"), saved(tmp_path / "three", 3)
    assert [item.id for item in load_longbench(one)] == wanted
    assert [item.id for item in load_longbench(three)] == wanted
    (one / "dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    saved(one / "train", 3)
    assert [item.id for item in load_longbench(one)] == wanted
    (one / "dataset_dict.json").write_text('{"splits": ["test", "dev"]}')
    with pytest.raises(TraceError, match="holds the splits test, dev: name the folder of one"):
        load_longbench(one)
    assert [item.id for item in load_longbench(one / "train")] == wanted


def test_folders_that_are_not_saved(tmp_path: Path) -> None:
    folder = tmp_path / "LongBench-v2"
    folder.mkdir()
    with pytest.raises(
        TraceError, match="is a folder that save_to_disk did not write: it holds no"
    ):
        load_longbench(folder)
    (folder / "data.json").write_text("[]")
    (folder / "README.md").write_text("")
    with pytest.raises(TraceError, match=r"did not write: name the file in it: data\.json$"):
        load_longbench(folder)
    (folder / "here").symlink_to(folder)
    for state in (
        "[]", "{}", '{"_data_files": []}', '{"_data_files": [3]}', '{"_data_files": ["a"]}',
        '{"_data_files": [{"filename": "../data.json"}]}', '{"_data_files": [{"filename": 3}]}',
        '{"_data_files": [{"filename": "/etc/passwd"}]}', '{"_data_files": [{"filename": "here"}]}',
        '{"_data_files": [{"filename": "."}]}', '{"_data_files": [{"filename": "data.json"}]}',
        "[" * 9000, "",
    ):  # fmt: skip
        (folder / "state.json").write_text(state)
        with pytest.raises(TraceError) as caught:
            load_longbench(folder)
        assert str(folder) in str(caught.value)
    for splits in ("{}", '{"splits": "train"}', '{"splits": ["here"]}', '{"splits": [".."]}'):
        (folder / "dataset_dict.json").write_text(splits)
        with pytest.raises(TraceError):
            load_longbench(folder)


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
