"""`trace capture hf` from the command line, on a tiny model in a folder."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch", reason="the extra [hf] is not installed: no torch")
transformers = pytest.importorskip(
    "transformers", reason="the extra [hf] is not installed: no transformers"
)

import tiny_models  # noqa: E402

from hisparse_sim.cli import cli  # noqa: E402
from hisparse_sim.traces import open_trace  # noqa: E402
from hisparse_sim.traces.capture import models  # noqa: E402
from hisparse_sim.traces.capture.drafting import Lookup, accepted  # noqa: E402
from hisparse_sim.traces.capture.texts import prepare, python_reference  # noqa: E402

TEXT = "The quick brown fox jumps over the lazy dog. " * 12  # 540 tokens
COUNTED = " ".join(f"line {i * 7919 % 97} says {i * i % 89};" for i in range(40))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_models.llama().save_pretrained(folder)
    tiny_models.save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-mistral"
    tiny_models.sliding().save_pretrained(folder)
    tiny_models.save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only a configuration: `--random-weights` is for those."""
    folder = tmp_path_factory.mktemp("models") / "tiny-glm"
    tiny_models.glm().config.save_pretrained(folder)
    tiny_models.save_tokenizer(folder)
    return folder


def run(model: Path, *arguments: str | Path) -> Result:
    plain = ["--model", model, "--dtype", "float32", "--device", "cpu", *arguments]
    return CliRunner().invoke(cli, ["trace", "capture", "hf", *map(str, plain)])


def test_captures_along_a_text(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    result = run(llama, "--text", TEXT, "--steps", "10", "--top-k", "8", "-o", path)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert "wrote" in result.stderr
    assert "attention-oracle, top_k 8, prompt of 246 tokens" in result.stderr
    trace = open_trace(path)
    assert trace.metadata.prompt_len == {"text": 246}  # 256 of the model, less 10 steps
    assert trace.metadata.model == "tiny-llama"
    assert [part.rows for part in trace.parts] == [10, 10, 10]


def test_all_options_reach_the_file(llama: Path, tmp_path: Path) -> None:
    prompts, path = tmp_path / "two.jsonl", tmp_path / "t.parquet"
    lines = [{"request": name, "text": TEXT} for name in ("a", "b")]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    result = run(
        llama, "--prompts", prompts, "--prompt-len", "50", "--steps", "6", "--top-k", "4",
        "--layer", "0,2", "--keep-ranks", "10", "--scores", "--order", "indexer", "--sample",
        "--temperature", "0.5", "--seed", "3", "--quiet", "-o", path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.output == ""
    trace = open_trace(path)
    about = trace.metadata
    assert about.prompt_len == {"a": 50, "b": 50}
    assert (about.top_k, about.order, about.dataset) == (4, "indexer", "two.jsonl")
    assert about.notes["decode"] == "sampled, temperature 0.5, seed 3"
    assert {part.layer for part in trace.parts} == {0, 2}
    demand = trace.read(trace.parts[0], ("scores", "next_positions"))
    assert np.diff(demand.next_positions.offsets).tolist() == [6] * demand.rows
    assert len(demand.scores) == len(demand.positions)


def test_longbench_item(llama: Path, tmp_path: Path) -> None:
    columns = ("_id", "domain", "sub_domain", "difficulty", "length", "question")
    item = {name: name for name in (*columns, *(f"choice_{c}" for c in "ABCD"), "answer")}
    path = tmp_path / "items.json"
    path.write_text(json.dumps([{**item, "context": TEXT}]))
    out = tmp_path / "t.parquet"
    result = run(llama, "--longbench", path, "--steps", "4", "-o", out)
    assert result.exit_code == 0, result.output
    assert open_trace(out).metadata.dataset == "LongBench v2"
    assert open_trace(out).metadata.top_k == 15  # a sixteenth of 252


def test_dsa_model_with_drawn_weights_is_synthetic(glm: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    result = run(glm, "--random-weights", "--text", TEXT, "--steps", "4", "-o", path)
    assert result.exit_code == 0, result.output
    about = open_trace(path).metadata
    assert (about.provenance, about.top_k) == ("synthetic", 8)
    assert about.notes["weights"] == "drawn at random, seed 0"
    assert about.layer_types == ("full", "full", "full", "shared", "shared", "full")


def test_trains_saves_and_takes_an_indexer(llama: Path, tmp_path: Path) -> None:
    common = ("--text", TEXT, "--prompt-len", "50", "--steps", "6", "--top-k", "8")
    first, again, saved = (tmp_path / name for name in ("a.parquet", "b.parquet", "i.safetensors"))
    result = run(
        llama, *common, "--indexer", "train", "--train-steps", "2", "--train-len", "100",
        "--save-indexer", saved, "-o", first,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "on unseen text: KL" in result.stderr
    about = open_trace(first).metadata
    assert about.provenance == "trained-indexer"
    assert about.notes["indexer"]["sequences"] == 2  # of 484 tokens left four fit, one held out
    assert about.notes["indexer"]["quality"]["held_out_sequences"] == 1
    result = run(llama, *common, "--indexer", saved, "-o", again)
    assert result.exit_code == 0, result.output
    one, other = open_trace(first), open_trace(again)
    for part in one.parts:
        np.testing.assert_array_equal(one.read(part).positions, other.read(part).positions)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--text", "short", "--steps", "9"], 1, "the text has 5 tokens, the capture needs 11 "),
        (["--text", "a lone step", "--steps", "10"], 1, "has 11 tokens, the capture needs 12 "),
        (
            ["--text", "short", "--steps", "9", "--prompt-len", "40"],
            1,
            "the text has 5 tokens, the capture needs 49 (a prompt of 40, and 9 that decode",
        ),
        (["--text", "a", "--steps", "9", "--sample"], 1, "has 1 tokens, a prompt needs 2"),
        (["--text", TEXT, "--prompt-len", "1"], 2, "1 is not in the range"),
        (
            ["--text", TEXT, "--steps", "4", "--top-k", "8", "--keep-ranks", "8"],
            1,
            "not above top_k 8",
        ),
        (["--text", "short", "--steps", "300"], 1, "leave no room for a prompt in the 256 tokens"),
        (
            ["--text", TEXT, "--steps", "9", "--prompt-len", "400"],
            1,
            "do not fit into the 256 tokens",
        ),
        (["--text", TEXT, "--prompts", __file__], 2, "by one of --text, --prompts and --longbench"),
        (["--save-indexer", "x"], 2, "--save-indexer belongs to --indexer train"),
        (["--text", TEXT, "--steps", "4", "--layer", "9"], 1, "there is no layer 9"),
        (["--text", TEXT, "--steps", "4", "--indexer", "no"], 1, "no does not exist: give `train`"),
        (
            ["--text", TEXT, "--steps", "4", "--indexer", "train"],
            1,
            "training needs at least 2 sequences of 256 tokens",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    arguments: list[str], code: int, message: str, llama: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Nothing here needs the weights, which take long to load.
    monkeypatch.setattr(models, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    result = run(llama, *arguments, "-o", tmp_path / "t.parquet")
    assert result.exit_code == code, result.output
    assert message in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())


def test_loading_is_told(llama: Path, tmp_path: Path) -> None:
    result = run(llama, "--text", TEXT, "--steps", "2", "-o", tmp_path / "t.parquet")
    assert [line.split(": ")[-1] for line in result.stderr.splitlines()[:2]] == [
        "its configuration and tokenizer",
        "its weights",
    ]


def test_an_indexer_of_another_model_is_refused_before_the_weights_are_loaded(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hisparse_sim.traces.capture import indexer
    from hisparse_sim.traces.capture.indexer_training import train

    other = tiny_models.loaded(tiny_models.llama(num_hidden_layers=2))
    indexer.save(tmp_path / "i", train(other, [tiny_models.tokens(8)], steps=1))
    monkeypatch.setattr(models, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    result = run(
        llama, "--text", TEXT, "--steps", "4", "--indexer", tmp_path / "i", "-o", tmp_path / "t"
    )
    assert result.exit_code == 1
    assert "was trained on tiny and does not fit" in result.stderr


def test_default_file_is_named_after_the_model_and_never_replaced(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("--text", TEXT, "--steps", "2")
    assert run(llama, *arguments).exit_code == 0
    assert [file.name for file in tmp_path.iterdir()] == ["tiny-llama.parquet"]
    result = run(llama, *arguments)
    assert result.exit_code == 2
    assert "tiny-llama.parquet is an existing trace: name another file, or" in result.stderr


def test_python_brings_a_text_along() -> None:
    text, dataset = python_reference()
    assert len(text) > 300_000
    assert dataset.startswith("language reference of Python 3.")


def test_sampled_prompts_are_cut_in_the_middle(llama: Path) -> None:
    from hisparse_sim.traces.capture.models import load

    loaded = load(str(llama), dtype="float32", device="cpu")
    prompts, rests = prepare(
        [("r", "a" * 200 + "b" * 200)], loaded, steps=56, prompt_len=None, sampled=True
    )
    assert prompts[0].ids == (97,) * 100 + (98,) * 100
    assert (prompts[0].prompt_len, rests) == (200, [()])


@pytest.mark.parametrize("sampled", [False, True], ids=["text", "greedy"])
@pytest.mark.parametrize("model", ["llama", "sliding", "glm"])
def test_drafts_select_what_their_tokens_select_without_drafts(
    request: pytest.FixtureRequest, tmp_path: Path, model: str, sampled: bool
) -> None:
    drafts, plain = tmp_path / "drafts.parquet", tmp_path / "plain.parquet"
    common = ["--text", COUNTED, "--prompt-len", "60", "--top-k", "8"]
    common += ["--random-weights"] if model == "glm" else []
    common += ["--sample", "--temperature", "0"] if sampled else []
    folder = request.getfixturevalue(model)
    result = run(folder, *common, "--steps", "12", "--draft-tokens", "4", "-o", drafts)
    assert result.exit_code == 0, result.output
    assert run(folder, *common, "--steps", "48", "-o", plain).exit_code == 0
    trace, single = open_trace(drafts), open_trace(plain)
    assert trace.metadata.draft_tokens == trace.metadata.notes["drafts"]["draft_tokens"] == 4
    assert trace.metadata.layer_types == single.metadata.layer_types
    assert len(trace.parts) == len(single.parts)
    for part, alone in zip(trace.parts, single.parts, strict=True):
        found, wanted = trace.read(part, ["row"]), single.read(alone)
        assert found.rows == 48
        lengths = found.seq_len[found.first_rows]
        taken = np.diff(lengths)
        assert taken.min() < 4  # a draft was rejected
        assert taken.max() > 1 or sampled  # and one was not
        for head, count in zip(found.first_rows, [*taken, 1], strict=True):
            for row in range(head, head + count):  # those whose token came
                alike = wanted.row(int(found.seq_len[row]) - 61)
                assert found.row(row).tolist() == alike.tolist()


def test_drafts_are_not_drawn_from_a_distribution(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    result = run(
        llama, "--text", TEXT, "--steps", "8", "--draft-tokens", "3", "--sample", "-o", path
    )
    assert result.exit_code == 1
    assert "sample at temperature 0, or follow the text" in result.output
    assert not path.exists()


def test_a_lookup_continues_the_longest_ending_seen_before() -> None:
    assert Lookup([1, 2, 3, 9, 2, 3, 7, 1, 2, 3]).drafts(3) == [9, 2, 3]  # of 1, 2, 3
    assert Lookup([1, 2, 3, 4, 1, 2]).drafts(6) == [3, 4, 1, 2, 3, 4]  # its own drafts, then
    assert Lookup([5, 6]).drafts(2) == [6, 6]
    assert accepted([1, 2, 3], [1, 2, 9]) == 3
    assert accepted([1, 2, 3], [9, 2, 3]) == 1
