"""Makes a trace file from what another tool saved."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.file.agreement import Agreement
from hisparse_sim.traces.file.ahead import read_ahead
from hisparse_sim.traces.file.metadata import PROVENANCES, Metadata
from hisparse_sim.traces.file.model_config import configured
from hisparse_sim.traces.file.reader import open_trace
from hisparse_sim.traces.file.units import TOKEN
from hisparse_sim.traces.file.writer import TraceWriter
from hisparse_sim.traces.files import (
    holds_trace,
    local_file,
    opened,
    refuse_input,
    refuse_unwritable,
)
from hisparse_sim.traces.importers import Options, get_importer
from hisparse_sim.traces.importers.answers import BARE
from hisparse_sim.traces.importers.importer import Importer
from hisparse_sim.traces.publish import target_of
from hisparse_sim.traces.remote import Url, place_of
from hisparse_sim.traces.terminal import printable

TRACE = "trace"  # a trace file that is written again


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    form: str | None = None,
    *,
    provenance: str | None = None,
    model: str = "",
    dataset: str = "",
    config: str | os.PathLike[str] | None = None,
    progress: Callable[[Demand], None] | None = None,
    warn: Callable[[str], None] | None = None,
    lz4: bool = False,
    **options: Any,
) -> Metadata:
    """Convert `source` and return the metadata of the new file.

    A trace file is written again, in the container that the name of `target` speaks for (`.arrow`,
    else Parquet), with its metadata and all columns; an Arrow file is compressed with `lz4`.
    `form` is a name of `importers.IMPORTERS`, guessed from the suffix if None; `config` is the
    model's config.json, for its layers and top_k; `options` are the fields of `importers.Options`.
    Large values go through a folder beside `target`, so memory is bounded by one (request, layer).
    `progress` is called for each, `warn` with sentences on what may be unintended.

    Raises TraceError if the file is not what the format says, or for a missing provenance;
    ValueError for an unknown format, and for options that are wrong or have no meaning for it.
    """
    source, target = place_of(source), target_of(target)
    if form == TRACE or (form is None and holds_trace(source)):
        given = {"model": model, "dataset": dataset, "config": config, **options}
        return _written_again(source, target, provenance, lz4, progress, given)
    source = local_file(source)
    importer = get_importer(form or guess_form(source))
    provenance = provenance or importer.provenance
    if provenance is None:
        raise TraceError(
            f"{source} does not state the origin of its positions: give it with `provenance`"
        )
    if provenance not in PROVENANCES:
        raise ValueError(f"unknown provenance {provenance!r}; known are {', '.join(PROVENANCES)}")
    if config is not None:
        options = configured(options, config)
    Options(Path(), **options)  # refuses before anything is read or written
    _refuse_meaningless(importer, options)
    _head(source)
    configs = () if config is None else (config, Path(config) / "config.json")
    refuse_input(target, (source, *configs))
    refuse_unwritable(target)
    with TemporaryDirectory(
        prefix=".hisparse-convert-", dir=_scratch_place(target), ignore_cleanup_errors=True
    ) as scratch:
        imported = importer.read(source, Options(Path(scratch), **options))
        if warn is not None:
            for doubt in imported.doubts:
                warn(doubt)
        metadata = Metadata(
            model=model,
            provenance=provenance,
            top_k=imported.top_k,
            num_layers=imported.num_layers,
            source=importer.source,
            dataset=dataset,
            layer_types=options.get("layer_types"),
            unit=options.get("unit", TOKEN),
            order="indexer",
            prompt_len=imported.prompt_len,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            notes={
                "converted_from": printable(source.name),
                **(imported.notes or {}),
            },
        )
        agreement = Agreement(metadata.layer_types)
        with TraceWriter(target, metadata, source=str(source), lz4=lz4) as writer:
            for part in imported.parts:
                writer.write(part)
                agreement.add(part)
                if progress is not None:
                    progress(part)
    if warn is not None:
        for doubt in agreement.sentences():
            warn(f"{source}: {doubt}")
    return metadata


def _written_again(
    source: Path,
    target: Path,
    provenance: str | None,
    lz4: bool,
    progress: Callable[[Demand], None] | None,
    given: dict[str, Any],
) -> Metadata:
    for name, value in given.items():
        if value not in (None, "", TOKEN):
            raise ValueError(f"`{name}` does not apply to a trace file: it keeps its metadata")
    refuse_input(target, [source])
    refuse_unwritable(target)
    trace = open_trace(source, provenance)
    with TraceWriter(target, trace.metadata, source=str(source), lz4=lz4) as writer:
        for _, demand in read_ahead(trace, trace.parts, trace.optional):
            writer.write(demand)
            if progress is not None:
                progress(demand)
    return trace.metadata


def _refuse_meaningless(importer: Importer, options: dict[str, Any]) -> None:
    for name, why in importer.refuses.items():
        if options.get(name) is not None:
            raise ValueError(f"`{name}` does not apply to {importer.name}: {why}")


def _scratch_place(target: Path) -> Path | None:
    """Return the folder of the new file, which most likely has space; None for a device or URL."""
    if isinstance(target, Url) or (target.exists() and not target.is_file()):
        return None
    return target.resolve().parent


def _head(source: Path) -> bytes:
    """Return the beginning of a file. Raises TraceError if it is none, or empty."""
    with opened(source) as file:
        head = file.read(1 << 16)
    if not head:
        raise TraceError(f"{source} is empty")
    return head


def guess_form(source: Path) -> str:
    """Return the format that the suffix or the beginning of a file indicates.

    Raises TraceError if it could be several.
    """
    suffix = source.suffix.lower()
    if suffix in (".npy", ".npz", ".pt", ".pth"):
        return "array"
    if suffix in (".json", ".jsonl"):
        head = _head(source)
        for form, key in (
            ("jsonl", b'"selected_token_pos"'),
            ("sglang", b'"meta_info"'),
            ("vllm", b'"choices"'),
        ):
            if key in head:
                return form
        if b'"indexer_topk"' in head:
            raise TraceError(f"{source} {BARE}")
    raise TraceError(f"{source}: give its format with `form`; nothing in it indicates one")
