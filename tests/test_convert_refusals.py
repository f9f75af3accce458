"""Importers refuse what they would have to guess, name the input, and stay within their memory."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from test_convert import check, logical, refused, sglang_answer, vllm_answer

from hisparse_sim.cli import cli
from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces.importers import row_spool
from hisparse_sim.traces.importers.base64_stream import Extractor
from hisparse_sim.traces.importers.convert import convert

ROW: dict[str, Any] = {
    "request_id": "a", "layer_id": 0, "step_idx": 0, "seq_len_current": 9,
    "selected_token_pos": [1, 2],
}  # fmt: skip


@pytest.fixture
def two_layers(tmp_path: Path) -> Path:
    """An array of two layers behind a prompt of nine tokens."""
    np.save(tmp_path / "array.npy", logical(6, 2, 4, 9))
    return tmp_path / "array.npy"


def rows(tmp_path: Path, *changes: dict[str, Any]) -> Path:
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(json.dumps({**ROW, **change}) for change in changes))
    return source


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"layers": [9]}, r"holds 2 layers, and `layers` names 1 \(9\)"),
        ({"layers": []}, "holds 2 layers, and `layers` names 0"),
        ({"layers": [9, 60, 61], "num_layers": 70}, r"`layers` names 3 \(9, 60, 61\)"),
        ({"num_layers": 70}, "holds 2 layers, and the model has 70: say by `layers`"),
    ],
)
def test_layers_of_the_file_and_named_ones_agree(
    tmp_path: Path, two_layers: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TraceError, match=reason):
        convert(
            two_layers, tmp_path / "out.parquet", prompt_len=9, provenance="synthetic", **options
        )
    answers = {
        "sglang": sglang_answer(logical(9, 2, 3, 0), 4),
        "vllm": vllm_answer(logical(9, 2, 3, 0), 4),
    }
    for form, answer in answers.items():
        source = tmp_path / f"{form}.json"
        source.write_text(json.dumps(answer))
        refused(tmp_path, source, form, **{"top_k": 3, **options})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"layers": [1, 1]}, "names layer 1 twice"),
        ({"layers": [-1, 0]}, "is -1, expected a whole number from 0 to 32767"),
        ({"layers": [3, 70], "num_layers": 70}, "is 70, expected a whole number from 0 to 69"),
        ({"top_k": 2**31}, "`top_k` is 2147483648"),
        ({"top_k": True}, "`top_k` is True"),
        ({"top_k": 2.0}, r"`top_k` is 2\.0"),
        ({"num_layers": 2**15 + 1}, "`num_layers` is 32769"),
        ({"prompt_len": 2**31}, "`prompt_len` is 2147483648"),
        ({"first_position": -1}, "`first_position` is -1"),
        ({"provenance": "heard"}, "unknown provenance 'heard'; known are"),
        ({"layer_types": ("full",)}, "1 layer_types"),
    ],
)
def test_numbers_that_no_trace_file_can_hold(
    tmp_path: Path, two_layers: Path, options: dict[str, Any], reason: str
) -> None:
    """Refused as a usage error, before anything is read or written."""
    options = {"prompt_len": 9, "provenance": "synthetic", **options}
    before = set(tmp_path.iterdir())
    for source in (two_layers, tmp_path / "absent.npy"):
        with pytest.raises(ValueError, match=reason) as caught:
            convert(source, tmp_path / "out.parquet", **options)
        assert not isinstance(caught.value, TraceError)
    assert set(tmp_path.iterdir()) == before


def test_layers_land_under_their_numbers(tmp_path: Path, two_layers: Path) -> None:
    """In any order, and with NumPy's numbers."""
    target = tmp_path / "out.parquet"
    numbers: dict[str, Any] = {"layers": np.array([60, 9]), "prompt_len": np.int64(9)}
    convert(two_layers, target, provenance="synthetic", num_layers=np.int32(70), **numbers)
    trace = open_trace(target)
    assert trace.metadata.num_layers == 70
    assert [part.layer for part in trace.parts] == [9, 60]
    array = np.load(two_layers)
    for part, column in zip(trace.parts, (1, 0), strict=True):
        assert trace.read(part).row(0).tolist() == array[0, column].tolist()
    source = tmp_path / "some.json"
    source.write_text(json.dumps(sglang_answer(logical(9, 2, 3, 0), 4)))
    convert(source, target, layers=[4, 60], num_layers=70, top_k=3)
    assert [part.layer for part in open_trace(target).parts] == [4, 60]


def test_command_line(tmp_path: Path, two_layers: Path) -> None:
    """Repeated layers reach the check; an output that is no trace, or the input, is refused."""
    common = ["trace", "convert", str(two_layers), "--prompt-len", "9", "--provenance", "synthetic"]
    target = str(tmp_path / "out.parquet")
    for more, code, reason in (
        (["--layer", "1,1", "-o", target], 2, "names layer 1 twice"),
        (["--top-k", "2147483648", "-o", target], 2, "2147483648 is above 2147483647"),
        (["--layer", "9", "-o", target], 1, "holds 2 layers"),
        (["-o", str(two_layers)], 2, "ends in .npy"),
        (["--layer", "9,60", "--layers", "70", "-o", target], 0, "wrote"),
    ):
        result = CliRunner().invoke(cli, [*common, *more])
        assert result.exit_code == code, result.output
        assert reason in result.output
    with pytest.raises(TraceError, match="read for this"):
        convert(two_layers, two_layers, prompt_len=9, provenance="synthetic")


def test_only_minus_one_is_padding(tmp_path: Path) -> None:
    array = logical(6, 2, 4, 9).astype(np.int64)
    for wrong in (-7, -2, -(2**40), 2**40):
        array[3, 1, 2] = wrong
        np.save(tmp_path / "array.npy", array)
        message = refused(tmp_path, tmp_path / "array.npy", prompt_len=9)
        assert f"request 'array', layer 1, step 3 (row 3) lists {wrong}, and " in message
    array[3, 1, 2] = -1
    np.save(tmp_path / "array.npy", array)
    convert(tmp_path / "array.npy", tmp_path / "out.parquet", prompt_len=9, provenance="synthetic")
    answer = logical(9, 2, 3, 0)
    answer[7, 1, 0] = -9
    (tmp_path / "out.parquet").unlink()
    (tmp_path / "answer.json").write_text(json.dumps(sglang_answer(answer, 4)))
    message = refused(tmp_path, tmp_path / "answer.json", top_k=3)
    assert "layer 1, step 3 (row 7)" in message
    assert "lists -9, and only -1 is padding" in message


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ([{"request_id": None}], {}, "line 1: request_id is None"),
        ([{"request_id": True}], {}, "request_id is True"),
        ([{"request_id": 1.0}], {}, "request_id is 1.0"),
        ([{"request_id": ""}], {}, "request_id is ''"),
        ([{"request_id": "\udc80"}], {}, "not a usable name of a request"),
        (
            [{"request_id": 1}, {"request_id": "1"}],
            {},
            "line 2 has request_id '1', and a line before",
        ),
        ([{"layer_id": 2**15}], {}, "layer_id 32768"),
        ([{"layer_id": 3}], {"num_layers": 3}, "request 'a', layer 3: the model has 3 layers"),
        ([{"selected_token_pos": [1, -7]}], {}, "layer 0, step 0: selected_token_pos holds -7"),
        ([{"selected_token_pos": [True]}], {}, "not a list of whole numbers"),
        ([{"selected_token_pos": [10**400]}], {}, "neither a position"),
        ([{}, {}], {}, "step 0: the step has more than one row"),
        ([{}, {"step_idx": 2}], {}, "steps may have no gaps"),
        ([{"selected_token_pos": [30]}], {}, "position 30 is outside"),
        ([{}], {"prompt_len": 20}, "has no seq_len_current above `prompt_len` 20"),
        ([{}], {"top_k": 1}, "lists 2 positions, but top_k is 1"),
    ],
)
def test_rows_that_are_refused(
    tmp_path: Path, changes: list[dict[str, Any]], options: dict[str, Any], reason: str
) -> None:
    """Every sentence names the input (`refused` checks it), though the writer finds the fault."""
    assert reason in refused(tmp_path, rows(tmp_path, *changes), **options)


def test_options_without_meaning(tmp_path: Path) -> None:
    option: dict[str, Any]
    for option in ({"request": "x"}, {"layers": [0]}, {"first_position": 3}):
        with pytest.raises(ValueError, match="does not apply to jsonl: every line"):
            convert(rows(tmp_path, {}), tmp_path / "o", provenance="synthetic", **option)
    answers = [sglang_answer(logical(9, 2, 3, 0), 4, name) for name in ("a", "b", "a")]
    source = tmp_path / "answers.json"
    source.write_text(json.dumps(answers[:2]))
    assert "holds 2 requests, and `request` names one" in refused(
        tmp_path, source, top_k=3, request="x"
    )
    source.write_text(json.dumps(answers))
    assert "holds the request 'a' twice" in refused(tmp_path, source, top_k=3)
    source.write_text(json.dumps(vllm_answer(logical(9, 2, 3, 0), 4)))
    convert(source, tmp_path / "out.parquet", request="mine")
    assert open_trace(tmp_path / "out.parquet").requests == ("mine",)


def test_counted_tokens_must_fit_the_rows(tmp_path: Path) -> None:
    """Also where `num_layers` and `top_k` are given: a cut can fall between two rows."""
    answer = sglang_answer(logical(9, 2, 3, 0), 4)
    answer["meta_info"]["completion_tokens"] += 1
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    message = refused(tmp_path, tmp_path / "answer.json", top_k=3, num_layers=2)
    assert "not 4 x 10 rows x 2 layers x 3 positions" in message


def test_config(tmp_path: Path) -> None:
    """It gives the shape, and the layers that share, which must then repeat."""
    array = logical(9, 3, 4, 0)
    config, source = tmp_path / "config.json", tmp_path / "answer.json"
    config.write_text(json.dumps({"num_hidden_layers": 3, "index_topk": 4, "index_topk_freq": 3}))
    source.write_text(json.dumps(sglang_answer(array, 4)))
    assert "layer 2, step 0 lists other positions than layer 1" in refused(
        tmp_path, source, config=config
    )
    array[:, 2] = array[:, 1]
    source.write_text(json.dumps(sglang_answer(array, 4)))
    convert(source, tmp_path / "out.parquet", config=config)
    check(tmp_path / "out.parquet", array, 4, 0)
    assert open_trace(tmp_path / "out.parquet").metadata.layer_types == ("full", "full", "shared")
    with pytest.raises(ValueError, match="gives top_k as 4, not 5: leave one out"):
        convert(source, tmp_path / "out.parquet", config=config, top_k=5)
    with pytest.raises(TraceError, match="it is read for this"):
        convert(source, config, config=config.parent)


@pytest.mark.parametrize("dtype", [bool, float, "m8[s]", complex])
def test_arrays_that_hold_no_integers(tmp_path: Path, dtype: Any) -> None:
    np.save(tmp_path / "array.npy", np.ones((3, 2, 4)).astype(dtype))
    assert "expected integers" in refused(tmp_path, tmp_path / "array.npy", prompt_len=9)


def test_order_of_memory_does_not_matter(tmp_path: Path) -> None:
    array = logical(6, 2, 4, 9)
    np.save(tmp_path / "array.npy", np.asfortranarray(array))
    convert(tmp_path / "array.npy", tmp_path / "o.parquet", prompt_len=9, provenance="synthetic")
    check(tmp_path / "o.parquet", array, 9, 9)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "folder.npy").mkdir()
    assert "is a folder, not a file" in refused(tmp_path, tmp_path / "folder.npy", prompt_len=9)
    (tmp_path / "text.npy").write_text("1 2 3")
    assert "is not a .npy file" in refused(tmp_path, tmp_path / "text.npy", prompt_len=9)
    np.savez(tmp_path / "two.npz", a=np.zeros(3), b=np.zeros(3))
    assert "holds 2 arrays (a.npy, b.npy)" in refused(tmp_path, tmp_path / "two.npz", prompt_len=9)


def test_a_header_that_says_less_than_the_file_holds(tmp_path: Path) -> None:
    """One bit of the header: (30, 2, 8) becomes (20, 2, 8)."""
    source = tmp_path / "bit.npy"
    np.save(source, logical(30, 2, 8, 40))
    content = bytearray(source.read_bytes())
    content[content.index(b"(30, 2, 8)") + 1] ^= 1
    source.write_bytes(content)
    message = refused(tmp_path, source, prompt_len=40)
    assert "holds 640 bytes more than the array of shape (20, 2, 8)" in message


def test_views_and_numbers_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    source = tmp_path / "tensor.pt"
    zeros = torch.zeros(1, dtype=torch.int32)
    for tensor, reason in (
        (zeros.expand(10**6, 61, 2048), "repeats its numbers"),  # half a terabyte in a kilobyte
        (torch.zeros(2, 2, 2).bfloat16(), "cannot be read as tensors"),
        (torch.zeros(2, 2, 2, dtype=torch.int32).to_sparse(), "cannot be read as tensors"),
        ([zeros], "holds list"),
        (None, "holds NoneType"),
    ):
        torch.save(tensor, source)
        assert reason in refused(tmp_path, source, prompt_len=5)


@pytest.mark.parametrize("ascending", [True, False])
def test_rows_wait_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ascending: bool
) -> None:
    """A small buffer gives what a large one does."""
    monkeypatch.setattr(row_spool, "BUFFER_BYTES", 100)
    array = logical(7, 3, 5, 2)
    lines = [
        {
            "request_id": name, "layer_id": layer, "step_idx": 10 + row,
            "seq_len_current": 3 + row, "selected_token_pos": array[row, layer].tolist(),
        }
        for row in range(7)
        for name in ("b", "a")
        for layer in (2, 0, 1)
    ]  # fmt: skip
    convert(
        rows(tmp_path, *(lines if ascending else lines[::-1])),
        tmp_path / "out.parquet",
        provenance="synthetic",
    )
    trace = open_trace(tmp_path / "out.parquet")
    assert sorted(trace.requests) == ["a", "b"]
    assert len(trace.parts) == 6
    for part in trace.parts:
        demand = trace.read(part)
        assert demand.step.tolist() == list(range(10, 17))
        assert demand.seq_len.tolist() == list(range(3, 10))
        for row in range(7):
            kept = [each for each in array[row, part.layer].tolist() if each >= 0]
            assert demand.row(row).tolist() == kept


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB there")
def test_memory_of_rows_is_bounded(tmp_path: Path) -> None:
    """60 MB of positions take little more memory than none: 1 MB wait, a layer has 1.2 MB."""
    small, large = tmp_path / "small.jsonl", tmp_path / "large.jsonl"
    positions = json.dumps(list(range(1024)))
    for path, steps in ((small, 2), (large, 300)):
        with path.open("w") as file:
            for step in range(steps):
                for layer in range(50):
                    file.write(
                        f'{{"request_id": 1, "layer_id": {layer}, "step_idx": {step}, '
                        f'"seq_len_current": 2000, "selected_token_pos": {positions}}}\n'
                    )
    script = (
        "import resource, sys\n"
        "from hisparse_sim.traces.importers.convert import convert\n"
        "from hisparse_sim.traces.importers import row_spool\n"
        "row_spool.BUFFER_BYTES = 1 << 20\n"
        "convert(sys.argv[1], sys.argv[1] + '.parquet', provenance='synthetic')\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    peak = {
        path: int(subprocess.check_output([sys.executable, "-c", script, str(path)]))
        for path in (small, large)
    }
    assert peak[large] - peak[small] < 30 * 1024


def test_many_answers_need_few_open_files(tmp_path: Path) -> None:
    answers = [sglang_answer(logical(3, 1, 2, 0), 2, f"r{number}") for number in range(300)]
    source = tmp_path / "answers.json"
    source.write_text(json.dumps(answers))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, hard))
    try:
        convert(source, tmp_path / "out.parquet", top_k=2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(open_trace(tmp_path / "out.parquet").requests) == 300


@pytest.mark.parametrize("name", ["answer.json", "rows.jsonl", "array.npz"])
def test_a_full_disk_is_not_the_inputs_fault(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    if name == "answer.json":
        source.write_text(json.dumps(sglang_answer(logical(60, 10, 50, 0), 20)))
    elif name == "array.npz":
        np.savez_compressed(source, logical(60, 10, 50, 20))
    else:
        rows(tmp_path, *({"step_idx": step, "seq_len_current": 9} for step in range(2000)))
    script = (
        "import resource, signal, sys\n"
        "from hisparse_sim.traces.importers.convert import convert\n"
        "from hisparse_sim.traces.importers import row_spool\n"
        "row_spool.BUFFER_BYTES = 16_000\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "options = {} if 'jsonl' in sys.argv[1] else {'prompt_len': 20, 'top_k': 50}\n"
        "convert(sys.argv[1], sys.argv[2], provenance='synthetic', **options)\n"
    )
    target = tmp_path / "out.parquet"
    command = [sys.executable, "-c", script, str(source), str(target)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    said = result.stderr.splitlines()[-1]
    assert "TraceError" in said
    assert "cannot be written" in said
    assert "beside the output" in said
    assert set(tmp_path.iterdir()) == {source}


def test_small_strings_stream_in_linear_time() -> None:
    """Two megabytes of short strings in one chunk took 13 s when each moved the buffer."""
    text = b"[" + b'"a",' * 500_000 + b"1]"
    extractor = Extractor("key", lambda number: lambda piece: None)
    extractor.feed(text)
    assert len(extractor.finish()) == 500_001


def test_scratch_of_base64_is_removed(tmp_path: Path) -> None:
    """Interrupted in the middle: no file, no folder."""
    source = tmp_path / "answer.json"
    source.write_text(json.dumps(sglang_answer(logical(9, 2, 3, 0), 4)))

    def interrupt(demand: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out.parquet", top_k=3, progress=interrupt)
    assert list(tmp_path.iterdir()) == [source]
