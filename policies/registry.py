"""What can be named: a policy or a prefetcher of the package, of one's own file, or in hand."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hisparse_sim.policies.from_file import from_file, names_a_file
from hisparse_sim.policies.parameters import Configured, configured, described, divided
from hisparse_sim.policies.policy import PolicyError

if TYPE_CHECKING:
    import pandas as pd


def find(
    asked: str | Configured,
    kind: type[Configured],
    known: Mapping[str, Configured],
    parameters: Mapping[str, Any],
    *,
    aliases: Mapping[str, str] | None = None,
    reserved: Collection[str] = (),
) -> Configured:
    """Return the one of `known` that has this name or alias, that of a file given as
    `FILE.py:NAME`, or `asked` itself if it is of this kind; with these parameters.

    A name may have parameters, too: `NAME:FIELD=VALUE,FIELD=VALUE`. Names that are known, aliases
    or reserved are not free for what is in a file. Raises PolicyError: it names the known ones or
    the parameters, or says what is wrong with the file.
    """
    if isinstance(asked, kind):
        return configured(asked, parameters)
    if not isinstance(asked, str):
        raise PolicyError(f"{asked!r} is not a {kind.kind}: give a name or a {kind.__name__}")
    aliases = aliases or {}
    name, written = divided(asked, kind.kind)
    if names_a_file(name):
        found = from_file(name, kind)
        if found.name.lower() in (*known, *aliases, *reserved):
            raise PolicyError(
                f"{kind.kind} {name}: the name {found.name!r} is taken; choose another"
            )
    else:
        if (lower := name.lower()) not in (*known, *aliases):
            raise PolicyError(f"unknown {kind.kind} {name!r}; known are {', '.join(known)}")
        found = known[aliases.get(lower, lower)]
    return configured(found, {**written, **parameters})


def is_registered(each: Configured, known: Mapping[str, Configured]) -> bool:
    """Return whether this is one of `known`, whatever its parameters."""
    same = known.get(each.base)
    if same is None:
        return False
    changed: Any = each  # a dataclass, which a protocol cannot say
    return bool(replace(changed, name=same.name, parameters=same.parameters) == same)


def table_of(known: Mapping[str, Configured], kind: str) -> "pd.DataFrame":
    """Return a row for each: its name in a column called `kind`, `summary`, `parameters` and
    `reference`."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                kind: each.name,
                "summary": each.summary,
                "parameters": described(each),
                "reference": each.reference,
            }
            for each in known.values()
        ]
    )
