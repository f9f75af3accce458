"""The part of the engine's hook registry that the plugin uses."""

import functools
import pkgutil
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar


class HookType(Enum):
    AROUND = "around"


class HookRegistry:
    hooks: ClassVar[dict[str, Callable[..., Any]]] = {}

    @classmethod
    def register(cls, target: str, hook: Callable[..., Any], hook_type: HookType) -> None:
        cls.hooks[target] = hook

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hook in cls.hooks.items():
            path, name = target.rsplit(".", 1)
            place = pkgutil.resolve_name(path)
            setattr(place, name, _around(getattr(place, name), hook))


def _around(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*given: Any, **named: Any) -> Any:
        return hook(original, *given, **named)

    return wrapper
