"""Your own policies and prefetchers, named on the command line as `FILE.py:NAME`."""

import re
import sys
from dataclasses import make_dataclass
from functools import cache, lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hisparse_sim.policies.parameters import Configured, configured
from hisparse_sim.policies.policy import PolicyError

_NAMED = re.compile(r"(.+\.py)(?::(.*))?", re.DOTALL)


def names_a_file(text: str) -> bool:
    """Return whether the text is `FILE.py:NAME`, or `FILE.py` alone."""
    return _NAMED.fullmatch(text) is not None


def from_file(text: str, kind: type[Configured]) -> Configured:
    """Run the file that `FILE.py:NAME` names and return its policy or prefetcher NAME: a variable,
    or what it calls itself. Without NAME the file must hold a single one of the kind.

    A file is run once per process, unless it changes. Raises PolicyError if it cannot be run, or
    holds no such thing.
    """
    found = _NAMED.fullmatch(text)
    assert found is not None
    path, name = Path(found[1]), found[2] or ""
    try:
        version = path.stat().st_mtime_ns
    except OSError as error:
        raise PolicyError(f"{kind.kind} {text}: {path} cannot be read: {error.strerror}") from None
    there = _all_of(path.absolute(), version, kind)
    matching = {
        each
        for variable, each in there.items()
        if name in ("", variable) or name.lower() == each.name.lower()
    }
    if len(matching) == 1:
        chosen: Configured = matching.pop()
        return chosen
    if not there:
        said = f"defines no {kind.kind}"
    elif name:
        said = f"defines no {kind.kind} {name}; it has {', '.join(there)}"
    else:
        said = f"defines several, {', '.join(there)}: name one, as {path}:{next(iter(there))}"
    raise PolicyError(f"{kind.kind} {text}: {path} {said}")


@lru_cache(maxsize=16)
def _all_of(path: Path, version: int, kind: type[Configured]) -> dict[str, Configured]:
    """Return what a file defines of a kind, by the variables that hold it."""
    ours = _of_a_file(kind)
    return {
        key: ours(**vars(value), file=f"{path}:{key}")
        for key, value in vars(_module(path, version)).items()
        if isinstance(value, kind)
    }


@lru_cache(maxsize=16)
def _module(path: Path, version: int) -> ModuleType:
    name = f"policy file {path}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    before = list(sys.path)
    sys.path.insert(0, str(path.parent))  # a script's own folder, as for `python FILE.py`
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        line = getattr(error, "lineno", None) or _line(error, path)
        said = f"{type(error).__name__}: {error}".strip().rstrip(":")
        raise PolicyError(f"{path}, line {line}: {said}") from error
    finally:
        sys.path[:] = before
    return module


@cache
def _of_a_file(kind: type[Configured]) -> Any:
    """Return the kind with a field `file`, FILE.py:NAME, which another process has to run: what is
    defined there has no module that could be imported."""

    def reread(self: Any) -> tuple[Any, ...]:
        parameters = {} if self.parameters is None else vars(self.parameters)
        return _reread, (self.file, kind, parameters)

    return make_dataclass(
        f"{kind.__name__}OfFile",
        [("file", str)],
        bases=(kind,),
        namespace={"__reduce__": reread},
        frozen=True,
        kw_only=True,
    )


def _reread(file: str, kind: type[Configured], parameters: dict[str, Any]) -> Configured:
    return configured(from_file(file, kind), parameters)


def _line(error: BaseException, path: Path) -> int:
    """Return the line of the file where an error arose."""
    place, line = error.__traceback__, 0
    while place is not None:
        if place.tb_frame.f_code.co_filename == str(path):
            line = place.tb_lineno
        place = place.tb_next
    return line
