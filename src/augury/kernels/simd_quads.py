"""Four lines against four: the loops for many rows, sixteen sums at a time.

Each sum goes through the additions of simd's loops in the same order, so four lines together give the bits that each
gives alone. The gain: every loaded vector is used four times, and sixteen lane sums share one tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba import types
from numba.extending import intrinsic

from augury.kernels.machine import REGISTER_TILE
from augury.kernels.vectors import (
    INDEX,
    LANES,
    ZERO,
    at,
    const,
    dots,
    fma,
    load,
    loop_of,
    mask,
    pointers,
    prefetch,
    splat,
    store,
    strip,
)

QUAD = 4
SUMS = QUAD * QUAD * LANES  # floats that sixteen unfinished sums take


def _make_quad(first: bool, last: bool) -> Any:
    """Four lines of x times four of a matrix, over the first, the last, or another part of their elements."""

    @intrinsic
    def quad(typing, x, x0, x_apart, weight, w0, w_apart, count, sums, s, out, o, o_apart):
        """Carry sums[s ..] on over `count` elements; at the end out[o + r*o_apart + t] is the sum of lines r and t."""
        indexes = (INDEX, INDEX, INDEX)
        signature = types.void(x, INDEX, INDEX, weight, *indexes, sums, INDEX, out, INDEX, INDEX)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = pointers(context, builder, signature, args)
            kept, zero = pointer(7, 8), const(args[8], 0)
            places = [at(builder, kept, const(zero, n * LANES)) for n in range(QUAD * QUAD)]
            totals = [ZERO if first else load(builder, place, zero) for place in places]
            lines, columns = _lines(builder, pointer(0, 1), args[2]), _lines(builder, pointer(3, 4), args[5])
            totals = dots(builder, lines, columns, args[6], totals)
            if last:
                _store_quads(builder, _sixteen_sums(builder, totals), pointer(9, 10), args[11])
            else:
                for place, total in zip(places, totals, strict=True):
                    store(builder, total, place)
            return context.get_dummy_value()

        return signature, generate

    return quad


quad_first, quad_more, quad_last, quad_whole = (
    _make_quad(True, False),
    _make_quad(False, False),
    _make_quad(False, True),
    _make_quad(True, True),
)


@intrinsic
def copy_line(typing, source, s, count, out, o):
    """out[o + i] = source[s + i] for i < count, while the lines after it are prefetched; source float32 or bf16."""
    signature = types.void(source, INDEX, INDEX, out, INDEX)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointers(context, builder, signature, args)
        source, target = pointer(0, 1), pointer(3, 4)

        def body(i: Any, _: Sequence[Any]) -> list[Any]:
            prefetch(builder, at(builder, source, builder.add(i, args[2])))
            store(builder, load(builder, source, i), at(builder, target, i))
            return []

        strip(builder, args[2], [], body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def quad_scores(typing, query, q, q_apart, keys, k0, k1, k2, k3, count, scores, s, s_apart):
    """scores[s + r*s_apart + t] = query line r . keys[kt ..], for four of each; see dot4."""
    indexes = (INDEX, INDEX, INDEX, INDEX, INDEX)
    signature = types.void(query, INDEX, INDEX, keys, *indexes, scores, INDEX, INDEX)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointers(context, builder, signature, args)
        lines = _lines(builder, pointer(0, 1), args[2])
        columns = [pointer(3, i) for i in (4, 5, 6, 7)]
        sums = dots(builder, lines, columns, args[8], [ZERO] * (QUAD * QUAD))
        _store_quads(builder, _sixteen_sums(builder, sums), pointer(9, 10), args[11])
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def quad_gather(typing, out, o, o_apart, weights, w, w_apart, values, v0, width, list_, start, count):
    """out[o + r*o_apart + i] += sum of weights[w + r*w_apart + j] * values[v0 + list_[start + j] * width + i].

    Over j < count, for four r and 4 * LANES elements i; see axpy4.
    """
    signature = types.void(out, INDEX, INDEX, weights, INDEX, INDEX, values, INDEX, INDEX, list_, INDEX, INDEX)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointers(context, builder, signature, args)
        lines, factors = _lines(builder, pointer(0, 1), args[2]), _lines(builder, pointer(3, 4), args[5])
        table, rows = pointer(6, 7), pointer(9, 10)

        def gather(places: Sequence[tuple[int, int]]) -> None:
            """The sums of some lines and some LANES of their elements, as many as the registers hold."""

            def body(j: Any, totals: Sequence[Any]) -> list[Any]:
                row = builder.mul(builder.load(at(builder, rows, j)), args[8])
                found = {n: load(builder, table, builder.add(row, const(j, n * LANES))) for _, n in places}
                scales = {r: splat(builder, builder.load(at(builder, factors[r], j))) for r, _ in places}
                return [fma(builder, scales[r], found[n], total) for (r, n), total in zip(places, totals, strict=True)]

            targets = [at(builder, lines[r], const(args[1], n * LANES)) for r, n in places]
            begun = [load(builder, target, const(args[1], 0)) for target in targets]
            for target, total in zip(targets, loop_of(builder, args[11], begun, body), strict=True):
                store(builder, total, target)

        together = REGISTER_TILE[0] * REGISTER_TILE[1] // QUAD  # vectors of a line that its four rows share
        for n in range(0, QUAD, together):
            gather([(r, m) for r in range(QUAD) for m in range(n, n + together)])
        return context.get_dummy_value()

    return signature, generate


def _lines(builder: Any, first: Any, apart: Any) -> list[Any]:
    """The addresses of four lines, `apart` elements from each other."""
    return [at(builder, first, builder.mul(apart, const(apart, n))) for n in range(QUAD)]


def _sixteen_sums(builder: Any, vectors: Sequence[Any]) -> Any:
    """The lane sums of sixteen vectors as one vector: lanes 8 apart are added first, then 4, 2 and 1, as always."""
    level, apart = list(vectors), LANES // 2
    while apart:
        starts = [lane for lane in range(2 * LANES) if lane % (2 * apart) < apart]
        low, high = mask(*starts), mask(*[lane + apart for lane in starts])
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [builder.fadd(builder.shuffle_vector(a, b, low), builder.shuffle_vector(a, b, high)) for a, b in pairs]
        apart //= 2
    return level[0]


def _store_quads(builder: Any, sums: Any, target: Any, apart: Any) -> None:
    """Sixteen sums as four lines of four."""
    for number, line in enumerate(_lines(builder, target, apart)):
        four = builder.shuffle_vector(sums, sums, mask(*range(QUAD * number, QUAD * number + QUAD)))
        store(builder, four, line)
