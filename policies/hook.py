"""The bridge between plain typed Python and compiled code.

A policy is written as ordinary functions; `hook` marks those that the compiled replay loop may call. They
stay ordinary functions, so that they can be read, tested and stepped through without a compiler
(`NUMBA_DISABLE_JIT=1`), and so that Numba finds its cached machine code again in the next process.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload, register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])


def hook(function: Function) -> Function:
    """Mark `function` as one that compiled code may call; it stays a plain Python function."""
    marked: Function = register_jitable(forceinline=True)(function)
    return marked


def trailing_zeros(word: np.uint64) -> int:
    """Return the index of the lowest set bit of `word`, which must not be 0."""
    bits = int(word)
    return (bits & -bits).bit_length() - 1


@intrinsic  # type: ignore[untyped-decorator]
def _count_trailing_zeros(typing_context: Any, word: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero_is_undefined = ir.Constant(ir.IntType(1), 1)
        return builder.cttz(arguments[0], zero_is_undefined)

    return types.uint64(types.uint64), emit


@overload(trailing_zeros, inline="always")  # type: ignore[untyped-decorator]
def _compiled_trailing_zeros(word: Any) -> Any:
    def count(word: Any) -> Any:
        return _count_trailing_zeros(word)

    return count
