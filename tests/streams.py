"""Random streams for Hypothesis, and the way between the package's form and the reference's."""

import make_traces
from hypothesis import strategies as st
from reference import Stream

from hisparse_sim.traces import Demand


def demand_of(stream: Stream) -> Demand:
    """Return the stream as the package takes it."""
    return make_traces.demand(
        [positions for _, positions in stream.rows],
        [seq_len for seq_len, _ in stream.rows],
        request=stream.request,
        layer=stream.layer,
        prompt_len=stream.prompt_len,
    )


def stream_of(demand: Demand) -> Stream:
    """Return the demand as the reference takes it."""
    rows = [(int(demand.seq_len[i]), demand.row(i).tolist()) for i in range(demand.rows)]
    return Stream(demand.request, demand.layer, demand.prompt_len, rows)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Stream, int]:
    """A stream and a buffer size that admits it.

    Rows are ragged and unsorted, down to empty and up to the whole buffer; requests start on
    either side of the buffer size and grow past it by steps of 0, 1 or more; the newest token
    stands at any place of the row; a prompt may end long before the first row (a cut trace).
    """
    buffer_size = draw(st.integers(1, 9))
    top_k = draw(st.one_of(st.just(buffer_size), st.integers(1, buffer_size)))
    seq_len = draw(st.integers(1, 3 * buffer_size + 6))
    prompt_len = draw(st.one_of(st.just(seq_len - 1), st.integers(0, seq_len - 1)))
    # A small pool of positions is demanded again and again: evictions and returns in few steps.
    pool = draw(st.one_of(st.none(), st.integers(1, 2 * buffer_size + 2)))
    chance = draw(st.randoms(use_true_random=False))
    rows: list[tuple[int, list[int]]] = []
    for _ in range(draw(st.integers(1, 40))):
        newest = seq_len - 1
        choices = range(seq_len if pool is None else min(seq_len, pool))
        positions = chance.sample(choices, chance.randint(0, min(top_k, len(choices))))
        if newest not in positions and len(positions) < top_k and chance.random() < 0.5:
            positions.insert(chance.randint(0, len(positions)), newest)
        rows.append((seq_len, positions))
        seq_len += chance.choice([0, 1, 1, 1, 1, 3])
    request = draw(st.sampled_from(["r", "66f954a5bb02136c067c511a", "Zürich"]))
    return Stream(request, draw(st.integers(0, 77)), prompt_len, rows), buffer_size
