"""Sentences on a recorded load for the reader of a result: what it is, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hisparse_sim.simulator.serving.load_and_targets import OPEN_LOOP_REQUESTS, Aim
from hisparse_sim.simulator.serving.prediction import Setting
from hisparse_sim.simulator.serving.workload_files import Recorded
from hisparse_sim.simulator.serving.workload_formats import FORMATS

_DRAWN = {  # by whether the loop is open
    False: "four times the concurrency",
    True: f"{OPEN_LOOP_REQUESTS:,} at a rate",
}


def notes_on(recorded: Recorded, setting: Setting, aim: Aim) -> Iterator[str]:
    """What is served of a recorded load, and whether prefixes are reused."""
    drawn = aim.drawn or recorded
    prompts, outputs = drawn.prompt_len, drawn.output_len
    longest = np.percentile(prompts, 99), np.percentile(outputs, 99)
    chosen = ""
    if len(drawn) < len(recorded):
        chosen = ", drawn at random, " + ("as asked" if aim.requests else _DRAWN[aim.open_loop])
    yield (
        f"load: {len(drawn):,} of the {len(recorded):,} requests of {recorded.name}"
        f" ({recorded.format}){chosen}; prompts of {prompts.mean():,.0f} tokens"
        f" (p99 {longest[0]:,.0f}), outputs of {outputs.mean():,.0f} (p99 {longest[1]:,.0f})"
    )
    if recorded.unread:
        yield (
            f"no times were read from {recorded.name}: the format {recorded.format} has them in"
            f" {FORMATS[recorded.format].time}, and the file has {', '.join(recorded.unread[:5])}"
        )
    if recorded.left_out:
        yield f"{recorded.left_out:,} requests without a prompt or an output are left out"
    if recorded.blocks is None:
        return
    if not setting.prefix_cache:
        yield "no prefix cache, as asked: every prompt is prefilled whole"
    elif setting.disaggregated:
        yield (
            "prefill instances reuse prefixes by the blocks of the file, up to what their pools"
            " hold; decode instances have no prefix cache under HiSparse"
        )
    else:
        yield (
            "without HiSparse prefixes are reused by the blocks of the file, up to what the pools"
            " hold; HiSparse requires --disable-radix-cache, so there every prompt is prefilled"
            " whole"
        )
