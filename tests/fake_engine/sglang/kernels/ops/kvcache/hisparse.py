"""The engine's swap-in by its rules, slow and on the CPU, without the KV entries."""

import numpy as np


def load_cache_to_device_buffer_mla(
    top_k_tokens,
    device_buffer_tokens,
    host_cache_locs,
    device_buffer_locs,
    host_cache,
    device_buffer,
    top_k_device_locs,
    req_pool_indices,
    seq_lens,
    lru_slots,
    item_size_bytes,
    num_top_k,
    hot_buffer_size,
    page_size=1,
    block_size=256,
    num_real_reqs=None,
):
    for i in range(int(num_real_reqs)):
        row, seq_len = int(req_pool_indices[i]), int(seq_lens[i])
        if seq_len <= hot_buffer_size:
            continue
        tokens = device_buffer_tokens[row, :hot_buffer_size].numpy()
        order = lru_slots[row].numpy()
        wanted = [t for t in top_k_tokens[i].tolist() if t >= 0 and t != seq_len - 1]
        hit = np.isin(tokens[order], wanted)
        missed = [t for t in wanted if t not in set(tokens.tolist())]
        free = order[~hit]
        tokens[free[: len(missed)]] = missed
        order[:] = np.concatenate([free[len(missed) :], free[: len(missed)], order[hit]])
