"""What a trace with drafts says of its steps: the tokens accepted, and the first queries, which
stand for it where one query a step is wanted."""

from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.drafts import first_queries
from hisparse_sim.traces.file.columns import QUERY
from hisparse_sim.traces.file.reader import Part, Trace

STATED_WITHIN = 0.05  # an acceptance length is stated with one decimal place


def has_drafts(trace: Trace) -> bool:
    """Return whether a step of the trace may have several queries."""
    return trace.metadata.draft_tokens > 1


def query_column(trace: Trace) -> tuple[str, ...]:
    """Return the column to read for `first_queries`; none of a trace without drafts."""
    return (QUERY,) * has_drafts(trace)


def read_first_queries(trace: Trace, part: Part, steps: tuple[int, int] | None = None) -> Demand:
    """Read a part, of a trace with drafts the first query of every step."""
    return first_queries(trace.read(part, query_column(trace), steps))


def accepted_per_step(trace: Trace) -> float:
    """Return the mean tokens that a step of a trace with drafts accepts; nan if none has a step
    after it. All layers of a request have the same steps, so that one is read."""
    accepted = accepting = 0
    for part in {part.request: part for part in trace.parts}.values():
        demand = trace.read(part, {QUERY})
        lengths = demand.seq_len[demand.first_rows]
        accepted += int(lengths[-1] - lengths[0]) if len(lengths) else 0
        accepting += max(len(lengths) - 1, 0)
    return accepted / accepting if accepting else float("nan")


def check_stated(
    trace: Trace, draft_tokens: int | None = None, acceptance_length: float | None = None
) -> None:
    """Raise ValueError if what is stated of the drafts of a trace that has some is not what it
    says itself."""
    own = trace.metadata.draft_tokens
    if draft_tokens not in (None, own):
        raise ValueError(
            f"{trace.path} has {own} draft tokens a step, not {draft_tokens}: leave `draft_tokens`"
            " out"
        )
    if acceptance_length is None:
        return
    accepted = accepted_per_step(trace)
    if abs(acceptance_length - accepted) > STATED_WITHIN:
        raise ValueError(
            f"{trace.path} says itself that {accepted:.2f} tokens of a step were accepted, not"
            f" {acceptance_length:g}: leave `acceptance_length` out"
        )
