"""Prompts whose beginning is in the prefix (radix) cache of the rank that prefills them.

The engine caches prefixes only without HiSparse: with it, every release from 0.5.12 to 0.5.23
requires --disable-radix-cache (SGLang, srt/arg_groups/hisparse_hook.py, validate_hisparse), and a
decode instance cannot keep one either. Instances that prefill for others have no HiSparse, so they
may.

An upper bound of the reuse: a rank remembers the blocks used last, as many as its whole pool holds,
in the order in which requests are sent. In the engine running requests take a part of the pool, and
a block is there only once its prompt was prefilled. Memory is not shared here: requests with a
common prefix hold it once each.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from hisparse_sim.simulator.serving.workload import Blocks, Longs


def cached_tokens(blocks: Blocks, prompt_len: Longs, ranks: int, pool_tokens: int) -> Longs:
    """[n] tokens at the beginning of each prompt that need no prefill; requests go to the ranks in
    turn, and at least the last token of a prompt is computed."""
    most = pool_tokens // blocks.tokens
    kept: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(ranks)]
    found = np.zeros(len(prompt_len), np.int64)
    for i in range(len(prompt_len)):
        rank, ids = kept[i % ranks], blocks.row(i)
        hits = next((k for k, each in enumerate(ids) if each not in rank), len(ids))
        found[i] = min(hits * blocks.tokens, int(prompt_len[i]) - 1)
        for each in reversed(ids):  # the end of a prompt is evicted first
            rank[each] = None
            rank.move_to_end(each)
        while len(rank) > most:
            rank.popitem(last=False)
    return found
