"""Step times tabulated for the event loop: compute from StepTimes, waits from Exposure, in us."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hisparse_sim.simulator.serving.exposure import Ahead, Exposure, exposed_us
from hisparse_sim.simulator.serving.memory import PAGE_TOKENS
from hisparse_sim.simulator.serving.steptimes import StepTimes
from hisparse_sim.simulator.serving.workload import Floats
from hisparse_sim.traces.machine_code import rule

WAIT_POINTS = 96  # contexts beyond the buffer at which waits are tabulated, evenly in the logarithm


class StepTables(NamedTuple):
    """Straight lines between the points of `context` and `prompt`, and on beyond their ends."""

    context: Floats  # [c] tokens
    attention: Floats  # [most running on a rank + 1, c]
    copying: Floats  # [most running on a rank + 1, c]
    wait: Floats  # the same, less what attention hides
    rest: Floats  # [most running on an instance + 1]
    prompt: Floats  # [p] tokens, from 0 on
    prompt_attention: Floats  # [p] of a whole prompt on one rank
    prompt_rest: Floats  # [p] with that many tokens on every rank
    ahead: Ahead  # what else is hidden


def tabulate(steps: StepTimes, exposure: Exposure, ranks: int, most: int) -> StepTables:
    """Tables for up to `most` requests on each of `ranks` ranks."""
    buffer, longest = exposure.held_tokens, exposure.model.context
    knots, attention, rest = _decode(steps, ranks, most, longest)
    beyond = np.geomspace(buffer + PAGE_TOKENS, max(longest, 2 * buffer), WAIT_POINTS)
    context = np.unique(np.concatenate([knots, [buffer], beyond]))
    attention = np.stack([np.interp(context, knots, row) for row in attention])
    copying, wait = np.zeros_like(attention), np.zeros_like(attention)
    copying[1:], wait[1:] = exposure.copies_us(np.arange(1.0, most + 1), context, attention[1:])
    prompt = (0.0, *steps.prefill_tokens)
    return StepTables(
        context,
        attention,
        copying,
        wait,
        rest,
        np.array(prompt),
        np.array([steps.prefill_attention_chunk_us(0, round(tokens)) for tokens in prompt]),
        np.array([steps.prefill_rest_chunk_us(tokens) for tokens in prompt]),
        exposure.ahead,
    )


@lru_cache(maxsize=8)
def _decode(steps: StepTimes, ranks: int, most: int, longest: int) -> tuple[Floats, Floats, Floats]:
    """Contexts [c], attention [most + 1, c] and the rest [ranks * most + 1]."""
    knots = np.unique([1.0, *steps.context, longest])
    attention = [[steps.decode_attention_us(b, c) for c in knots] for b in range(most + 1)]
    rest = [steps.decode_rest_us(total / ranks) for total in range(ranks * most + 1)]
    return knots, np.array(attention), np.array(rest)


@rule
def line(grid: Floats, values: Floats, at: float) -> float:
    """The value at `at` on straight lines between the points, the last one going on."""
    i, above = 0, len(grid) - 1
    while above - i > 1:
        middle = (i + above) // 2
        if grid[middle] < at:
            i = middle
        else:
            above = middle
    share = (at - grid[i]) / (grid[i + 1] - grid[i])
    return float(values[i] + (values[i + 1] - values[i]) * share)


@rule
def decode_us(tables: StepTables, running: int, context: float) -> float:
    """Attention of a decode step of one rank."""
    return line(tables.context, tables.attention[running], context)


@rule
def wait_us(tables: StepTables, running: int, context: float, compute_us: float) -> float:
    """What such a step waits for copies, if it computes `compute_us` in all."""
    wait = line(tables.context, tables.wait[running], context)
    return exposed_us(wait, tables.ahead, compute_us)


@rule
def copying_us(tables: StepTables, running: int, context: float) -> float:
    """Copying of such a step, what is in vain included."""
    whole, ahead = line(tables.context, tables.copying[running], context), tables.ahead
    return whole + (ahead.traffic - ahead.share) * max(whole - ahead.plan_us, 0.0)


@rule
def prompt_us(tables: StepTables, start: int, stop: int) -> float:
    """Attention of the prompt's tokens [start, stop), which see everything before them."""
    prompt, attention = tables.prompt, tables.prompt_attention
    return line(prompt, attention, float(stop)) - line(prompt, attention, float(start))
