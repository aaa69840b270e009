"""Conversions for products with quantised weights in Triton: codes to numbers, activations to float16."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sixteenth(x):
    """A sixteenth of the activations, in float16: the only type that GPUs convert 8-bit floats to directly.

    Exact from 2**-10 to 2**20, where they are clamped; smaller ones are off by 2**-21 at most.
    """
    scaled = x.to(tl.float32) * 0.0625
    return tl.clamp(scaled, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float16)


@triton.jit
def dot(left, right, EXACT: tl.constexpr):
    if EXACT:
        return tl.dot(left, right, input_precision="ieee")
    else:
        return tl.dot(left, right)


@triton.jit
def float_of(code, kind: tl.constexpr, KIND: tl.constexpr):
    """8-bit floats in a wider type, exactly."""
    if KIND == 0:
        return code.to(tl.float8e4nv, bitcast=True).to(kind)
    else:
        bits = code.to(tl.uint16)
        half = ((bits & 128) << 8 | (bits & 127) << 7).to(tl.float16, bitcast=True)
        return (half * 256.0).to(kind)  # the exponent's bias is 7 there and 15 here


@triton.jit
def number_of(code, zero, kind: tl.constexpr):
    """4-bit codes minus their zeros: set as the low bits of a large enough float, which needs no conversion."""
    bits = code.to(tl.uint16)
    if kind == tl.bfloat16:
        return (bits | 0x4300).to(tl.bfloat16, bitcast=True) - (zero.to(tl.float32) + 128.0).to(tl.bfloat16)[:, None]
    else:
        whole = (bits | 0x6400).to(tl.float16, bitcast=True) - (zero.to(tl.float32) + 1024.0).to(tl.float16)[:, None]
        return whole.to(kind)
