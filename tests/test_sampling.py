"""A cut trace replays to the counts of the same selection of the whole one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_traces import demand, drift, metadata, write

import hisparse_sim as hs
from hisparse_sim.policies import STANDARD
from hisparse_sim.traces import Demand, TraceError, open_trace, sample

_REQUESTS = ("a", "b, c")


@st.composite
def traces(draw: st.DrawFn) -> list[Demand]:
    """Layers of a request may begin at other steps and lengths, below and above the buffer."""
    return [
        drift(
            request=request,
            layer=layer,
            steps=draw(st.integers(1, 12)),
            first_step=draw(st.integers(0, 4)),
            first_seq_len=draw(st.integers(6, 30)),
            top_k=6,
            ragged=True,
            seed=draw(st.integers(0, 99)),
        )
        for request in _REQUESTS
        for layer in (0, 2)
    ]


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    demands=traces(),
    named=st.sets(st.sampled_from(_REQUESTS)),
    layers=st.sampled_from([None, [0], [2], [0, 2]]),
    requests=st.sampled_from([None, *([name] for name in _REQUESTS)]),
    steps=st.none() | st.tuples(st.integers(0, 8), st.integers(9, 18)),
    start=st.sampled_from(["staged", "direct"]),
)
def test_a_sample_replays_alike(
    tmp_path: Path, demands: list[Demand], named: set[str], start: str, **selection: Any
) -> None:
    lengths = {
        name: min(int(each.seq_len[0]) for each in demands if each.request == name) - 2
        for name in named
    }
    about = metadata(top_k=6, prompt_len=lengths)
    whole = open_trace(write(tmp_path / "whole.parquet", demands, about))
    try:
        cut = sample(whole, tmp_path / "cut.parquet", **selection)
    except TraceError as error:
        assert "has no rows with steps" in str(error) or "cut one layer at a time" in str(error)  # noqa: PT017
        return
    for policy in ("lru", "random", "belady"):
        found = hs.replay(cut, policy, 16, start)
        expected = hs.replay(whole, policy, 16, start, **selection)
        assert found.misses.tolist() == expected.misses.tolist()


def test_layers_with_different_prompts(tmp_path: Path) -> None:
    # B = 8, direct: layer 0 had a prompt of 4 tokens, which are preloaded, layer 1 one of 20.
    demands = [demand([[0, 1], [2, 3]], first, layer=layer) for layer, first in ((0, 5), (1, 21))]
    whole = open_trace(write(tmp_path / "whole.parquet", demands))
    expected = hs.replay(whole, "lru", 8, "direct").misses.tolist()
    cut = sample(whole, tmp_path / "cut.parquet")
    assert hs.replay(cut, "lru", 8, "direct").misses.tolist() == expected == [0, 0, 2, 2]
    with pytest.raises(
        TraceError, match=r"request 'a' has no prompt_len .*cut one layer at a time"
    ):
        sample(whole, tmp_path / "later.parquet", steps=(1, 2))
    assert not (tmp_path / "later.parquet").exists()
    later = sample(whole, tmp_path / "later.parquet", layers=[1], steps=(1, 2))
    assert hs.replay(later, "lru", 8, "direct").misses.tolist() == [2]


def test_what_cannot_be_written_is_refused_before_the_trace_is_read(tmp_path: Path) -> None:
    whole = open_trace(write(tmp_path / "whole.parquet", [drift()]))
    whole.path.unlink()
    with pytest.raises(TraceError, match="there is no folder"):
        sample(whole, tmp_path / "none" / "cut.parquet")


def test_positions_beyond_any_table(tmp_path: Path) -> None:
    """A seq_len near 2^31 replays like a short one whose positions have the same order."""
    near = drift(steps=30, first_seq_len=40, shuffled=True)
    shift = 2**31 - 200
    far = demand(
        [np.where(row >= 16, row + shift, row) for row in map(near.row, range(near.rows))],
        (near.seq_len.astype(np.int64) + shift).tolist(),
    )
    paths = [write(tmp_path / name, [each]) for name, each in (("n", near), ("f", far))]
    for policy in STANDARD:
        for start in ("staged", "direct"):
            expected, found = (
                hs.replay(path, policy, 16, start, seed=1, victims=True) for path in paths
            )
            assert found.misses.tolist() == expected.misses.tolist()
            assert found.victims is not None
            assert expected.victims is not None
            assert found.victims.tolist() == expected.victims.tolist()
