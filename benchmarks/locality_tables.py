"""The tables and the figure of docs/locality.md.

    python benchmarks/locality_tables.py sample captured/*.parquet --plot docs/locality-traces.svg

Prints what the traces re-use over their first 512 steps, so that they compare, and the misses of
an LRU as read off the reuse distances, with the bounds, beside those that are replayed.
"""

from pathlib import Path

import click
import pandas as pd

import hisparse_sim as hs
from hisparse_sim.simulator.views import figures
from hisparse_sim.simulator.views.locality_view import locality_table, missed
from hisparse_sim.traces import Trace
from hisparse_sim.traces.commands.options import open_traces

BUFFERS = [2048, 4096, 6144, 8192]
# Column -> (heading, how it is shown), of two tables: one would be too wide for a page.
ALIKE = {
    "layers": ("layers", "{}"),
    "overlap_1": ("next step", "{:.1%}"),
    "overlap_16": ("16 steps on", "{:.1%}"),
    "overlap_64": ("64 steps on", "{:.1%}"),
    "cross_layer_overlap": ("neighbour layer", "{:.1%}"),
    "drift": ("drift", "{:.1%}"),
}
REUSED = {
    "reuse_p50": ("distance, median", "{:,.0f}"),
    "reuse_p90": ("90th percentile", "{:,.0f}"),
    "working_set_128": ("in 128 steps", "{:,.0f}"),
    "working_set_512": ("in 512 steps", "{:,.0f}"),
    "sink_share": ("sinks", "{:.2%}"),
    "recent_share": ("recent", "{:.1%}"),
}


def locality_lines(rows: pd.DataFrame, columns: dict[str, tuple[str, str]]) -> list[str]:
    """Return the table of these columns, a line per trace."""
    lines = [line(["trace", *(heading for heading, _ in columns.values())])]
    lines.append("|---" * (1 + len(columns)) + "|")
    for record in locality_table(rows).to_dict("records"):
        cells = [shown.format(record[name]) for name, (_, shown) in columns.items()]
        lines.append(line([short(record["trace"]), *cells]))
    return lines


def short(trace: str) -> str:
    """Return the name without what the traces of the page have in common."""
    return trace.removeprefix("smollm2-32k-")


def miss_lines(traces: list[Trace], rows: pd.DataFrame, steps: tuple[int, int]) -> list[str]:
    """Return the table of misses read off and replayed, a line per trace."""
    lines = [line(["trace", *(f"B = {size:,}" for size in BUFFERS)]), "|---" * 5 + "|"]
    for trace in traces:
        own = rows[rows["trace"] == trace.name]
        low, read, high = (
            100 * missed(own, f"reuse_{which}")[BUFFERS]
            for which in ("nearest", "distance", "farthest")
        )
        swept = hs.sweep(trace, "lru", BUFFERS, "direct", compare_min=False, steps=steps).rows
        replayed = 100 * swept.set_index("buffer")["miss_rate"]
        cells = [
            f"{read[size]:.2f} [{low[size]:.2f}, {high[size]:.2f}], {replayed[size]:.2f}"
            for size in BUFFERS
        ]
        lines.append(line([short(trace.name), *cells]))
    return lines


def line(cells: list[str]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


@click.command()
@click.argument("paths", metavar="TRACE...", nargs=-1, required=True)
@click.option("--steps", default=512, show_default=True, help="Of every trace, the first.")
@click.option("--plot", type=click.Path(path_type=Path))
def main(paths: tuple[str, ...], steps: int, plot: Path | None) -> None:
    """Print the tables and draw the figure."""
    traces = open_traces(paths, None)
    rows = hs.locality(traces, steps=(0, steps))
    tables = [locality_lines(rows, ALIKE), locality_lines(rows, REUSED)]
    tables.append(miss_lines(traces, rows, (0, steps)))
    print("\n\n".join("\n".join(lines) for lines in tables))
    if plot:
        figures.save(figures.locality_page(rows), plot)


if __name__ == "__main__":
    main()
