"""Signals that come while Numba compiles are answered between two of its passes.

What a signal handler raises is lost where Python calls back: when an object dies to which a weak
reference leads, or from LLVM. Numba does both all the time, so Ctrl-C was ignored now and then; in
other places it left Numba's own tables half written, and every later compilation failed.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any

from numba.core import event


class _Passes(event.Listener):
    """Calls a function before every pass."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def on_start(self, _: Any) -> None:
        self._call()

    def on_end(self, _: Any) -> None:
        pass


class _Held:
    """Signals that came while they were held, and the handlers that will answer them."""

    def __init__(self) -> None:
        self._came: list[tuple[int, FrameType | None]] = []
        handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._handlers: dict[int, Callable[..., Any]] = {
            number: handler for number, handler in handlers.items() if callable(handler)
        }
        self._ended = False
        self._raised: BaseException | None = None  # by a handler

    def take(self) -> None:
        """Hold all signals that have a handler. Raises ValueError where none may be set."""
        for number in self._handlers:
            signal.signal(number, self._come)

    def answer(self) -> None:
        """Call the handlers of what came, each even if another raises, in the main thread only:
        user code may compile in others meanwhile."""
        if self._came and threading.current_thread() is threading.main_thread():
            waiting = self._came[:]
            del self._came[: len(waiting)]
            try:
                with ExitStack() as last_first:
                    for number, frame in reversed(waiting):
                        last_first.callback(self._handlers[number], number, frame)
            except BaseException as error:
                self._raised = error
                raise

    def release(self) -> None:
        """Give signals back to their handlers, but for those that a handler gave to others.

        Raises what a handler raised, also if the compiler took it for an error of its own.
        """
        try:
            for number, handler in self._handlers.items():
                if signal.getsignal(number) == self._come:
                    signal.signal(number, handler)
        finally:
            self._ended = True  # if a handler raised before all were given back
            self.answer()
        if self._raised is not None:
            raise self._raised

    def _come(self, number: int, frame: FrameType | None) -> None:
        if self._ended:
            self._handlers[number](number, frame)
        else:
            self._came.append((number, frame))


@contextmanager
def held_signals() -> Iterator[None]:
    """Hold signals that have a handler back until the next pass begins, or the block ends.

    In other threads than the main one, which no handler interrupts, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = _Held()
    try:
        with suppress(ValueError):  # in a sub-interpreter, say, which no handler interrupts either
            held.take()
        with event.install_listener("numba:run_pass", _Passes(held.answer)):
            yield
    finally:
        held.release()
