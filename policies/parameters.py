"""Parameters of a policy: the fields of a frozen dataclass, all with defaults.

Written as `NAME:FIELD=VALUE,FIELD=VALUE`. A name in results lists what differs from the defaults,
so that a setting has one name however it was asked for.
"""

import re
from collections.abc import Mapping
from dataclasses import field, fields, replace
from math import inf, isfinite
from typing import Any, ClassVar, Protocol, TypeVar

from hisparse_sim.policies.policy import PolicyError


class Configurable(Protocol):
    """A frozen dataclass of which one field is `parameters`: a policy, or a prefetcher."""

    kind: ClassVar[str]  # what messages call it

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def reference(self) -> str: ...
    @property
    def base(self) -> str: ...
    @property
    def parameters(self) -> Any: ...


Configured = TypeVar("Configured", bound=Configurable)

_WRITTEN = re.compile(r"(.+?):(\s*\w+\s*=.*)", re.DOTALL)
MOST = 2**31  # of a number; states of arrays are sized by them
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def parameter(
    default: Any, about: str, least: float = -inf, most: float = inf, above: bool = False
) -> Any:
    """Return a dataclass field: an int, float or bool with bounds (`above`: not `least` itself)."""
    bounds = {"about": about, "least": least, "most": most, "above": above}
    return field(default=default, metadata=bounds)


def divided(text: str, kind: str) -> tuple[str, dict[str, str]]:
    """Return the name as written, and the values that follow it by the names of their fields.

    Raises PolicyError for a field given twice, or without a value.
    """
    found = _WRITTEN.fullmatch(text)
    if found is None:
        return text, {}
    given: dict[str, str] = {}
    for piece in found[2].split(","):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not value or key in given:
            raise PolicyError(f"{kind} {text!r}: write each parameter once, as FIELD=VALUE")
        given[key] = value
    return found[1], given


def configured(policy: Configured, given: Mapping[str, Any]) -> Configured:
    """Return the policy with these parameters and a name that says so.

    Raises PolicyError, which lists the parameters, for an unknown one or a value out of bounds.
    """
    if not given:
        return policy
    if policy.parameters is None:
        raise PolicyError(
            f"{policy.kind} {policy.name} has no parameters, so not {', '.join(given)}"
        )
    known = {each.name: each for each in fields(policy.parameters)}
    values = {}
    for key, value in given.items():
        wrong = f"{policy.kind} {policy.base} has no parameter {key}"
        if key in known:
            kind = type(known[key].default)
            found = _value(kind, value)
            if found is not None and _within(found, known[key].metadata):
                values[key] = found
                continue
            wrong = f"{policy.kind} {policy.base}: {key} cannot be {value}"
        raise PolicyError(f"{wrong}; its parameters are {described(policy)}")
    chosen = replace(policy.parameters, **values)
    differing = [
        f"{name}={_text(getattr(chosen, name))}"
        for name, each in known.items()
        if getattr(chosen, name) != each.default
    ]
    name = policy.base + ":" * bool(differing) + ",".join(differing)
    changed: Any = policy  # a dataclass, which a protocol cannot say
    result: Configured = replace(changed, name=name, parameters=chosen)
    return result


def described(policy: Configurable) -> str:
    """Return the parameters with their defaults and bounds, "" for none."""
    if policy.parameters is None:
        return ""
    return ", ".join(
        f"{each.name}={_text(each.default)}{_bounds(each)}" for each in fields(policy.parameters)
    )


def _value(kind: type, value: Any) -> Any:
    """Return the value as int, float or bool, None if it is none."""
    try:
        if kind is bool:
            return _BOOLEANS.get(str(value).lower())
        number = kind(str(value))
    except ValueError:
        return None
    return number if isfinite(number) and abs(number) < MOST else None


def _within(value: Any, bounds: Mapping[str, Any]) -> bool:
    least, most = bounds.get("least", -inf), bounds.get("most", inf)
    above: bool = value > least if bounds.get("above") else value >= least
    return above and bool(value <= most)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bounds(each: Any) -> str:
    if type(each.default) is bool:
        return " (or true)" if not each.default else " (or false)"
    least, most = each.metadata.get("least", -inf), each.metadata.get("most", inf)
    said = [f"{'above' if each.metadata.get('above') else 'from'} {least:g}"] * (least > -inf)
    said += [f"to {most:g}"] * (most < inf)
    return f" ({' '.join(said)})" if said else ""
