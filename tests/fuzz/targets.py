"""The readers that are fuzzed: what is spoilt, and what they must make of it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import reference

from fuzz import corpus, mutate, mutate_files, oracles
from fuzz.documents import DOCUMENTS
from fuzz.prompts import PROMPTS
from fuzz.target import Target
from hisparse_sim.simulator.replay.replaying import replay_part
from hisparse_sim.traces import Trace, TraceError, open_trace, validate
from hisparse_sim.traces.importers.convert import convert


def _content(trace: Trace) -> tuple[dict[str, Any], list[oracles.Part]]:
    optional = [name for name in ("scores", "next_positions") if name in trace.columns]
    parts: list[oracles.Part] = []
    for part in trace.parts:
        read = trace.read(part, optional)
        rows = list(range(read.rows))
        steps = [(int(read.step[i]), int(read.seq_len[i]), read.row(i).tolist()) for i in rows]
        edges = read.offsets.tolist()
        scores = following = None
        if read.scores is not None:
            scores = [list(map(repr, read.scores[edges[i] : edges[i + 1]].tolist())) for i in rows]
        if read.next_positions is not None:
            places, values = read.next_positions
            following = [values[places[i] : places[i + 1]].tolist() for i in rows]
        parts.append((read.request, read.layer, read.prompt_len, steps, scores, following))
    metadata = asdict(trace.metadata)
    if metadata["layer_types"] is not None:
        metadata["layer_types"] = list(metadata["layer_types"])
    return metadata, parts


def _read_trace(path: Path) -> Any:
    """Read all of a file, as `validate` says, and replay it to the misses of the reference."""
    found = validate(path, limit=10**6)
    try:
        trace = open_trace(path)
        content = _content(trace)
    except TraceError as error:
        if found.ok:
            raise RuntimeError(f"validate says ok, and reading: {error}") from error
        raise
    assert found.ok, found.problems
    part = trace.parts[-1]
    demand = trace.read(part)
    size = max(1, int(np.diff(demand.offsets).max()))
    stream = reference.Stream(part.request, part.layer, demand.prompt_len,
                              [row[1:] for row in content[1][-1][3]])  # fmt: skip
    if size <= 64:
        steps = reference.replay(stream, "lru", size, "direct")
        misses = replay_part(demand, "lru", size, "direct").misses.tolist()
        assert misses == [len(step.misses) for step in steps]
    return trace.has_digest, content


def _expected_trace(path: Path, data: bytes, seed: bytes) -> Any:
    """With a digest it is what was written, without it what pyarrow decodes."""
    decode = oracles.arrow if path.suffix == ".arrow" else oracles.parquet
    sealed = open_trace(path).has_digest
    return sealed, decode(seed if sealed else data)


def _importer(form: str, **options: Any) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        target = path.with_name("out.parquet")
        target.unlink(missing_ok=True)
        convert(path, target, form, provenance="synthetic", **options)
        parts = oracles.written(target)
        open_trace(target)
        return parts

    return read


def _by(oracle: Callable[[bytes, str], Any], suffix: str) -> Callable[[Path, bytes, bytes], Any]:
    return lambda path, data, seed: oracle(data, suffix)


_ANSWERS = {"top_k": 4, "num_layers": 2}
_ARRAY = {"prompt_len": corpus.PROMPT}


def _imported(
    form: str, suffix: str, seeds: Callable[[], list[bytes]], mutators: Sequence[mutate.Mutator],
    **options: Any,
) -> Target:  # fmt: skip
    oracle = getattr(oracles, form)
    read = _importer(form, **options)
    return Target(f"{form} {suffix}", suffix, seeds, mutators, read, _by(oracle, suffix))


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("trace", ".parquet", corpus.traces, mutate_files.PARQUET, _read_trace,
               _expected_trace),
        Target("trace without digest", ".parquet", corpus.foreign_traces,
               [*mutate_files.PARQUET, *[mutate_files.change_cells] * 8], _read_trace,
               _expected_trace),
        Target("trace .arrow", ".arrow", corpus.arrow_traces, mutate.ANY, _read_trace,
               _expected_trace),
        Target("trace .arrow without digest", ".arrow", corpus.foreign_arrow_traces, mutate.ANY,
               _read_trace, _expected_trace),
        _imported("sglang", ".json", corpus.sglang, mutate_files.ANSWER, **_ANSWERS),
        _imported("sglang", ".jsonl", corpus.sglang_lines, mutate_files.ANSWER, **_ANSWERS),
        _imported("vllm", ".json", corpus.vllm, mutate_files.ANSWER),
        _imported("array", ".npy", corpus.npy, mutate_files.NPY, **_ARRAY),
        _imported("array", ".npz", corpus.npz, mutate_files.ZIP, **_ARRAY),
        _imported("array", ".pt", corpus.pt, mutate_files.ZIP, **_ARRAY),
        _imported("jsonl", ".jsonl", corpus.jsonl, mutate.JSON),
        *DOCUMENTS,
        *PROMPTS,
    )
}  # fmt: skip
