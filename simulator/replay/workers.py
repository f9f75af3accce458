"""Where the work of a study is done: threads of this process, or workers of a Dask cluster.

A call of a worker gets tasks, which carry paths and ranges, and returns their results. How many
calls wait at the executor is bounded, so that neither it nor a scheduler holds a large study.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from itertools import islice
from logging import CRITICAL, getLogger
from pickle import loads
from queue import SimpleQueue
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from hisparse_sim.simulator.replay.kept import program
from hisparse_sim.traces import TraceError
from hisparse_sim.traces.arguments import whole_number
from hisparse_sim.traces.stop_signals import STOP_SIGNALS

T = TypeVar("T")
R = TypeVar("R")

_STEPS_OF_A_CALL = 1 << 13  # times runs: tens of milliseconds, and Dask takes about one for a call
_LEAST_AHEAD = 256  # calls
_AHEAD = 4  # calls for each thread
_FIRST_WORKER_S = 60


class Workers(NamedTuple):
    """An executor, and how many calls it runs at once."""

    executor: Executor
    threads: int

    @property
    def ahead(self) -> int:
        """Number of calls that are handed over before the first has ended."""
        return max(_LEAST_AHEAD, _AHEAD * self.threads)


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def workers_of(jobs: int | None, executor: Executor | None) -> Iterator[Workers]:
    """Yield the executor, or as many threads as `jobs` (default: all cores)."""
    threads = jobs or available_cores()
    if executor is not None:
        yield Workers(executor, threads)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield Workers(pool, threads)


@contextmanager
def cluster(scheduler: str | None = None, workers: int | None = None) -> Iterator[Workers]:
    """Yield the workers of the Dask cluster at the address `scheduler`, or of one that is started
    for this, with so many processes on this machine.

    Raises TraceError if Dask is not installed, no worker is there in time, or the cluster is lost,
    ValueError if not one of both is given.
    """
    if (scheduler is None) == (workers is None):
        raise ValueError(
            "give `scheduler`, the address of a Dask cluster, or a number of `workers`"
        )
    try:
        from distributed import Client, LocalCluster
        from distributed.comm.addressing import get_address_host_port
        from distributed.scheduler import KilledWorker
    except ImportError:
        raise TraceError("Dask is not installed: pip install '.[dask]'") from None
    address: Any = scheduler
    if workers is None:
        try:
            get_address_host_port(address)
        except ValueError as error:
            raise ValueError(
                f"`scheduler` is {address!r}, not an address such as tcp://host:8786: {error}"
            ) from None
    else:
        workers = whole_number("workers", workers, 1)
    log = getLogger("distributed.client")
    level = log.level
    log.setLevel(CRITICAL)  # what it logs of a lost scheduler is said below
    try:
        if workers is not None:
            with _blocked_interrupts():
                address = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    dashboard_address="127.0.0.1:0",
                    host="127.0.0.1",
                    silence_logs=CRITICAL,  # what fails is said by the client
                )
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=_FIRST_WORKER_S)
            yield Workers(client.get_executor(pure=False), sum(client.ncores().values()))
    except KilledWorker as error:
        raise TraceError(
            f"{error.allowed_failures + 1} workers ended during the same task, perhaps for want of"
            " memory: give workers more, and run the same command again"
        ) from error
    except CancelledError as error:
        raise TraceError(
            f"the cluster at {scheduler or 'this machine'} was lost: start it and run the same"
            " command again"
        ) from error
    except (OSError, TimeoutError) as error:
        if isinstance(error, TimeoutError) or "connect" in str(error):
            raise TraceError(
                f"no cluster with a worker answers at {scheduler}: start `dask scheduler` and"
                " `dask worker`, or give another address"
            ) from error
        raise
    finally:
        log.setLevel(level)
        if workers is not None and address is not None:
            address.close()


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Let the processes and threads that are started, and all that these start, never see Ctrl-C,
    which a terminal sends to all processes: the client answers it, and ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing.resource_tracker import ensure_running

    ensure_running()  # unblocks the signal where it starts, before Python 3.12
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def calls_of(
    tasks: Sequence[T], steps: Callable[[T], int], workers: Workers, most: int | None = None
) -> Iterator[list[T]]:
    """Give every task a call; of many, put small ones together. `steps`: how many a task replays,
    over all runs. `most`: tasks of a call."""
    enough = _STEPS_OF_A_CALL if len(tasks) > workers.ahead else 0
    call: list[T] = []
    total = 0
    for task in tasks:
        call.append(task)
        total += steps(task)
        if total >= enough or len(call) == most:
            yield call
            call, total = [], 0
    if call:
        yield call


def as_they_end(
    workers: Workers,
    function: Callable[[T], R],
    calls: Iterable[Sequence[T]],
    finish: Callable[[T, R], None],
) -> bool:
    """Call `function` for all tasks, and `finish` with each and its result, as they end; after an
    interrupt, running calls end and the others are not started.

    Returns whether there was an interrupt, which may have come when all tasks had ended. Raises
    what `function` raises.
    """
    ended: SimpleQueue[Future[list[R]] | None] = SimpleQueue()
    running: dict[Future[list[R]], Sequence[T]] = {}
    upcoming = iter(calls)

    def start(most: int) -> None:
        for call in islice(upcoming, most):
            future = _submitted(workers.executor, function, call)
            running[future] = call
            future.add_done_callback(ended.put)
            if answers:
                break

    def take(future: Future[list[R]]) -> None:
        for task, result in zip(running.pop(future), future.result(), strict=True):
            finish(task, result)

    try:
        with _signals_told(lambda: ended.put(None)) as answers:
            try:
                start(workers.ahead)
                while running and (future := ended.get()) is not None:
                    take(future)
                    start(1)
            finally:
                for late in wait([future for future in running if not future.cancel()]).done:
                    if not late.cancelled() and late.exception() is None:
                        take(late)
        for answer in answers:
            answer()
    except KeyboardInterrupt:
        return True
    return False


@contextmanager
def _signals_told(tell: Callable[[], None]) -> Iterator[list[Callable[[], object]]]:
    """Call `tell` at the first signal that asks the program to end; what its handler does is in the
    list that is yielded. The next one of its kind is answered at once.

    What a handler raises would be lost where an object of Dask dies: finalizers swallow exceptions.
    """
    answers: list[Callable[[], object]] = []
    if threading.current_thread() is not threading.main_thread():  # no handler interrupts others
        yield answers
        return
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}

    def come(number: int, frame: FrameType | None) -> None:
        signal.signal(number, handlers[number])
        answers.append(partial(handlers[number], number, frame))
        tell()

    try:
        for number in handlers:
            signal.signal(number, come)
        yield answers
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is come:
                signal.signal(number, handler)


def in_order(
    workers: Workers, function: Callable[[T], R], calls: Iterable[Sequence[T]]
) -> Iterator[R]:
    """Yield the results of all tasks in their order; few wait for their turn."""
    upcoming = iter(calls)
    running: deque[Future[list[R]]] = deque()

    def start(most: int) -> None:
        for call in islice(upcoming, most):
            running.append(_submitted(workers.executor, function, call))

    try:
        start(workers.ahead)
        while running:
            yield from running[0].result()
            running.popleft()
            start(1)
    finally:
        for future in running:
            future.cancel()


def _submitted(
    executor: Executor, function: Callable[[T], R], call: Sequence[T]
) -> Future[list[R]]:
    if isinstance(executor, ThreadPoolExecutor):
        return executor.submit(_call, function, call)
    return executor.submit(_call_elsewhere, program(), _packed((function, call)))


def _packed(call: object) -> bytes:
    try:  # what Dask itself uses, which also takes functions of a notebook
        from cloudpickle import dumps
    except ImportError:
        from pickle import dumps
    packed: bytes = dumps(call)
    return packed


def _call(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    return [function(task) for task in tasks]


def _call_elsewhere(asking: list[object], packed: bytes) -> list[Any]:
    """Bytes, since to unpickle a task opens files: a scheduler that only passes it on need not have
    them, and a worker that lacks them says so, as it does of any other fault of a task."""
    if program() != asking:
        raise TraceError(
            f"a worker runs another hisparse-sim, {program()}, than the one that asks, {asking}:"
            " install the same everywhere"
        )
    return _call(*loads(packed))
