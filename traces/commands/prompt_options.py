"""The options that name prompts, and the prompts that they name."""

from collections.abc import Sequence
from pathlib import Path

import click

from hisparse_sim.traces.commands.options import combined
from hisparse_sim.traces.commands.values import Number, refuse_without, several
from hisparse_sim.traces.terminal import printable

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
    click.option("--count", type=Number(1), help="So many of them, of LongBench at random."),
    click.option("--seed", default=0, show_default=True, help="Of that choice."),
)


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
    refuse_without("--longbench", longbench is not None, "--domain", "--length")
    if longbench is not None:
        from hisparse_sim.traces.capture.longbench import HUB_ID, load_longbench, select

        items = load_longbench(HUB_ID if longbench == "hub" else longbench)
        chosen = select(items, domains=domains, lengths=lengths, count=count, seed=seed)
        return [(item.id, item.prompt()) for item in chosen], "LongBench v2"
    assert prompts is not None
    from hisparse_sim.traces.capture.prompts import read_prompt_file

    return read_prompt_file(prompts)[:count], printable(prompts.name)
