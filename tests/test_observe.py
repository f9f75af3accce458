"""Counters of vLLM: read from a real Prometheus server, and from text; compared and fitted."""

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from make_traces import drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.cli import cli
from hisparse_sim.gpu_replay.engine.metrics import Metrics
from hisparse_sim.simulator.serving import counters, fitting, observing
from hisparse_sim.simulator.serving.counters import Observed, Reading
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.traces import TraceError, open_trace
from hisparse_sim.traces.drafts import drafted
from hisparse_sim.traces.synth.fitted import read_fit
from hisparse_sim.traces.synth.generated import GeneratedTrace, alike_layers
from hisparse_sim.traces.synth.generator import get_profile, reshaped

prometheus = pytest.importorskip("prometheus_client")


class Vllm:
    """The metrics of vLLM 0.33 by their names, labels and types, in a registry of their own."""

    def __init__(self, model: str = "glm", engines: tuple[str, ...] = ("0", "1")) -> None:
        self.registry = prometheus.CollectorRegistry()
        labels = ["model_name", "engine"]
        names = ("hisparse_cache_hits", "hisparse_cache_misses", "hisparse_host_to_device_bytes")
        names += ("generation_tokens", "spec_decode_num_drafts", "spec_decode_num_draft_tokens")
        names += ("spec_decode_num_accepted_tokens", "prompt_tokens")
        self.counters = {
            name: prometheus.Counter(f"vllm:{name}", "", labels, registry=self.registry)
            for name in names
        }
        self.usage = prometheus.Gauge(
            "vllm:hisparse_host_cache_usage_perc", "", labels, registry=self.registry
        )
        self.lifetime = prometheus.Histogram(
            "vllm:hisparse_host_block_lifetime_seconds",
            "",
            labels,
            buckets=(1, 10, 100),
            registry=self.registry,
        )
        self.model, self.engines = model, engines

    def count(self, **counts: float) -> None:
        for engine in self.engines:
            for name, value in counts.items():
                self.counters[name].labels(self.model, engine).inc(value)

    def text(self) -> str:
        return prometheus.generate_latest(self.registry).decode()


LOAD = {
    "hisparse_cache_hits": 900,
    "hisparse_cache_misses": 100,
    "hisparse_host_to_device_bytes": 65_600,
    "generation_tokens": 50,
    "spec_decode_num_drafts": 20,
    "spec_decode_num_draft_tokens": 60,
    "spec_decode_num_accepted_tokens": 30,
}


@pytest.fixture
def server() -> Iterator[tuple[Vllm, str]]:
    vllm = Vllm()
    httpd, thread = prometheus.start_http_server(0, "127.0.0.1", vllm.registry)
    try:
        yield vllm, f"http://127.0.0.1:{httpd.server_port}/metrics"
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


def test_a_server_is_read_as_it_counts(server: tuple[Vllm, str]) -> None:
    vllm, address = server
    vllm.count(**LOAD)
    for engine, usage in (("0", 0.5), ("1", 0.7)):
        vllm.usage.labels("glm", engine).set(usage)
        vllm.lifetime.labels("glm", engine).observe(4)
    first = counters.read(address)
    assert first.model_name == "glm"
    assert first.engines == 2
    vllm.count(**LOAD)
    vllm.count(hisparse_cache_misses=100)
    vllm.lifetime.labels("glm", "1").observe(20)
    found = counters.between(first, counters.read(address), 5.0)
    assert first.total("hits") == 2 * 900
    assert found.counts["hits"] == 2 * 900
    assert found.counts["misses"] == 2 * 200
    assert found.counts["bytes"] == 2 * 65_600
    assert found.hit_rate == 1800 / 2200
    assert found.queries == 4  # three drafts a step, and the token that is verified anyway
    assert found.accepted_per_step == 2.5
    assert found.gauges == {"host_cache_usage": pytest.approx(0.6)}
    assert found.means_s == {"host_block_lifetime_s": 20.0}


def test_a_window_of_an_address(server: tuple[Vllm, str], monkeypatch: pytest.MonkeyPatch) -> None:
    vllm, address = server
    vllm.count(**LOAD)
    monkeypatch.setattr(counters.time, "sleep", lambda seconds: vllm.count(**LOAD))
    found = counters.observe(address, 300)
    assert found.counts["hits"] == 1800
    assert found.window_s is not None
    monkeypatch.setattr(counters.time, "sleep", lambda seconds: None)
    with pytest.raises(TraceError, match="no hit and no miss: vLLM copies its"):
        counters.observe(address, 1)


def test_nobody_answers() -> None:
    for address in ("http://127.0.0.1:9/metrics", "HTTP://127.0.0.1:9/metrics"):
        with pytest.raises(TraceError, match=r"cannot be read .* is the server running"):
            counters.read(address)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no hisparse_cache_hits_total"),
        (
            "sglang:token_usage 0.5\n",
            "SGLang has these counters under `hisparse-sim engine",
        ),
        ("<html>\n", "is not the text of a Prometheus endpoint|has no hisparse"),
        ('vllm:hisparse_cache_hits_total{model_name="a" 5\n', "is not the text of a Prometheus"),
        ('vllm:hisparse_cache_hits_total{model_name="a"} NaN\n', "which is no count"),
        ('vllm:hisparse_cache_hits_total{model_name="a"} -1\n', "which is no count"),
        (
            'vllm:hisparse_cache_hits_total{model_name="a"} 1\n'
            'vllm:hisparse_cache_hits_total{model_name="b"} 1\n',
            "counts a, b: choose one with `model_name`",
        ),
        ("vllm:hisparse_cache_hits_total 1\n", "has no vllm:hisparse_cache_misses_total"),
        ("vllm:hisparse_cache_misses_total 1\n", "has no vllm:hisparse_cache_hits_total"),
        ("vllm:hisparse_cache_hits_total 1e308\n", "which is no count"),
        (
            'vllm:hisparse_cache_hits_total{engine="1"} 1\n' * 2,
            r"has vllm:hisparse_cache_hits_total \(engine 1\) twice",
        ),
        (
            "vllm:hisparse_cache_hits_total 1\nsglang:hisparse_cache_hits_total 1\n",
            "counts for vLLM and SGLang",
        ),
    ],
)
def test_text_that_says_nothing(text: str, sentence: str) -> None:
    with pytest.raises(TraceError, match=sentence):
        counters.parse(text, "saved.txt")


@pytest.mark.parametrize(
    "content", ["vllm:a 1\n".encode("utf-16"), gzip.compress(b"vllm:a 1\n", mtime=0)]
)
def test_files_that_are_no_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "saved").write_bytes(content)
    with pytest.raises(TraceError, match=r"byte [01] is not UTF-8; is it compressed\?"):
        counters.read(str(tmp_path / "saved"))


def test_one_of_several_models() -> None:
    text = Vllm("a").text()  # nothing counted: no series yet
    with pytest.raises(TraceError, match="has no hisparse_cache_hits_total"):
        counters.parse(text, "saved.txt")
    both = [Vllm("a"), Vllm("b", ("0",))]
    for number, each in enumerate(both, 1):
        each.count(hisparse_cache_hits=number, hisparse_cache_misses=1)
    text = "".join(each.text() for each in both)
    assert counters.parse(text, "saved.txt", "b").total("hits") == 2
    assert counters.parse(text, "saved.txt", "a").total("hits") == 2  # two engines


def test_what_is_not_counted_may_be_anything() -> None:
    """An endpoint shows other things, too: of models without HiSparse, quantiles of nothing."""
    text = (
        'http_seconds{quantile="0.5"} NaN\nvllm:offset -1\nvllm:generation_tokens_total'
        '{model_name="other"} 5\nvllm:hisparse_cache_hits_total{model_name="a"} 3\n'
        'vllm:hisparse_cache_misses_total{model_name="a"} 1\n'
    )
    found = counters.parse(text, "saved.txt")
    assert (found.model_name, found.total("hits"), found.engines) == ("a", 3, 1)
    window = counters.between(None, found)
    assert "bytes" not in window.counts  # which is not the same as none
    rows = observing.compared(window, None, observing.Setting()).set_index("quantity")
    assert rows.loc["bytes per miss"].isna()["measured"]


def reading(*engines: tuple[float, float], source: str = "r", **more: Any) -> Reading:
    """A reading of (hits, misses) of each engine."""
    series = [(("engine", str(number)),) for number in range(len(engines))]
    counted = {
        name: {labels: values[place] for labels, values in zip(series, engines, strict=True)}
        for place, name in enumerate(("hits", "misses"))
    }
    return Reading(
        source, "vllm", more.pop("model", "a"), counted | more.pop("counters", {}), **more
    )


def test_readings_in_the_wrong_order() -> None:
    with pytest.raises(TraceError, match="wrong order, or the server was started anew"):
        counters.between(reading((5, 1)), reading((4, 1)))
    with pytest.raises(TraceError, match="count different models"):
        counters.between(reading((5, 1)), reading((6, 1), model="b"))
    assert counters.between(None, reading((3, 1))).hit_rate == 0.75


def test_one_engine_of_two_that_was_started_anew() -> None:
    """The sum over both grows, so that only the engine's own series tells."""
    first = reading((1000, 100), (1000, 100))
    with pytest.raises(TraceError, match=r"fewer hits \(engine 1\)"):
        counters.between(first, reading((9000, 900), (10, 100)))
    with pytest.raises(TraceError, match=r"no hits \(engine 1\), which r has"):
        counters.between(first, reading((9000, 900)))
    grown = counters.between(first, reading((1010, 101), (1020, 102), (30, 3)))
    assert (grown.counts, grown.engines) == ({"hits": 60, "misses": 6}, 3)


def test_a_server_that_was_started_anew_and_counts_more() -> None:
    started = {"hits": {(("engine", "0"),): 100.0}}
    later = {"hits": {(("engine", "0"),): 200.0}}
    first = reading((5, 1), started=started)
    with pytest.raises(TraceError, match="was started anew after r"):
        counters.between(first, reading((9, 2), started=later))
    assert counters.between(first, reading((9, 2), started=started)).counts["hits"] == 4


def test_drafts_that_cannot_be() -> None:
    drafts = {"drafts": {(): 10.0}, "draft_tokens": {(): 30.0}, "accepted_drafts": {(): 31.0}}
    with pytest.raises(TraceError, match="30 draft tokens in 10 steps, 31 of them accepted"):
        counters.between(None, reading((1, 1), counters=drafts))
    drafts["draft_tokens"] = {(): 10_000.0}
    with pytest.raises(TraceError, match="10,000 draft tokens in 10 steps"):
        counters.between(None, reading((1, 1), counters=drafts))


# --- beside a simulation -------------------------------------------------------------------------


def counted_from(found: observing.Simulated, tokens: int = 1000) -> dict[str, float]:
    misses = found.misses_per_token * (found.counting_layers or 1) * tokens
    hits = misses / (1 - found.hit_rate) - misses
    return {"hits": hits, "misses": misses, "bytes": misses * 1152, "generated_tokens": tokens}


def test_counters_of_the_same_replay_agree(tmp_path: Path) -> None:
    """What a server would count that ran this trace comes out as the simulation has it."""
    parts = [drift(steps=80, layer=layer, first_seq_len=400) for layer in range(4)]
    trace = open_trace(write(tmp_path / "t.parquet", parts, metadata()))
    setting = observing.Setting(buffer=64)
    nothing = Observed("m", 1, {"hits": 1, "misses": 1}, {}, {})
    found = observing.simulated(nothing, trace, setting)
    assert (found.counting_layers, found.layers) == (4, 4)
    observed = Observed("m", 1, counted_from(found), {}, {})
    rows = observing.compared(observed, found, setting).set_index("quantity")
    for name in ("hit rate", "misses per generated token"):
        assert rows.loc[name, "measured"] == pytest.approx(rows.loc[name, "simulated"])
    assert rows.loc["bytes per miss", "measured"] == pytest.approx(1152)
    assert rows["comparable"].str.len().gt(5).all()


def test_sglang_counts_by_layer_and_rank(tmp_path: Path) -> None:
    """As the plugin counts: the model's name is on other series of the engine only."""
    registry = prometheus.CollectorRegistry()
    tokens = prometheus.Counter(
        "sglang:generation_tokens", "", ["model_name", "engine_type"], registry=registry
    )
    tokens.labels("glm", "unified").inc(50)
    metrics = Metrics(0, registry)
    metrics.show([{"layer": n, "accesses": 500, "misses": 40 + n, "bytes": 656} for n in range(2)])
    found = counters.parse(prometheus.generate_latest(registry).decode(), "text")
    assert (found.server, found.model_name) == ("sglang", "glm")
    assert found.total("hits") == 460 + 459
    assert counters.between(None, found).counts["misses"] == 81
    assert found.total("generated_tokens") == 50


def test_sglang_s_counters_stand_beside_its_lru(tmp_path: Path) -> None:
    """A recording has shared layers once; the engine counts each of them."""
    parts = [drift(steps=80, layer=layer, first_seq_len=400) for layer in (0, 3)]
    types = ("full", "shared", "shared", "full")
    trace = open_trace(
        write(tmp_path / "t.parquet", parts, metadata(num_layers=4, layer_types=types))
    )
    nothing = Observed("m", 1, {"hits": 1, "misses": 1, "bytes": 1}, {}, {}, server="sglang")
    found = observing.simulated(nothing, trace, observing.Setting())
    assert (found.buffer, found.counting_layers) == (2 * 8, 4)
    each = hs.replay(trace, "lru", 16).misses.reshape(2, 80).sum(1)
    assert found.misses_per_token == pytest.approx((3 * each[0] + each[1]) / (4 * 80))
    rows = observing.compared(nothing, found, observing.Setting())
    assert not rows["quantity"].str.contains("resident").any()


def test_sglang_s_policy_for_drafts_is_the_one_that_is_replayed(tmp_path: Path) -> None:
    """Where a buffer is smaller than what a step selects, LRU would be refused, too."""
    path = tmp_path / "t.parquet"
    size = ("--context", 600, "--steps", 40, "--top-k", 64, "--draft-tokens", 4, "--layer", 3)
    assert run("trace", "synth", "--profile", "glm-5.1", *size, "-o", path).exit_code == 0
    nothing = Observed("m", 1, {"hits": 1, "misses": 1}, {}, {}, server="sglang")
    for buffer in (128, 256):
        found = observing.simulated(nothing, open_trace(path), observing.Setting(buffer))
        own = hs.sweep(path, "epoch-clock", buffer, draft_tokens=4, compare_min=False).rows
        assert found.policy == "epoch-clock"
        assert found.misses_per_token == pytest.approx(own["misses_per_token"].item())


def test_bytes_of_layers_that_share_an_index_are_those_of_sweep(tmp_path: Path) -> None:
    """What an anchor misses is copied for those that repeat it; a layer that repeats another and
    has rows is counted by no server."""
    parts = [
        drift(steps=60, layer=n, first_seq_len=400, seed=n, keep=(0.9, 0.5, 0.1)[n % 3])
        for n in (0, 1, 5)
    ]
    types = ("full", "full", "shared", "shared", "shared", "shared")
    trace = write(tmp_path / "t.parquet", parts, metadata(num_layers=6, layer_types=types))
    nothing = Observed("m", 1, {"hits": 1, "misses": 1, "generated_tokens": 1}, {}, {})
    setting = observing.Setting(buffer=64)
    found = observing.simulated(nothing, open_trace(trace), setting)
    words = {"engine": "vllm-0.33", "model": "glm-5.2"}
    swept = hs.sweep(trace, "lru", 64, compare_min=False, **words).rows
    rows = observing.compared(nothing, found, setting, load_model("glm-5.2"))
    rows = rows.set_index("quantity")["simulated"]
    bytes_ = rows["bytes per generated token"]
    assert bytes_ == pytest.approx(swept["bytes_per_step"].item())
    assert bytes_ == pytest.approx(rows["misses per generated token"] * rows["bytes per miss"])
    alone = hs.sweep(trace, "lru", 64, compare_min=False, layers=[0, 1], engine="vllm-0.33").rows
    assert found.misses_per_token == pytest.approx(alone["misses_per_step"].item())
    assert found.copies_per_token != pytest.approx(found.misses_per_token, rel=0.01)


def test_drafts_are_replayed_as_they_were_counted(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t.parquet", [drift(steps=60, first_seq_len=400)]))
    counts = {"hits": 1, "misses": 1, "drafts": 10, "draft_tokens": 20, "accepted_drafts": 5}
    observed = Observed("m", 1, counts, {}, {})
    assert (observed.queries, observed.accepted_per_step) == (3, 1.5)
    found = observing.simulated(observed, trace, observing.Setting())
    assert found.buffer == 4 * 8  # vLLM's default: three queries and one more top_k
    assert found.accepted_per_step == pytest.approx(1.5, abs=0.05)


def test_a_profile_is_fitted_to_a_hit_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_STEPS", 192)
    profile = reshaped(get_profile("glm-5.1"), prompt_len=2000, top_k=64, num_layers=6)
    setting = observing.Setting(buffer=192)
    twice = replace(profile, parameters=fitting._scaled(profile.parameters, 2.0))
    nothing = Observed("m", 1, {"hits": 1, "misses": 1}, {}, {})
    trace = GeneratedTrace(twice, 2000, 192, alike_layers(profile, 3))
    rate = observing.simulated(nothing, trace, setting).hit_rate
    observed = Observed("m", 1, {"hits": rate, "misses": 1 - rate}, {}, {})
    fit, found = fitting.fitted(observed, profile, setting)
    assert fit.reached
    assert 1 - found.hit_rate == pytest.approx(1 - rate, rel=0.02)
    assert fit.scale == pytest.approx(2.0, rel=0.05)
    assert fit.parameters.sinks == profile.parameters.sinks
    nowhere = Observed("m", 1, {"hits": 0.001, "misses": 0.999}, {}, {})
    assert not fitting.fitted(nowhere, profile, setting)[0].reached


def test_layers_of_a_fit_stand_for_as_many_each() -> None:
    """A file has no weights: the two early layers of deepseek-v3.2 are no group of their own."""
    assert alike_layers(get_profile("glm-5.1"), 3) == (30, 37, 44)
    assert len(alike_layers(get_profile("deepseek-v3.2"), 3)) == 3
    assert alike_layers(reshaped(get_profile("glm-5.1"), num_layers=2), 3) == (0, 1)


@pytest.mark.parametrize("drafts", [False, True])
def test_a_trace_of_a_fit_has_the_rate_that_was_fitted(
    drafts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had had other layers, steps and prompt than the replay to which the rate belonged."""
    monkeypatch.setattr(fitting, "_STEPS", 60)
    vllm = Vllm("glm-5.1", ("0",))
    counted = {name: LOAD[name] for name in LOAD if drafts or "spec" not in name}
    vllm.count(**counted | {"hisparse_cache_hits": 1900})
    (tmp_path / "m.txt").write_text(vllm.text())
    out, path = tmp_path / "observed.json", tmp_path / "x.parquet"
    words = ("--profile", "glm-5.1", "--context", 40_000, "--quiet", "-o", out)
    assert run("observe", tmp_path / "m.txt", *words).exit_code == 0
    fit = json.loads(out.read_text())["fit"]
    assert fit["hit_rate"] == pytest.approx(0.95, abs=0.05 * 0.02)
    done = run("trace", "synth", "--fit", out, "-o", path)
    assert done.exit_code == 0
    assert "other" not in done.output
    done = run("observe", tmp_path / "m.txt", "--trace", path, "--format", "json")
    rows = {row["quantity"]: row for row in json.loads(done.stdout)["comparison"]}
    assert rows["hit rate"]["simulated"] == fit["hit_rate"]
    assert rows["accepted tokens per step"]["simulated"] == pytest.approx(
        2.5 if drafts else 1, abs=0.02
    )
    told = " ".join(run("trace", "info", path).output.split())
    assert f"has a hit rate of {fit['hit_rate']:.1%} at {fit['buffer']:,} slots" in told
    assert "(counted: 95.0%)" in told
    assert "another rate" not in told

    for words in (("--layer", 3), ("--steps", 9), ("--context", 500), ("--like", "glm-5.2")):
        done = run("trace", "synth", "--fit", out, *words, "-o", path, "--force")
        assert done.exit_code == 0, done.output
        assert "so this file has another rate" in done.output
        told = " ".join(run("trace", "info", path).output.split())
        assert "(counted: 95.0%); fitted with other" in told
    assert "whose locality stands in for that of glm-5.2" in told


def test_a_fit_that_failed_and_its_resident_tokens_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "_STEPS", 40)
    vllm = Vllm("glm-5.1", ("0",))
    vllm.count(hisparse_cache_hits=1, hisparse_cache_misses=999, generation_tokens=50)
    (tmp_path / "m.txt").write_text(vllm.text())
    out, path = tmp_path / "observed.json", tmp_path / "x.parquet"
    words = ("--profile", "glm-5.1", "--context", 6000, "--resident-tokens", 1024, "-o", out)
    assert "no scale" in run("observe", tmp_path / "m.txt", *words).stderr
    assert json.loads(out.read_text())["fit"]["resident_tokens"] == 1024
    made = run("trace", "synth", "--fit", out, "-o", path)
    assert "the fit did not reach the rate of the server" in made.stderr
    assert open_trace(path).metadata.notes["fit"]["resident_tokens"] == 1024
    told = " ".join(run("trace", "info", path).output.split())
    assert "6,000 tokens, 1,024 of them resident (counted: 0.1%, which no scale reaches)" in told


def test_sglang_counts_no_drafts_and_names_another_model(tmp_path: Path) -> None:
    registry = prometheus.CollectorRegistry()
    tokens = prometheus.Counter("sglang:generation_tokens", "", ["model_name"], registry=registry)
    tokens.labels("zai-org/GLM-5.1-FP8").inc(50)
    metrics = Metrics(0, registry)
    metrics.show([{"layer": n, "accesses": 500, "misses": 40, "bytes": 656} for n in range(2)])
    (tmp_path / "m.txt").write_bytes(prometheus.generate_latest(registry))
    path = tmp_path / "t.parquet"
    demand = drafted(drift(steps=60, first_seq_len=400), 3, 2.0)
    write(path, [demand], metadata(draft_tokens=3, model="SmolLM2"))
    done = run("observe", tmp_path / "m.txt", "--trace", path, "--format", "json")
    rows = {row["quantity"]: row for row in json.loads(done.stdout)["comparison"]}
    row = rows["accepted tokens per step"]
    assert (row["measured"], row["simulated"]) == (None, pytest.approx(2.0))
    assert row["comparable"] == "SGLang does not count it"
    assert "the server runs glm-5.1, and what is replayed is of SmolLM2:" in done.stderr


def run(*words: Any) -> Any:
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_from_counters_to_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_STEPS", 40)
    vllm = Vllm()
    (tmp_path / "before.txt").write_text(Vllm().text() + _counted(vllm))
    (tmp_path / "after.txt").write_text(_counted(vllm))
    files = (tmp_path / "before.txt", tmp_path / "after.txt")
    shown = run("observe", *files)
    assert shown.exit_code == 0, shown.output
    assert "glm, 2 engines: 1,800 hits and 200 misses" in shown.output
    assert "hit rate" in shown.output
    out = tmp_path / "observed.json"
    options = ("--profile", "glm-5.1", "--context", 6000, "--buffer", 8192, "--quiet")
    done = run("observe", *files, *options, "-o", out)
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert found["observed"]["hit_rate"] == 0.9
    assert found["observed"]["queries"] == 4
    profile, layers, *drafts = read_fit(out)
    assert found["setting"]["buffer"] == found["fit"]["buffer"] == 8192
    assert profile.name == "glm-5.1, fitted"
    assert profile.parameters.noise == found["fit"]["parameters"]["noise"]
    assert profile.steps == 40
    assert profile.prompt_len + (40 * 2.5) // 2 == pytest.approx(6000, abs=2)
    assert layers == (30, 37, 44)
    assert drafts == [4, found["fit"]["acceptance_length"]]
    assert 1 < drafts[1] < 4
    path = tmp_path / "synth.parquet"
    size = ("--context", 300, "--steps", 4, "--top-k", 16, "--layer", 3, "--quiet")
    done = run("trace", "synth", "--fit", out, *size, "-o", path)
    assert done.exit_code == 0, done.output
    assert open_trace(path).metadata.draft_tokens == 4
    notes = open_trace(path).metadata.notes
    assert notes["profile"] == "glm-5.1, fitted"
    assert notes["fit"]["observed_hit_rate"] == 0.9


def _counted(vllm: Vllm) -> str:
    vllm.count(**LOAD)
    return vllm.text()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{}", "holds no fit: `hisparse-sim observe SOURCE --profile NAME -o FILE` writes one"),
        ('{"fit": {"profile": "x", "parameters": {}}}', "unknown profile 'x'"),
        ('{"fit": {"profile": "glm-5.1", "parameters": {"loud": 1}}}', "loud is no parameter"),
        ('{"fit": {"profile": "glm-5.1", "parameters": {"noise": "a"}}}', "noise is no parameter"),
        ('{"fit": {"profile": "glm-5.1"}}', "cannot be used"),
        (
            '{"fit": {"profile": "glm-5.1", "parameters": {}, "context": 9, "queries": 64,'
            ' "acceptance_length": 1}}',
            "queries is 64",
        ),
        (
            '{"fit": {"profile": "glm-5.1", "parameters": {}, "context": 9, "queries": 1,'
            ' "acceptance_length": 1}}',
            "('layers'): `hisparse-sim observe` writes one anew",
        ),
        (
            '{"fit": {"profile": "glm-5.1", "parameters": {}, "context": 9, "queries": 1,'
            ' "acceptance_length": 1, "prompt_len": 9, "steps": 9, "layers": [78]}}',
            "layers is [78]",
        ),
    ],
)
def test_files_without_a_usable_fit(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "observed.json"
    path.write_text(content)
    done = run("trace", "synth", "--fit", path, "-o", tmp_path / "t.parquet")
    assert done.exit_code == 1
    assert sentence in done.output


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("http://x/metrics", "later.txt"), "is read twice by itself"),
        (("a.txt", "--trace", "t", "--profile", "glm-5.1"), "choose --trace or --profile"),
        (("a.txt", "--buffer", 4096), "--buffer"),
        (("a.txt",), "a.txt"),
    ],
)
def test_commands_that_cannot_be(options: tuple[Any, ...], sentence: str) -> None:
    done = run("observe", *options)
    assert done.exit_code in (1, 2)
    assert sentence in done.output


def test_it_says_how_counts_were_scaled(tmp_path: Path) -> None:
    """Of a trace of another model only rates are comparable; counts are those of as many layers and
    ranks as the model that was served has."""
    vllm = Vllm("zai-org/GLM-5.2-FP8")
    vllm.count(**LOAD)
    (tmp_path / "m.txt").write_text(vllm.text())
    parts = [drift(steps=60, first_seq_len=400, layer=layer) for layer in range(2)]
    trace = write(tmp_path / "t.parquet", parts, metadata())

    def rows(*words: str) -> dict[str, dict[str, Any]]:
        given = ["observe", str(tmp_path / "m.txt"), "--trace", str(trace), "--format", "json"]
        done = CliRunner().invoke(cli, [*given, *words])
        assert done.exit_code == 0, done.output
        return {row["quantity"]: row for row in json.loads(done.stdout)["comparison"]}

    served = rows("--ranks", "8")
    other = rows("--ranks", "1", "--model", "glm-5.1")
    assert "however many layers" in served["hit rate"]["comparable"]
    assert "mean of 1 request and 2 layers of t (test)" in served["hit rate"]["comparable"]
    assert served["hit rate"]["simulated"] == other["hit rate"]["simulated"]
    name = "misses per generated token"
    assert "x 21 layers of glm-5.2 that count x 8 ranks" in served[name]["comparable"]
    assert "x 78 layers of glm-5.1 that count x 1 rank:" in other[name]["comparable"]
    assert served[name]["simulated"] / other[name]["simulated"] == pytest.approx(21 * 8 / 78)
    unknown = CliRunner().invoke(cli, ["observe", str(tmp_path / "m.txt"), "--model", "nope"])
    assert unknown.exit_code == 2
    assert "unknown model 'nope'" in unknown.output


def test_the_buffer_is_named_and_so_is_what_differs_from_the_server(tmp_path: Path) -> None:
    vllm = Vllm("zai-org/GLM-5.2-FP8")
    vllm.count(**{name: LOAD[name] for name in LOAD if "spec" not in name})
    (tmp_path / "m.txt").write_text(vllm.text())
    path = tmp_path / "t.parquet"
    size = ("--context", 600, "--steps", 9, "--top-k", 64, "--draft-tokens", 4, "--layer", 3)
    assert run("trace", "synth", "--profile", "glm-5.1", *size, "-o", path).exit_code == 0
    compare = ("observe", tmp_path / "m.txt", "--trace", path)
    done = run(*compare, "--format", "json")
    found = json.loads(done.stdout)
    (row,) = [row for row in found["comparison"] if row["quantity"] == "slots of a buffer"]
    assert found["setting"]["buffer"] == row["simulated"] == 5 * 64
    assert "vLLM's default for 4 queries a step, assumed" in row["comparable"]
    assert len(found["notes"]) == 2
    assert "the server runs glm-5.2, and what is replayed is of glm-5.1" in done.stderr
    assert "accepts 4 tokens of 4 queries a step, and the server 1 of 1" in done.stderr
    vllm.count(**{"spec_decode_num_drafts": 20, "spec_decode_num_draft_tokens": 60})
    (tmp_path / "m.txt").write_text(vllm.text())
    assert "4 queries a step, and the server 1 of 4" in run(*compare).stderr
    vllm.count(spec_decode_num_accepted_tokens=59)
    (tmp_path / "m.txt").write_text(vllm.text())
    assert "queries a step, and" not in run(*compare).stderr
    same = run(*compare, "--model", "glm-5.1", "--buffer", 320)
    assert "the server runs" not in same.stderr
    assert "as given; policy lru" in " ".join(same.stdout.split())


@pytest.mark.parametrize("fit", [None, {"profile": "glm-5.1"}])
def test_a_comparison_is_told_from_rows(fit: Any, tmp_path: Path) -> None:
    path = tmp_path / "observed.json"
    path.write_text(json.dumps({"observed": {}, "fit": fit}))
    for words in (("report", path), ("plan", "--miss-curve", path)):
        done = run(*words)
        assert done.exit_code == 1
        assert "holds counters of a server, as `observe` writes them" in done.output
        assert f"trace synth --fit {path}" in done.output
        assert ("observe --profile NAME" in done.output) == (fit is None)


def test_the_page_lists_the_counters_that_are_read() -> None:
    page = (Path(__file__).parents[1] / "docs" / "observe.md").read_text()
    table = page.split("## Counters that are read")[1].split("\n## ")[0]
    listed = set(re.findall(r"`([a-z][a-z_]+)`", table))
    assert listed == {*counters.COUNTERS, *counters.GAUGES, *counters.HISTOGRAMS}
