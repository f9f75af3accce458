"""The trained indexer: what it computes, that training teaches it, that its top-k is captured."""

import math
import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [hf] is not installed: no torch")
transformers = pytest.importorskip(
    "transformers", reason="the extra [hf] is not installed: no transformers"
)

import tiny_models  # noqa: E402

from hisparse_sim.traces import TraceError, open_trace  # noqa: E402
from hisparse_sim.traces.capture import indexer  # noqa: E402
from hisparse_sim.traces.capture.huggingface import Prompt, Settings, capture  # noqa: E402
from hisparse_sim.traces.capture.indexer import Indexers, LayerIndexer, Shape, TrainedIndexer  # noqa: E402
from hisparse_sim.traces.capture.indexer_training import Quality, average, evaluate, learn, train  # noqa: E402

SHAPE = Shape(heads=8, head_dim=16)
TOKENS = 64


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def loaded() -> tiny_models.Loaded:
    return tiny_models.loaded(tiny_models.llama(initializer_range=0.2), random=False)


@pytest.fixture(scope="module")
def sequences() -> list[tuple[int, ...]]:
    return [tiny_models.tokens(TOKENS, seed) for seed in range(24)]


@pytest.fixture(scope="module")
def trained(loaded: tiny_models.Loaded, sequences: list[tuple[int, ...]]) -> Indexers:
    torch.set_num_threads(1)
    return train(loaded, sequences[:20], SHAPE, steps=80, rows=64, learning_rate=0.03)


def test_scores_are_those_of_the_formula() -> None:
    """Written out with loops, one head, token and dimension at a time."""
    generator = torch.Generator().manual_seed(0)
    drawn = [
        torch.randn(*size, generator=generator) for size in ((12, 5), (4, 5), (4,), (4,), (3, 5))
    ]
    layer, shape = LayerIndexer(*drawn), Shape(heads=3, head_dim=4)
    hidden = torch.randn(6, 5, generator=generator)
    angles = torch.arange(6)[:, None] * torch.tensor([1.0, 0.1, 1.0, 0.1])
    rotary = angles.cos(), angles.sin()

    def turn(vector: torch.Tensor, position: int) -> torch.Tensor:
        out = vector.clone()
        for pair, speed in enumerate((1.0, 0.1)):
            c, s = math.cos(position * speed), math.sin(position * speed)
            x, y = vector[pair], vector[pair + 2]
            out[pair], out[pair + 2] = c * x - s * y, s * x + c * y
        return out

    expected = torch.zeros(6, 6)
    for t in range(6):
        for s in range(6):
            key = layer.key @ hidden[s]
            key = (key - key.mean()) / (key.var(unbiased=False) + 1e-5).sqrt()
            key = turn(key * layer.key_scale + layer.key_shift, s)
            for head in range(3):
                query = turn(layer.query[4 * head : 4 * head + 4] @ hidden[t], t)
                gate = layer.gate[head] @ hidden[t]
                expected[t, s] += gate * max(0.0, float(query @ key)) / 12**0.5
    keys = indexer.keys_of(layer, hidden, rotary)
    found = indexer.scores_of(layer, shape, hidden, rotary, keys)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_training_teaches_it_the_attention_of_unseen_text(
    loaded: tiny_models.Loaded, sequences: list[tuple[int, ...]], trained: Indexers
) -> None:
    fresh = train(loaded, sequences[:1], SHAPE, steps=1, rows=8, learning_rate=0.0)
    before, after = (
        average(list(evaluate(loaded, each, sequences[20:], 8).values()))
        for each in (fresh, trained)
    )
    assert after.kl < 0.65 * before.kl
    assert before.mass < after.mass <= after.oracle_mass == before.oracle_mass < 1
    assert after.overlap > 1.5 * before.overlap


def test_an_indexer_that_gives_the_attention_itself_is_perfect(
    loaded: tiny_models.Loaded, monkeypatch: pytest.MonkeyPatch, trained: Indexers
) -> None:
    from hisparse_sim.traces.capture import indexer_training

    monkeypatch.setattr(indexer_training.View, "scores", lambda view, *_: view.log_target)
    for quality in evaluate(loaded, trained, [tiny_models.tokens(TOKENS)], 8).values():
        assert quality.kl == pytest.approx(0, abs=1e-5)
        assert quality.mass == pytest.approx(quality.oracle_mass)
        assert quality.overlap == 1


def test_training_is_seeded_and_leaves_the_model_alone(
    loaded: tiny_models.Loaded, sequences: list[tuple[int, ...]]
) -> None:
    before = {name: part.clone() for name, part in loaded.model.state_dict().items()}
    seen: list[tuple[str, int, int]] = []
    first, again, other = (
        train(
            loaded, sequences, SHAPE, steps=2, rows=16, seed=seed,
            progress=lambda *step: seen.append(step),
        )
        for seed in (1, 1, 2)
    )  # fmt: skip
    for one, same, different in zip(first.layers[2], again.layers[2], other.layers[2], strict=True):
        torch.testing.assert_close(one, same)
        assert not torch.equal(one, different)
    assert [step[1:] for step in seen] == [(1, 2), (2, 2)] * 3
    for name, part in loaded.model.state_dict().items():
        torch.testing.assert_close(part, before[name])
    assert not any(part.grad is not None for part in loaded.model.parameters())


def test_the_trace_is_its_top_k(
    loaded: tiny_models.Loaded, trained: Indexers, tmp_path: Path
) -> None:
    ids = tiny_models.tokens(60, 99)
    path = tmp_path / "t.parquet"
    settings = Settings(steps=20, top_k=8, keep_ranks=12, scores=True, order="indexer")
    about = capture(path, loaded, TrainedIndexer(trained), [Prompt("r", ids, 40)], settings)
    assert about.provenance == "trained-indexer"
    hidden: dict[int, tuple] = {}
    see = indexer.hidden_states_of(loaded.model, None, lambda i, *seen: hidden.update({i: seen}))
    with see, torch.inference_mode():
        loaded.model(torch.tensor([ids]))
    trace = open_trace(path)
    assert [part.layer for part in trace.parts] == [0, 1, 2]
    for part in trace.parts:
        demand = trace.read(part, ("scores", "next_positions"))
        states, rotary = hidden[part.layer]
        layer = trained.layers[part.layer]
        keys = indexer.keys_of(layer, states, rotary)
        scores = indexer.scores_of(layer, SHAPE, states, rotary, keys).detach().numpy()
        for row in range(20):
            seen = scores[40 + row, : 41 + row]
            np.testing.assert_allclose(
                seen[demand.row(row)], np.sort(seen)[::-1][:8], rtol=1e-3, atol=1e-4
            )
            marks = demand.scores[demand.offsets[row] : demand.offsets[row + 1]]
            np.testing.assert_allclose(marks, seen[demand.row(row)], rtol=2e-3, atol=1e-3)
        assert np.diff(demand.next_positions.offsets).tolist() == [4] * 20


def test_saved_and_loaded(loaded: tiny_models.Loaded, trained: Indexers, tmp_path: Path) -> None:
    path = tmp_path / "indexer.safetensors"
    indexer.save(path, trained)
    found = indexer.load(path, loaded)
    assert (found.shape, found.about) == (trained.shape, trained.about)
    assert found.about["steps"] == 80
    for index, layer in trained.layers.items():
        for one, other in zip(layer, found.layers[index], strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_one_plain_sentence(trained: Indexers) -> None:
    with pytest.raises(TraceError, match=r"^/dev/full cannot be written: No space left on device$"):
        indexer.save("/dev/full", trained)


def test_files_that_hold_no_indexer_are_refused(
    loaded: tiny_models.Loaded, trained: Indexers, tmp_path: Path
) -> None:
    path = tmp_path / "indexer.safetensors"
    with pytest.raises(TraceError, match="does not exist: give `train`"):
        indexer.load(path, loaded)
    os.mkfifo(path)
    with pytest.raises(TraceError, match="is a device or pipe"):
        indexer.load(path, loaded)
    path.unlink()
    indexer.save(path, trained)
    whole = path.read_bytes()
    for damaged in (b"", b"nonsense", whole[:-5], b"\x80\x04cos\nsystem\n."):
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match="holds no indexer"):
            indexer.load(path, loaded)
    path.write_bytes(whole)
    with pytest.raises(TraceError, match="was trained on tiny and does not fit"):
        indexer.load(path, tiny_models.loaded(tiny_models.deepseek()))


def test_models_with_windows_are_refused(trained: Indexers, tmp_path: Path) -> None:
    for make in (tiny_models.sliding, tiny_models.softcapped):
        with pytest.raises(TraceError, match="full attention only"):
            train(tiny_models.loaded(make()), [tiny_models.tokens(8)], SHAPE, steps=1)


def test_learn_holds_text_out_and_reports(loaded: tiny_models.Loaded) -> None:
    texts = [tiny_models.tokens(70, 1), tiny_models.tokens(50, 2)]
    found = learn(loaded, texts, SHAPE, length=20, steps=2, top_k=4, rows=8)
    quality = found.about["quality"]
    assert (found.about["sequences"], quality["held_out_sequences"]) == (2, 1)
    assert set(quality["layers"]) == {0, 1, 2}
    assert quality["mass"] <= quality["oracle_mass"]
    with pytest.raises(TraceError, match=r"at least 2 sequences of 60 tokens .* has 120 tokens"):
        learn(loaded, texts, SHAPE, length=60, steps=2, top_k=4)


def test_the_benchmark_runs_from_text_to_figures(tmp_path: Path) -> None:
    import json

    import train_indexer
    from click.testing import CliRunner

    model, out = tmp_path / "tiny", tmp_path / "out"
    tiny_models.llama(initializer_range=0.2).save_pretrained(model)
    tiny_models.save_tokenizer(model)
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"{name} text of 300 tokens; " * 12)
    sizes = {
        "prompt-len": 100, "steps": 20, "top-k": 8, "stretch-steps": 2, "train-steps": 2,
        "train-rows": 16, "heads": 2, "head-dim": 8, "held-out": 1,
    }  # fmt: skip
    arguments = [f"--{name}={value}" for name, value in sizes.items()]
    arguments += [f"--text={tmp_path / name}.txt" for name in "abc"]
    result = CliRunner().invoke(
        train_indexer.main, [*arguments, f"--model={model}", f"--output={out}"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads((out / "result.json").read_text())
    assert found["sequences"] == {"training": 4, "held_out": 1}
    assert 0 < found["quality"]["mass"] <= found["quality"]["oracle_mass"] <= 1
    for name, provenance in (("indexer", "trained-indexer"), ("oracle", "attention-oracle")):
        about = open_trace(out / f"{name}.parquet").metadata
        assert about.provenance == provenance
        assert found["traces"][name]["miss_percent"]["belady 16"] > 0


def test_average_of_layers() -> None:
    assert average([Quality(0.1, 0.8, 0.9, 0.5), Quality(0.3, 0.6, 0.7, 0.3)]) == pytest.approx(
        Quality(0.2, 0.7, 0.8, 0.4)
    )
