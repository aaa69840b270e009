"""min-p, top-k and top-p of one row on the CPU, as one floor under z = (logit - highest) / temperature.

No sort: a distance (the bits of -z, whose order is that of the float) is found digit by digit in a histogram of integer
weights, and only among tokens that block peaks or the total mass could not rule out.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from augury.kernels.verify_numba_race import BLOCK, NEGATIVE_INFINITY, clean, unsorted

MASS_BITS = 40  # probabilities are summed as integers, in units of 2**-40 of the likeliest token's
LOG2_E = np.float32(1.4426950408889634)
LN_2_HIGH, LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
ROUNDER = np.float32(12582912.0)  # adding and subtracting 1.5 * 2**23 rounds to an integer
SMALLEST_EXPONENT = np.float32(-60)  # less than this has no mass at all
MANTISSA = np.float32(2.0**24)
# Taylor terms of exp on |r| <= log(2) / 2; what follows the last is under half a bit of float32.
C7, C6, C5, C4, C3 = (np.float32(1 / math.factorial(n)) for n in (7, 6, 5, 4, 3))
ONE, HALF = np.float32(1), np.float32(0.5)
FIRST_SHIFT, DIGIT_BITS, DIGITS = 20, 10, 2048  # 31 bits: a first digit of eleven, then two of ten
MARGIN = 0.01  # covers the rounding of a bound


@njit(nogil=True, forceinline=True)
def distance_of(z: float) -> int:
    """The bits of -z."""
    return np.float32(abs(z)).view(np.int32)


@njit(nogil=True, forceinline=True)
def z_of(distance: int) -> float:
    """The z of a distance."""
    return -np.int32(distance).view(np.float32)


@njit(nogil=True, forceinline=True)
def mass(z: float) -> int:
    """exp(z) for z <= 0 in units of 2**-MASS_BITS; sums of integers do not depend on their order."""
    z = z if z > SMALLEST_EXPONENT else SMALLEST_EXPONENT
    n = (z * LOG2_E + ROUNDER) - ROUNDER
    r = (z - n * LN_2_HIGH) - n * LN_2_LOW
    p = ((((((C7 * r + C6) * r + C5) * r + C4) * r + C3) * r + HALF) * r + ONE) * r + ONE
    halvings = np.int64(np.int32(-n))
    return (np.int64(np.int32(p * MANTISSA)) << (MASS_BITS - 24)) >> min(halvings, 63)


@njit(nogil=True, error_model="numpy")
def part_mass(part: np.ndarray, top: float, temperature: float, floor: float) -> int:
    """Mass of the tokens of one block that reach the floor."""
    total = 0
    for i in range(len(part)):
        z = (clean(part[i]) - top) / temperature
        total += mass(z) if z >= floor else 0
    return total


@njit(nogil=True, error_model="numpy")
def total_mass(row: np.ndarray, peaks: np.ndarray, top: float, temperature: float, floor: float) -> int:
    """Mass of all tokens that reach the floor."""
    total = 0
    for b in range(len(peaks)):
        if (unsorted(peaks[b]) - top) / temperature >= floor:
            total += part_mass(row[b * BLOCK : (b + 1) * BLOCK], top, temperature, floor)
    return total


@njit(nogil=True, error_model="numpy")
def distances(row: np.ndarray, peaks: np.ndarray, top: float, temperature: float, floor: float) -> np.ndarray:
    """Bits of -z of every token that reaches the floor."""
    found = np.empty(len(row), np.int32)
    count = 0
    for b in range(len(peaks)):
        if (unsorted(peaks[b]) - top) / temperature < floor:
            continue
        for token in range(b * BLOCK, min((b + 1) * BLOCK, len(row))):
            z = (clean(row[token]) - top) / temperature
            # Storing always and counting sometimes spares a branch that cannot be predicted.
            found[count] = distance_of(z)
            count += z >= floor
    return found[:count]


@njit(nogil=True, error_model="numpy")
def reach(distance: np.ndarray, weight: np.ndarray, need: int) -> float:
    """The z down to which weights must be summed, from the top, to reach `need`; overwrites its arguments."""
    answer = np.int32(0)
    count = len(distance)
    bins = np.empty(DIGITS, np.int64)
    for shift in (FIRST_SHIFT, FIRST_SHIFT - DIGIT_BITS, 0):
        kept_bits = DIGITS - 1 if shift == FIRST_SHIFT else (1 << DIGIT_BITS) - 1
        bins[:] = 0
        for i in range(count):
            bins[(distance[i] >> shift) & kept_bits] += weight[i]
        digit = 0
        while need > bins[digit] and digit < kept_bits:
            need -= bins[digit]
            digit += 1
        answer = np.int32(answer | (digit << shift))
        kept = 0
        for i in range(count):
            same = ((distance[i] >> shift) & kept_bits) == digit
            distance[kept], weight[kept] = distance[i], weight[i]
            kept += same
        count = kept
    return z_of(answer)


@njit(nogil=True, error_model="numpy")
def top_k_floor(row: np.ndarray, peaks: np.ndarray, top: float, temperature: float, k: int) -> float:
    """z of the k-th most likely token."""
    bound = NEGATIVE_INFINITY
    if k <= len(peaks):
        # k blocks hold a token at least as likely as the k-th highest peak.
        heights = np.empty(len(peaks), np.int32)
        for b in range(len(peaks)):
            heights[b] = distance_of((unsorted(peaks[b]) - top) / temperature)
        bound = reach(heights, np.ones(len(peaks), np.int64), k)
    near = distances(row, peaks, top, temperature, bound)
    return reach(near, np.ones(len(near), np.int64), k)


@njit(nogil=True, error_model="numpy")
def top_p_floor(
    row: np.ndarray, peaks: np.ndarray, top: float, temperature: float, p: float, floor: float
) -> float:
    """z of the last token of the smallest set of most likely tokens that holds `p` of the mass above the floor."""
    total = total_mass(row, peaks, top, temperature, floor)
    need = min(max(np.int64(math.ceil(np.float64(p) * np.float64(total))), 1), total)
    # All tokens under this bound together weigh less than what the set leaves out.
    outside = (1 - np.float64(p)) * total / (2.0**MASS_BITS * len(row))
    bound = max(floor, np.float32(math.log(max(outside, 1e-30)) - MARGIN))
    near = distances(row, peaks, top, temperature, bound)
    weight = np.empty(len(near), np.int64)
    for i in range(len(near)):
        weight[i] = mass(z_of(near[i]))
    return max(floor, reach(near, weight, need))


@njit(nogil=True, error_model="numpy")
def lowest_allowed(
    row: np.ndarray, peaks: np.ndarray, best: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> float:
    """The floor under z that min-p, top-k and top-p leave, in vLLM's order; tokens at the floor stay in."""
    top = unsorted(best)
    floor = NEGATIVE_INFINITY
    if min_p > 0:
        floor = np.float32(math.log(min_p))
    if 0 < top_k < len(row):
        floor = max(floor, top_k_floor(row, peaks, top, temperature, top_k))
    if top_p < 1:
        floor = top_p_floor(row, peaks, top, temperature, top_p, floor)
    return floor
