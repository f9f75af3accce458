"""What signals that ask a program to end do to a command.

The first of them raises an exception, so that the command cleans up: kept work stays, a file half
written goes. It waits for what runs, and what runs may be a policy of the user's that never ends,
in compiled code that lets no exception in. So the second one gives the command a while to end, and
then ends the process.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hisparse_sim.traces.stop_signals import STOP_SIGNALS

PATIENCE_S = 2.0  # from the second signal on


@contextmanager
def signals_end() -> Iterator[None]:
    """Let signals that ask a program to end clean up as Ctrl-C does; exit with 128 + their number,
    as shells report it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    taken = {}
    try:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:
                taken[number] = signal.signal(number, end)
        with _at_the_second({number: signal.getsignal(number) for number in STOP_SIGNALS}):
            yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


@contextmanager
def _at_the_second(handlers: dict[int, Any]) -> Iterator[None]:
    """End the process some time after the second signal, if it is still in here.

    Python runs handlers between two of its instructions in the main thread only; the number of a
    signal it writes to a socket at once.
    """
    ours, pythons = socket.socketpair()
    threading.Thread(target=_watch, args=(ours, handlers), daemon=True).start()
    with pythons:
        pythons.setblocking(False)
        before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)


def _watch(ours: socket.socket, handlers: dict[int, Any]) -> None:
    came: list[int] = []
    with ours:
        while True:
            try:
                if not (numbers := ours.recv(64)):  # the command has ended
                    return
                came += [number for number in numbers if number in handlers]
            except TimeoutError:
                # Others have taken the signal: a server that ends at its own pace, or a compiler.
                if signal.getsignal(came[-1]) == handlers[came[-1]]:
                    with suppress(OSError, ValueError, AttributeError):  # no stderr
                        os.write(sys.stderr.fileno(), b"Error: interrupted while it computed\n")
                    os._exit(128 + came[-1])
            if len(came) > 1:
                ours.settimeout(PATIENCE_S)
