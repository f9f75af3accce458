"""A coordinator with the tables and methods of the engine's, for requests that start staged or
direct."""

import torch

from sglang.kernels.ops.kvcache.hisparse import load_cache_to_device_buffer_mla


class HiSparseCoordinator:
    def __init__(self, layers, rows, top_k, device_buffer_size, tp_group=None):
        self.device = "cpu"
        self.top_k, self.device_buffer_size, self.tp_group = top_k, device_buffer_size, tp_group
        self.is_dsv4_hisparse, self.item_size_bytes = False, 1152
        self.mem_pool_device = None
        shape = (layers, rows, device_buffer_size + 64)
        self.req_device_buffer_tokens = torch.full(shape, -1, dtype=torch.int32)
        order = torch.arange(device_buffer_size, dtype=torch.int16)
        self.lru_slots = order.repeat(layers, rows, 1).contiguous()
        self.num_real_reqs = torch.zeros(1, dtype=torch.int32)

    def alloc_device_buffer(self, req):
        slots = torch.arange(self.device_buffer_size, dtype=torch.int32)
        self.req_device_buffer_tokens[:, req.req_pool_idx, : self.device_buffer_size] = slots

    def admit_request_direct(self, req):
        self.alloc_device_buffer(req)
        if req.prompt_len > self.device_buffer_size:
            self.req_device_buffer_tokens[:, req.req_pool_idx, : self.device_buffer_size] = -1

    def request_finished(self, req):
        self.req_device_buffer_tokens[:, req.req_pool_idx] = -1
        self.lru_slots[:, req.req_pool_idx] = torch.arange(self.device_buffer_size).short()

    def swap_in_selected_pages(self, req_pool_indices, compressed_seq_lens, top_k_result, layer_id):
        load_cache_to_device_buffer_mla(
            top_k_tokens=top_k_result,
            device_buffer_tokens=self.req_device_buffer_tokens[layer_id],
            host_cache_locs=None,
            device_buffer_locs=None,
            host_cache=None,
            device_buffer=None,
            top_k_device_locs=None,
            req_pool_indices=req_pool_indices,
            seq_lens=compressed_seq_lens,
            lru_slots=self.lru_slots[layer_id],
            item_size_bytes=self.item_size_bytes,
            num_top_k=self.top_k,
            hot_buffer_size=self.device_buffer_size,
            page_size=1,
            block_size=960,
            num_real_reqs=self.num_real_reqs,
        )
        return top_k_result
