"""One row of processed logits to one token on the CPU: block peaks and the Gumbel race.

The race computes almost no noise. A block of tokens can win only if its highest logit plus its highest noise reaches
the lead, and its highest noise is bounded by its lowest Philox word, so logarithms are taken for a few tokens per row.
Loops over a row are integer or elementwise: LLVM vectorises them without fast-math, and results do not depend on the
width of the machine's vectors.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from augury.verify.noise import BELOW_ONE, KEY_STEPS, MULTIPLIERS, ROUNDS, TARGET

BLOCK = 64  # tokens that are skipped or examined together
NOTHING = np.int32(-2139095041)  # `sortable` of -inf
HIGHEST = np.int32(0x7F7FFFFF)  # `sortable` of the largest finite float32, which +inf counts as
INFINITE = np.int32(0x7F800000)
MAGNITUDE = np.int32(0x7FFFFFFF)
SIGN_SHIFT, PLUS_ZERO = np.int32(31), np.float32(0)
NEGATIVE_INFINITY = np.float32(-np.inf)

LOW_32, HALF_WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
FACTOR_A, FACTOR_B = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
STEP_A, STEP_B = np.uint64(KEY_STEPS[0]), np.uint64(KEY_STEPS[1])
PURPOSE = np.uint64(TARGET)
WORD_SCALE, HALF, LAST_UNIFORM = np.float32(2.0**-32), np.float32(0.5), np.float32(BELOW_ONE)
MOST_NOISE = np.float32(22.9)
SLACK = np.float32(1e-3)  # covers the rounding of bounds
LN_2 = np.float32(0.6931471805599453)


@njit(nogil=True, forceinline=True)
def sortable(logit: float) -> int:
    """Map a float32 to an int32 with the same order; +inf counts as the largest float, NaN as -inf or less."""
    bits = np.float32(logit + PLUS_ZERO).view(np.int32)  # the sum turns -0 into 0
    key = np.int32(bits ^ np.int32(np.int32(bits >> SIGN_SHIFT) & MAGNITUDE))
    key = NOTHING if key > INFINITE else key
    return HIGHEST if key > HIGHEST else key


@njit(nogil=True, forceinline=True)
def unsorted(key: int) -> float:
    """The float32 behind a `sortable` key."""
    return np.int32(key ^ np.int32(np.int32(key >> SIGN_SHIFT) & MAGNITUDE)).view(np.float32)


@njit(nogil=True, forceinline=True, error_model="numpy")
def scaled(logit: float, top: float, temperature: float) -> float:
    """z = (logit - top) / temperature, at most 0; NaN stays NaN, which no comparison lets through."""
    z = (logit - top) / temperature
    return PLUS_ZERO if z > PLUS_ZERO else z


@njit(nogil=True)
def highest(part: np.ndarray) -> int:
    """Largest `sortable` of some logits."""
    best = NOTHING
    for i in range(len(part)):
        key = sortable(part[i])
        best = key if key > best else best
    return best


@njit(nogil=True)
def block_peaks(row: np.ndarray, peaks: np.ndarray) -> int:
    """Fill in the highest key of every block and return the highest of the row."""
    whole = len(row) // BLOCK
    best = NOTHING
    for b in range(whole):
        # A constant trip count, written out here, is what makes LLVM emit straight vector code.
        block = row[b * BLOCK : (b + 1) * BLOCK]
        peak = NOTHING
        for i in range(BLOCK):
            key = sortable(block[i])
            peak = key if key > peak else peak
        peaks[b] = peak
        best = peak if peak > best else best
    if whole < len(peaks):
        peaks[whole] = highest(row[whole * BLOCK :])
        best = max(best, peaks[whole])
    return best


@njit(nogil=True)
def first_with(row: np.ndarray, peaks: np.ndarray, best: int) -> int:
    """Lowest token whose key is `best`."""
    for b in range(len(peaks)):
        if peaks[b] == best:
            for token in range(b * BLOCK, len(row)):
                if sortable(row[token]) == best:
                    return token
    return 0


@njit(nogil=True, forceinline=True)
def philox(a: int, b: int, c: int, d: int, left: int, right: int) -> tuple[int, int, int, int]:
    """Philox4x32-10 on uint64 that hold uint32."""
    for _ in range(ROUNDS):
        first, second = FACTOR_A * a, FACTOR_B * c
        a, b = (second >> HALF_WORD) ^ b ^ left, second & LOW_32
        c, d = (first >> HALF_WORD) ^ d ^ right, first & LOW_32
        left, right = (left + STEP_A) & LOW_32, (right + STEP_B) & LOW_32
    return a, b, c, d


@njit(nogil=True, forceinline=True)
def lesser(a: int, b: int) -> int:
    """The smaller; numba's own min widens its arguments, and this must stay in 32-bit lanes."""
    return a if a < b else b


@njit(nogil=True)
def lowest_word(block: int, seed: np.uint64, position: np.uint64) -> int:
    """Smallest noise word of a block's tokens: its highest noise."""
    low, high = position & LOW_32, position >> HALF_WORD
    left, right = seed & LOW_32, seed >> HALF_WORD
    first = np.uint64(block * (BLOCK // 4)) & LOW_32
    least = np.uint32(0xFFFFFFFF)
    for i in range(BLOCK // 4):
        a, b, c, d = philox((first + np.uint64(i)) & LOW_32, low, PURPOSE, high, left, right)
        least = lesser(lesser(np.uint32(a), np.uint32(b)), lesser(lesser(np.uint32(c), np.uint32(d)), least))
    return least


@njit(nogil=True)
def word(token: int, seed: np.uint64, position: np.uint64) -> int:
    """The noise word of one token."""
    counter = np.uint64(token // 4)
    four = philox(counter, position & LOW_32, PURPOSE, position >> HALF_WORD, seed & LOW_32, seed >> HALF_WORD)
    return np.uint32(four[token % 4])


@njit(nogil=True)
def gumbel(raw: int) -> float:
    """The same noise as verify.noise.gumbel, for one word."""
    v = min((np.float32(raw) + HALF) * WORD_SCALE, LAST_UNIFORM)
    return np.float32(-math.log(np.float32(-math.log1p(-v))))


@njit(nogil=True, forceinline=True)
def noise_bound(raw: int) -> float:
    """At least gumbel(raw), without logarithms: E >= v, and the bits of a float lie below its base-2 logarithm."""
    v = (np.float32(raw) + HALF) * WORD_SCALE
    return (np.float32(127) - np.float32(np.float32(v).view(np.int32)) * np.float32(2.0**-23)) * LN_2


@njit(nogil=True)
def race(
    row: np.ndarray,
    peaks: np.ndarray,
    best: int,
    temperature: float,
    floor: float,
    seed: np.uint64,
    position: np.uint64,
) -> int:
    """argmax of z + noise over the tokens with z >= floor, where z = (logit - highest) / temperature."""
    top = unsorted(best)
    winner = first_with(row, peaks, best)
    lead = gumbel(word(winner, seed, position))
    for b in range(len(peaks)):
        peak = scaled(unsorted(peaks[b]), top, temperature)
        if peak < floor or peak + MOST_NOISE + SLACK < lead:
            continue
        most = noise_bound(lowest_word(b, seed, position)) + SLACK
        if peak + most < lead:
            continue
        for token in range(b * BLOCK, min((b + 1) * BLOCK, len(row))):
            z = scaled(row[token], top, temperature)
            if z >= floor and z + most >= lead:
                score = z + gumbel(word(token, seed, position))
                if score > lead or (score == lead and token < winner):
                    winner, lead = token, score
    return winner
