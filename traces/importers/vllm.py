"""Saved answers of vLLM with `--enable-return-indexer-topk`, as proposed.

`choices[i].indexer_topk` is base64 of a `.npy` file, int32 (tokens, layers, top_k), padded with -1;
row t is the token at position `indexer_topk_prompt_start + t`.

Reference: https://github.com/vllm-project/vllm/pull/49555 (open when this was written).
"""

from functools import partial
from pathlib import Path

from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.importers.answers import read_answers, refuse_bare, scratch_of, value_at
from hisparse_sim.traces.importers.array import open_npy
from hisparse_sim.traces.importers.importer import Imported, Importer, Options
from hisparse_sim.traces.importers.prompt_rows import prompt_len_of_answer
from hisparse_sim.traces.importers.returned import Returned, imported

_REMEDY = "they are places in the engine's cache, which say nothing about the request's positions"


def _read(path: Path, options: Options) -> Imported:
    found: list[Returned] = []
    for answer, values in read_answers(path, "indexer_topk", options.scratch):
        choices = value_at(answer, "choices")
        if choices is None:
            refuse_bare(answer, str(path))
        for choice in choices if isinstance(choices, list) else []:
            place = f"{path}: choice {len(found)}"
            scratch = scratch_of(value_at(choice, "indexer_topk"), values)
            if scratch is None:
                raise TraceError(
                    f"{place} has no indexer_topk: start the server with "
                    f"--enable-return-indexer-topk"
                )
            counted = value_at(answer, "usage", "prompt_tokens")
            prompt_len = prompt_len_of_answer(
                options.prompt_len, counted, place, "usage.prompt_tokens in its answer"
            )
            name = value_at(answer, "id")
            name = f"{name if isinstance(name, str) and name else 'choice'}-{len(found)}"
            shape = open_npy(scratch, place).shape
            found.append(Returned(name, prompt_len, shape, partial(open_npy, scratch, place)))
    if not found:
        raise TraceError(f"{path} holds no choices with indexer_topk")
    first = options.first_position or 0
    return imported(path, found, options, first_position=first, remedy=_REMEDY)


VLLM = Importer(
    name="vllm",
    summary="JSON or JSONL answers of vLLM with indexer_topk (base64 of a .npy file)",
    provenance="dsa-serving",
    source="vLLM, indexer_topk",
    read=_read,
)
