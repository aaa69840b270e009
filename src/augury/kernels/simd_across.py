"""Scores of many queries with a block of keys that lie across the lanes of vectors, so that no lanes are added up.

A score's products are added in the order of simd's dot4, which decoding uses: sixteen sums, each over every sixteenth
element, of which those 8 apart are added first, then 4, 2 and 1. There they are lanes of one vector, here sixteen
vectors, made and added one after another so that they stay in registers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from augury.kernels.simd_softmax import KEY_BLOCK
from augury.kernels.vectors import (
    F32,
    I32,
    INDEX,
    LANES,
    UNROLL,
    ZERO,
    at,
    const,
    fma,
    load,
    loop,
    mask,
    pointers,
    splat,
    store,
)

CHUNK = UNROLL * LANES  # the length of a query must be a multiple of it
SIDE = 2  # queries, and vectors of keys, that are worked on together
FOUR = 4


@intrinsic
def across_scores(typing, queries, q, count, keys, k, scores, s):
    """scores[s + r*KEY_BLOCK + j] = query r . key j, for two queries and 32 keys.

    Query r begins at queries[q + r*count]; element d of key j is keys[k + d*KEY_BLOCK + j].
    """
    signature = types.void(queries, INDEX, INDEX, keys, INDEX, scores, INDEX)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, count = pointers(context, builder, signature, args), args[2]
        lines = [at(builder, pointer(0, 1), builder.mul(count, const(count, r))) for r in range(SIDE)]
        columns = pointer(3, 4)

        def every_sixteenth(lane: int) -> list[Any]:
            def body(i: Any, sums: list[Any]) -> list[Any]:
                d = builder.add(i, const(i, lane))
                row = builder.mul(d, const(i, KEY_BLOCK))
                right = [load(builder, columns, builder.add(row, const(i, c * LANES))) for c in range(SIDE)]
                left = [splat(builder, builder.load(at(builder, line, d))) for line in lines]
                return [fma(builder, left[n // SIDE], right[n % SIDE], total) for n, total in enumerate(sums)]

            return loop(builder, const(count, 0), count, UNROLL, [ZERO] * SIDE**2, body)

        def added(lane: int, apart: int) -> list[Any]:
            if apart == LANES:
                return every_sixteenth(lane)
            near, far = added(lane, 2 * apart), added(lane + apart, 2 * apart)
            return [builder.fadd(a, b) for a, b in zip(near, far, strict=True)]

        for n, total in enumerate(added(0, 1)):
            place = n // SIDE * KEY_BLOCK + n % SIDE * LANES
            store(builder, total, at(builder, pointer(5, 6), const(count, place)))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def lay_across(typing, cache, head, width, list_, start, count, out, o):
    """out[o + d*KEY_BLOCK + j] = element d < count of key j < 16, which is cache[head + list_[start + j]*width + d]."""
    signature = types.void(cache, INDEX, INDEX, list_, INDEX, INDEX, out, INDEX)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, (width, count) = pointers(context, builder, signature, args), (args[2], args[5])
        table, rows, target = pointer(0, 1), pointer(3, 4), pointer(6, 7)
        places = [builder.load(at(builder, rows, const(count, j))) for j in range(LANES)]
        keys = [at(builder, table, builder.mul(place, width)) for place in places]

        def body(d: Any, _: list[Any]) -> list[Any]:
            for n, vector in enumerate(_turned(builder, [_load_four(builder, key, d) for key in keys])):
                place = builder.mul(builder.add(d, const(d, n)), const(d, KEY_BLOCK))
                store(builder, vector, at(builder, target, place))
            return []

        loop(builder, const(count, 0), count, 1, [], body, step=FOUR)
        return context.get_dummy_value()

    return signature, generate


def _turned(builder: Any, fours: list[Any]) -> list[Any]:
    """Sixteen vectors of four as four of sixteen.

    Vectors are joined so that a register's quarters hold keys 4 apart, which loads do at no cost; then every quarter is
    turned by itself, for which there are fast shuffles.
    """
    a, b, c, d = (_joined(builder, fours[n::FOUR]) for n in range(FOUR))
    low, high = _in_quarters(0, 16, 1, 17), _in_quarters(2, 18, 3, 19)
    ab, cd = [[builder.shuffle_vector(x, y, lanes) for lanes in (low, high)] for x, y in ((a, b), (c, d))]
    first, second = _in_quarters(0, 1, 16, 17), _in_quarters(2, 3, 18, 19)
    return [builder.shuffle_vector(ab[n], cd[n], lanes) for n in range(2) for lanes in (first, second)]


def _in_quarters(*lanes: int) -> Any:
    """A choice of lanes of two vectors, the same in each quarter."""
    return mask(*[lane + quarter for quarter in range(0, LANES, FOUR) for lane in lanes])


def _joined(builder: Any, parts: list[Any]) -> Any:
    """Vectors one after another as one."""
    while len(parts) > 1:
        whole = mask(*range(2 * parts[0].type.count))
        parts = [builder.shuffle_vector(a, b, whole) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _load_four(builder: Any, pointer: Any, i: Any) -> Any:
    """Four floats, or the upper halves of four (bf16)."""
    element = pointer.type.pointee
    vector = builder.load(builder.bitcast(at(builder, pointer, i), ir.VectorType(element, FOUR).as_pointer()))
    vector.align = 4 if element == F32 else 2
    if element == F32:
        return vector
    wide = builder.zext(vector, ir.VectorType(I32, FOUR))
    return builder.bitcast(builder.shl(wide, mask(*[16] * FOUR)), ir.VectorType(F32, FOUR))
