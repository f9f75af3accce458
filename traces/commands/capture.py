"""The commands `trace capture` and `trace capture sglang`."""

from pathlib import Path
from typing import Any

import click

from hisparse_sim.traces.commands.group import Group
from hisparse_sim.traces.commands.options import (
    config_option,
    counter,
    force_option,
    quiet_option,
    refuse_replacing,
)
from hisparse_sim.traces.commands.prompt_options import prompt_options
from hisparse_sim.traces.commands.values import Number, Output, Real
from hisparse_sim.traces.files import TRACE_SUFFIXES
from hisparse_sim.traces.terminal import counted, note, wrote

_LONGEST = 131_072  # tokens of a prompt, to size a server for prompts that are not cut


@click.group(
    cls=Group,
    elsewhere={
        "hf": ("hisparse_sim.traces.commands.capture_hf:hf", "Capture from a Hugging Face model.")
    },
)
def capture() -> None:
    """Capture a trace from a running engine or a model."""


@capture.command()
@click.option(
    "--url", default="http://localhost:30000", show_default=True, help="URL of the server."
)
@click.option(
    "--model", required=True, help="Name of the model, for the metadata and the server command."
)
@config_option
@click.option("--layers", "num_layers", type=Number(1), help="Layers of the model.")
@click.option(
    "--top-k",
    type=Number(1),
    help="top_k of the indexer.  [default: that of the config, else 2048]",
)
@prompt_options
@click.option(
    "--longest",
    type=Number(2),
    help="Tokens of the longest prompt; longer ones are cut in the middle.",
)
@click.option(
    "--max-new-tokens",
    type=Number(2),
    default=1024,
    show_default=True,
    help="Decode steps.",
)
@click.option(
    "--stop-at-eos", is_flag=True, help="Let requests end at their end-of-sequence token."
)
@click.option(
    "--concurrency", type=Number(1), default=2, show_default=True, help="Requests in flight."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Real(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Longest wait for a byte, in seconds; a whole answer may take this plus its size at "
    "256 KiB/s.",
)
@click.option("--attempts", type=Number(1), default=5, show_default=True, help="Tries per request.")
@click.option("--api-key", help="Sent as a bearer token.")
@click.option(
    "--estimate",
    "only_estimate",
    is_flag=True,
    help="Estimate time and size, and stop; needs the server, which counts the tokens.",
)
@click.option(
    "--print-server-command",
    is_flag=True,
    help="Print how to start the server for --concurrency prompts of --longest tokens (131,072 if "
    "not given) and --max-new-tokens, and stop; on stderr, the memory that it takes.",
)
@click.option("-o", "--output", type=Output(*TRACE_SUFFIXES), help="The trace file to write.")
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
    """Capture from an SGLang server that serves a DeepSeek-V3.2 or GLM-5 model.

    The server must run with --enable-return-indexer-topk and report logical positions, which
    --print-server-command takes care of. The same command resumes an interrupted capture.

    \b
    hisparse-sim trace capture sglang --model deepseek-ai/DeepSeek-V3.2 --longest 32768 \\
        --print-server-command
    hisparse-sim trace capture sglang --model deepseek-ai/DeepSeek-V3.2 --layers 61 \\
        --longbench hub --length long --count 4 --longest 32768 -o v3.2.parquet
    hisparse-sim trace capture sglang --model zai-org/GLM-5.2-FP8 --config GLM-5.2/config.json \\
        --prompts book.txt -o glm-5.2.parquet
    """
    from hisparse_sim.traces.capture import sglang as library
    from hisparse_sim.traces.capture.prompts import read_prompts
    from hisparse_sim.traces.capture.sglang_server import Server

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
        raise click.UsageError("give --config, or --layers (its num_hidden_layers)")
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
    note(f"{counted(len(prompts), 'request')}: {expected.sentence()}", quiet)
    library.capture(
        prompts,
        output,
        server,
        shape,
        max_new_tokens=max_new_tokens,
        ignore_eos=not stop_at_eos,
        concurrency=concurrency,
        dataset=dataset,
        progress=counter("requests", quiet),
        warn=lambda doubt: note(f"warning: {doubt}", False),
    )
    wrote(output, quiet)
