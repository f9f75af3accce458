"""Primitives of the replay that handle several elements at once, in order and without a branch.

Whether a position is in the buffer, and whether a step uses a slot, is hard to predict: a branch
would cost more than the work. So elements are taken 8 at a time. Eight comparisons make a byte, and
the byte chooses, from a table of 256, the shuffle that moves the wanted ones to the front (PSHUFB,
in every x86 processor since 2006). Where the processor has AVX-512, `split` takes 16 at a time.
Other processors take them one by one, without a branch as well.

Each primitive is a plain Python function, which says what is done; the compiled forms do the same.

One file, since all forms share the table of shuffles and the ways to emit them.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic, overload

from hisparse_sim.policies.hook import address, hook, prefetch
from hisparse_sim.policies.policy import Bytes, Indices, Positions, Slots

LANES = 16  # elements that the primitives may write beyond the end of what they return
_FEW = 8

_BYTE, _INT16, _INT32, _INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_BYTES, _WORDS = ir.VectorType(_BYTE, 16), ir.VectorType(_INT16, _FEW)


def _has(feature: str) -> bool:
    """Return whether the processor that is compiled for has a feature, in LLVM's name for it."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return f"+{feature}" in features.split(",")


# --- packing ----------------------------------------------------------------------------------


def _shuffles() -> list[list[int]]:
    """Return, for every byte, the shuffle of 16 bytes that moves the words whose bit is set to the
    front."""
    rows = []
    for byte in range(256):
        words = [bit for bit in range(_FEW) if byte >> bit & 1]
        row = [2 * word + half for word in words for half in (0, 1)]
        rows.append(row + [0] * (16 - len(row)))
    return rows


def _packed(builder: Any, values: Any, byte: Any) -> Any:
    """Emit the 8 words `values`, those whose bit in `byte` is set moved to the front."""
    module, name = builder.module, "hisparse_sim_shuffles"
    table = module.globals.get(name)
    if table is None:
        rows = [ir.Constant(_BYTES, row) for row in _shuffles()]
        kind = ir.ArrayType(_BYTES, len(rows))
        table = ir.GlobalVariable(module, kind, name)
        table.initializer = ir.Constant(kind, rows)
        table.global_constant, table.linkage = True, "internal"
    row = builder.gep(table, [ir.Constant(_INT64, 0), builder.zext(byte, _INT64)])
    values = builder.bitcast(values, _BYTES)
    moved = _call(builder, "llvm.x86.ssse3.pshuf.b.128", _BYTES, values, builder.load(row))
    return builder.bitcast(moved, _WORDS)


def _call(builder: Any, name: str, result: Any, *operands: Any) -> Any:
    kind = ir.FunctionType(result, [operand.type for operand in operands])
    function = builder.module.globals.get(name)
    return builder.call(function or ir.Function(builder.module, kind, name), operands)


def _everywhere(builder: Any, value: Any, kind: Any) -> Any:
    """Emit a vector with `value` in every lane."""
    zeros = ir.Constant(kind, None)
    first = builder.insert_element(zeros, value, ir.Constant(_INT32, 0))
    lanes = ir.Constant(ir.VectorType(_INT32, kind.count), None)
    return builder.shuffle_vector(first, zeros, lanes)


def _store(context: Any, builder: Any, kind: Any, array: Any, to: Any, values: Any) -> None:
    place = address(context, builder, kind, array, to)
    place = builder.bitcast(place, values.type.as_pointer())
    builder.store(values, place, align=values.type.element.width // 8)


def _number_of_ones(builder: Any, byte: Any) -> Any:
    return builder.zext(builder.ctpop(byte), _INT64)


# --- look up ----------------------------------------------------------------------------------


def look_up(
    row: Positions, following: Positions, slot: Slots, absent: int, hits: Slots, places: Indices
) -> int:
    """Look up the slot of every position of a row: write the slots other than `absent` to `hits`,
    and where in the row the positions stand that have none to `places`. Return the number of hits.

    Both outputs must have room for `LANES` more elements than the row has. `following` begins with
    the next row, or is empty; it is fetched from memory meanwhile.
    """
    return _look_up_from(0, 0, row, slot, absent, hits, places)


@hook
def _look_up_from(
    start: int, hit: int, row: Positions, slot: Slots, absent: int, hits: Slots, places: Indices
) -> int:
    miss = start - hit
    for i in range(start, len(row)):
        found = slot[row[i]]
        hits[hit] = found
        places[miss] = i
        resident = found != absent
        hit += resident
        miss += not resident
    return hit


@intrinsic
def _look_up_8(
    typing_context: Any,
    row: Any,
    start: Any,
    slot: Any,
    absent: Any,
    hits: Any,
    to_hits: Any,
    places: Any,
    to_places: Any,
) -> Any:
    """Look up the 8 positions from `start` on and return the number of hits."""
    index = types.int64
    signature = index(row, index, slot, types.uint16, hits, index, places, index)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, start, slot, absent, hits, to_hits, places, to_places = arguments
        kinds = signature.args
        found = ir.Constant(_WORDS, ir.Undefined)
        for lane in range(_FEW):
            here = builder.add(start, ir.Constant(_INT64, lane))
            position = builder.load(address(context, builder, kinds[0], row, here))
            position = builder.zext(position, _INT64)
            value = builder.load(address(context, builder, kinds[2], slot, position))
            found = builder.insert_element(found, value, ir.Constant(_INT32, lane))
        none = _everywhere(builder, absent, _WORDS)
        missing = builder.bitcast(builder.icmp_unsigned("==", found, none), _BYTE)
        resident = builder.not_(missing)
        _store(context, builder, kinds[4], hits, to_hits, _packed(builder, found, resident))
        lanes = _packed(builder, ir.Constant(_WORDS, list(range(_FEW))), missing)
        wide = ir.VectorType(_INT32, _FEW)
        first = _everywhere(builder, builder.trunc(start, _INT32), wide)
        where = builder.add(builder.zext(lanes, wide), first)
        _store(context, builder, kinds[6], places, to_places, where)
        return _number_of_ones(builder, resident)

    return signature, emit


@overload(look_up)
def _compiled_look_up(
    row: Any, following: Any, slot: Any, absent: Any, hits: Any, places: Any
) -> Any:
    def by_8(row: Any, following: Any, slot: Any, absent: Any, hits: Any, places: Any) -> Any:
        end = len(row) & -_FEW
        hit = 0
        for start in range(0, end, _FEW):
            prefetch(following, start)
            hit += _look_up_8(  # type: ignore[call-arg]
                row, start, slot, absent, hits, hit, places, start - hit
            )
        return _look_up_from(end, hit, row, slot, absent, hits, places)

    def one_by_one(row: Any, following: Any, slot: Any, absent: Any, hits: Any, places: Any) -> Any:
        for start in range(0, len(row), _FEW):
            prefetch(following, start)
        return _look_up_from(0, 0, row, slot, absent, hits, places)

    return by_8 if _has("ssse3") else one_by_one


# --- split ------------------------------------------------------------------------------------


def split(slots: Slots, marks: Bytes, others: Slots, marked: Slots) -> int:
    """Split `slots` into those whose entry in `marks` is 1 and the others, where it is 0, in order.

    Returns the number of others. Both outputs must have room for `LANES` more elements than they
    receive, and `marks` for as many more than there are slots.
    """
    return _split_from(0, 0, slots, marks, others, marked)


@hook
def _split_from(
    start: int, to_marked: int, slots: Slots, marks: Bytes, others: Slots, marked: Slots
) -> int:
    to_others = start - to_marked
    for i in range(start, len(slots)):
        slot = slots[i]
        others[to_others] = slot
        marked[to_marked] = slot
        found = marks[slot] == 1
        to_marked += found
        to_others += not found
    return to_others


@intrinsic
def _split_8(
    typing_context: Any,
    slots: Any,
    start: Any,
    marks: Any,
    others: Any,
    to_others: Any,
    marked: Any,
    to_marked: Any,
) -> Any:
    """Split the 8 slots from `start` on and return how many of them are marked."""
    index = types.int64
    signature = index(slots, index, marks, others, index, marked, index)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        slots, start, marks, others, to_others, marked, to_marked = arguments
        kinds = signature.args
        # One by one: loads of 8 at once from scattered places are slower where AVX-512 is missing.
        byte = ir.Constant(_INT64, 0)
        for lane in reversed(range(_FEW)):
            at = builder.add(start, ir.Constant(_INT64, lane))
            slot = builder.load(address(context, builder, kinds[0], slots, at))
            slot = builder.zext(slot, _INT64)
            mark = builder.load(address(context, builder, kinds[2], marks, slot))
            byte = builder.add(builder.add(byte, byte), builder.zext(mark, _INT64))
        byte = builder.trunc(byte, _BYTE)
        place = address(context, builder, kinds[0], slots, start)
        values = builder.load(builder.bitcast(place, _WORDS.as_pointer()), align=2)
        rest = _packed(builder, values, builder.not_(byte))
        _store(context, builder, kinds[3], others, to_others, rest)
        _store(context, builder, kinds[5], marked, to_marked, _packed(builder, values, byte))
        return _number_of_ones(builder, byte)

    return signature, emit


@intrinsic
def _split_16(
    typing_context: Any,
    slots: Any,
    start: Any,
    marks: Any,
    others: Any,
    to_others: Any,
    marked: Any,
    to_marked: Any,
) -> Any:
    """Split the 16 slots from `start` on and return how many of them are marked (AVX-512)."""
    index = types.int64
    signature = index(slots, index, marks, others, index, marked, index)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        slots, start, marks, others, to_others, marked, to_marked = arguments
        kinds = signature.args
        narrow, wide = ir.VectorType(_INT16, LANES), ir.VectorType(_INT32, LANES)
        every_lane = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [1] * LANES)
        zeros, one_byte = ir.Constant(wide, None), ir.Constant(_INT32, 1)
        place = address(context, builder, kinds[0], slots, start)
        values = builder.load(builder.bitcast(place, narrow.as_pointer()), align=2)
        values = builder.zext(values, wide)
        base = address(context, builder, kinds[2], marks, ir.Constant(_INT64, 0))
        base = builder.bitcast(base, _BYTE.as_pointer())
        gather = "llvm.x86.avx512.mask.gather.dpi.512"
        entries = _call(builder, gather, wide, zeros, base, values, every_lane, one_byte)
        lowest = builder.trunc(entries, ir.VectorType(_BYTE, LANES))  # of the four loaded
        found = builder.icmp_unsigned("!=", lowest, ir.Constant(lowest.type, None))
        compress = "llvm.x86.avx512.mask.compress.v16i32"
        for lanes, kind, array, to in (
            (builder.not_(found), kinds[3], others, to_others),
            (found, kinds[5], marked, to_marked),
        ):
            packed = _call(builder, compress, wide, values, zeros, lanes)
            _store(context, builder, kind, array, to, builder.trunc(packed, narrow))
        return _number_of_ones(builder, builder.bitcast(found, _INT16))

    return signature, emit


@overload(split)
def _compiled_split(slots: Any, marks: Any, others: Any, marked: Any) -> Any:
    def by_16(slots: Any, marks: Any, others: Any, marked: Any) -> Any:
        end = len(slots) & -LANES
        found = 0
        for start in range(0, end, LANES):
            found += _split_16(  # type: ignore[call-arg]
                slots, start, marks, others, start - found, marked, found
            )
        return _split_from(end, found, slots, marks, others, marked)

    def by_8(slots: Any, marks: Any, others: Any, marked: Any) -> Any:
        end = len(slots) & -_FEW
        found = 0
        for start in range(0, end, _FEW):
            found += _split_8(  # type: ignore[call-arg]
                slots, start, marks, others, start - found, marked, found
            )
        return _split_from(end, found, slots, marks, others, marked)

    def one_by_one(slots: Any, marks: Any, others: Any, marked: Any) -> Any:
        return _split_from(0, 0, slots, marks, others, marked)

    if _has("avx512f"):
        return by_16
    return by_8 if _has("ssse3") else one_by_one
