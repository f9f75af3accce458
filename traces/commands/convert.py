"""The commands `trace convert` and `trace export`."""

from pathlib import Path
from typing import Any

import click

from hisparse_sim.traces.commands.options import (
    chosen_requests,
    config_option,
    counter,
    force_option,
    in_options,
    provenance_option,
    quiet_option,
    refuse_replacing,
    selection_options,
    trace_output_option,
)
from hisparse_sim.traces.commands.values import AnyOutput, Number, refuse_suffix, several
from hisparse_sim.traces.terminal import note, wrote


@click.command()
@click.argument("source", type=click.Path())
@click.option("--from", "form", metavar="FORMAT", help="One of the above.  [default: detected]")
@trace_output_option
@force_option
@click.option("--lz4", is_flag=True, help="Compress an .arrow file, to a third of its size.")
@click.option("--model", default="", help="Name of the model, for the metadata.")
@click.option("--dataset", default="", help="Where the prompts come from, for the metadata.")
@click.option("--prompt-len", type=Number(0), help="Tokens of the prompt; their rows are left out.")
@config_option
@click.option("--layers", "num_layers", type=Number(1), help="Layers of the model.")
@click.option("--top-k", type=Number(1), help="Largest number of positions in a row.")
@click.option(
    "--layer",
    "layers",
    multiple=True,
    callback=several(int, distinct=False),
    help="Layer numbers of the file, in its order.  [default: 0, 1, ...]",
)
@click.option(
    "--first-position",
    type=Number(0),
    help="Position of the query in row 0; rows before --prompt-len belong to the prompt and are "
    "left out.  [default: 0 in answers, --prompt-len in arrays]",
)
@click.option("--request", help="Id of the request, if the file holds a single one.")
@click.option(
    "--unit",
    default="token",
    show_default=True,
    help="Unit of positions in the file: token, block4 (or another number) for blocks of 4 tokens, "
    "or c4 for compressed groups. Lengths (--prompt-len, --first-position, seq_len_current) stay "
    "in tokens.",
)
@provenance_option
@quiet_option
def convert(
    source: str, form: str | None, output: Path, force: bool, quiet: bool, **options: Any
) -> None:
    """Make a trace file from what an engine or a script saved, or rewrite a trace file.

    An .arrow file is larger than Parquet and read several times faster.

    \b
    trace   a trace file (Parquet or Arrow), rewritten with its metadata
    sglang  answers of /generate with "return_indexer_topk": true (JSON or JSONL)
    vllm    answers with indexer_topk, base64 of a .npy file (JSON or JSONL)
    array   .npy, .npz or .pt of (steps, layers, top_k) positions, padded with -1
    jsonl   lines with request_id, layer_id, step_idx, seq_len_current, selected_token_pos

    \b
    hisparse-sim trace convert answers.jsonl --layers 61 --top-k 2048 -o answers.parquet
    hisparse-sim trace convert rows.npy --prompt-len 32768 --provenance dsa-serving -o rows.parquet
    hisparse-sim trace convert rows.parquet -o rows.arrow
    """
    from hisparse_sim.traces.importers.convert import convert as run
    from hisparse_sim.traces.importers.prompt_rows import LEFT_OUT

    refuse_replacing(output, force, [source])

    def warn(doubt: str) -> None:
        note("warning: " + in_options(doubt, click.get_current_context().command), False)

    made = run(source, output, form, warn=warn, **options)
    if isinstance(made.notes, dict) and (left_out := made.notes.get(LEFT_OUT)):
        note(f"left out {left_out:,} rows of the prompt, over all layers", quiet)
    wrote(output, quiet)


@click.command()
@click.argument("path", metavar="TRACE")
@click.option(
    "--to",
    "form",
    type=click.Choice(("oraclegeneral", "csv")),
    help="[default: csv for .csv, else oraclegeneral]",
)
@click.option("-o", "--output", type=AnyOutput(), required=True, help="The file to write.")
@force_option
@selection_options
@provenance_option
@quiet_option
def export(
    path: str,
    form: str | None,
    output: Path,
    force: bool,
    provenance: str | None,
    quiet: bool,
    **selection: Any,
) -> None:
    """Write a trace in the format of other simulators, one access per selected position.

    To compare miss counts, choose one request and one layer: each (request, layer) has a cache of
    its own here.

    \b
    hisparse-sim trace export trace.parquet --layer 14 -o layer14.oracleGeneral
    hisparse-sim trace export trace.parquet --layer 14 --to csv -o layer14.csv
    """
    from hisparse_sim.traces import open_trace
    from hisparse_sim.traces.file.export import export as run

    refuse_replacing(output, force, [path])
    if form is None:
        refuse_suffix(output, (".csv", ".oraclegeneral", ".bin", ""))
        form = "csv" if output.suffix.lower() == ".csv" else "oraclegeneral"
    opened = open_trace(path, provenance)
    selection["requests"] = chosen_requests(selection["requests"], [opened])
    accesses = run(opened, output, form, **selection, progress=counter("parts", quiet))
    note(f"wrote {output}: {accesses:,} accesses", quiet)
