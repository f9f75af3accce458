"""Formats of recorded loads: one entry each."""

from __future__ import annotations

from typing import NamedTuple


class Format(NamedTuple):
    """The names of a format's columns, and what its times and blocks are counted in."""

    name: str
    description: str
    prompt: str
    output: str
    time: str = ""  # "": it has none
    second: float = 1.0  # times in one second; 0: they are dates
    blocks: str = ""  # ids of the blocks of a prompt, alike where the prompt so far is
    block_tokens: int = 0
    each: bool = False  # a line holds lists, of all requests of a run


FORMATS = {
    one.name: one
    for one in (
        Format(
            "mooncake",
            "traces of Mooncake, JSON lines; times in ms, hash_ids of blocks of 512 tokens"
            " (https://github.com/kvcache-ai/Mooncake)",
            "input_length",
            "output_length",
            "timestamp",
            1000.0,
            "hash_ids",
            512,
        ),
        Format(
            "burstgpt",
            "BurstGPT, CSV; failed requests have no response (https://github.com/HPMLL/BurstGPT)",
            "Request tokens",
            "Response tokens",
            "Timestamp",
        ),
        Format(
            "azure",
            "Azure LLM inference traces of 2023 and 2024, CSV"
            " (https://github.com/Azure/AzurePublicDataset)",
            "ContextTokens",
            "GeneratedTokens",
            "TIMESTAMP",
            0.0,
        ),
        Format(
            "vidur",
            "lengths of ShareGPT and others as Vidur and Etalon count them, CSV; arrived_at is"
            " optional (https://github.com/microsoft/vidur)",
            "num_prefill_tokens",
            "num_decode_tokens",
            "arrived_at",
        ),
        Format(
            "bench_serving",
            "a result of SGLang's bench_serving --output-details, JSON lines with one run",
            "input_lens",
            "output_lens",
            each=True,
        ),
        Format(
            "lengths",
            "CSV or JSON lines of one's own; arrival_s is optional",
            "prompt_len",
            "output_len",
            "arrival_s",
        ),
    )
}
