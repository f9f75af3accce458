"""The bridge between plain typed Python and compiled code.

A policy is written as ordinary functions; `hook` marks those that the compiled replay loop may
call. They stay ordinary functions, so that they can be read, tested and stepped through without a
compiler (`NUMBA_DISABLE_JIT=1`), and so that Numba finds its cached machine code again in the next
process.

The primitives below are ordinary functions too; compiled code uses an equivalent form that suits
the machine.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload, register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "is_hook"
_INT32 = ir.IntType(32)


def hook(function: Function) -> Function:
    """Mark `function` as one that compiled code may call; it stays a plain Python function."""
    marked: Function = register_jitable(forceinline=True)(function)
    marked.__dict__[_MARK] = True
    return marked


def is_hook(function: Callable[..., Any]) -> bool:
    """Return whether a function is marked with `hook`."""
    return _MARK in getattr(function, "__dict__", ())


@hook
def copy(target: npt.NDArray[Any], source: npt.NDArray[Any]) -> None:
    """Copy `source` to the start of `target`; faster than a slice, which tests for overlap."""
    for i in range(len(source)):
        target[i] = source[i]


def address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Return the address of an element of an array, inside an intrinsic."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [index])


# --- arithmetic modulo 2^64 ------------------------------------------------------------------


def wrapping_add(left: np.uint64, right: np.uint64) -> np.uint64:
    """Return the sum modulo 2^64 (NumPy would warn of the overflow)."""
    return np.uint64((int(left) + int(right)) % 2**64)


def wrapping_multiply(left: np.uint64, right: np.uint64) -> np.uint64:
    """Return the product modulo 2^64."""
    return np.uint64(int(left) * int(right) % 2**64)


@overload(wrapping_add, inline="always")
def _compiled_add(left: Any, right: Any) -> Any:
    def add(left: Any, right: Any) -> Any:
        return left + right

    return add


@overload(wrapping_multiply, inline="always")
def _compiled_multiply(left: Any, right: Any) -> Any:
    def multiply(left: Any, right: Any) -> Any:
        return left * right

    return multiply


# --- prefetch ---------------------------------------------------------------------------------


def prefetch(array: npt.NDArray[Any], index: int) -> None:
    """Ask the CPU to load the cache line of `array[index]`; beyond the end it does nothing."""


@intrinsic
def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = address(context, builder, array, *arguments)
        place = builder.bitcast(place, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [place.type, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        read, keep, data = (ir.Constant(_INT32, value) for value in (0, 3, 1))
        builder.call(function, [place, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.int64), emit


@overload(prefetch, inline="always")
def _compiled_prefetch(array: Any, index: Any) -> Any:
    def ask(array: Any, index: Any) -> None:
        _prefetch(array, index)  # type: ignore[call-arg]

    return ask


@hook
def signed(number: Any) -> int:
    """Return an unsigned number as a signed one. Compiled code adds the two as floats."""
    return int(np.int64(number))


# --- bits -------------------------------------------------------------------------------------


def count_ones(word: np.uint64) -> int:
    """Return how many bits of a word are set."""
    return int(word).bit_count()


@intrinsic
def _count_ones(typing_context: Any, word: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), emit


@overload(count_ones, inline="always")
def _compiled_count_ones(word: Any) -> Any:
    def count(word: Any) -> int:
        return _count_ones(word)  # type: ignore[call-arg]

    return count


@hook
def lowest_one(word: np.uint64) -> np.uint32:
    """Return the place of the lowest bit that is set, of 0 to 63."""
    below = (word & (~word + np.uint64(1))) - np.uint64(1)
    return np.uint32(count_ones(below))


WORD = 64  # bits


def outside(numbers: npt.NDArray[np.int32], start: int, low: int, high: int) -> np.uint64:
    """Return which of the `WORD` numbers from `start` on are not in low..high: a bit for each, the
    first the lowest. No number is negative."""
    bits = 0
    for place, number in enumerate(numbers[start : start + WORD].tolist()):
        bits |= (not low <= number <= high) << place
    return np.uint64(bits)


@intrinsic
def _outside(typing_context: Any, numbers: Any, start: Any, low: Any, high: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers, start, low, high = arguments
        lanes, word = ir.VectorType(_INT32, 8), ir.IntType(64)
        zeros = ir.Constant(lanes, None)

        def everywhere(value: Any) -> Any:
            first = builder.insert_element(zeros, value, ir.Constant(_INT32, 0))
            return builder.shuffle_vector(first, zeros, zeros)

        lows, span = everywhere(low), everywhere(builder.sub(high, low))
        bits = ir.Constant(word, 0)
        for first in range(0, WORD, 8):
            at = builder.add(start, ir.Constant(word, first))
            place = address(context, builder, signature.args[0], numbers, at)
            eight = builder.load(builder.bitcast(place, lanes.as_pointer()), align=4)
            # Unsigned: what is less than `low` wraps around, so one comparison tells both.
            found = builder.icmp_unsigned(">", builder.sub(eight, lows), span)
            found = builder.zext(builder.bitcast(found, ir.IntType(8)), word)
            bits = builder.or_(bits, builder.shl(found, ir.Constant(word, first)))
        return bits

    return types.uint64(numbers, types.int64, types.int32, types.int32), emit


@overload(outside, inline="always")
def _compiled_outside(numbers: Any, start: Any, low: Any, high: Any) -> Any:
    def bits(numbers: Any, start: Any, low: Any, high: Any) -> Any:
        return _outside(numbers, start, low, high)  # type: ignore[call-arg]

    return bits
