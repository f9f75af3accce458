"""Reads the next part of a trace while the caller works on one."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from hisparse_sim.traces.demand import Demand
from hisparse_sim.traces.file.reader import Part, Trace


def read_ahead(
    trace: Trace,
    parts: Sequence[Part],
    columns: Iterable[str] = (),
    steps: tuple[int, int] | None = None,
) -> Iterator[tuple[Part, Demand]]:
    """Yield parts with their demand, each read by another thread while the one before is in use.

    Takes the memory of two parts. Raises what `Trace.read` raises, at the turn of the part.
    """
    columns = tuple(columns)
    with ThreadPoolExecutor(1) as reader:
        reads = [reader.submit(trace.read, part, columns, steps) for part in parts[:1]]
        for number, part in enumerate(parts):
            demand = reads.pop().result()
            reads = [
                reader.submit(trace.read, each, columns, steps)
                for each in parts[number + 1 : number + 2]
            ]
            yield part, demand
