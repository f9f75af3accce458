"""What cannot give a true trace ends in one sentence: models, prompts, options, output files."""

import json
import math
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="the extra [hf] is not installed: no torch")
transformers = pytest.importorskip(
    "transformers", reason="the extra [hf] is not installed: no transformers"
)

import tiny_models  # noqa: E402

from hisparse_sim.cli import cli  # noqa: E402
from hisparse_sim.traces import TraceError, open_trace  # noqa: E402
from hisparse_sim.traces.capture import models  # noqa: E402
from hisparse_sim.traces.capture.forward import Sampling  # noqa: E402
from hisparse_sim.traces.capture.huggingface import Prompt, Settings, capture  # noqa: E402
from hisparse_sim.traces.capture.indexer_training import learn  # noqa: E402
from hisparse_sim.traces.capture.oracle import AttentionOracle  # noqa: E402
from hisparse_sim.traces.capture.taps import IndexerTap  # noqa: E402

QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved = tmp_path / "tiny"
    tiny_models.llama().save_pretrained(saved)
    tiny_models.save_tokenizer(saved)
    return saved


def prompts(*names: str) -> list[Prompt]:
    return [Prompt(name, tiny_models.tokens(60), 40) for name in names or ("r",)]


def attempt(path: Path, *requests: str, model: Any = None, **changes: Any) -> None:
    settings = Settings(**{"steps": 4, "top_k": 8, **changes})
    loaded = tiny_models.loaded(model or tiny_models.llama())
    capture(path, loaded, AttentionOracle(), prompts(*requests), settings)


class _Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def no_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no header at all")


def a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Payload()))


def a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def a_word_for_a_number(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": "three"}')


def own_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("import os\nos.mkdir('executed')\n")


def lacking(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights[QUERY]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    "damage", [cut, no_header, a_pickle, a_list, a_word_for_a_number, own_code, lacking]
)
def test_a_damaged_model_is_refused_and_never_executed(
    damage: Callable[[Path], None],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    damage(folder)
    with pytest.raises(TraceError, match="tiny cannot be loaded: ") as caught:
        models.load(str(folder), dtype="float32", device="cpu")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().out == ""  # and nothing was asked
    assert not (tmp_path / "executed").exists()


def test_weights_that_would_be_random_are_named(folder: Path) -> None:
    lacking(folder)
    with pytest.raises(TraceError, match=rf"lacks {QUERY} \(1 such\).*`random_weights`"):
        models.load(str(folder), dtype="float32", device="cpu")
    assert models.load(str(folder), device="cpu", random_seed=0).random


def test_a_device_that_is_not_there_is_one_sentence(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(TraceError, match="tiny cannot be loaded: "):
        models.load(str(folder), dtype="float32", device="cuda")


def test_scores_that_are_no_numbers_never_reach_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    model = tiny_models.llama()
    model.model.layers[1].self_attn.q_proj.weight.data[:] = math.nan
    with pytest.raises(TraceError, match="NaN or infinity"):
        attempt(path, model=model)
    texts = [tiny_models.tokens(80)]
    with pytest.raises(TraceError, match="layer 1 has no finite divergence"):
        learn(tiny_models.loaded(model), texts, length=20, steps=1, top_k=4)
    assert not list(tmp_path.iterdir())


def test_what_torch_raises_while_it_runs_is_one_sentence(tmp_path: Path) -> None:
    model = tiny_models.llama()

    def exhausted(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nSee manual")

    model.model.layers[1].register_forward_pre_hook(exhausted)
    with pytest.raises(TraceError, match="tiny failed while it ran") as caught:
        attempt(tmp_path / "t.parquet", model=model)
    assert "CUDA out of memory. Tried to allocate 9 GiB. See manual" in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("requests", "changes", "message"),
    [
        (("same", "same"), {}, "two prompts have the same id"),
        (("",), {}, "not a usable name of a request"),
        (("\ud800",), {}, "not a usable name of a request"),
        ((), {"top_k": 2**31}, "at most 2147483647"),
        ((), {"keep_ranks": 2**40}, "at most 2147483647"),
        ((), {"sampling": Sampling(math.nan)}, "the temperature is nan"),
        ((), {"sampling": Sampling(math.inf)}, "the temperature is inf"),
    ],
)
def test_refused_before_the_model_runs(
    requests: tuple[str, ...], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    def run(*_: Any) -> None:
        raise AssertionError

    model = tiny_models.llama()
    model.model.layers[0].register_forward_pre_hook(run)
    with pytest.raises(TraceError, match=message):
        attempt(tmp_path / "t.parquet", *requests, model=model, **changes)
    assert not list(tmp_path.iterdir())


def test_more_ranks_than_tokens_take_no_more_memory(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    attempt(path, top_k=2**30, keep_ranks=2**31 - 1, scores=True)
    trace = open_trace(path)
    assert trace.metadata.top_k == 2**30
    for part in trace.parts:
        demand = trace.read(part, ("scores", "next_positions"))
        assert demand.positions.tolist() == [p for n in demand.seq_len for p in range(n)]
        assert not len(demand.next_positions.values)
    settings = Settings(steps=4, top_k=8, keep_ranks=2**31 - 1)
    path = tmp_path / "dsa.parquet"
    capture(path, tiny_models.loaded(tiny_models.deepseek()), IndexerTap(), prompts(), settings)
    trace = open_trace(path)
    ranked = trace.read(trace.parts[0], ("next_positions",)).next_positions
    assert (ranked.offsets[1:] - ranked.offsets[:-1]).tolist() == [33, 34, 35, 36]


def test_the_coldest_temperature_takes_the_most_likely_token(tmp_path: Path) -> None:
    found = []
    for name, temperature in (("cold", 1e-300), ("none", 0.0)):
        attempt(tmp_path / name, sampling=Sampling(temperature))
        trace = open_trace(tmp_path / name)
        found.append(trace.read(trace.parts[-1]).positions.tolist())
    assert found[0] == found[1]


def test_nothing_that_is_read_is_written_over(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.parquet"  # other suffixes are refused before
    text.write_text("The quick brown fox jumps over the lazy dog. " * 12)
    saved = tmp_path / "indexer.parquet"
    saved.write_text("an indexer")
    before = {path: path.read_bytes() for path in (text, saved, *folder.iterdir())}

    def run(*arguments: str | Path) -> str:
        plain = ["--model", folder, "--prompts", text, "--steps", "4", *arguments]
        result = CliRunner().invoke(cli, ["trace", "capture", "hf", *map(str, plain)])
        assert result.exit_code == (1 if str(arguments[1]).endswith(".parquet") else 2)
        return result.stderr

    for path in before:
        why = "it is read for this" if path.suffix == ".parquet" else "choose one of"
        assert why in " ".join(run("-o", path, "--indexer", saved).split())
    new = tmp_path / "new.parquet"
    train = ("--indexer", "train", "--save-indexer")
    assert "it is read for this" in run("-o", new, *train, text)
    shutil.copy(text, new)
    assert "two different things would go there" in run(
        "-o", new, *train, folder / ".." / "new.parquet"
    )
    assert {path: path.read_bytes() for path in before} == before
