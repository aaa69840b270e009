"""The softmax of one block of scores, as vectors: LLVM would use half of a register of 512 bits, or call for exp."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from augury.kernels.vectors import F32, I32, INDEX, LANES, VECTOR, at, const, fma, halves, larger, load, splat, store
from augury.kernels.vectors import pointers as pointers_of

KEY_BLOCK = 64  # keys whose scores a row computes and uses at a time
INTS = ir.VectorType(I32, LANES)
LOG2E = 1.4426950408889634
FLOOR = -126.0  # powers of two below it count as zero
# 2**f for |f| <= 1/2: the Taylor series, good to 1e-7.
SERIES = (
    1.0,
    0.6931471805599453,
    0.2402265069591007,
    0.05550410866482158,
    0.009618129107628477,
    0.0013333558146428443,
    0.0001540353039338161,
)


@intrinsic
def soften(typing, scores, s, scale, tops, totals, t):
    """Turn scores[s : s + KEY_BLOCK] into weights relative to the largest score so far, tops[t], which may rise.

    Adds them to totals[t], and returns the factor by which sums of earlier weights shrink.
    """
    signature = types.float32(scores, INDEX, types.float32, tops, totals, INDEX)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointers_of(context, builder, signature, args)
        line, top_at, total_at, scale = pointer(0, 1), pointer(3, 5), pointer(4, 5), args[2]
        places = [const(args[1], n * LANES) for n in range(KEY_BLOCK // LANES)]
        found = [load(builder, line, place) for place in places]
        top, total = builder.load(top_at), builder.load(total_at)
        highest = builder.fmul(_across(builder, _of_all(builder, found, larger), larger), scale)
        rises = builder.fcmp_ordered(">", highest, top)
        higher = builder.select(rises, highest, top)
        scales, below = splat(builder, scale), splat(builder, builder.fsub(F32(0.0), higher))
        weights = [exp_vector(builder, fma(builder, vector, scales, below)) for vector in found]
        for place, vector in zip(places, weights, strict=True):
            store(builder, vector, at(builder, line, place))
        added = _across(builder, _of_all(builder, weights, _add), _add)
        shrunk = exp_vector(builder, splat(builder, builder.fsub(top, higher)))
        shrink = builder.select(rises, builder.extract_element(shrunk, I32(0)), F32(1.0))
        builder.store(higher, top_at)
        builder.store(builder.fadd(builder.fmul(total, shrink), added), total_at)
        return shrink

    return signature, generate


def exp_vector(builder: Any, x: Any) -> Any:
    """e**x; what underflows is zero."""
    power = builder.fmul(x, _floats(LOG2E))
    bounded = larger(builder, power, _floats(FLOOR))
    bounded = builder.select(builder.fcmp_ordered("<", bounded, _floats(127.0)), bounded, _floats(127.0))
    kind = ir.FunctionType(VECTOR, [VECTOR])
    floor = cgutils.get_or_insert_function(builder.module, kind, f"llvm.floor.v{LANES}f32")
    whole = builder.call(floor, [builder.fadd(bounded, _floats(0.5))])
    rest, value = builder.fsub(bounded, whole), _floats(SERIES[-1])
    for factor in reversed(SERIES[:-1]):
        value = fma(builder, rest, value, _floats(factor))
    exponent = builder.add(builder.fptosi(whole, INTS), ir.Constant(INTS, [127] * LANES))
    two = builder.bitcast(builder.shl(exponent, ir.Constant(INTS, [23] * LANES)), VECTOR)
    return builder.select(builder.fcmp_ordered(">", power, _floats(FLOOR)), builder.fmul(two, value), _floats(0.0))


def _floats(number: float) -> Any:
    return ir.Constant(VECTOR, [number] * LANES)


def _add(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b)


def _of_all(builder: Any, vectors: list[Any], join: Any) -> Any:
    """Join vectors into one, in pairs."""
    while len(vectors) > 1:
        vectors = [join(builder, a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def _across(builder: Any, vector: Any, join: Any) -> Any:
    """The lanes of a vector as one number, halves first."""
    while vector.type.count > 1:
        vector = join(builder, *halves(builder, vector))
    return builder.extract_element(vector, I32(0))
