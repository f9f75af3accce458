"""Options that name prompts."""

from pathlib import Path

import click

from hisparse_sim.traces.commands.options import combined
from hisparse_sim.traces.commands.values import Number, Seed, several

prompt_options = combined(
    click.option(
        "--prompts",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="One prompt per line: JSON with `text` and an optional `request`; or a plain text "
        "file as one prompt.",
    ),
    click.option(
        "--longbench",
        metavar="PATH|hub",
        help="LongBench v2: `hub`, a local JSON, JSONL, Parquet or Arrow file, or a folder of "
        "save_to_disk.",
    ),
    click.option(
        "--domain", "domains", multiple=True, callback=several(str), help="Only these domains."
    ),
    click.option(
        "--length",
        "lengths",
        multiple=True,
        callback=several(str),
        help="Only these lengths: short, medium, long.",
    ),
    click.option(
        "--count", type=Number(1), help="Number of prompts; LongBench's are drawn at random."
    ),
    click.option(
        "--seed",
        type=Seed(0),
        default=0,
        show_default=True,
        help="Seed of that draw.",
    ),
)
