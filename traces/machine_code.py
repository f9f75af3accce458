"""Compiled loops whose machine code is kept on disk, by public means of Numba only.

Numba trusts its cache: an index cut short by a full disk ends the program, machine code with a
flipped bit may run, and two processes that compile at once may mix up the files of two signatures.
So every loop has a folder for every combination of argument types, named by a digest of all that
the machine code depends on: what two processes write there is the same. A seal beside the files
holds their digests; a folder without the right one is emptied before Numba sees it. Where a folder
cannot be read or written after all, the loop is compiled without one. Tried with Numba 0.60 (the
oldest supported) and 0.68.
"""

import json
import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache, update_wrapper
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

import llvmlite
import llvmlite.binding
import numba
import numba.extending
import numpy as np
from numba.core.errors import NumbaError

from hisparse_sim.traces.held_signals import held_signals

config: Any = numba.config

F = TypeVar("F", bound=Callable[..., Any])

_SEAL = "seal.json"
_KEPT_DAYS = 90  # a folder is removed after that; what is still in use is compiled once more
_COMPILER = threading.RLock()  # one thread at a time: where files go is a global of Numba


def compiled(function: F, keep: bool = True) -> F:
    """Compile a loop at its first call with new argument types; it releases the GIL.

    With `keep` the machine code serves later processes too, where a folder can be found for it.
    """
    if config.DISABLE_JIT:
        return function
    return cast(F, Loop(function, keep))


def rule(function: F) -> F:
    """Mark a function that compiled loops may call; it stays a plain Python function."""
    marked: F = numba.extending.register_jitable(function)
    return marked


class Loop:
    """A loop, compiled for every combination of argument types that it is called with.

    Numba numbers every type when it is first met. Two threads that meet one at once number it
    twice, and a loop that was compiled for the one number ends in an AssertionError when it is
    called with the other. So types are met under a lock: arguments whose kinds are known are of
    types that a compiled loop keeps.
    """

    def __init__(self, function: Callable[..., Any], keep: bool) -> None:
        update_wrapper(self, function)
        self.py_func = function
        self._keep = keep
        self._compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}  # by kinds of arguments
        self.from_disk = 0  # combinations of types whose machine code was found there

    def __call__(self, *arguments: Any) -> Any:
        kinds = tuple(map(_kind, arguments))
        if kinds not in self._compiled:
            with _COMPILER, held_signals():
                if kinds not in self._compiled:
                    self._compiled[kinds] = self._compile(tuple(map(numba.typeof, arguments)))
        try:
            return self._compiled[kinds](*arguments)
        except TypeError:  # Numba takes two NamedTuples of one name for one when it calls
            with _COMPILER, held_signals():
                self._compiled[kinds] = numba.njit(nogil=True)(self.py_func)
                return self._compiled[kinds](*arguments)

    def _compile(self, types: tuple[Any, ...]) -> Callable[..., Any]:
        folder = _folder(self.py_func, types) if self._keep else None
        if folder is not None:
            before = config.CACHE_DIR
            config.CACHE_DIR = str(folder)  # as NUMBA_CACHE_DIR sets it
            try:
                found = _is_sealed(folder)
                if not found:
                    _empty(folder)
                loop: Callable[..., Any] = numba.njit(types, nogil=True, cache=True)(self.py_func)
                if not found:
                    _seal(folder)
                self.from_disk += found
                return loop
            except NumbaError:
                raise  # the loop itself is wrong
            except Exception:
                pass  # no room, no right to write, or sound files of modules that have moved since
            finally:
                config.CACHE_DIR = before
        plain: Callable[..., Any] = numba.njit(types, nogil=True)(self.py_func)
        return plain


def _kind(argument: Any) -> Any:
    """Return what tells the types of arguments apart, as Numba does and 20 times as fast."""
    if isinstance(argument, np.ndarray):
        flags = argument.flags
        layout = (flags.c_contiguous, flags.f_contiguous, flags.writeable, flags.aligned)
        return (type(argument), argument.dtype, argument.ndim, layout)
    if isinstance(argument, tuple):
        return (type(argument), *map(_kind, argument))
    return type(argument)


def _folder(function: Callable[..., Any], types: tuple[Any, ...]) -> Path | None:
    """Return the folder for a loop and argument types; None where there is none to write to."""
    base = machine_code_folder()
    try:
        # Numba keeps apart what comes from other paths: two copies would break each other's seal.
        sources = sorted((file, _digest_of(file)) for file in _files(function, set()))
    except OSError:  # written into an interpreter
        return None
    if base is None:
        return None
    depends = [
        *_machine(),
        function.__module__,
        function.__qualname__,
        sources,
        [cell for cell in _cells(function) if isinstance(cell, int)],
        [str(each) for each in types],
    ]
    digest = sha256(json.dumps(depends).encode()).hexdigest()
    return base / f"{function.__name__}-{digest[:24]}"


@cache
def _machine() -> tuple[str, ...]:
    """Return what all machine code depends on."""
    return (
        numba.__version__,
        llvmlite.__version__,
        platform.python_implementation(),
        platform.python_version(),
        llvmlite.binding.get_host_cpu_name(),
        llvmlite.binding.get_host_cpu_features().flatten(),
    )


def _files(function: Callable[..., Any], seen: set[Any]) -> set[str]:
    """Return the files of a function and of all functions that it names: numba#1833, Numba itself
    looks at the first alone."""
    if function in seen or not isinstance(function, FunctionType):
        return set()
    seen.add(function)
    names = (function.__globals__.get(name) for name in function.__code__.co_names)
    found = {function.__code__.co_filename}
    for each in (*names, *_cells(function)):
        if isinstance(each, FunctionType):
            found |= _files(each, seen)
    return found


def _cells(function: Callable[..., Any]) -> list[Any]:
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]


@cache
def _digest_of(file: str) -> str:
    return sha256(Path(file).read_bytes()).hexdigest()


def machine_code_folder() -> Path | None:
    """Return where machine code is kept: in NUMBA_CACHE_DIR, else in the user's cache, else in the
    folder for temporary files; None if none of them takes files.

    Not beside the source, as Numba has it: there it would outlive an uninstall, and what is left of
    the folders would hide an editable install that follows.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    shared = Path(tempfile.gettempdir())
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    home = given if given.is_absolute() else Path(os.path.expanduser("~/.cache"))
    candidates = [home / "hisparse-sim", shared / f"hisparse-sim-{user}"]
    if asked := os.environ.get("NUMBA_CACHE_DIR"):
        candidates = [Path(asked) / "hisparse-sim"]
    for folder in candidates:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # What lies there is run: in a folder that all may write to, it must be our own.
            ours = folder.parent != shared or folder.stat().st_uid == user
            if ours and os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError:
            pass  # no home, or one that nobody may write to
    return None


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != _SEAL
    }


def _is_sealed(folder: Path) -> bool:
    """Return whether all files are there as they were written, and no others."""
    try:
        sealed = json.loads((folder / _SEAL).read_text(encoding="utf-8"))
        return bool(sealed) and sealed == _digests(folder)
    except (OSError, ValueError):
        return False


def _seal(folder: Path) -> None:
    """Write the digests of all files, in one step."""
    text = json.dumps(_digests(folder))
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=_SEAL, delete=False) as file:
        file.write(text)
    os.replace(file.name, folder / _SEAL)


def _empty(folder: Path) -> None:
    """Make the folder anew, and remove its old neighbours."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    oldest = time.time() - _KEPT_DAYS * 86400
    for other in folder.parent.iterdir():
        if other.stat().st_mtime < oldest:
            shutil.rmtree(other, ignore_errors=True)
