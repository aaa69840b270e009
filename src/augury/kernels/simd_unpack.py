"""The vector loop that turns packed weights to floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from augury.kernels.vectors import I8, I32, INDEX, LANES, VECTOR, at, const, fma, mask, pointers, splat, store, strip


@intrinsic
def unpack(typing, codes, c, scales, s, blocks, out, o):
    """out[o + i] = scale * code + shift for `blocks` blocks of 32; see Packed for codes and scales."""
    signature = types.void(codes, INDEX, scales, INDEX, INDEX, out, INDEX)
    halved = not codes.dtype.signed

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = pointers(context, builder, signature, args)
        source, pairs, target, blocks = pointer(0, 1), pointer(2, 3), pointer(5, 6), args[4]
        width, parts = (LANES, 2) if halved else (2 * LANES, 3)  # bytes of codes in a block, and its factors

        def scaled(codes: Any, factors: list[Any], place: Any) -> None:
            store(builder, fma(builder, codes, *factors), at(builder, target, place))

        def body(i: Any, _: Sequence[Any]) -> list[Any]:
            block = builder.udiv(i, const(i, LANES))
            first = builder.mul(block, const(i, parts))
            factors = [
                splat(builder, builder.load(at(builder, pairs, builder.add(first, const(i, t))))) for t in range(parts)
            ]
            start, place = builder.mul(block, const(i, width)), builder.mul(block, const(i, 2 * LANES))
            for part in (0, 1):
                codes = _codes(
                    builder, source, builder.add(start, const(i, 0 if halved else part * LANES)), part, halved
                )
                scale = factors[0 if halved else part]
                scaled(codes, [scale, factors[-1]], builder.add(place, const(i, part * LANES)))
            return []

        strip(builder, builder.mul(blocks, const(blocks, LANES)), [], body)
        return context.get_dummy_value()

    return signature, generate


def _codes(builder: Any, source: Any, start: Any, part: int, halved: bool) -> Any:
    """LANES codes as floats: the low or high halves of 16 bytes, or 16 signed bytes."""
    address = builder.bitcast(at(builder, source, start), ir.VectorType(I8, LANES).as_pointer())
    raw = builder.load(address)
    raw.align = 1
    if not halved:
        return builder.sitofp(builder.sext(raw, ir.VectorType(I32, LANES)), VECTOR)
    wide = builder.zext(raw, ir.VectorType(I32, LANES))
    half = builder.lshr(wide, mask(*[4] * LANES)) if part else builder.and_(wide, mask(*[15] * LANES))
    return builder.uitofp(half, VECTOR)
