"""Your own policies, named on the command line as `FILE.py:NAME`."""

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hisparse_sim.policies.parameters import configured
from hisparse_sim.policies.policy import Policy, PolicyError

_NAMED = re.compile(r"(.+\.py)(?::(.*))?", re.DOTALL)


def names_a_file(text: str) -> bool:
    """Return whether the text is `FILE.py:NAME`, or `FILE.py` alone."""
    return _NAMED.fullmatch(text) is not None


def policy_of_file(text: str) -> Policy:
    """Run the file that `FILE.py:NAME` names and return its policy NAME: a variable, or what a
    policy calls itself. Without NAME the file must hold a single policy.

    A file is run once per process, unless it changes. Raises PolicyError if it cannot be run, or
    holds no such policy.
    """
    found = _NAMED.fullmatch(text)
    assert found is not None
    path, name = Path(found[1]), found[2] or ""
    try:
        version = path.stat().st_mtime_ns
    except OSError as error:
        raise PolicyError(f"policy {text}: {path} cannot be read: {error.strerror}") from None
    policies = _policies(path.absolute(), version)
    matching = {
        each
        for variable, each in policies.items()
        if name in ("", variable) or name.lower() == each.name.lower()
    }
    if len(matching) != 1:
        there = ", ".join(policies) or "none"
        raise PolicyError(
            f"policy {text}: {path} holds "
            + (f"no policy {name}" if name else f"{len(matching)} policies, so name one")
            + f"; there are: {there}"
        )
    return matching.pop()


@lru_cache(maxsize=16)
def _policies(path: Path, version: int) -> dict[str, Policy]:
    """Return the policies of a file by the variables that hold them."""
    name = f"policy file {path}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))  # a script's own folder, as for `python FILE.py`
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        line = getattr(error, "lineno", None) or _line(error, path)
        said = f"{type(error).__name__}: {error}".strip().rstrip(":")
        raise PolicyError(f"{path}, line {line}: {said}") from error
    finally:
        sys.path.remove(str(path.parent))
    return {
        key: _FilePolicy(**vars(value), file=f"{path}:{key}")
        for key, value in vars(module).items()
        if isinstance(value, Policy)
    }


@dataclass(frozen=True)
class _FilePolicy(Policy):
    """A policy of a file, which another process has to run: its functions have no module."""

    file: str = ""  # FILE.py:NAME

    def __reduce__(self) -> tuple[Any, ...]:
        return _reread, (self.file, {} if self.parameters is None else vars(self.parameters))


def _reread(file: str, parameters: dict[str, Any]) -> Policy:
    return configured(policy_of_file(file), parameters)


def _line(error: Exception, path: Path) -> int:
    """Return the line of the file where an error arose."""
    place, line = error.__traceback__, 0
    while place is not None:
        if place.tb_frame.f_code.co_filename == str(path):
            line = place.tb_lineno
        place = place.tb_next
    return line
