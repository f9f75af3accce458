"""The demand of a model where no trace is given: its profile at the context asked for."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from hisparse_sim.policies import get_policy
from hisparse_sim.simulator.serving.demand import demand_of, profile_of
from hisparse_sim.simulator.serving.misses import layer_misses
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.scenario import Scenario
from hisparse_sim.traces import sample_path
from hisparse_sim.traces.synth.generated import stand_ins
from hisparse_sim.traces.synth.generator import get_profile, layer_noise

GLM, V32 = load_model("glm-5.1"), load_model("deepseek-v3.2")


def test_published_misses_at_the_published_context() -> None:
    trace, note = demand_of(GLM, 100_384)
    rates = {size: layer_misses(trace, "lru", size).rate for size in (2048, 4096, 8192)}
    assert rates[2048] == pytest.approx(0.300, rel=0.03)
    assert rates[4096] == pytest.approx(0.134, rel=0.03)
    assert rates[8192] == pytest.approx(0.067, rel=0.05)
    assert note == (
        "misses from synthetic demand at 100,384 tokens, fitted to published figures of GLM-5.1 at"
        " 100,384"
    )


def test_a_longer_context_misses_more() -> None:
    rates = [
        layer_misses(demand_of(GLM, context).trace, "lru", 4096).rate
        for context in (8192, 32_768, 131_072)
    ]
    assert rates == sorted(rates)
    assert rates[0] < rates[2] / 3


def test_every_model_has_a_profile() -> None:
    assert profile_of(V32).name == "deepseek-v3.2"
    glm52 = load_model("glm-5.2")
    assert profile_of(glm52).name == "glm-5.1"
    assert demand_of(glm52, 32_768).note.endswith("the nearest to glm-5.2")


def test_layers_stand_for_all_of_the_model() -> None:
    for name, layers in (("glm-5.1", 78), ("deepseek-v3.2", 61)):
        profile = get_profile(name)
        found = stand_ins(profile, 12)
        assert sum(found.values()) == layers
        noise = [layer_noise(profile, layer) for layer in range(layers)]
        mean = sum(noise[layer] * count for layer, count in found.items()) / layers
        assert mean == pytest.approx(np.mean(noise), rel=0.02)
    assert stand_ins(get_profile("deepseek-v3.2"), 12)[0] == 2  # the early layers


def test_misses_are_weighted_by_the_layers_they_stand_for() -> None:
    found = layer_misses(demand_of(V32, 16_384).trace, "lru", 4096)
    assert found.weights is not None
    assert sum(found.weights) == 61
    assert found.per_layer[0] > 1.5 * max(found.per_layer[1:])  # an early layer
    mean = np.dot(found.per_layer, found.weights) / 61
    assert found.mean == pytest.approx(mean)
    assert found.times(0.5).mean == pytest.approx(mean / 2)


def test_the_trace_is_the_same_in_another_process() -> None:
    trace, _ = demand_of(GLM, 16_384)
    again = pickle.loads(pickle.dumps(trace))
    assert again.sha256 == trace.sha256 != demand_of(GLM, 16_385).trace.sha256
    assert again.name == "glm-5.1@16384"
    one, other = trace.read(trace.parts[1]), again.read(again.parts[1])
    assert np.array_equal(one.positions, other.positions)
    with pytest.raises(ValueError, match="positions only"):
        trace.read(trace.parts[0], ("scores",))


def test_where_the_context_fits_the_buffer() -> None:
    # Nothing is missed there; what grows beyond is priced by a longer context's misses.
    found = (
        Scenario(prompt=1000, output_len=200)
        .resolve("hisparse", get_policy("lru"))
        .misses_of("lru", 4096)
    )
    assert found.context == pytest.approx(8192, abs=1)


def test_a_trace_of_ones_own_is_taken_and_said() -> None:
    found = Scenario(trace=sample_path()).resolve("hisparse", get_policy("lru"))
    assert found.misses_of("lru", 4096).trace == "sample"
    assert found.notes[0].startswith("misses from sample (SmolLM2")
    assert found.notes[0].endswith("not from glm-5.1")
    default = Scenario().resolve("hisparse", get_policy("lru"))
    assert default.origin.name == "glm-5.1@36864"
    assert default.origin.provenance == "synthetic"
