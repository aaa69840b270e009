"""The target's processed distribution on the CPU: the numba face of kernels/verify_probs.py.

Two passes over what the filters leave of a row: its mass, as integers, and its probabilities. numba's disk cache
watches this file alone: after editing one of the other verify_numba files in place, touch this one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from augury.kernels import verify_numba
from augury.kernels.threads import in_shares
from augury.kernels.verify_numba import Filters, array_of, edits_of, filters_of, greedy_token, lines_of
from augury.kernels.verify_numba_edits import Bars, Bias, Lines, Penalties, edited, first_unbarred
from augury.kernels.verify_numba_filters import (
    C0,
    C1,
    C2,
    C3,
    C4,
    C5,
    LN_2_HIGH,
    LN_2_LOW,
    LOG2_E,
    MASS_BITS,
    ROUNDER,
    lowest_allowed,
    total_mass,
)
from augury.kernels.verify_numba_race import BLOCK, NOTHING, block_peaks, first_with, scaled, unsorted
from augury.verify.sampling import Draws, SlotSampling

ZERO = np.float32(0)
LOWEST = np.float32(-87)  # exp of less is no normal float32
EXPONENT_BIAS, EXPONENT_SHIFT = np.int32(127), np.int32(23)


@njit(nogil=True, forceinline=True)
def weight(z: Any) -> Any:
    """exp(z) of a float32 z <= 0 to 1e-7; the curve of verify_numba_filters.power, whose masses it is divided by."""
    z = z if z > LOWEST else LOWEST
    n = (z * LOG2_E + ROUNDER) - ROUNDER
    r = (z - n * LN_2_HIGH) - n * LN_2_LOW
    p = ((((C5 * r + C4) * r + C3) * r + C2) * r + C1) * r + C0
    return p * np.int32(np.int32(np.int32(n) + EXPONENT_BIAS) << EXPONENT_SHIFT).view(np.float32)


@njit(nogil=True)
def spread_law(
    row: np.ndarray, peaks: np.ndarray, best: int, temperature: float, floor: float, probs: np.ndarray
) -> None:
    """Fill in the distribution of the tokens with z >= floor; `probs` is zero before."""
    top = unsorted(best)
    scale = np.float32(2.0**MASS_BITS / total_mass(row, peaks, top, temperature, floor))
    for b in range(len(peaks)):
        if scaled(unsorted(peaks[b]), top, temperature) < floor:
            continue
        part, out = row[b * BLOCK : (b + 1) * BLOCK], probs[b * BLOCK : (b + 1) * BLOCK]
        for i in range(len(part)):
            z = scaled(part[i], top, temperature)
            out[i] = weight(z) * scale if z >= floor and z > LOWEST else ZERO


@njit(nogil=True)
def row_law(row: np.ndarray, slot: int, filters: Filters, probs: np.ndarray) -> bool:
    """Fill in the distribution of one row of processed logits; False if no token is possible."""
    peaks = np.empty((len(row) + BLOCK - 1) // BLOCK, np.int32)
    best = block_peaks(row, peaks)
    if best <= NOTHING:
        return False
    temperature = filters.temperature[slot]
    if temperature <= 0:
        probs[first_with(row, peaks, best)] = 1
        return True
    floor = lowest_allowed(row, peaks, best, temperature, filters.top_k[slot], filters.top_p[slot], filters.min_p[slot])
    spread_law(row, peaks, best, temperature, floor, probs)
    return True


@njit(nogil=True)
def line_law(
    logits: np.ndarray,
    line: int,
    plain: bool,
    lines: Lines,
    filters: Filters,
    bias: Bias,
    penalties: Penalties,
    bars: Bars,
    probs: np.ndarray,
) -> None:
    """Fill in the distribution of one line."""
    slot = lines.slots[line]
    row = logits[line] if plain else edited(logits[line], line, lines, bias, penalties, bars)
    if row_law(row, slot, filters, probs):
        return
    token = 0 if plain else first_unbarred(logits.shape[1], line, lines, bias)
    probs[token if token >= 0 else greedy_token(logits[line])] = 1


@njit(cache=True, nogil=True)
def probs_rows(
    first: int,
    last: int,
    logits: np.ndarray,
    plain: bool,
    lines: Lines,
    filters: Filters,
    bias: Bias,
    penalties: Penalties,
    bars: Bars,
    probs: np.ndarray,
) -> None:
    """Distributions of lines first .. last-1."""
    for line in range(first, last):
        line_law(logits, line, plain, lines, filters, bias, penalties, bars, probs[line])


def probabilities(logits: Tensor, draws: Draws, sampling: SlotSampling) -> Tensor:
    """The distribution of the target's token at every line; see kernels.verify_probs.probabilities. Padding lines are
    zeros."""
    rows = array_of(logits)
    probs = torch.zeros(rows.shape, dtype=torch.float32)
    wide = draws.count * rows.shape[1] >= verify_numba.PARALLEL_FROM
    given = lines_of(draws), filters_of(sampling), *edits_of(sampling)
    in_shares(draws.count, wide, probs_rows, rows, draws.plain, *given, probs.numpy())
    return probs
