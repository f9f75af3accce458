"""Machine code of compiled loops, kept on disk: what is damaged there is compiled again.

Numba trusts its cache folder. An index cut short by a full disk ends the program, and machine code
with a flipped bit may run. Here every file ends in a digest of what is before it, which Numba's
own reader does not look at; a file without the right one counts as absent, and one that cannot be
written is done without.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numba
import numba.extending
from numba.core.caching import FunctionCache, IndexDataCacheFile

F = TypeVar("F", bound=Callable[..., Any])

_DIGEST_BYTES = 32

config: Any = numba.config
config.reload_config()  # Numba may be there already, and not know NUMBA_CACHE_DIR


def compiled(function: F, keep: bool = True) -> F:
    """Compile a loop of plain types at its first call; it releases the GIL.

    With `keep` the machine code serves later processes too, where a folder can be found for it.
    """
    loop: Any = numba.njit(nogil=True)(function)
    if keep and loop is not function:  # it is if NUMBA_DISABLE_JIT is set
        with suppress(RuntimeError, OSError):
            loop._cache = _Cache(function)
    return cast(F, loop)


def rule(function: F) -> F:
    """Mark a function that compiled loops may call; it stays a plain Python function."""
    marked: F = numba.extending.register_jitable(function)
    return marked


class _Cache(FunctionCache):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        if not Path(self._cache_path).is_relative_to(config.CACHE_DIR or "/"):
            raise OSError(f"{config.CACHE_DIR} takes no files; Numba's other places are no better")
        self._cache_file = _SealedFiles(
            self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )

    def load_overload(self, *arguments: Any) -> Any:
        try:
            return super().load_overload(*arguments)
        except Exception:
            return None  # whole, but of modules that have moved since

    def save_overload(self, *arguments: Any) -> None:
        with suppress(OSError):
            super().save_overload(*arguments)


class _SealedFiles(IndexDataCacheFile):
    """One index and the files it names, each with its digest at the end.

    Two processes that compile at once may give a name twice, so a file tells what it is for.
    """

    def save(self, key: Any, data: Any) -> None:
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        found = super().load(key)
        return found[1] if found is not None and found[0] == key else None

    def _load_index(self) -> Any:
        return super()._load_index() if _sound(self._index_path) else {}

    def _load_data(self, name: str) -> Any:
        if not _sound(self._data_path(name)):
            raise FileNotFoundError(name)  # the one answer that makes Numba compile
        return super()._load_data(name)

    @contextmanager
    def _open_for_write(self, path: str) -> Iterator[IO[bytes]]:
        content = BytesIO()
        yield content
        with super()._open_for_write(path) as file:
            file.write(content.getvalue())
            file.write(hashlib.sha256(content.getvalue()).digest())


def _sound(path: str) -> bool:
    try:
        content = Path(path).read_bytes()
    except OSError:
        return False
    data, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return hashlib.sha256(data).digest() == digest
