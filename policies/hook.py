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
from numba.core.registry import cpu_target
from numba.extending import intrinsic, overload, register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "is_hook"
LANES = 16  # elements that `split` may write beyond the end of what it returns

_INT16, _INT32, _INT64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)


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


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
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
        address = _address(context, builder, array, *arguments)
        address = builder.bitcast(address, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [address.type, _INT32, _INT32, _INT32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        read, keep, data = (ir.Constant(_INT32, value) for value in (0, 3, 1))
        builder.call(function, [address, read, keep, data])
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


# --- split ------------------------------------------------------------------------------------


def split(
    slots: npt.NDArray[np.uint16],
    marks: npt.NDArray[np.int32],
    mark: int,
    others: npt.NDArray[np.uint16],
    marked: npt.NDArray[np.uint16],
) -> int:
    """Split `slots` into those whose entry in `marks` equals `mark` and the others, in order.

    Returns the number of others. Both outputs must have room for `LANES` more elements than they
    receive.
    """
    return _split_from(0, 0, 0, slots, marks, mark, others, marked)


@hook
def _split_from(
    start: int,
    to_others: int,
    to_marked: int,
    slots: npt.NDArray[np.uint16],
    marks: npt.NDArray[np.int32],
    mark: int,
    others: npt.NDArray[np.uint16],
    marked: npt.NDArray[np.uint16],
) -> int:
    for i in range(start, len(slots)):  # without a branch: marks are hard to predict
        slot = slots[i]
        others[to_others] = slot
        marked[to_marked] = slot
        found = marks[slot] == mark
        to_others += not found
        to_marked += found
    return to_others


@intrinsic
def _split_16(
    typing_context: Any,
    slots: Any,
    start: Any,
    marks: Any,
    mark: Any,
    others: Any,
    to_others: Any,
    marked: Any,
    to_marked: Any,
) -> Any:
    """Split the 16 slots from `start` on and return how many of them are marked (AVX-512)."""
    index = types.int64
    signature = index(slots, index, marks, types.int32, others, index, marked, index)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        narrow, wide = ir.VectorType(_INT16, LANES), ir.VectorType(_INT32, LANES)
        mask, pointer = ir.VectorType(ir.IntType(1), LANES), ir.IntType(8).as_pointer()
        zeros, all_lanes = ir.Constant(wide, None), ir.Constant(mask, [1] * LANES)
        start, mark = arguments[1], arguments[3]

        def call(name: str, *operands: Any) -> Any:
            kind = ir.FunctionType(wide, [operand.type for operand in operands])
            function = builder.module.globals.get(name)
            function = function or ir.Function(builder.module, kind, name)
            return builder.call(function, operands)

        def address(argument: int, at: Any, kind: ir.Type) -> Any:
            array = arguments[argument], at
            found = _address(context, builder, signature.args[argument], *array)
            return builder.bitcast(found, kind)

        slots = builder.load(address(0, start, narrow.as_pointer()), align=2)
        slots = builder.zext(slots, wide)
        base = address(2, ir.Constant(_INT64, 0), pointer)
        four_bytes = ir.Constant(_INT32, 4)
        marks = call(
            "llvm.x86.avx512.mask.gather.dpi.512", zeros, base, slots, all_lanes, four_bytes
        )
        mark = builder.insert_element(zeros, mark, ir.Constant(_INT32, 0))
        mark = builder.shuffle_vector(mark, zeros, zeros)
        found = builder.icmp_unsigned("==", marks, mark)
        for lanes, argument in ((builder.not_(found), 4), (found, 6)):
            packed = call("llvm.x86.avx512.mask.compress.v16i32", slots, zeros, lanes)
            place = address(argument, arguments[argument + 1], narrow.as_pointer())
            builder.store(builder.trunc(packed, narrow), place, align=2)
        return builder.zext(builder.ctpop(builder.bitcast(found, _INT16)), _INT64)

    return signature, emit


@overload(split)
def _compiled_split(slots: Any, marks: Any, mark: Any, others: Any, marked: Any) -> Any:
    def by_lanes(slots: Any, marks: Any, mark: Any, others: Any, marked: Any) -> Any:
        end = len(slots) & -LANES
        to_marked = 0
        for start in range(0, end, LANES):
            to_others = start - to_marked
            to_marked += _split_16(  # type: ignore[call-arg]
                slots, start, marks, mark, others, to_others, marked, to_marked
            )
        return _split_from(end, end - to_marked, to_marked, slots, marks, mark, others, marked)

    def one_by_one(slots: Any, marks: Any, mark: Any, others: Any, marked: Any) -> Any:
        return _split_from(0, 0, 0, slots, marks, mark, others, marked)

    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return by_lanes if "+avx512f" in features.split(",") else one_by_one
