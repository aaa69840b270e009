"""Building blocks of the vector loops: loops, loads, sums and stores, emitted for LLVM.

Vectors are LANES floats wide; a machine with narrower registers splits them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import make_array

from augury.kernels.machine import REGISTER_TILE

LANES = 16
UNROLL = 4

F32 = ir.FloatType()
I8 = ir.IntType(8)
I32 = ir.IntType(32)
VECTOR = ir.VectorType(F32, LANES)
ZERO = ir.Constant(VECTOR, [0.0] * LANES)
INDEX = types.intp
Body = Callable[[Any, list[Any]], list[Any]]


def strip(builder: Any, count: Any, carried: list[Any], body: Body) -> list[Any]:
    """Emit `for i in range(0, count, LANES): carried = body(i, carried)`, four rounds at a time while there are four.

    A head of 64 elements is then straight code, without a chain of waits on the sums.
    """
    whole = builder.and_(count, const(count, -UNROLL * LANES))
    carried = loop(builder, const(count, 0), whole, UNROLL, carried, body)
    return loop(builder, whole, count, 1, carried, body)


def loop_of(builder: Any, count: Any, carried: list[Any], body: Body) -> list[Any]:
    """Emit `for i in range(count): carried = body(i, carried)`."""
    return loop(builder, const(count, 0), count, 1, carried, body, step=1)


def loop(
    builder: Any, first: Any, last: Any, rounds: int, carried: list[Any], body: Body, step: int = LANES
) -> list[Any]:
    """Emit a loop that runs body `rounds` times a turn, each `step` further."""
    before = builder.block
    test, turn, after = (builder.append_basic_block(f"strip.{part}") for part in ("test", "turn", "end"))
    builder.branch(test)
    builder.position_at_end(test)
    i = builder.phi(first.type)
    phis = [builder.phi(start.type) for start in carried]
    builder.cbranch(builder.icmp_signed("<", i, last), turn, after)
    builder.position_at_end(turn)
    results = phis
    for number in range(rounds):
        results = body(builder.add(i, const(i, number * step)), results)
    i.add_incoming(first, before)
    i.add_incoming(builder.add(i, const(i, rounds * step)), turn)
    for phi, start, result in zip(phis, carried, results, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(result, turn)
    builder.branch(test)
    builder.position_at_end(after)
    return phis


def dots(
    builder: Any, lines: Sequence[Any], columns: Sequence[Any], count: Any, begun: Sequence[Any], ahead: Any = None
) -> list[Any]:
    """Sums of products of every line with every column, each in lanes, carried on from `begun`.

    A few sums at a time, as many as the registers hold; each is added up in the same order whatever that number is. The
    columns are prefetched `ahead` elements further, if that is given.
    """
    totals, (most_rows, most_columns) = list(begun), REGISTER_TILE
    for r in range(0, len(lines), most_rows):
        for c in range(0, len(columns), most_columns):
            places = [
                (i, j)
                for i in range(r, min(r + most_rows, len(lines)))
                for j in range(c, min(c + most_columns, len(columns)))
            ]
            fetched = ahead if r == 0 else None
            numbers = [i * len(columns) + j for i, j in places]
            done = _some_dots(builder, lines, columns, places, count, [totals[n] for n in numbers], fetched)
            for n, total in zip(numbers, done, strict=True):
                totals[n] = total
    return totals


def _some_dots(
    builder: Any,
    lines: Sequence[Any],
    columns: Sequence[Any],
    places: Sequence[tuple[int, int]],
    count: Any,
    begun: list[Any],
    ahead: Any,
) -> list[Any]:
    def body(at_: Any, sums: list[Any]) -> list[Any]:
        needed = sorted({j for _, j in places})
        if ahead is not None:
            for j in needed:
                prefetch(builder, at(builder, at(builder, columns[j], at_), ahead))
        right = {j: load(builder, columns[j], at_) for j in needed}
        left = {i: load(builder, lines[i], at_) for i in sorted({i for i, _ in places})}
        return [fma(builder, left[i], right[j], total) for (i, j), total in zip(places, sums, strict=True)]

    return strip(builder, count, begun, body)


def four_sums(builder: Any, vectors: Sequence[Any]) -> Any:
    """The four lane sums of four vectors, as one vector; each sum is added in the same order."""
    shuffle, add = builder.shuffle_vector, builder.fadd
    a, b, c, d = (fold(builder, v) for v in vectors)
    low = add(shuffle(a, b, mask(0, 4, 1, 5)), shuffle(a, b, mask(2, 6, 3, 7)))
    high = add(shuffle(c, d, mask(0, 4, 1, 5)), shuffle(c, d, mask(2, 6, 3, 7)))
    return add(shuffle(low, high, mask(0, 1, 4, 5)), shuffle(low, high, mask(2, 3, 6, 7)))


def fold(builder: Any, vector: Any) -> Any:
    """Add halves until four lanes are left."""
    while vector.type.count > 4:
        vector = builder.fadd(*halves(builder, vector))
    return vector


def halves(builder: Any, vector: Any) -> tuple[Any, Any]:
    half, nothing = vector.type.count // 2, ir.Constant(vector.type, ir.Undefined)
    low, high = mask(*range(half)), mask(*range(half, 2 * half))
    return builder.shuffle_vector(vector, nothing, low), builder.shuffle_vector(vector, nothing, high)


def larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def pointers(context: Any, builder: Any, signature: Any, args: Any) -> Callable[[int, int], Any]:
    """A function from (number of an array argument, number of its index argument) to an element's address."""

    def pointer(array: int, index: int) -> Any:
        data = make_array(signature.args[array])(context, builder, value=args[array]).data
        return at(builder, data, args[index])

    return pointer


def load(builder: Any, pointer: Any, i: Any) -> Any:
    """LANES floats from pointer[i]; 16-bit elements are the upper halves of floats (bf16)."""
    element = pointer.type.pointee
    address = builder.bitcast(at(builder, pointer, i), ir.VectorType(element, LANES).as_pointer())
    vector = builder.load(address)
    vector.align = 4 if element == F32 else 2
    if element == F32:
        return vector
    wide = builder.zext(vector, ir.VectorType(I32, LANES))
    return builder.bitcast(builder.shl(wide, mask(*[16] * LANES)), VECTOR)


def store(builder: Any, vector: Any, pointer: Any) -> None:
    builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer())).align = 4


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32"), [a, b, c])


def prefetch(builder: Any, pointer: Any) -> None:
    """Ask for the cache line of a float that will be read; past the end of an array this does nothing."""
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.bitcast(pointer, I8.as_pointer()), I32(0), I32(3), I32(1)])


def splat(builder: Any, scalar: Any) -> Any:
    nothing = ir.Constant(VECTOR, ir.Undefined)
    return builder.shuffle_vector(builder.insert_element(nothing, scalar, I32(0)), nothing, mask(*[0] * LANES))


def at(builder: Any, pointer: Any, index: Any) -> Any:
    return builder.gep(pointer, [index], inbounds=True)


def const(like: Any, number: int) -> Any:
    return ir.Constant(like.type, number)


def mask(*lanes: int) -> Any:
    return ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
