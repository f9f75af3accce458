"""What the processes of test_gpu_several.py do; a spawned process imports it by name."""

import mmap
import os
import time


def report(member, times):
    for i in range(times):
        member.together()
        yield (i, member.rank, member.device, time.perf_counter_ns())


def refuse(member):
    yield 0
    if member.rank == 1:
        raise ValueError("a batch of 1 cannot be dealt")
    member.together()
    yield 1


def fail(member):
    if member.rank == 1:
        raise KeyError("plan")
    member.together()
    yield 0


def die(member):
    yield 0
    if member.rank == 1:
        os._exit(9)
    member.together()
    yield 1


def write_shared(member, path):
    with open(path, "r+b") as file:
        view = mmap.mmap(file.fileno(), 0)
    view[member.rank] = member.rank + 7
    member.together()
    yield bytes(view[:3])
