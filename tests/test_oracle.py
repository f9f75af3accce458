"""The attention oracle against the attention that the models report themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [hf] is not installed: no torch")
transformers = pytest.importorskip(
    "transformers", reason="the extra [hf] is not installed: no transformers"
)

import tiny_models  # noqa: E402

from hisparse_sim.traces import TraceError, open_trace  # noqa: E402
from hisparse_sim.traces.capture.huggingface import Prompt, Settings, capture  # noqa: E402
from hisparse_sim.traces.capture.oracle import AttentionOracle  # noqa: E402

PROMPT, STEPS, TOP_K = 40, 30, 8
KINDS = {
    "full": tiny_models.llama,
    "sliding": tiny_models.sliding,
    "softcap": tiny_models.softcapped,
    "sinks": tiny_models.sinks,
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def reported(model: Any, ids: tuple[int, ...]) -> np.ndarray:
    """Return the model's own attention summed over heads, [layers, rows, keys]."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        layers = model(torch.tensor([ids]), output_attentions=True).attentions
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    return np.stack([layer[0].sum(0).double().numpy() for layer in layers])


def run(path: Path, model: Any, **changes: Any) -> Any:
    ids = tiny_models.tokens(PROMPT + STEPS)
    settings = Settings(**{"steps": STEPS, "top_k": TOP_K, **changes})
    capture(
        path, tiny_models.loaded(model), AttentionOracle(), [Prompt("r", ids, PROMPT)], settings
    )
    return open_trace(path)


@pytest.mark.parametrize("kind", KINDS)
def test_selects_what_the_model_attends_to_most(kind: str, tmp_path: Path) -> None:
    model = KINDS[kind]()
    attention = reported(model, tiny_models.tokens(PROMPT + STEPS))
    trace = run(tmp_path / "t.parquet", model)
    assert [part.layer for part in trace.parts] == list(range(len(attention)))
    for part in trace.parts:
        demand = trace.read(part)
        assert demand.prompt_len == PROMPT
        assert demand.seq_len.tolist() == list(range(PROMPT + 1, PROMPT + STEPS + 1))
        for row in range(STEPS):
            weights = attention[part.layer, PROMPT + row]
            chosen = demand.row(row)
            assert len(chosen) == TOP_K
            rest = np.delete(weights, chosen)
            # By property, not by index: ties may fall either way.
            assert weights[chosen].min() >= rest.max() - 1e-5 * weights.max()


def test_capturing_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    for make in KINDS.values():
        model = make()
        ids = torch.tensor([tiny_models.tokens(60)])
        before = model.config._attn_implementation, model(ids).logits
        run(tmp_path / "t.parquet", model)
        assert model.config._attn_implementation == before[0]
        torch.testing.assert_close(model(ids).logits, before[1])


@pytest.mark.parametrize("kind", KINDS)
def test_attends_like_the_model_while_captured(kind: str) -> None:
    from hisparse_sim.traces.capture.oracle import dense, interface

    model = KINDS[kind]()
    ids = torch.tensor([tiny_models.tokens(60)])
    with torch.inference_mode():
        # Not the default: some releases take torch's kernel for models whose softcap it lacks.
        model.set_attn_implementation("eager")
        expected = model(ids).logits
        with interface(model, dense):
            torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_blocks_select_as_rows_one_by_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = KINDS[kind]()
    together = run(tmp_path / "a.parquet", model)
    monkeypatch.setattr(AttentionOracle, "rows_at_once", lambda *_: 1)
    single = run(tmp_path / "b.parquet", model)
    for part, other in zip(together.parts, single.parts, strict=True):
        np.testing.assert_array_equal(together.read(part).positions, single.read(other).positions)


def test_ranks_behind_top_k_and_scores(tmp_path: Path) -> None:
    model = tiny_models.llama()
    attention = reported(model, tiny_models.tokens(PROMPT + STEPS))
    trace = run(tmp_path / "t.parquet", model, keep_ranks=20, scores=True, order="indexer")
    assert trace.metadata.order == "indexer"
    assert trace.metadata.notes["ranks_kept"] == 20
    demand = trace.read(trace.parts[1], columns=("scores", "next_positions"))
    for row in range(STEPS):
        order = np.argsort(-attention[1, PROMPT + row], kind="stable")
        np.testing.assert_array_equal(demand.row(row), order[:TOP_K])
        offsets, values = demand.next_positions
        np.testing.assert_array_equal(values[offsets[row] : offsets[row + 1]], order[TOP_K:20])
        marks = demand.scores[demand.offsets[row] : demand.offsets[row + 1]]
        share = attention[1, PROMPT + row, order[:TOP_K]] / model.config.num_attention_heads
        np.testing.assert_allclose(marks, np.log(share), atol=0.01)


def test_sorted_rows_keep_the_scores_of_their_positions(tmp_path: Path) -> None:
    model = tiny_models.llama()
    listed = run(tmp_path / "a.parquet", model, scores=True, order="indexer")
    by_position = run(tmp_path / "b.parquet", model, scores=True)
    first, second = (trace.read(trace.parts[0], ("scores",)) for trace in (listed, by_position))
    for row in range(STEPS):
        rows = slice(first.offsets[row], first.offsets[row + 1])
        order = np.argsort(first.positions[rows])
        np.testing.assert_array_equal(first.positions[rows][order], second.positions[rows])
        np.testing.assert_array_equal(first.scores[rows][order], second.scores[rows])


def test_rows_shorter_than_top_k_list_every_position(tmp_path: Path) -> None:
    ids = tiny_models.tokens(12)
    settings = Settings(steps=10, top_k=8, keep_ranks=11)
    loaded = tiny_models.loaded(tiny_models.llama())
    path = tmp_path / "t.parquet"
    capture(path, loaded, AttentionOracle(), [Prompt("r", ids, 2)], settings)
    trace = open_trace(path)
    demand = trace.read(trace.parts[0], ("next_positions",))
    assert np.diff(demand.offsets).tolist() == [3, 4, 5, 6, 7, 8, 8, 8, 8, 8]
    assert np.diff(demand.next_positions.offsets).tolist() == [0, 0, 0, 0, 0, 0, 1, 2, 3, 3]


def test_far_tails_are_ranked_too(tmp_path: Path) -> None:
    """Scores so far apart that the softmax itself is 0 for most positions."""
    model = tiny_models.llama()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight *= 100
    trace = run(tmp_path / "t.parquet", model, top_k=30)
    assert all(np.diff(trace.read(part).offsets).min() == 30 for part in trace.parts)


def test_a_model_without_the_interface_is_refused(tmp_path: Path) -> None:
    config = transformers.BloomConfig(vocab_size=128, hidden_size=16, n_layer=1, n_head=2)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(TraceError, match=r"BloomForCausalLM does not attend through"):
        run(tmp_path / "t.parquet", model)
    assert not list(tmp_path.iterdir())
