"""The commands that make traces: parse, call one library function, say what was written."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from hisparse_sim.traces.files import printable
from hisparse_sim.traces.options import (
    Group,
    chosen_requests,
    combined,
    force_option,
    note,
    provenance_option,
    refuse_replacing,
    selection_options,
    several,
    trace_output_option,
)

config_option = click.option(
    "--config",
    type=click.Path(exists=True, path_type=Path),
    help="config.json of the model, or its folder: for --layers, --top-k, and for which layers "
    "share their positions.",
)
quiet_option = click.option("--quiet", is_flag=True, help="No progress and no notes on stderr.")
prompt_options = combined(
    click.option(
        "--prompts",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="One prompt a line: JSON with `text` and an optional `request`; or a plain text file "
        "as one prompt.",
    ),
    click.option(
        "--longbench",
        metavar="FILE|hub",
        help="LongBench v2: `hub`, or a local JSON, JSONL, Parquet or Arrow file.",
    ),
    click.option("--domain", "domains", multiple=True, callback=several(str), help="Only these."),
    click.option(
        "--length",
        "lengths",
        multiple=True,
        callback=several(str),
        help="Only these: short, medium, long.",
    ),
    click.option("--count", type=click.IntRange(1), help="So many items, chosen at random."),
    click.option("--seed", default=0, show_default=True, help="Of that choice."),
)


_LONGEST = 131_072  # tokens of a prompt, to size a server for prompts that are not cut


def read_prompts(
    prompts: Path | None,
    longbench: str | None,
    domains: Sequence[str] | None,
    lengths: Sequence[str] | None,
    count: int | None,
    seed: int,
) -> tuple[list[tuple[str, str]], str]:
    """Return (request, text) pairs, and what to call the data set."""
    if (prompts is None) == (longbench is None):
        raise click.UsageError("give the prompts by either --prompts or --longbench")
    if longbench is not None:
        from hisparse_sim.traces.longbench import HUB_ID, load_longbench, select

        items = load_longbench(HUB_ID if longbench == "hub" else longbench)
        chosen = select(items, domains=domains, lengths=lengths, count=count, seed=seed)
        return [(item.id, item.prompt()) for item in chosen], "LongBench v2"
    assert prompts is not None
    from hisparse_sim.traces.prompts import read_prompt_file

    return read_prompt_file(prompts)[:count], printable(prompts.name)


@click.group(
    cls=Group,
    elsewhere={"hf": ("hisparse_sim.traces.capture_hf:hf", "Capture from a Hugging Face model.")},
)
def capture() -> None:
    """Capture a trace from a running engine or a model."""


@capture.command()
@click.option("--url", default="http://localhost:30000", show_default=True, help="Of the server.")
@click.option("--model", required=True, help="Name, for the metadata and the server command.")
@config_option
@click.option("--layers", "num_layers", type=click.IntRange(1), help="Layers of the model.")
@click.option("--top-k", type=click.IntRange(1), help="[default: the config's, else 2048]")
@prompt_options
@click.option("--longest", type=click.IntRange(2), help="Cut longer prompts in the middle; tokens.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(2),
    default=1024,
    show_default=True,
    help="Decode steps.",
)
@click.option("--stop-at-eos", is_flag=True, help="Let requests end by themselves.")
@click.option("--concurrency", type=click.IntRange(1), default=2, show_default=True)
@click.option("--timeout", "timeout_s", type=float, default=600.0, show_default=True, help="s")
@click.option("--attempts", type=click.IntRange(1), default=5, show_default=True)
@click.option("--api-key", help="Sent as a bearer token.")
@click.option(
    "--estimate",
    "only_estimate",
    is_flag=True,
    help="Say what it would take, and stop. Needs the server, which counts the tokens.",
)
@click.option(
    "--print-server-command",
    is_flag=True,
    help="Print how to start the server, for --concurrency prompts of --longest tokens (131,072 if "
    "not given) and --max-new-tokens, and stop; on stderr what memory that takes.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path))
@force_option
@quiet_option
def sglang(
    url: str,
    model: str,
    config: Path | None,
    num_layers: int | None,
    top_k: int | None,
    longest: int | None,
    max_new_tokens: int,
    stop_at_eos: bool,
    concurrency: int,
    timeout_s: float,
    attempts: int,
    api_key: str | None,
    only_estimate: bool,
    print_server_command: bool,
    output: Path | None,
    force: bool,
    quiet: bool,
    **source: Any,
) -> None:
    """Capture from a SGLang server that serves a DeepSeek-V3.2 or GLM-5 model.

    The server must run with --enable-return-indexer-topk and report logical positions, which
    --print-server-command takes care of. An interrupted capture goes on with the same command.

    \b
    hisparse-sim trace capture sglang --model deepseek-ai/DeepSeek-V3.2 --longest 32768 \\
        --print-server-command
    hisparse-sim trace capture sglang --model deepseek-ai/DeepSeek-V3.2 --layers 61 \\
        --longbench hub --length long --count 4 --longest 32768 -o v3.2.parquet
    hisparse-sim trace capture sglang --model zai-org/GLM-5.2-FP8 --config GLM-5.2/config.json \\
        --prompts book.txt -o glm-5.2.parquet
    """
    from hisparse_sim.traces import capture_sglang as library
    from hisparse_sim.traces.sglang_server import Server

    if print_server_command:
        tokens = concurrency * ((longest or _LONGEST) + max_new_tokens)
        if config is not None:
            shape = library.described(model, config, num_layers, top_k)
            num_layers, top_k = shape.num_layers, shape.top_k
        click.echo(library.server_command(model, tokens))
        for line in library.server_notes(tokens, num_layers, top_k):
            note(line, quiet)
        return
    if config is None and num_layers is None:
        raise click.UsageError("give --config, or --layers: num_hidden_layers of it")
    if output is None and not only_estimate:
        raise click.UsageError("name the file to write with -o")
    if output is not None and not only_estimate:
        read = (config, source["prompts"], source["longbench"])
        refuse_replacing(output, force, (each for each in read if each is not None))
    shape = library.described(model, config, num_layers, top_k)
    server = Server(url, api_key, timeout_s, attempts, tell=lambda text: note(text, quiet))
    server.check()
    texts, dataset = read_prompts(**source)
    prompts = library.prepare(server, texts, longest)
    lengths = [len(prompt.input_ids) for prompt in prompts]
    expected = library.estimate(lengths, shape, max_new_tokens, concurrency)
    if only_estimate:
        click.echo(expected.sentence())
        return
    assert output is not None
    note(f"{len(prompts)} requests: {expected.sentence()}", quiet)
    library.capture(
        prompts,
        output,
        server,
        shape,
        max_new_tokens=max_new_tokens,
        ignore_eos=not stop_at_eos,
        concurrency=concurrency,
        dataset=dataset,
        progress=_progress("requests", quiet),
    )
    note(f"wrote {output}", quiet)


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--from", "form", metavar="FORMAT", help="See above.  [default: told by the file]")
@trace_output_option
@force_option
@click.option("--model", default="", help="Name, for the metadata.")
@click.option("--dataset", default="", help="Where the prompts come from, for the metadata.")
@click.option(
    "--prompt-len", type=click.IntRange(0), help="Tokens of the prompt, whose rows are left out."
)
@config_option
@click.option("--layers", "num_layers", type=click.IntRange(1), help="Layers of the model.")
@click.option("--top-k", type=click.IntRange(1), help="Positions that a row lists at most.")
@click.option(
    "--layer",
    "layers",
    multiple=True,
    callback=several(int, distinct=False),
    help="Numbers of all layers in the file, in its order.  [default: 0, 1, ...]",
)
@click.option(
    "--first-position",
    type=click.IntRange(0),
    help="Position of the query in row 0; rows before --prompt-len are the prompt's and left out.  "
    "[default: 0 in answers, --prompt-len in arrays]",
)
@click.option("--request", help="Id of the request, where the file holds one.")
@click.option(
    "--unit",
    default="token",
    show_default=True,
    help="What a position of the file counts: token, or block4 (or another number) for blocks of 4 "
    "tokens. Lengths (--prompt-len, --first-position, seq_len_current) are tokens all the same.",
)
@provenance_option
@quiet_option
def convert(
    source: Path, form: str | None, output: Path, force: bool, quiet: bool, **options: Any
) -> None:
    """Make a trace file of what an engine or a script saved.

    \b
    sglang  answers of /generate with "return_indexer_topk": true (JSON or JSONL)
    vllm    answers with indexer_topk, base64 of a .npy file (JSON or JSONL)
    array   .npy, .npz or .pt of (steps, layers, top_k) positions, padded with -1
    jsonl   lines with request_id, layer_id, step_idx, seq_len_current, selected_token_pos

    \b
    hisparse-sim trace convert answers.jsonl --layers 61 --top-k 2048 -o answers.parquet
    hisparse-sim trace convert rows.npy --prompt-len 32768 --provenance dsa-serving -o rows.parquet
    """
    from hisparse_sim.traces.convert import convert as run
    from hisparse_sim.traces.importers.prompt_rows import LEFT_OUT

    refuse_replacing(output, force, [source])
    made = run(source, output, form, warn=lambda doubt: note(f"warning: {doubt}", False), **options)
    if left_out := made.notes.get(LEFT_OUT):
        note(f"left out {left_out:,} rows of the prompt, counted over all layers", quiet)
    note(f"wrote {output}", quiet)


@click.command()
@click.argument("path", metavar="TRACE")
@click.option(
    "--to",
    "form",
    type=click.Choice(("oraclegeneral", "csv")),
    help="[default: csv for .csv, else oraclegeneral]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file to write.",
)
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
    """Write a trace as other simulators read it: one access per demanded position.

    Choose one request and layer to compare miss counts: every (request, layer) has a cache of its
    own here.

    \b
    hisparse-sim trace export trace.parquet --layer 14 -o layer14.oracleGeneral
    hisparse-sim trace export trace.parquet --layer 14 --to csv -o layer14.csv
    """
    from hisparse_sim.traces import open_trace
    from hisparse_sim.traces.export import export as run

    refuse_replacing(output, force, [path])
    form = form or ("csv" if output.suffix.lower() == ".csv" else "oraclegeneral")
    opened = open_trace(path, provenance)
    selection["requests"] = chosen_requests(selection["requests"], [opened])
    accesses = run(opened, output, form, **selection, progress=_progress("parts", quiet))
    note(f"wrote {accesses} accesses to {output}", quiet)


@click.command()
@click.option("--profile", help="Model whose published figures it is fitted to.")
@click.option("--shape", help="An extreme pattern instead, for tests.")
@trace_output_option
@force_option
@click.option("--context", "prompt_len", type=click.IntRange(0), help="Prompt, in tokens.")
@click.option("--steps", type=click.IntRange(1), help="Decode steps.")
@click.option("--top-k", type=click.IntRange(1), help="Positions of a step: tokens, in qsa blocks.")
@click.option("--layer", "layers", multiple=True, callback=several(int), help="Only these.")
@click.option("--requests", type=click.IntRange(1), help="[default: 1]")
@click.option("--distinct", type=click.IntRange(1), help="Positions that a shape goes through.")
@click.option("--seed", type=int, help="[default: 0]")
@quiet_option
def synth(
    profile: str | None,
    shape: str | None,
    output: Path,
    force: bool,
    layers: tuple[int, ...] | None,
    requests: int | None,
    distinct: int | None,
    seed: int | None,
    quiet: bool,
    **changes: Any,
) -> None:
    """Make a synthetic trace: a fitted random model, or an extreme shape.

    \b
    Profiles: glm-5.1, v3.2, qsa.
    Shapes: cyclic, thrash, all-new, none-new, step-change.

    A profile takes context, steps and top_k from the model it was fitted to, unless given. The
    file says `synthetic` and holds the fit: what was published, what landed. Positions of qsa
    (Qwen QSA) are blocks of 4 tokens: its misses can be replayed, but not priced.

    \b
    hisparse-sim trace synth --profile glm-5.1 --layer 0,20,40,60 -o synth-glm.parquet
    hisparse-sim trace synth --profile v3.2 --context 32768 --steps 500 --layer 30 -o synth.parquet
    hisparse-sim trace synth --shape cyclic --top-k 64 --context 4096 --distinct 512 -o scan.parquet
    """
    if (profile is None) == (shape is None):
        raise click.UsageError("choose either --profile or --shape")
    refuse_replacing(output, force)
    if shape is not None:
        from hisparse_sim.traces.shapes import synthesize_shape

        if layers or requests or seed is not None:
            raise click.UsageError("a shape has one request and one layer, and no seed")
        synthesize_shape(output, shape, distinct=distinct, **changes)
    else:
        from hisparse_sim.traces.synth import get_profile, reshaped, synthesize

        if distinct is not None:
            raise click.UsageError("--distinct belongs to --shape")
        synthesize(
            output,
            reshaped(get_profile(profile or ""), **changes),
            layers=list(layers) if layers else None,
            requests=requests or 1,
            seed=seed or 0,
            progress=_progress("layers", quiet),
        )
    note(f"wrote {output}", quiet)


def _progress(what: str, quiet: bool) -> Callable[[int, int], None] | None:
    """Return a counter line on stderr, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        click.echo(f"\r{done}/{total} {what}", err=True, nl=done == total)

    return show
