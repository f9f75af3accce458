"""Traces of drafts and of blocks: every command answers for them, or says which one does."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from make_traces import drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.policies import get_policy
from hisparse_sim.simulator.replay.modes.sglang import scratch_tokens
from hisparse_sim.simulator.serving.costs import model_of
from hisparse_sim.simulator.serving.demand import profile_like
from hisparse_sim.simulator.serving.deployment import Deployment
from hisparse_sim.simulator.serving.memory import Capacity
from hisparse_sim.simulator.serving.misses import layer_misses
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.simulator.study.statistics import interval_of_ratio
from hisparse_sim.simulator.views.locality_view import locality
from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces import info as describe
from hisparse_sim.traces.drafts import drafted
from hisparse_sim.traces.file.export import ORACLE_GENERAL, export
from hisparse_sim.traces.file.units import tokens_of
from hisparse_sim.traces.synth.generator import get_profile


def run(*words: Any) -> tuple[int, str]:
    """Return the exit code and what is said, on one line."""
    done = CliRunner().invoke(cli, [str(word) for word in words])
    return done.exit_code, " ".join(done.output.split())


@pytest.fixture
def drafts(tmp_path: Path) -> Path:
    """Three queries a step, two accepted, 39 steps of two layers; top_k 8."""
    parts = [
        drafted(drift(steps=80, first_seq_len=60, layer=layer, seed=layer), 3, 2.0)
        for layer in (0, 1)
    ]
    return write(tmp_path / "drafts.parquet", parts, metadata(draft_tokens=3, model="GLM-5.1"))


def blocks(path: Path, model: str, unit: str = "block4") -> Path:
    parts = [drift(steps=40, layer=layer, seed=layer) for layer in (0, 1)]
    return write(path, parts, metadata(unit=unit, model=model))


def test_exports_have_an_access_for_every_query_that_selects_a_position(
    tmp_path: Path, drafts: Path
) -> None:
    trace = open_trace(drafts)
    demands = [trace.read(part, {"row"}) for part in trace.parts]
    assert export(trace, tmp_path / "t.csv", "csv") == sum(len(each.positions) for each in demands)
    export(trace, tmp_path / "t.bin", "oraclegeneral")
    found = pd.read_csv(tmp_path / "t.csv")
    assert list(found)[-2:] == ["position", "row"]
    for layer, each in enumerate(demands):
        own = found[found["layer"] == layer]
        lengths = np.diff(each.offsets)
        assert each.query is not None
        assert own["row"].tolist() == np.repeat(each.query, lengths).tolist()
        assert own["time"].tolist() == np.repeat(each.step, lengths).tolist()
        assert own["position"].tolist() == each.positions.tolist()
    objects = np.fromfile(tmp_path / "t.bin", ORACLE_GENERAL)["object"]
    assert objects.tolist() == found["object"].tolist()


@pytest.mark.parametrize("engine", ["sglang-0.5.23", "vllm-0.33"])
def test_a_curve_of_drafts_is_the_mean_of_their_steps(drafts: Path, engine: str) -> None:
    swept = hs.sweep(drafts, None, 32, engine=engine, compare_min=False)
    policy = swept.rows["policy"].iloc[0]
    curve = hs.curve(drafts, buffers=32, window=5, engine=engine)
    assert set(curve.rows["policy"]) == {policy}
    assert set(curve.rows["rules"]) == set(swept.rows["rules"])
    assert f"rules of {swept.rows['rules'].iloc[0]}" in curve.origin
    steps = swept.steps[swept.steps["policy"] == policy]
    means = steps.groupby("step")["misses"].mean().rolling(5).mean().dropna()
    np.testing.assert_allclose(curve.rows["misses_per_step"], means)


def test_the_command_curve_takes_drafts(tmp_path: Path, drafts: Path) -> None:
    made = tmp_path / "c.csv"
    code, said = run("curve", drafts, "--window", 5, "--buffer", 32, "-o", made)
    assert code == 0, said
    assert pd.read_csv(made)["rules"].unique().tolist() == ["sglang, 3 draft tokens"]
    code, said = run("curve", drafts, "--window", 5, "--link", "h200-pcie5")
    assert code == 2
    assert "this replay has drafts: leave --link out" in said
    code, said = run("curve", "sample", "--resident-tokens", 4096, "--link", "h200-pcie5")
    assert "`serve`, which take resident tokens" in said


@pytest.mark.parametrize("words", ["mrc FILE", "budget FILE --buffer 64", "reproduce --trace FILE"])
def test_the_sentence_of_the_others_names_commands_that_do(words: str, drafts: Path) -> None:
    code, said = run(*(drafts if word == "FILE" else word for word in words.split()))
    assert code != 0
    assert "has up to 3 queries a step (speculative decoding), and this works on one" in said
    assert "`hisparse-sim sweep` and `curve` count its misses" in said


def test_misses_of_a_step_of_drafts_are_those_of_a_sweep(drafts: Path) -> None:
    swept = hs.sweep(drafts, "epoch-clock", 32, compare_min=False, per_layer=True)
    found = layer_misses(drafts, "lru", 32, warm_up_steps=0)
    assert found.policy == "epoch-clock"
    assert list(found.per_layer) == pytest.approx(swept.rows["misses_per_step"].tolist())
    assert found.rate == pytest.approx(swept.rows["misses"].sum() / swept.rows["accesses"].sum())
    later = layer_misses(drafts, "lru", 32, warm_up_steps=4)
    kept = swept.steps[swept.steps["step"] >= 4]
    assert later.mean == pytest.approx(kept["misses"].mean())
    with pytest.raises(ValueError, match="a policy of its own"):
        layer_misses(drafts, "arc", 32)


def test_a_step_is_of_one_token_whatever_a_position_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 1,024 tokens 40 are output, not 40 blocks of 128."""
    asked: list[tuple[int, ...]] = []
    capacity = Deployment.capacity

    def noted(deployment: Deployment, ratio: int, size: int, *tokens: int) -> Capacity:
        asked.append(tokens)
        return capacity(deployment, ratio, size, *tokens)

    monkeypatch.setattr(Deployment, "capacity", noted)
    parts = [drift(steps=40, first_seq_len=8, growth=0)]
    trace = write(tmp_path / "t.parquet", parts, metadata(unit="block128", model="MiniMax-M3"))
    setting: dict[str, Any] = {"ratios": 2, "model": "minimax-m3", "compare_min": False}
    assert hs.sweep(trace, "lru", 16, **setting).rows["requests_per_gpu"][0] > 0
    hs.sweep(trace, "lru", 16, output_len=64, **setting)
    assert [tokens for tokens in asked if len(tokens) == 2] == [(1024, 40), (1088, 104)]


def test_requests_that_do_not_grow_fit_too(tmp_path: Path) -> None:
    parts = [drift(steps=40, first_seq_len=20, growth=0)]
    trace = write(tmp_path / "t.parquet", parts, metadata(model="GLM-5.1"))
    rows = hs.sweep(trace, "lru", 16, ratios=2, compare_min=False).rows
    assert rows["requests_per_gpu"][0] > 0


def test_drafts_that_cannot_be_name_the_trace(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.parquet", [drift(steps=5)])
    code, said = run("sweep", trace, "--buffer", 32, "--draft-tokens", 6)
    assert (code, said) == (
        1,
        f"Error: {trace}: request 'a', layer 0 has 5 steps, too few for 6 queries",
    )


@pytest.mark.parametrize("unit", ["block4", "block16", "c4"])
def test_resident_tokens_of_blocks_are_those_of_a_sweep(tmp_path: Path, unit: str) -> None:
    """They are given in tokens, and a position holds several."""
    trace = blocks(tmp_path / "t.parquet", "mine", unit)
    setting: dict[str, Any] = {"resident_tokens": 2 * tokens_of(unit) * 8}
    swept = hs.sweep(trace, "lru", 16, compare_min=False, **setting).rows
    bare = hs.sweep(trace, "lru", 16, compare_min=False).rows
    found = layer_misses(
        trace, "lru", 16, position_tokens=tokens_of(unit), warm_up_steps=0, **setting
    )
    assert found.mean == pytest.approx(swept["misses_per_step"].iloc[0])
    assert found.mean < bare["misses_per_step"].iloc[0]


@pytest.mark.parametrize("stated", [{}, {"draft_tokens": 3, "acceptance_length": 2.0}])
def test_plans_take_the_drafts_of_a_trace(stated: dict[str, Any], drafts: Path) -> None:
    found = Scenario(trace=drafts, **stated).resolve("hisparse", get_policy("lru"))
    speculation = found.setting.speculation
    assert speculation is not None
    assert (speculation.draft_tokens, speculation.acceptance_length) == (3, 2.0)
    assert speculation.misses_times == 1
    assert str(speculation).endswith("misses of their union as replayed")
    assert found.notes[0].endswith(
        "(GLM-5.1, synthetic), with its drafts and epoch-clock, the engine's policy for them,"
        " in place of lru"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--draft-tokens 2", "has 3 draft tokens a step, not 2: leave --draft-tokens out"),
        (
            "--acceptance-length 1.9",
            "2.00 tokens of a step were accepted, not 1.9: leave",
        ),
        (
            "--draft-tokens 3 --acceptance-length 2.5",
            "says itself that 2.00 tokens of a step were accepted, not 2.5: leave --acceptance",
        ),
    ],
)
@pytest.mark.parametrize("command", ["sweep", "curve", "plan --trace", "serve --trace"])
def test_a_trace_says_itself_which_drafts_it_has(
    command: str, options: str, sentence: str, drafts: Path
) -> None:
    code, said = run(*command.split(), drafts, *options.split())
    assert code == 2
    assert sentence in said


def test_what_the_trace_says_may_be_stated(drafts: Path) -> None:
    words = ["sweep", drafts, "--buffer", 32, "--model", "glm-5.1"]
    first = run(*words)
    assert first[0] == 0
    assert run(*words, "--draft-tokens", 3, "--acceptance-length", 2) == first
    assert run(*words, "--acceptance-length", 2) == first
    # The buffer, the reserved page, and the scratch area: n x top_k, in whole pages.
    swept = hs.sweep(drafts, "epoch-clock", 32, model="glm-5.1", compare_min=False).rows
    scratch = scratch_tokens(3, load_model("glm-5.1").top_k, 32)
    assert swept["hot_buffer_bytes"].tolist() == [(32 + 64 + scratch) * 78 * 1152]


def test_the_union_of_drafts_is_not_stated_beside_them(drafts: Path) -> None:
    code, said = run("plan", "--trace", drafts, "--union-misses", 2)
    sentence = "tell the misses of their union: leave --union-misses out"
    assert code == 2
    assert sentence in said


def test_costs_of_blocks_are_those_of_the_model_that_the_trace_names(tmp_path: Path) -> None:
    path = blocks(tmp_path / "b.parquet", "Qwen QSA")
    named = hs.sweep(path, "lru", 16, model="qsa").rows.iloc[0]
    for given in ({"ratios": 4}, {"link": "h200-pcie5"}):
        row = hs.sweep(path, "lru", 16, **given).rows.iloc[0]
        assert row["misses"] == named["misses"]
    assert (
        hs.sweep(path, "lru", 16, ratios=4).rows.iloc[0]["bytes_per_step"]
        == (named["bytes_per_step"])
    )
    model, note = model_of([open_trace(path)])
    assert (model.name, model.top_k) == ("qsa", 8)
    assert (
        note == "bytes and memory are those of qsa (with the top_k of the trace, 8, instead of 512)"
    )


@pytest.mark.parametrize(
    ("model", "unit", "words", "sentence"),
    [
        ("Qwen QSA", "block4", "plan --trace FILE --model glm-5.1", "its own model is qsa, name"),
        ("x", "block4", "plan --trace FILE", "one that selects blocks of 4 tokens (qsa)"),
        ("x", "block4", "sweep FILE --ratio 2", "x has no profile, from which costs follow: name"),
        ("x", "block8", "sweep FILE --ratio 2", "no profile selects blocks of 8 tokens"),
        ("glm-5.1", "block4", "sweep FILE --ratio 2", "and glm-5.1 selects tokens: name with"),
        ("Qwen QSA", "block4", "sweep FILE --model minimax-m3", "its own model is qsa"),
        ("x", "c4", "study FILE", "one that selects compressed groups of 4 tokens (deepseek-v4"),
    ],
)
def test_where_costs_of_blocks_are_not_known_the_way_out_is_said(
    model: str, unit: str, words: str, sentence: str, tmp_path: Path
) -> None:
    path = blocks(tmp_path / "b.parquet", model, unit)
    code, said = run(*(path if word == "FILE" else word for word in words.split()))
    assert code == 1
    assert sentence in said


def test_a_token_trace_says_which_models_take_it(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [drift()], metadata(model="GLM-5.2"))
    with pytest.raises(TraceError, match=r"its own model is glm-5\.2, name that with `model`"):
        hs.sweep(path, "lru", 16, model="qsa")


def test_a_study_of_blocks_has_their_context_in_tokens(tmp_path: Path) -> None:
    path = blocks(tmp_path / "b.parquet", "Qwen QSA")
    found = hs.study(path, "lru", 16, prefetchers=())
    said = " ".join(found.notes)
    assert "b: positions and slots are blocks of 4 tokens" in said
    mean = np.mean([open_trace(path).read_steps(part)[1] for part in open_trace(path).parts])
    assert f"requests of {4 * mean:,.0f} tokens" in said
    assert "from one layer of qsa that selects to the next" in said


def test_an_interval_without_misses_is_none_and_no_warning() -> None:
    """Resamples of layers without misses have no ratio, or an infinite one."""
    weights = np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]])
    with np.errstate(all="raise"):
        found = interval_of_ratio(weights, np.array([1, 3]), np.array([0, 0]))
    assert np.isnan(found.low) or np.isinf(found.low)


@pytest.mark.parametrize(
    ("model", "unit", "layers", "top_k", "prompt_len", "stands_in"),
    [
        (
            "glm-5.2",
            "token",
            78,
            2048,
            5000,
            "GLM-5.1, whose locality stands in for that of glm-5.2",
        ),
        ("minimax-m3", "block128", 57, 16, 39, "blocks of 4 tokens for blocks of 128 tokens"),
        (
            "deepseek-v4",
            "c4",
            21,
            512,
            1250,
            "Qwen QSA, whose locality stands in for that of deepseek",
        ),
    ],
)
def test_a_model_without_figures_gets_the_locality_of_another_and_the_file_says_so(
    model: str, unit: str, layers: int, top_k: int, prompt_len: int, stands_in: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.parquet"
    words = ["--context", 5000, "--steps", 20, "--layer", "0-2", "-o", path]
    code, said = run("trace", "synth", "--like", model, *words)
    assert code == 0, said
    trace = open_trace(path)
    about = trace.metadata
    assert (about.unit, about.num_layers, about.top_k) == (unit, layers, top_k)
    assert set(about.prompt_len.values()) == {prompt_len}
    assert stands_in in about.notes["fit_holds"]
    notes = Scenario(trace=path).resolve(None, get_policy("lru")).notes
    assert notes[0].endswith(f"; its fit is {about.notes['fit_holds']}")
    priced, note = model_of([trace])
    assert priced.name == load_model(model).name
    assert note == ""
    assert run("trace", "validate", path)[0] == 0


def test_glm_5_2_shares_its_index_in_a_synthetic_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    words = ["--context", 5000, "--steps", 20, "--layer", "0-9", "-o", path, "--like", "glm-5.2"]
    assert run("trace", "synth", *words)[0] == 0
    trace = open_trace(path)
    assert trace.layers == (0, 1, 2, 6)
    assert trace.metadata.layer_types == load_model("glm-5.2").layer_types


def test_a_model_with_figures_is_its_profile() -> None:
    assert profile_like(load_model("glm-5.1")) is get_profile("glm-5.1")
    assert profile_like(load_model("qsa")) is get_profile("qsa")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "--profile glm-5.2",
            "glm-5.1 stands in for it in plans, and `hisparse-sim trace synth --like",
        ),
        ("--profile minimax-m3", "no figures of the locality of minimax-m3 are known"),
        ("--profile x", "unknown profile 'x'; known are glm-5.1"),
        ("--like x", "unknown model 'x'; known: deepseek-v3.2"),
        ("--like glm-5.2 --profile qsa", "glm-5.2 selects tokens, and the figures of qsa are of"),
        ("--like glm-5.2 --shape cyclic", "--like belongs to a profile, not to --shape"),
        ("--profile glm-5.1 --profiles mine.toml", "--profiles belongs to --like"),
        ("", "choose one of --profile, --fit and --shape, or --like alone"),
    ],
)
def test_profiles_that_there_are_not(words: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    code, said = run("trace", "synth", *words.split(), "-o", path)
    assert code in (1, 2)
    assert sentence in said
    assert not path.exists()


@pytest.mark.parametrize("command", ["sweep", "mrc", "budget", "trace info --full"])
def test_tables_say_that_they_count_blocks(command: str, tmp_path: Path) -> None:
    path = blocks(tmp_path / "b.parquet", "Qwen QSA")
    sized = ["--buffer", 16] if command in ("sweep", "budget") else []
    code, said = run(*command.split(), path, *sized)
    assert code == 0, said
    assert re.search("Positions (and slots )?are blocks of 4 tokens", said)
    tokens = write(tmp_path / "t.parquet", [drift()], metadata())
    assert "are blocks of" not in run(*command.split(), tokens, *sized)[1]


def test_both_views_of_a_trace_measure_the_overlap_of_first_queries(drafts: Path) -> None:
    described = describe(open_trace(drafts)).table().set_index("layer")["overlap"]
    full = locality([open_trace(drafts)])
    full = full[(full["measure"] == "overlap") & (full["at"] == 1)].set_index("layer")["value"]
    for layer in (0, 1):
        assert described[layer] == pytest.approx(full[layer])
    assert "too, of first queries" in run("trace", "info", drafts)[1]


def test_columns_of_a_block_trace_count_blocks(tmp_path: Path) -> None:
    path = blocks(tmp_path / "b.parquet", "Qwen QSA")
    assert "first 4, last 256: so many blocks of 4 tokens" in run("trace", "info", path)[1]
    assert "so many" not in run("trace", "info")[1]


@pytest.mark.parametrize("model", ["--like minimax-m3", "--profile qsa"])
def test_drafts_of_blocks_are_refused_as_serve_does(model: str, tmp_path: Path) -> None:
    size = ("--draft-tokens", 4, "--layer", 0, "-o", tmp_path / "x.parquet")
    code, said = run("trace", "synth", *model.split(), *size)
    assert code == 2
    assert "drafts are modelled for single tokens, not for" in said
    assert not (tmp_path / "x.parquet").exists()


def test_a_miss_curve_of_blocks_names_the_way_out(tmp_path: Path) -> None:
    path, rows = blocks(tmp_path / "b.parquet", "Qwen QSA"), tmp_path / "rows.csv"
    assert run("sweep", path, "--buffer", 16, "-o", rows)[0] == 0
    code, said = run("serve", "--miss-curve", rows)
    assert code == 1
    assert "selects single tokens: name with --model the one that was swept" in said


ALL_ACCEPTED = "all 3 queries of a step are taken as accepted"


@pytest.mark.parametrize("command", ["sweep", "curve", "trace synth"])
def test_it_is_said_that_all_drafts_are_taken_as_accepted(
    command: str, tmp_path: Path, drafts: Path
) -> None:
    plain = write(tmp_path / "t.parquet", [drift(steps=60)], metadata())
    if command == "trace synth":
        words = ["--profile", "glm-5.1", "--context", 300, "--steps", 9, "--top-k", 16]
        words += ["--layer", 3, "-o", tmp_path / "x.parquet", "--force"]
    else:
        words = [plain, "--buffer", 64, "--format", "csv"]
        words += ["--window", 5] * (command == "curve")
    given = [*command.split(), *words, "--draft-tokens", 3]
    code, said = run(*given)
    assert code == 0, said
    assert f"{ALL_ACCEPTED}, the most that can be" in said
    assert "give --acceptance-length" in said
    assert ALL_ACCEPTED not in run(*given, "--acceptance-length", 2)[1]
    if command != "trace synth":  # the trace says it
        assert ALL_ACCEPTED not in run(command, drafts, *words[1:])[1]


def test_a_plain_trace_beside_one_with_drafts(tmp_path: Path, drafts: Path) -> None:
    plain = write(tmp_path / "plain.parquet", [drift(steps=40)], metadata())
    code, said = run("sweep", plain, drafts, "--buffer", 32, "--policy", "lru")
    assert code == 0, said
    assert "Rules of sglang; sglang, 3 draft tokens" in said
    assert "nan" not in said


def test_a_report_of_buffers_that_miss_nothing(tmp_path: Path, drafts: Path) -> None:
    """No policy can miss fewer than none: it was divided by that."""
    pytest.importorskip("vl_convert")
    rows, page = tmp_path / "rows.csv", tmp_path / "page.html"
    code, said = run("sweep", drafts, "--buffer", 512, "-o", rows)
    assert code == 0, said
    assert (pd.read_csv(rows)["misses"] == 0).all()
    code, said = run("report", rows, "-o", page)
    assert code == 0, said
    assert "misses 0.0 a step with 512 slots, no more than" in page.read_text()
