"""What prefetch hides behind compute, by hand and in a run."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from hisparse_sim.cli import cli
from hisparse_sim.simulator.serving.exposure import Exposure, Floats
from hisparse_sim.simulator.serving.foresight import Guess
from hisparse_sim.simulator.serving.misses import QUANTILES, LayerMisses
from hisparse_sim.simulator.serving.models import load_model
from hisparse_sim.simulator.serving.scenario import Scenario

GLM = load_model("glm-5.1")  # 78 layers, each with an indexer
MISSES = LayerMisses(
    "t", "synthetic", "", "lru", 4096, "direct", (200.0,), ((200.0,) * QUANTILES,), 2048.0, 8192.0
)


def swap_in(requests: Floats, mean: Floats, most: Floats) -> Floats:
    """2 us of planning and 0.04 us a miss: 10 us for 200."""
    return np.asarray(2 + 0.04 * mean)


def exposed(mode: str, compute_us: float, recall: float | None = None, waste: float = 0.0) -> float:
    guess = None if recall is None else Guess(recall, waste)
    return Exposure(mode, GLM, 4096, MISSES, swap_in, 1.0, guess).step_us(1, 8192, compute_us, 0.0)


def test_what_a_guess_hides_by_hand() -> None:
    # 78 layers: 156 us of planning, 624 of copies. No layer is before the first: 77 are guessed.
    assert exposed("hisparse", 1e6) == 780
    assert exposed("prefetch-layer", 1e6, 0.5) == pytest.approx(780 - 77 * 4)
    assert exposed("prefetch-step", 1e6, 0.5) == pytest.approx(780 - 78 * 4)
    # Planning stays, and finds out what was not foreseen.
    assert exposed("prefetch-step", 1e6, 1.0) == pytest.approx(156)
    # 300 us of compute hide 300 of 624.
    assert exposed("prefetch-step", 300, 1.0) == pytest.approx(156 + 324)
    # Half is foreseen, with as much in vain: 624 us of copies ahead against 300 of compute.
    assert exposed("prefetch-step", 300, 0.5, 1.0) == pytest.approx(156 + 312 + 324)
    # Without compute, what is in vain makes a step longer than without a guess.
    assert exposed("prefetch-step", 0, 0.5, 1.0) == pytest.approx(780 + 312)
    assert exposed("prefetch-layer", 1e6, 0.0) == 780


def test_guesses_that_are_none() -> None:
    with pytest.raises(ValueError, match="prefetch-step needs prefetch_recall"):
        exposed("prefetch-step", 1.0)
    with pytest.raises(ValueError, match="prefetch_recall must be from 0 to 1"):
        Scenario(prefetch_recall=1.5)
    with pytest.raises(ValueError, match="prefetch_waste is of what prefetch_recall"):
        Scenario(prefetch_waste=1.0)
    with pytest.raises(ValueError, match="prefetch_waste must be finite"):
        Scenario(prefetch_recall=0.5, prefetch_waste=float("inf"))
    words = "serve --mode prefetch-layer --draft-tokens 2 --acceptance-length 1.5".split()
    refused = CliRunner().invoke(cli, [*words, "--prefetch-recall", "0.5", "--quiet"])
    assert refused.exit_code == 2
    assert "does not prefetch where it speculates" in refused.stderr


def test_hidden_and_exposed_add_up_to_the_copying() -> None:
    words = "serve --model glm-5.2 --concurrency 64 --requests 128 --prompt 16384 --output-len 256"
    modes = ["--mode", "hisparse,prefetch,prefetch-step,overlap", "--prefetch-recall", "0.6"]
    done = CliRunner().invoke(cli, [*words.split(), *modes, "--format", "json", "--quiet"])
    assert done.exit_code == 0, done.output
    rows = {row["mode"]: row for row in json.loads(done.stdout)}
    copying = rows["hisparse"]["swap_in"] * rows["hisparse"]["makespan_s"]
    assert rows["hisparse"]["hidden"] == 0
    for mode in ("prefetch", "prefetch-step", "overlap"):
        row = rows[mode]
        assert row["hidden"] > 0
        both = (row["hidden"] + row["swap_in"]) * row["makespan_s"]
        assert both == pytest.approx(copying, rel=0.02)  # other batches meet, so not the same
        shares = ("prefill", "decode_attention", "decode_rest", "swap_in", "idle")
        assert sum(row[name] for name in shares) == pytest.approx(1)
        assert row["tokens_per_s"] > rows["hisparse"]["tokens_per_s"]
