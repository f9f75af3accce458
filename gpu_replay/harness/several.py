"""One process for each GPU of a host, working through the same list at the same moments."""

import multiprocessing
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

from hisparse_sim.gpu_replay.kernels.build import GpuError, require_gpu

PATIENCE_S = 600.0  # longest wait for the others, which may be compiling or filling memory
LEAD_NS = 1_000_000  # from the last arrival to the common start: all have woken up by then

Task = Callable[..., Iterator[Any]]


@dataclass(frozen=True, eq=False)
class Member:
    """One of the processes: `rank` among them, and the `device` it works on."""

    rank: int
    device: int
    barrier: Any  # of all members
    start_ns: Any  # shared; host clock of the next common start

    def together(self) -> None:
        """Wait for all members and resume at the same time, within some microseconds."""
        self.barrier.wait(PATIENCE_S)
        start: int = self.start_ns.value
        while time.perf_counter_ns() < start:  # one clock for all processes of a host
            pass


def choose_devices(gpus: int, present: int, oversubscribe: bool = False) -> list[int]:
    """The device of every process: one each, or assigned round-robin with `oversubscribe`.

    Raises ValueError if gpus is below 1, GpuError if there are too few devices.
    """
    if gpus < 1:
        raise ValueError(f"at least one GPU must take part, got {gpus}")
    if present < 1 or (gpus > present and not oversubscribe):
        raise GpuError(
            f"{gpus} GPUs were asked for and this machine shows {present}: lower `gpus`, or try it "
            "out with several processes on one GPU by `oversubscribe`"
        )
    return [rank % present for rank in range(gpus)]


def find_devices(gpus: int, oversubscribe: bool = False) -> list[int]:
    """`choose_devices` among those that PyTorch sees here."""
    return choose_devices(gpus, int(require_gpu().cuda.device_count()), oversubscribe)


def run_together(devices: Sequence[int], task: Task, *arguments: Any) -> Iterator[list[Any]]:
    """Run `task(member, *arguments)` in one process for each device.

    `task` is a generator function at the top of a module. Its i-th values from all processes come
    out as one list, by rank, as soon as the last is there. A failure of one process ends all; it is
    raised here as the ValueError or GpuError that it was, anything else as a GpuError.
    """
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    start_ns = context.RawValue("q", 0)
    barrier = context.Barrier(len(devices), action=partial(_set_start, start_ns))
    processes, connections = [], {}
    try:
        for rank, device in enumerate(devices):
            receiver, sender = context.Pipe(duplex=False)
            member = Member(rank, device, barrier, start_ns)
            process = context.Process(
                target=_work, args=(sender, task, member, arguments), daemon=True
            )
            process.start()
            sender.close()  # so that the end of the process is seen at the receiver
            processes.append(process)
            connections[receiver] = rank
        yield from _rounds(connections, processes)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _set_start(start_ns: Any) -> None:
    start_ns.value = time.perf_counter_ns() + LEAD_NS


def _work(sender: Connection, task: Task, member: Member, arguments: tuple[Any, ...]) -> None:
    try:
        for value in task(member, *arguments):
            sender.send(("value", value))
        sender.send(("done", None))
    except threading.BrokenBarrierError:
        sender.send(("left", None))  # another one failed, and says why
    except KeyboardInterrupt:
        pass
    except Exception as error:
        member.barrier.abort()
        if not isinstance(error, (GpuError, ValueError)):
            error = GpuError(f"GPU {member.device}: {type(error).__name__}: {error}")
        sender.send(("failed", error))


def _rounds(connections: dict[Connection, int], processes: list[Any]) -> Iterator[list[Any]]:
    values: list[deque[Any]] = [deque() for _ in processes]
    open_, left = dict(connections), False
    while open_:
        for ready in wait(list(open_)):
            assert isinstance(ready, Connection)
            rank = open_[ready]
            try:
                kind, value = ready.recv()
            except EOFError:
                processes[rank].join(10)
                code = processes[rank].exitcode
                raise GpuError(
                    f"process {rank} ended in the middle of its work, exit code {code}"
                ) from None
            if kind == "value":
                values[rank].append(value)
            elif kind == "failed":
                raise value
            else:
                left = left or kind == "left"
                del open_[ready]
        while all(values):
            yield [waiting.popleft() for waiting in values]
    if left:
        raise GpuError(f"a process waited more than {PATIENCE_S:.0f} s for the others and gave up")
