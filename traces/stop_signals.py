"""The signals that ask a program to end."""

import signal

STOP_SIGNALS: tuple[int, ...] = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")  # not the last on Windows
    if hasattr(signal, name)
)
