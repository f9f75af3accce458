"""Modes of replay: engines' rules beyond one query a step over a hot buffer. One module each.

`Mode` says which rules hold for a sweep, and what of the request is resident; the plain replay is
no mode. `RULES` is the registry.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hisparse_sim.policies import Policy, PolicyError
from hisparse_sim.simulator.replay.modes.mode import ModeReplay, Request, Rules
from hisparse_sim.simulator.replay.modes.sglang import EPOCH_CLOCK, SGLANG
from hisparse_sim.simulator.replay.modes.vllm import VLLM
from hisparse_sim.simulator.replay.ranking import check_without_ranks
from hisparse_sim.traces import Demand, Trace, TraceError
from hisparse_sim.traces.drafts import check_accepted, drafted
from hisparse_sim.traces.file.metadata import MOST_QUERIES
from hisparse_sim.traces.file.queries import check_stated
from hisparse_sim.traces.file.units import in_blocks, plural, tokens_of

__all__ = ["EPOCH_CLOCK", "RULES", "Mode", "ModeReplay", "Request", "Rules", "mode_of"]

NEEDS_DRAFTS = (
    "epoch-clock is SGLang's policy for drafts: give at least 2 `draft_tokens`, or choose lru"
)
RULES: dict[str, Rules] = {rules.name: rules for rules in (SGLANG, VLLM)}

STAMP = hashlib.sha256(
    b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()[:16]


@dataclass(frozen=True)
class Mode:
    """The rules of a sweep."""

    rules: Rules
    draft_tokens: int | None = None  # queries of a step; None: those of each trace
    acceptance_length: float | None = None  # mean tokens a step, of traces with one query a step
    resident_tokens: int = 0  # of a request, beyond what the engine always keeps on the GPU

    @property
    def key(self) -> str:
        """The key of finished work, which tells these rules from others."""
        setting = (self.draft_tokens, self.acceptance_length, self.resident_tokens)
        return f"{self.rules.name} {setting} {STAMP}"

    @property
    def start(self) -> str | None:
        """The only start that there is; None: as asked for."""
        return self.rules.start

    def queries(self, trace: Trace) -> int:
        """Return the queries of a step at most."""
        return self.draft_tokens or trace.metadata.draft_tokens

    def label(self, trace: Trace) -> str:
        """Return the value of the column `rules`, the same for the same rules."""
        queries = self.queries(trace)
        parts = [self.rules.name]
        if queries > 1:
            parts.append(f"{queries} draft tokens")
        if queries > 1 and trace.metadata.draft_tokens == 1:
            parts.append(f"{self.acceptance_length or queries:g} accepted")
        if self.resident_tokens:
            parts.append(f"{self.resident_tokens:,} resident tokens")
        return ", ".join(parts)

    def own_policy(self, traces: Sequence[Trace]) -> str:
        """Return the name of the policy that the engine has for these traces."""
        own = self.rules.drafts_policy
        if own is not None and any(self.queries(trace) > 1 for trace in traces):
            return own.name
        return "lru"

    def policy(self, name: str) -> Policy | None:
        """Return the policy of this name that is the engine's own and in no registry."""
        own = self.rules.drafts_policy
        return own if own is not None and own.name == name else None

    def unites(self, traces: Sequence[Trace], buffer_size: int) -> bool:
        """Return whether a buffer holds whatever a step of these traces selects: a policy that
        gives every miss a slot needs that."""
        return all(self.queries(trace) * trace.metadata.top_k <= buffer_size for trace in traces)

    def steps(self, trace: Trace, demand: Demand) -> Demand:
        """Return the demand with the queries of its steps."""
        if demand.query is None and self.queries(trace) > 1:
            try:
                return drafted(demand, self.queries(trace), self.acceptance_length)
            except TraceError as error:
                raise TraceError(f"{trace.path}: {error}") from None
        return demand

    def replay(
        self, trace: Trace, demand: Demand, policy: Policy, buffer_size: int, start: str, seed: int
    ) -> ModeReplay:
        """Replay what `steps` returned."""
        if demand.rows == 0:
            return ModeReplay(np.zeros(0, np.int32), 0)
        request = Request(
            demand,
            self.queries(trace),
            trace.metadata.top_k,
            self.resident_tokens // tokens_of(trace.metadata.unit),
            self.rules.start or start,
            seed,
        )
        return self.rules.replay(request, policy, buffer_size)

    def columns(
        self, trace: Trace, counts: Sequence[Mapping[str, int]], row: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the further columns of a row of a sweep, whose parts have these counts."""

        def total(name: str) -> int:
            return sum(each.get(name, 0) for each in counts)

        found: dict[str, Any] = {
            "rules": self.label(trace),
            "draft_tokens": self.queries(trace),
            "resident_accesses": total("resident_accesses"),
        }
        if self.queries(trace) > 1:
            accepting = total("accepting")
            accepted = total("accepted") / accepting if accepting else float("nan")
            found |= {
                "accepted_per_step": accepted,
                "misses_per_token": row["misses_per_step"] / accepted,
                "unloaded": total("unloaded"),
            }
        return found

    def check(self, trace: Trace, policy: Policy, buffer_size: int) -> None:
        """Raise ValueError for a buffer that the engine, or a policy, cannot do with."""
        check_without_ranks(policy, "replays of drafts, resident tokens and vLLM do")
        queries, top_k = self.queries(trace), trace.metadata.top_k
        least = self.rules.least_buffer(queries, top_k)
        if buffer_size < least:
            raise ValueError(
                f"{self.rules.engine} wants a buffer of at least {least:,} slots for"
                f" {queries} queries of {top_k:,} positions, not {buffer_size:,}"
            )
        if policy == EPOCH_CLOCK:
            if queries == 1:
                raise PolicyError(NEEDS_DRAFTS)
        elif not self.unites([trace], buffer_size):
            raise ValueError(
                f"{policy.name} gives every position of a step a slot, and {queries} queries of"
                f" {top_k:,} positions may need {queries * top_k:,}, more than a buffer of"
                f" {buffer_size:,}; choose a larger one, or the engine's epoch-clock"
            )


def mode_of(
    traces: Sequence[Trace],
    rules: str = SGLANG.name,
    *,
    draft_tokens: int | None = None,
    acceptance_length: float | None = None,
    resident_tokens: int = 0,
) -> Mode | None:
    """Return the mode that these rules and settings take, or None for the plain replay.

    Raises ValueError for settings that contradict each other or a trace, TraceError for a trace
    whose positions these rules do not know.
    """
    if rules not in RULES:
        raise ValueError(f"unknown rules {rules!r}; known are {', '.join(RULES)}")
    if draft_tokens is not None and not 1 <= draft_tokens <= MOST_QUERIES:
        raise ValueError(f"`draft_tokens` is {draft_tokens}; it must be from 1 to {MOST_QUERIES}")
    if resident_tokens < 0:
        raise ValueError(f"`resident_tokens` is {resident_tokens}; it must not be negative")
    for trace in traces:
        own = trace.metadata.draft_tokens
        if own > 1:
            check_stated(trace, draft_tokens, acceptance_length)
        if in_blocks(trace) and (rules != SGLANG.name or (draft_tokens or own) > 1):
            what = f"{RULES[rules].engine}'s rules are" if rules != SGLANG.name else "drafts are"
            raise TraceError(
                f"{trace.path} counts {plural(trace.metadata.unit)}, and {what} of models that"
                f" select single tokens"
            )
    if traces and all(trace.metadata.draft_tokens > 1 for trace in traces):
        draft_tokens = acceptance_length = None  # the traces say it
    if acceptance_length is not None:
        if draft_tokens in (None, 1):
            raise ValueError("`acceptance_length` is of draft tokens: give `draft_tokens`, too")
        check_accepted(acceptance_length, draft_tokens or 1)
    mode = Mode(RULES[rules], draft_tokens, acceptance_length, resident_tokens)
    plain = rules == SGLANG.name and not resident_tokens
    return None if plain and all(mode.queries(trace) == 1 for trace in traces) else mode
