"""Timing on the GPU: graph replays between two events, with the contenders in turn.

A figure is the median of many replays; every sample is kept. The stream is kept busy while the host
queues the timed work, so that it includes no host time. The cost of the two events themselves is
measured in the same way and subtracted.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_sim.gpu_replay.kernels.build import require_gpu
from hisparse_sim.gpu_replay.kernels.native_library import ANY_SIZES, Library, load_native

Samples = NDArray[np.float64]

QUEUE_US = 60.0  # the host's time to queue one timed graph, generously


def _library() -> Library:
    return load_native(*ANY_SIZES, require_gpu().cuda.current_device())


def _stream() -> int:
    stream: int = require_gpu().cuda.current_stream().cuda_stream
    return stream


def capture(launches: Callable[[], None]) -> Any:
    """Capture what `launches` puts on the current stream into a CUDA graph.

    Everything it calls must have been called once before, so that nothing is loaded during capture.
    """
    torch = require_gpu()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()
    torch.cuda.synchronize()
    return graph


def hold_stream(us: float) -> None:
    """Keep the GPU busy while the host queues what is to be timed."""
    _library().delay(us, _stream())


def record(launch: Callable[[], None]) -> tuple[Any, Any]:
    """Put two events around what `launch` queues; `elapsed_us` reads them after a synchronize."""
    torch = require_gpu()
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    launch()
    end.record()
    return start, end


def elapsed_us(events: list[tuple[Any, Any]]) -> Samples:
    """Microseconds between the events of every pair."""
    return np.array([1e3 * start.elapsed_time(end) for start, end in events])


def time_graphs(graphs: Mapping[str, Any], repeats: int, warm_up: int = 2) -> dict[str, Samples]:
    """Replay the graphs in turn, `repeats` times each, and return the microseconds of every replay.

    Sample i of one graph and sample i of another were taken within one round: they pair.
    """
    torch = require_gpu()
    for _ in range(warm_up):
        for graph in graphs.values():
            graph.replay()
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in graphs}
    for _ in range(repeats):
        hold_stream(QUEUE_US * len(graphs))
        for name, graph in graphs.items():
            events[name].append(record(graph.replay))
        torch.cuda.synchronize()
    return {name: elapsed_us(pairs) for name, pairs in events.items()}


def timer_us(repeats: int = 50) -> float:
    """Microseconds that two events add to what the kernels of a graph between them take.

    The time of a graph with one empty kernel, less what each further empty kernel adds to it.
    """
    more = 20

    def empty(times: int) -> None:
        for _ in range(times):
            _library().empty(_stream())

    empty(1)
    graphs = {"one": capture(lambda: empty(1)), "several": capture(lambda: empty(1 + more))}
    samples = time_graphs(graphs, repeats, warm_up=5)
    one, many = (float(np.median(samples[name])) for name in ("one", "several"))
    return one - (many - one) / more


def interval(
    values: Samples, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap confidence interval of the median."""
    rng = np.random.default_rng(seed)
    medians = np.median(rng.choice(values, (draws, len(values))), axis=1)
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
