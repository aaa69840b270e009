"""min-p, top-k and top-p of one row on the CPU, as one floor under z = (logit - highest) / temperature.

No sort: a distance (the bits of -z, which have the order of -z) is found digit by digit in a histogram of integer
weights, and only among tokens that block peaks or the total mass could not rule out.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from augury.kernels.verify_numba_race import BLOCK, NEGATIVE_INFINITY, scaled, unsorted

MASS_BITS = 40  # probabilities are summed as integers, in units of 2**-40 of the likeliest token's
MANTISSA_BITS = 24
MANTISSA = np.float32(2.0**MANTISSA_BITS)
LOG2_E = np.float32(1.4426950408889634)
LN_2_HIGH, LN_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
ROUNDER = np.float32(12582912.0)  # adding and subtracting 1.5 * 2**23 rounds to an integer
SMALLEST_EXPONENT = np.float32(-60)  # less than this has no mass at all
# exp(r) on |r| <= log(2) / 2 to 1e-7, least squares with the constant term held at 1.
C5, C4, C3 = np.float32(0.008261531003), np.float32(0.041898732029), np.float32(0.166681142651)
C2, C1, C0 = np.float32(0.499991410332), np.float32(0.999999531675), np.float32(1)
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
def power(z: float) -> tuple[int, int]:
    """exp(z) for z <= 0 as a fixed-point mantissa and the number of times to halve it."""
    z = z if z > SMALLEST_EXPONENT else SMALLEST_EXPONENT
    n = (z * LOG2_E + ROUNDER) - ROUNDER
    r = (z - n * LN_2_HIGH) - n * LN_2_LOW
    p = ((((C5 * r + C4) * r + C3) * r + C2) * r + C1) * r + C0
    return np.int32(p * MANTISSA), np.int32(-n)


@njit(nogil=True, forceinline=True)
def mass(mantissa: int, halvings: int) -> int:
    """A `power` in units of 2**-MASS_BITS; sums of integers do not depend on their order."""
    return (np.int64(mantissa) << (MASS_BITS - MANTISSA_BITS)) >> min(np.int64(halvings), 63)


@njit(nogil=True)
def total_mass(row: np.ndarray, peaks: np.ndarray, top: float, temperature: float, floor: float) -> int:
    """Mass of all tokens that reach the floor."""
    total = 0
    # Two loops a block keep the float half in lanes of 32 bits.
    mantissas, halvings = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int32)
    for b in range(len(peaks)):
        if scaled(unsorted(peaks[b]), top, temperature) < floor:
            continue
        part = row[b * BLOCK : (b + 1) * BLOCK]
        for i in range(len(part)):
            z = scaled(part[i], top, temperature)
            mantissa, halvings[i] = power(z)
            mantissas[i] = mantissa if z >= floor else 0
        for i in range(len(part)):
            total += mass(mantissas[i], halvings[i])
    return total


@njit(nogil=True)
def distances(row: np.ndarray, peaks: np.ndarray, top: float, temperature: float, floor: float) -> np.ndarray:
    """Bits of -z of every token that reaches the floor."""
    found = np.empty(len(row) + 1, np.int32)
    zs = np.empty(BLOCK, np.float32)
    count = 0
    for b in range(len(peaks)):
        if scaled(unsorted(peaks[b]), top, temperature) < floor:
            continue
        part = row[b * BLOCK : (b + 1) * BLOCK]
        for i in range(len(part)):
            zs[i] = scaled(part[i], top, temperature)
        for i in range(len(part)):
            # Storing always and counting sometimes spares a branch that cannot be predicted.
            found[count] = distance_of(zs[i])
            count += zs[i] >= floor
    return found[:count]


@njit(nogil=True)
def all_same(distance: np.ndarray, count: int) -> bool:
    """Whether only ties are left, so that no further digit can tell them apart."""
    same = 1
    while same < count and distance[same] == distance[0]:
        same += 1
    return same >= count


@njit(nogil=True)
def ones(count: int) -> np.ndarray:
    """Weights that count tokens."""
    weight = np.empty(count, np.int64)
    for i in range(count):
        weight[i] = 1
    return weight


@njit(nogil=True)
def crossing(bins: np.ndarray, need: int, last: int) -> tuple[int, int]:
    """The bin in which a running sum reaches `need`, and what it has to contribute."""
    for digit in range(last):
        if need <= bins[digit]:
            return digit, need
        need -= bins[digit]
    return last, need


@njit(nogil=True)
def reach(distance: np.ndarray, weight: np.ndarray, need: int) -> float:
    """The z down to which weights must be summed, from 0, to reach `need`; overwrites its arguments."""
    answer = np.int32(0)
    count = len(distance)
    bins = np.empty(DIGITS, np.int64)
    for shift in (FIRST_SHIFT, FIRST_SHIFT - DIGIT_BITS, 0):
        if all_same(distance, count):
            return z_of(distance[0])
        last = DIGITS - 1 if shift == FIRST_SHIFT else (1 << DIGIT_BITS) - 1
        for i in range(DIGITS):
            bins[i] = 0
        for i in range(count):
            bins[(distance[i] >> shift) & last] += weight[i]
        digit, need = crossing(bins, need, last)
        answer = np.int32(answer | (digit << shift))
        kept = 0
        for i in range(count):
            distance[kept], weight[kept] = distance[i], weight[i]
            kept += ((distance[i] >> shift) & last) == digit
        count = kept
    return z_of(answer)


@njit(nogil=True)
def top_k_floor(row: np.ndarray, peaks: np.ndarray, top: float, temperature: float, k: int) -> float:
    """z of the k-th most likely token."""
    bound = NEGATIVE_INFINITY
    if k <= len(peaks):
        # k blocks hold a token at least as likely as the k-th highest peak.
        heights = np.empty(len(peaks), np.int32)
        for b in range(len(peaks)):
            heights[b] = distance_of(scaled(unsorted(peaks[b]), top, temperature))
        bound = reach(heights, ones(len(peaks)), k)
    near = distances(row, peaks, top, temperature, bound)
    if len(near) <= k:  # NaN has no rank
        return bound
    return reach(near, ones(len(near)), k)


@njit(nogil=True)
def top_p_floor(row: np.ndarray, peaks: np.ndarray, top: float, temperature: float, p: float, floor: float) -> float:
    """z of the last token of the smallest set of most likely tokens that holds `p` of the mass above the floor."""
    total = total_mass(row, peaks, top, temperature, floor)
    need = min(max(np.int64(math.ceil(np.float64(p) * np.float64(total))), 1), total)
    # All tokens under this bound together weigh less than what the set leaves out.
    outside = (1 - np.float64(p)) * total / (2.0**MASS_BITS * len(row))
    bound = max(floor, np.float32(math.log(outside) - MARGIN))
    near = distances(row, peaks, top, temperature, bound)
    weight = np.empty(len(near), np.int64)
    for i in range(len(near)):
        mantissa, halvings = power(z_of(near[i]))
        weight[i] = mass(mantissa, halvings)
    return reach(near, weight, need)


@njit(nogil=True)
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
