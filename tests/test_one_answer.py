"""Plan, serve and sweep answer one question alike, and say what they assume."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from make_traces import drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.policies import get_policy
from hisparse_sim.simulator.mrc.facts import write_facts
from hisparse_sim.simulator.replay.modes import mode_of
from hisparse_sim.simulator.serving.misses import layer_misses, read_miss_curve
from hisparse_sim.simulator.serving.replay_modes import mode_notes
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.simulator.serving.scenario_misses import UNWEIGHTED, WEIGHTED
from hisparse_sim.simulator.views.report import read_results
from hisparse_sim.simulator.views.report.redo import command as redo

SAMPLE = hs.sample_path()
SMALL: dict[str, Any] = {"prompt": 16_384, "output_len": 256, "requests": 32}
DRAFTS: dict[str, Any] = {"draft_tokens": 4, "acceptance_length": 2.7}


def run(words: str) -> str:
    """Return what a command that succeeds says, on one line."""
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_plan_and_serve_say_how_misses_become_those_of_the_load() -> None:
    replayed = layer_misses(None, "lru", 4096)
    planned = hs.plan(trace=SAMPLE, concurrency=32, buffers=4096, ratios=2, **SMALL)
    rate = planned.candidates["miss_rate"].iloc[0]
    said = (
        "misses leave out the first 16 steps of a request, and are scaled from the 33,024 tokens"
        " (mean) of the trace to the 16,512 of the load by the share of tokens outside the buffer:"
        f" at B 4,096 from {100 * replayed.rate:.1f} to {100 * rate:.1f} %"
    )
    assert rate < replayed.rate
    assert said in planned.document()["assumptions"]
    served = hs.serve(trace=SAMPLE, concurrencies=32, buffer=4096, ratio=2, **SMALL)
    assert said in served.notes
    assert "scaled" not in str(hs.serve(trace=SAMPLE, modes="baseline", **SMALL).notes)
    assert "scaled" not in str(hs.serve(concurrencies=32, **SMALL).notes)
    load = f"--trace {SAMPLE} --prompt 16k --output-len 256 --concurrency 32"
    checked = run(f"plan --config {{}} {load}")
    assert "note: misses from sample" in checked
    assert said in checked


@pytest.mark.parametrize(
    "words", ["plan --buffer 64 --ratio 4", "serve --buffer 64 --ratio 4", "plan --config {}"]
)
def test_notes_are_in_terms_of_the_command(words: str) -> None:
    load = "--model minimax-m3 --prompt 16k --output-len 256 --concurrency 16 --quiet"
    done = CliRunner().invoke(cli, f"{words} {load}".replace("{}", '{"top_k":16}').split())
    said = " ".join(done.output.split())
    assert "as if they were of 4: give a --trace" in said
    assert "`" not in said


def test_an_ordinary_trace_is_regrouped_for_drafts_as_by_sweep() -> None:
    swept = hs.sweep(
        SAMPLE, "epoch-clock", 4096, layers=[4, 24], compare_min=False, per_layer=True, **DRAFTS
    ).rows
    found = layer_misses(SAMPLE, "lru", 4096, warm_up_steps=0, **DRAFTS)
    assert [found.per_layer[0], found.per_layer[4]] == pytest.approx(swept["misses_per_step"])
    planned = Scenario(trace=SAMPLE, **DRAFTS).resolve("hisparse", get_policy("lru"))
    assert planned.misses_of("lru", 4096).policy == "epoch-clock"
    assert "drafts and epoch-clock, the engine's policy for them" in planned.notes[0]
    speculation = planned.setting.speculation
    assert speculation is not None
    assert speculation.misses_times == 1
    # 2.75 times those of a row: four would be as many as four steps have.
    assert found.mean / layer_misses(SAMPLE, "lru", 4096, warm_up_steps=0).mean < 3


@pytest.mark.parametrize(
    ("more", "times", "sentence"),
    [
        ({"trace": SAMPLE, "union_misses": 2.5}, 2.5, "2.5 times those of a row, as stated"),
        ({"union_misses": 2.5}, 2.5, "2.5 times those of a row, as stated"),
        ({"miss_curve": "curve.csv"}, 4, "as many as 4 steps have one after the other"),
        ({}, 1, "misses of their union as replayed"),
    ],
)
def test_misses_of_a_union_are_stated_or_replayed(
    more: dict[str, Any], times: float, sentence: str, tmp_path: Path
) -> None:
    if "miss_curve" in more:
        more = {"miss_curve": tmp_path / "curve.csv"}
        more["miss_curve"].write_text("buffer,miss_rate\n4096,0.1\n")
    speculation = Scenario(**more, **DRAFTS).resolve(None, get_policy("lru")).setting.speculation
    assert speculation is not None
    assert speculation.misses_times == times
    assert str(speculation).endswith(sentence)


def test_headers_name_the_policy_of_drafts() -> None:
    load = "--prompt 16k --output-len 256 --requests 16 --concurrency 16 --mode hisparse"
    drafts = "--draft-tokens 4 --acceptance-length 2.7"
    assert "ratio 4, epoch-clock mode" in run(f"serve --trace {SAMPLE} {load} {drafts}")
    assert "ratio 4, lru mode" in run(f"serve {load} {drafts} --union-misses 2")


@pytest.mark.parametrize(
    ("engine", "drafts", "mode"),
    [
        ("sglang-0.5.23", {}, "prefetch"),
        ("sglang-0.5.17", {}, "hisparse"),
        ("sglang-0.5.23", DRAFTS, "hisparse"),
    ],
)
def test_the_mode_is_the_engines(engine: str, drafts: dict[str, Any], mode: str) -> None:
    asked: dict[str, Any] = {"model": "glm-5.2", "engine": engine, **drafts, **SMALL}
    planned = hs.plan(concurrency=16, buffers=4096, ratios=4, **asked)
    assert planned.setting.mode == mode
    served = hs.serve(concurrencies=16, **asked)
    assert served.rows["mode"].tolist() == ["baseline", mode, "zero-cost"]
    ahead = [note for note in planned.notes if "copies ahead" in note]
    assert len(ahead) == (mode == "prefetch")
    assert all(note.endswith("share an index: the mode prefetch") for note in ahead)
    assert hs.serve(**SMALL, concurrencies=16).rows["mode"].iloc[1] == "hisparse"  # glm-5.1


@pytest.mark.parametrize(("asked", "model"), [(None, "glm-5.2"), ("glm-5.1", "glm-5.1")])
def test_the_model_is_that_of_the_trace(asked: str | None, model: str, tmp_path: Path) -> None:
    trace = write(tmp_path / "t.parquet", [drift(steps=40)], metadata(model="GLM-5.2"))
    found = Scenario(trace=trace, model=asked).resolve(None, get_policy("lru"))
    assert found.setting.deployment.model.name == model
    unknown = write(tmp_path / "u.parquet", [drift(steps=40)], metadata(model="mine"))
    found = Scenario(trace=unknown).resolve(None, get_policy("lru"))
    assert found.setting.deployment.model.name == "glm-5.1"
    assert "not from glm-5.1" in found.notes[0]


def test_whole_pages_are_of_tokens(tmp_path: Path) -> None:
    blocks = write(tmp_path / "b.parquet", [drift()], metadata(unit="block128", model="minimax-m3"))
    assert "not a multiple" not in str(hs.sweep(blocks, "lru", [16, 32]).notes)
    assert "not a multiple" not in str(hs.curve(blocks, buffers=[16, 32], window=5).swept.notes)
    tokens = write(tmp_path / "t.parquet", [drift()], metadata(model="x"))
    assert "buffer 16 is not a multiple of 64" in str(hs.sweep(tokens, "lru", [16, 64]).notes)
    four = write(tmp_path / "f.parquet", [drift()], metadata(unit="block4", model="qsa"))
    notes = str(hs.sweep(four, "lru", [16, 20]).notes)
    assert "buffer 20 is" in notes
    assert "buffer 16 is" not in notes


def test_flags_say_that_no_release_keeps_a_share() -> None:
    load = "plan --concurrency 256 --prompt 32k --output-len 1024 --buffer 4096 --ratio 3"
    said = run(f"{load} --resident-tokens 4096")
    assert "4,096 resident tokens (no release keeps them)" in said
    assert "Flags, of the same buffer and ratio without resident tokens: --tp-size" in said
    assert "Flags: --tp-size" in run(load)


def test_the_note_on_min_says_from_which_size_it_is_compared() -> None:
    trace = hs.open_trace(SAMPLE)
    notes = mode_notes([trace], "sglang-0.5.23", [4096], mode_of([trace], **DRAFTS), True)
    assert notes[-1].endswith("may not hold what a step selects; from 8,192 slots on it does")
    assert "from" not in str(
        mode_notes([trace], "sglang-0.5.23", [8192], mode_of([trace], **DRAFTS), True)[1:]
    )


def test_what_is_on_the_gpu_is_called_the_hot_buffer() -> None:
    said = run("sweep --policy lru --buffer 4096 --ratio 8 --no-min --layer 4")
    assert "of a request: hot buffer 356.5 MiB on the GPU, KV 2.79 GiB on the host" in said


def sharing(path: Path) -> Path:
    """A trace of layers 0 and 3; 1 and 2 repeat 0, and misses of both differ."""
    parts = [drift(steps=40, first_seq_len=60, layer=layer) for layer in (0, 3)]
    types = ("full", "shared", "shared", "full")
    return write(path, parts, metadata(model="glm-5.2", layer_types=types))


def test_a_trace_and_its_miss_curve_have_the_same_misses(tmp_path: Path) -> None:
    trace = sharing(tmp_path / "t.parquet")
    replayed = layer_misses(trace, "lru", 16, warm_up_steps=0)
    for per_layer in (False, True):
        rows = hs.sweep(trace, ["lru", "belady"], [16, 32], ratios=2, per_layer=per_layer).rows
        rows.to_csv(tmp_path / "curve.csv")
        curve = read_miss_curve(tmp_path / "curve.csv", "lru", 100, 8)
        assert curve("lru", 16).rate == pytest.approx(replayed.rate)
    plain = rows[(rows["policy"] == "lru") & (rows["buffer"] == 16)]
    assert plain["misses"].sum() / plain["accesses"].sum() != pytest.approx(replayed.rate)


def test_it_is_said_that_layers_are_weighted_or_not(tmp_path: Path) -> None:
    def notes(**given: Any) -> tuple[str, ...]:
        return Scenario(**given).resolve(None, get_policy("lru")).notes

    trace, curve, facts = (tmp_path / name for name in ("t.parquet", "c.csv", "facts.parquet"))
    sharing(trace)
    hs.sweep(trace, "lru", 16).rows.to_csv(curve)
    assert WEIGHTED in notes(trace=trace)
    assert WEIGHTED in notes(miss_curve=curve, model="glm-5.2")
    assert f"misses from {curve}, of t (synthetic), taken" in notes(miss_curve=curve)[0]
    write_facts(hs.mrc(trace, "lru", window=5), facts)
    for given in ({"trace": facts}, {"miss_curve": facts, "model": "glm-5.2"}):
        assert UNWEIGHTED in notes(**given)
        assert WEIGHTED not in notes(**given)
    curve.write_text("buffer,miss_rate\n4096,0.1\n")
    found = notes(miss_curve=curve, model="glm-5.1")
    assert found == (f"misses from {curve}, taken to be at the lengths of the load",)
    assert not {WEIGHTED, UNWEIGHTED} & set(notes(trace=SAMPLE))


def test_results_record_the_policy_of_drafts(tmp_path: Path) -> None:
    load = "--prompt 16k --output-len 256 --requests 16 --concurrency 16 --policy lru"
    drafts = f"--trace {SAMPLE} --draft-tokens 4 --acceptance-length 2.7"
    for command, more in (("serve", "--mode hisparse"), ("plan", "--buffer 4096 --ratio 4")):
        for asked, policy in ((f"{drafts}", "epoch-clock"), ("", "lru")):
            file = tmp_path / f"{command}-{policy}.csv"
            said = run(f"{command} {load} {more} {asked} -o {file}")
            assert ("in place of lru" in said) == (policy != "lru")
            (found,) = read_results([file])
            assert found.parameters["policy"] == policy
            # No option names the engine's policy for drafts: a command with it would be refused.
            assert ("--policy" in redo(found)) == (policy == "lru")
