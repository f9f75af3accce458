"""Requests to stores and servers: tried again where that may help, else refused in one sentence.

The file systems of fsspec raise what their clients raise, which has no common base.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hisparse_sim.traces.errors import TraceError

T = TypeVar("T")

_PAUSES_S = (0.2, 0.8, 3.2, None)  # after each try
# Of the file systems that the extra brings; of others fsspec says what to install.
_BROUGHT = ("http", "https", "s3", "s3a", "gs", "gcs", "hf")
_BUSY = (408, 409, 425, 429)  # statuses of refused requests that may pass when tried again


def tried(url: object, ask: Callable[[], T], purpose: str = "read") -> T:
    """Ask several times, with growing pauses: for a body that is cut, or a server that is busy.

    Raises TraceError.
    """
    with asking(url, purpose):
        for pause in _PAUSES_S:
            try:
                return ask()
            except Exception as error:
                if pause is None or not _may_pass(error):
                    raise
                time.sleep(pause)
        raise AssertionError


@contextmanager
def asking(url: object, purpose: str) -> Iterator[None]:
    """Turn what is raised into a TraceError that says what could not be done to the URL."""
    try:
        yield
    except TraceError:
        raise
    except ImportError as error:
        scheme = str(url).partition("://")[0].lower()
        way = f"pip install '.[remote]' ({error})" if scheme in _BROUGHT else error
        raise TraceError(f"{url} cannot be {purpose}: {way}") from None
    except Exception as error:
        told: BaseException = error
        if isinstance(error, FileNotFoundError):
            if is_absent(error):
                raise TraceError(f"{url} does not exist") from None
            told = error.__cause__ or error
        reason = " ".join(str(told).split())[:200] or type(told).__name__
        raise TraceError(f"{url} cannot be {purpose}: {reason}") from error


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status behind an exception, wherever its file system keeps it.

    Of causes, those of an OSError count: it stands for what a client raised. A body that was cut
    has a cause with a code, too, which no server sent.
    """
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):  # botocore
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        elif response is not None:  # huggingface_hub
            status = getattr(response, "status_code", None)
        elif hasattr(error, "status"):  # aiohttp
            status = error.status
        else:  # gcsfs
            status = getattr(error, "code", None)
        if isinstance(status, int):
            return status
        error = error.__cause__ if isinstance(error, OSError) else None
    return None


def is_absent(error: FileNotFoundError) -> bool:
    """Return whether a file is not there: fsspec says so of whatever fails at a web server."""
    return error.__cause__ is None or status_of(error) in (404, 410)


def _may_pass(error: Exception) -> bool:
    """Return whether a request that failed is worth another try."""
    if isinstance(error, TraceError | PermissionError | ImportError):
        return False
    if isinstance(error, FileNotFoundError) and is_absent(error):
        return False
    status = status_of(error)
    return status is None or status >= 500 or status in _BUSY
