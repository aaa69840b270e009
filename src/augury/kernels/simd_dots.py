"""Sums of products of bytes, for as many lines as a register has floats, by the instructions that a machine has.

The sums are whole numbers, so every way gives the same. x86 multiplies unsigned bytes by signed ones: 4-bit codes are
unsigned as they are, 8-bit codes are raised by RAISE, and what that adds is taken off where a sum begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from augury.kernels.machine import ARM_DOTS, LINES, X86_DOTS, X86_PAIRS
from augury.kernels.tiles import GROUP
from augury.kernels.vectors import I8, I32, mask

RAISE = 128
INTS = ir.VectorType(I32, LINES)
BYTES = ir.VectorType(I8, GROUP * LINES)
WORDS = ir.VectorType(ir.IntType(16), GROUP * LINES // 2)
# What LLVM calls them, by floats in a register.
X86_DOT = {16: "llvm.x86.avx512.vpdpbusd.512", 8: "llvm.x86.avx512.vpdpbusd.256"}
X86_PAIR = {16: "llvm.x86.avx512.pmaddubs.w.512", 8: "llvm.x86.avx2.pmadd.ub.sw"}
X86_WORD_PAIR = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}


def raised(halved: bool) -> bool:
    """Whether codes are raised by RAISE before they are multiplied."""
    return X86_DOTS and not halved


def codes_to_multiply(builder: Any, codes: Sequence[Any], halved: bool) -> list[Any]:
    """Codes as the dot products take them."""
    if not raised(halved):
        return list(codes)
    top = ir.Constant(BYTES, [-RAISE] * BYTES.count)  # flips the sign's bit: c + 128 as an unsigned byte
    return [builder.xor(vector, top) for vector in codes]


def dot_groups(
    builder: Any, codes: Sequence[Any], activations: Sequence[Any], begun: Any, halved: bool, chains: int
) -> Any:
    """begun[i] plus the products of line i's codes with the activations, four of each in a vector.

    The products are added up in so many sums, of which none waits for another.
    """
    if X86_PAIRS:
        return (_in_pairs if halved else _in_words)(builder, codes, activations, begun)
    totals = [begun] + [ir.Constant(INTS, [0] * LINES)] * (chains - 1)
    for n, (a, b) in enumerate(zip(codes, activations, strict=True)):
        totals[n % chains] = _dot(builder, totals[n % chains], a, b)
    return reduce(builder.add, totals)


def _in_pairs(builder: Any, codes: Sequence[Any], activations: Sequence[Any], begun: Any) -> Any:
    """Dot products by 16-bit sums: a block's eight pairs of products have at most 16 * 15 * 128, which fits."""
    words = None
    for a, b in zip(codes, activations, strict=True):
        pairs = call(builder, X86_PAIR[LINES], WORDS, a, b)
        words = pairs if words is None else builder.add(words, pairs)
    ones = ir.Constant(WORDS, [1] * WORDS.count)
    return builder.add(begun, call(builder, X86_WORD_PAIR[LINES], INTS, words, ones))


def _in_words(builder: Any, codes: Sequence[Any], activations: Sequence[Any], begun: Any) -> Any:
    """Dot products with bytes widened to 16 bits: two sums for every line, which are added at the end."""
    half = WORDS.count
    parts = [ir.Constant(INTS, [0] * LINES)] * 2
    for a, b in zip(codes, activations, strict=True):
        right = builder.sext(builder.shuffle_vector(b, b, mask(*range(half))), WORDS)  # the same four in every line
        for n in range(2):
            left = builder.sext(builder.shuffle_vector(a, a, mask(*range(n * half, (n + 1) * half))), WORDS)
            parts[n] = builder.add(parts[n], call(builder, X86_WORD_PAIR[LINES], INTS, left, right))
    even, odd = (builder.shuffle_vector(*parts, mask(*range(first, 2 * LINES, 2))) for first in (0, 1))
    return builder.add(begun, builder.add(even, odd))


def _dot(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """total[i] += a[4i] * b[4i] + ... + a[4i+3] * b[4i+3]."""
    if ARM_DOTS:
        return call(builder, "llvm.aarch64.neon.sdot.v4i32.v16i8", INTS, total, a, b)
    if X86_DOTS:
        return call(builder, X86_DOT[LINES], INTS, total, builder.bitcast(a, INTS), builder.bitcast(b, INTS))
    # Pairs of 16-bit products: compilers know this form (pmaddwd).
    words, half = ir.VectorType(ir.IntType(16), BYTES.count), BYTES.count // 2
    wide, pairs = [builder.sext(vector, words) for vector in (a, b)], ir.VectorType(I32, half)
    products = []
    for odd in (0, 1):
        lanes = mask(*range(odd, BYTES.count, 2))
        left, right = (builder.sext(builder.shuffle_vector(v, v, lanes), pairs) for v in wide)
        products.append(builder.mul(left, right))
    sums = builder.add(*products)
    even, odd_ = (builder.shuffle_vector(sums, sums, mask(*range(first, half, 2))) for first in (0, 1))
    return builder.add(total, builder.add(even, odd_))


def call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Call one of LLVM's own functions."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)
