"""Counter-based noise in Triton kernels: the words and the Gumbel noise of verify/noise.py, bit for bit.

Logarithms are libdevice's, which torch's CUDA kernels use as well; `tl.log` is another function.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from augury.verify import noise

ROUNDS = tl.constexpr(noise.ROUNDS)
FACTOR_A, FACTOR_B = tl.constexpr(noise.MULTIPLIERS[0]), tl.constexpr(noise.MULTIPLIERS[1])
STEP_A, STEP_B = tl.constexpr(noise.KEY_STEPS[0]), tl.constexpr(noise.KEY_STEPS[1])
BELOW_ONE = tl.constexpr(noise.BELOW_ONE)


@triton.jit
def philox(quads, position, seed, purpose):
    """The four words of Philox4x32-10 at each counter of `quads`; the rest broadcasts."""
    a = quads.to(tl.uint32)
    b = (a * 0) + position.to(tl.uint32)
    c = (a * 0) + purpose
    d = (a * 0) + (position >> 32).to(tl.uint32)
    left, right = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        high_a, low_a = tl.umulhi(a, FACTOR_A), a * FACTOR_A
        high_b, low_b = tl.umulhi(c, FACTOR_B), c * FACTOR_B
        a, b, c, d = high_b ^ b ^ left, low_b, high_a ^ d ^ right, low_a
        left += STEP_A
        right += STEP_B
    return a, b, c, d


@triton.jit
def uniform(words):
    """uint32 words as float32 strictly between 0 and 1."""
    return tl.minimum((words.to(tl.float32) + 0.5) * (1.0 / 4294967296.0), BELOW_ONE)


@triton.jit
def gumbel(words):
    """Standard Gumbel noise of uint32 words."""
    return -libdevice.log(-libdevice.log1p(-uniform(words)))


@triton.jit
def word_of(number, a, b, c, d):
    """The word of four that a number takes: that of its remainder."""
    word = number % 4
    return tl.where(word < 2, tl.where(word == 0, a, b), tl.where(word == 2, c, d))


@triton.jit
def words_of_block(start, position, seed, BLOCK: tl.constexpr, PURPOSE: tl.constexpr):
    """Words of the tokens from `start`, a multiple of 4."""
    a, b, c, d = philox(start // 4 + tl.arange(0, BLOCK // 4), position, seed, PURPOSE)
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))


@triton.jit
def noise_of_block(start, position, seed, BLOCK: tl.constexpr, PURPOSE: tl.constexpr):
    """Noise of the tokens from `start`, a multiple of 4."""
    return gumbel(words_of_block(start, position, seed, BLOCK, PURPOSE))


@triton.jit
def noise_of_tokens(tokens, position, seed, PURPOSE: tl.constexpr):
    """Noise of some tokens, in any order."""
    a, b, c, d = philox(tokens // 4, position, seed, PURPOSE)
    return gumbel(word_of(tokens, a, b, c, d))
