"""The command explore: parse, call one library function, print."""

from pathlib import Path

import click

from hisparse_sim.traces.commands.options import expand, output_option, quiet_option
from hisparse_sim.traces.commands.values import Number, Output
from hisparse_sim.traces.remote import place_of
from hisparse_sim.traces.terminal import note, wrote


@click.command()
@click.argument("results", metavar="RESULT...", nargs=-1, required=True)
@click.option("--port", type=Number(0, 65535), default=0, help="[default: any that is free]")
@click.option("--open/--no-open", "opens", default=True, help="Open the page in the browser.")
@output_option(
    Output(".html", ".htm"),
    "Write a page that needs no server, with the answers of a small grid.",
)
@click.option("--title", help="Heading of the page.")
@quiet_option
def explore(
    results: tuple[str, ...],
    port: int,
    opens: bool,
    output: Path | None,
    title: str | None,
    quiet: bool,
) -> None:
    """Serve the report with live controls: buffer, policy, link, model, context, concurrency.

    RESULT: rows of sweep or facts of mrc, and whatever report takes. The page is served on this
    machine only, to who has the address that is printed, until Ctrl-C.

    \b
    hisparse-sim sweep --buffer 2048:8192:1024 --per-layer -o rows.parquet
    hisparse-sim explore rows.parquet
    """
    from hisparse_sim.simulator.views.explore import Server, live_page, static_page
    from hisparse_sim.traces import atomic_path
    from hisparse_sim.traces.files import refuse_input, refuse_unwritable

    paths = [place_of(path) for path in expand(results)]
    if output is not None:
        refuse_unwritable(output)
        refuse_input(output, paths)
        text = static_page(paths, title)
        with atomic_path(output) as temporary:
            temporary.write_text(text, encoding="utf-8")
        wrote(output, quiet)
        return
    page, calculator = live_page(paths, title)
    try:
        server = Server(page, calculator, port)
    except OSError as error:
        raise click.ClickException(f"port {port} cannot be used: {error.strerror}") from error
    with server:
        click.echo(server.url)
        note("serving on this machine only; Ctrl-C ends it", quiet)
        if opens:
            click.launch(server.url)
        server.serve_forever()
