"""Signals that come while Numba compiles are answered between two of its passes.

What a signal handler raises is lost where Python calls back: when an object dies to which a weak
reference leads, or from LLVM. Numba does both all the time, so Ctrl-C was ignored now and then; in
other places it left Numba's own tables half written, and every later compilation failed.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

_HELD = ("SIGINT", "SIGTERM", "SIGHUP")  # not the last on Windows


class _Passes(event.Listener):
    """Calls a function before every pass."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def on_start(self, _: Any) -> None:
        self._call()

    def on_end(self, _: Any) -> None:
        pass


@contextmanager
def held_signals() -> Iterator[None]:
    """Hold signals that have a handler back until the next pass begins, or the block ends.

    In other threads than the main one, which no handler interrupts, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = [getattr(signal, name) for name in _HELD if hasattr(signal, name)]
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}

    def answer() -> None:
        if came:
            number = came.pop()
            handlers[number](number, None)

    for number in handlers:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        with event.install_listener("numba:run_pass", _Passes(answer)):
            yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        answer()
