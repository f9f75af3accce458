"""Model profiles: dimensions, bytes by hand, user files, clear errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisparse_sim.simulator.serving.models import load_model, model_names
from hisparse_sim.simulator.serving.profiles import KINDS, ProfileError

OWN = """
[models.tiny]
repository = "me/tiny"
aliases = ["glm-5.1-fp8"]

[[models.tiny.figures]]
kind = "modelled"
source = "made for a test"
layers = 3
layer_pattern = "FSF"
dense_layers = 1
top_k = 16
context = 4096
kv_lora_rank = 128
rope_dim = 16
index_heads = 2
index_dim = 32
hidden = 64
q_lora_rank = 32
heads = 4
nope_dim = 16
value_dim = 16
experts = 4
experts_per_token = 2
shared_experts = 1
expert_width = 32
dense_width = 128
vocabulary = 1000
expert_weight_bytes = 0.5
weight_bytes = 2
"""


@pytest.mark.parametrize(
    ("name", "layers", "own_indexers", "context"),
    [
        ("deepseek-v3.2", 61, 61, 163_840),
        ("glm-5.1", 78, 78, 202_752),
        ("glm-5.2", 78, 21, 1_048_576),
    ],
)
def test_shipped_models(name: str, layers: int, own_indexers: int, context: int) -> None:
    model = load_model(name)
    assert (model.layers, model.indexer_layers, model.context) == (layers, own_indexers, context)
    assert model.top_k == 2048
    assert model.indexer_key_bytes == 128 + 4
    assert model.entry_bytes("bf16") == (512 + 64) * 2 == 1152
    assert model.entry_bytes("fp8") == 512 + 4 * 4 + 64 * 2 == 656
    assert model.entry_bytes("fp8-raw") == 576


def test_glm52_shares_three_of_four() -> None:
    types = load_model("glm-5.2").layer_types
    # freq 4, offset 3: the first three layers are full, then every fourth.
    expected = ["full" if i < 3 or (i - 2) % 4 == 0 else "shared" for i in range(78)]
    assert list(types) == expected


@pytest.mark.parametrize(("name", "billions"), [("glm-5.1", 744), ("deepseek-v3.2", 671)])
def test_parameters_reach_the_published_total(name: str, billions: int) -> None:
    # The model cards give 744 B and 671 B: the dimensions must explain them within 0.3 %.
    assert load_model(name).parameters().total == pytest.approx(billions * 1e9, rel=0.003)


def test_names_and_aliases_ignore_case() -> None:
    assert load_model("zai-org/glm-5.1-fp8") == load_model("GLM-5.1")
    assert set(model_names()) >= {"deepseek-v3.2", "glm-5.1", "glm-5.2"}


def test_every_figure_has_a_kind_and_a_source() -> None:
    for name in model_names():
        sources = load_model(name).sources
        assert {"layers", "top_k", "context", "weight_bytes"} <= set(sources)
        assert all(source.kind in KINDS and source.text for source in sources.values())


def test_unknown_name_lists_the_known() -> None:
    known = "deepseek-v3.2, deepseek-v4-flash, glm-5.1, glm-5.2, minimax-m3, qsa"
    with pytest.raises(ProfileError, match=f"unknown model 'gpt'; known: {known};"):
        load_model("gpt")


def test_unknown_kv_dtype_lists_the_known() -> None:
    with pytest.raises(ValueError, match="bf16, fp8, fp8-raw"):
        load_model("glm-5.1").entry_bytes("int4")


def test_users_add_their_own(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN)
    tiny = load_model("tiny", file)
    assert tiny.layer_types == ("full", "shared", "full")
    assert tiny.entry_bytes("bf16") == 288
    assert tiny.entry_bytes("fp8") == 128 + 4 + 32
    assert tiny.sources["layers"].text == "made for a test"
    # attention: 64*32 + 32*4*32 + 64*144 + 128*4*32 + 4*16*64 = 2048+4096+9216+16384+4096
    # indexer: 32*2*32 + 64*32 + 64*2 = 2048+2048+128, in two layers
    counts = tiny.parameters()
    assert counts.attention == 3 * 35_840 + 2 * 4_224
    assert counts.experts == 2 * 4 * 3 * 64 * 32
    assert counts.dense == 3 * 64 * 128 + 2 * (3 * 64 * 32 + 64 * 4)
    assert tiny.weights_bytes == counts.experts // 2 + 2 * (
        counts.attention + counts.dense + 2 * 64_000
    )
    assert "tiny" in model_names(file)
    # An own alias comes before a shipped one, but never hides a shipped name.
    assert load_model("glm-5.1-fp8", file).name == "tiny"
    assert load_model("glm-5.1", file).layers == 78


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("layers = 3", "layers = 2.5"), "layers must be a whole number"),
        (("layers = 3\n", ""), "lacks the figure layers"),
        (('kind = "modelled"', 'kind = "guessed"'), "measured, published, modelled"),
        (('source = "made for a test"', ""), "without a source"),
        (("experts = 4", "experts = 1"), "experts_per_token must be at most its experts"),
        (("weight_bytes = 2", "weight_bytes = 1e-320"), "weight_bytes must be a number above"),
        (('"FSF"', '"SSF"'), "layer_pattern must be 3 letters"),
        (("top_k = 16", 'top_k = "many"'), "top_k must be a number"),
        (("[models.tiny]", "[models.tiny"), "not valid TOML"),
        (("[[models.tiny.figures]]", "[models.tiny.figures]"), "groups"),
    ],
)
def test_bad_files_name_file_and_place(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN.replace(*change))
    with pytest.raises(ProfileError, match=message) as caught:
        load_model("tiny", file)
    assert "own.toml" in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"none\.toml does not exist"):
        load_model("tiny", tmp_path / "none.toml")
