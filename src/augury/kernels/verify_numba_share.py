"""The best of some tokens on the CPU: the numba face of kernels/verify_share.py."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from augury.kernels.threads import in_shares
from augury.kernels.verify_numba import PARALLEL_FROM, array_of
from augury.kernels.verify_numba_race import (
    BLOCK,
    MOST_NOISE,
    NEGATIVE_INFINITY,
    NOTHING,
    SLACK,
    block_peaks,
    first_with,
    gumbel,
    lowest_word,
    noise_bound,
    scaled,
    unsorted,
    word,
)
from augury.verify.sampling import Draws, SlotSampling


@njit(nogil=True)
def best_of(row, top, temperature, seed, position, first):
    """The best score of a row and the token that has it; follows verify_numba_race.race step by step."""
    peaks = np.empty((len(row) + BLOCK - 1) // BLOCK, np.int32)
    best = block_peaks(row, peaks)
    if best <= NOTHING:
        return NEGATIVE_INFINITY, 0
    winner = first_with(row, peaks, best)
    if temperature <= 0:
        return unsorted(best), winner + first
    lead = scaled(unsorted(best), top, temperature) + gumbel(word(winner + first, seed, position))
    for b in range(len(peaks)):
        peak = scaled(unsorted(peaks[b]), top, temperature)
        if peak + MOST_NOISE + SLACK < lead:
            continue
        most = noise_bound(lowest_word(b + first // BLOCK, seed, position)) + SLACK
        if peak + most < lead:
            continue
        for token in range(b * BLOCK, min((b + 1) * BLOCK, len(row))):
            z = scaled(row[token], top, temperature)
            if z + most >= lead:
                score = z + gumbel(word(token + first, seed, position))
                if score > lead or (score == lead and token < winner):
                    winner, lead = token, score
    return lead, winner + first


@njit(cache=True, nogil=True)
def contest_lines(begin, end, logits, top, slots, positions, temperature, seed, first, scores, tokens):
    """Best scores and tokens of lines begin .. end-1."""
    for line in range(begin, end):
        slot = slots[line]
        scores[line], tokens[line] = best_of(
            logits[line], top[line], temperature[slot], np.uint64(seed[slot]), np.uint64(positions[line]), first
        )


def contest(logits: Tensor, top: Tensor, draws: Draws, sampling: SlotSampling, first: int) -> tuple[Tensor, Tensor]:
    """See verify_share.contest; `first` is a multiple of BLOCK. Padding lines have no score."""
    assert first % BLOCK == 0
    scores, tokens = torch.full_like(top, -torch.inf), torch.zeros_like(draws.slots)
    if logits.shape[1]:
        given = (logits, top, draws.slots, draws.positions, sampling.temperature, sampling.seed)
        arrays = [array_of(tensor) for tensor in given]
        several = draws.count * logits.shape[1] >= PARALLEL_FROM
        in_shares(draws.count, several, contest_lines, *arrays, first, scores.numpy(), tokens.numpy())
    return scores, tokens
