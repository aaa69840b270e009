"""Vector loops that numba does not generate well by itself.

LLVM's vectoriser either guards such loops with alias checks that cost as much as the loop (an attention head has only
64 elements) or turns them into gathers. Here the vectors are explicit. Every loop fixes its own order of additions, so
a result does not depend on what surrounds the call.

Arguments are flat: an array and the index of its first element. Lengths are multiples of LANES.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from augury.kernels.simd_softmax import exp_vector
from augury.kernels.vectors import (
    F32,
    I32,
    INDEX,
    ZERO,
    at,
    const,
    dots,
    fma,
    four_sums,
    halves,
    load,
    pointers,
    splat,
    store,
    strip,
)

PREFETCH_GROUPS = 1  # weights are fetched one group of four lines ahead: bf16 at one row went from 17 to 11 ms a pass


@intrinsic
def dot4(typing, query, q, keys, k0, k1, k2, k3, count, scores, s):
    """scores[s + t] = sum of query[q + i] * keys[kt + i] over i < count, for t in 0..3."""
    signature = types.void(query, INDEX, keys, INDEX, INDEX, INDEX, INDEX, INDEX, scores, INDEX)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointers(context, builder, signature, args)
        left, right = pointer(0, 1), [pointer(2, i) for i in (3, 4, 5, 6)]

        def body(i: Any, sums: list[Any]) -> list[Any]:
            shared = load(builder, left, i)
            return [fma(builder, shared, load(builder, r, i), total) for r, total in zip(right, sums, strict=True)]

        sums = strip(builder, args[7], [ZERO] * 4, body)
        store(builder, four_sums(builder, sums), pointer(8, 9))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def axpy4(typing, out, o, weights, w, values, v0, v1, v2, v3, count):
    """out[o + i] += sum over t in 0..3 of weights[w + t] * values[vt + i], for i < count."""
    signature = types.void(out, INDEX, weights, INDEX, values, INDEX, INDEX, INDEX, INDEX, INDEX)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointers(context, builder, signature, args)
        target, factors = pointer(0, 1), pointer(2, 3)
        scales = [splat(builder, builder.load(at(builder, factors, const(args[9], t)))) for t in range(4)]
        lines = [pointer(4, i) for i in (5, 6, 7, 8)]

        def body(i: Any, _: list[Any]) -> list[Any]:
            total = load(builder, target, i)
            for scale, line in zip(scales, lines, strict=True):
                total = fma(builder, scale, load(builder, line, i), total)
            store(builder, total, at(builder, target, i))
            return []

        strip(builder, args[9], [], body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def squares(typing, values, v, count):
    """The sum of the squares of values[v : v + count], lanes first."""
    signature = types.float32(values, INDEX, INDEX)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        line = pointers(context, builder, signature, args)(0, 1)

        def body(i: Any, sums: list[Any]) -> list[Any]:
            vector = load(builder, line, i)
            return [fma(builder, vector, vector, sums[0])]

        (sums,) = strip(builder, args[2], [ZERO], body)
        while sums.type.count > 1:
            sums = builder.fadd(*halves(builder, sums))
        return builder.extract_element(sums, I32(0))

    return signature, generate


@intrinsic
def gate(typing, gates, g, values, v, out, o, count):
    """out[o + i] = gate / (1 + e**-gate) * values[v + i] for gate = gates[g + i] and i < count."""
    signature = types.void(gates, INDEX, values, INDEX, out, INDEX, INDEX)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointers(context, builder, signature, args)
        gates, values, target = pointer(0, 1), pointer(2, 3), pointer(4, 5)

        def body(i: Any, _: list[Any]) -> list[Any]:
            x, ones = load(builder, gates, i), splat(builder, F32(1.0))
            opened = builder.fdiv(x, builder.fadd(ones, exp_vector(builder, builder.fsub(ZERO, x))))
            store(builder, builder.fmul(opened, load(builder, values, i)), at(builder, target, i))
            return []

        strip(builder, args[6], [], body)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def turn(typing, x, first, second, cos, c, sin, s, count):
    """Rotate the pairs (x[first + i], x[second + i]) by the angles of cos[c + i] and sin[s + i], for i < count."""
    signature = types.void(x, INDEX, INDEX, cos, INDEX, sin, INDEX, INDEX)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointers(context, builder, signature, args)
        left, right, cosines, sines = pointer(0, 1), pointer(0, 2), pointer(3, 4), pointer(5, 6)

        def body(i: Any, _: list[Any]) -> list[Any]:
            a, b, cosine, sine = (load(builder, line, i) for line in (left, right, cosines, sines))
            against = builder.fsub(ZERO, builder.fmul(b, sine))
            store(builder, fma(builder, a, cosine, against), at(builder, left, i))
            store(builder, fma(builder, b, cosine, builder.fmul(a, sine)), at(builder, right, i))
            return []

        strip(builder, args[7], [], body)
        return context.get_dummy_value()

    return signature, generate


def _make_tile(rows: int) -> Any:
    """A product of `rows` lines of x with four lines of a weight matrix."""

    @intrinsic
    def tile(typing, x, x0, weight, w0, count, out, o0, stride):
        """out[o0 + r*stride + t] = x line r . weight line t; lines are `count` apart; weight float32 or bf16 bits."""
        signature = types.void(x, INDEX, weight, INDEX, INDEX, out, INDEX, INDEX)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = pointers(context, builder, signature, args)
            count, stride = args[4], args[7]

            def line(start: Any, number: int, apart: Any) -> Any:
                return at(builder, start, builder.mul(apart, const(count, number)))

            xs = [line(pointer(0, 1), r, count) for r in range(rows)]
            weights = [line(pointer(2, 3), t, count) for t in range(4)]
            ahead = builder.mul(count, const(count, 4 * PREFETCH_GROUPS))

            sums = dots(builder, xs, weights, count, [ZERO] * (4 * rows), ahead)
            for r in range(rows):
                total = four_sums(builder, sums[4 * r : 4 * r + 4])
                store(builder, total, line(pointer(5, 6), r, stride))
            return context.get_dummy_value()

        return signature, generate

    return tile


tile1, tile2, tile4 = _make_tile(1), _make_tile(2), _make_tile(4)
