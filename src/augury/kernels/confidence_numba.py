"""How far a drafter's probabilities hold, compiled: it runs between two draft tokens. See drafters/confidence.py."""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.kernels.exp_numba import exp
from augury.kernels.numba_options import OPTIONS


@njit(**OPTIONS)
def _top_probability(line):
    """The probability of the likeliest token of a row of logits."""
    top = line[0]
    for score in line:
        top = max(top, score)
    total = np.float32(0.0)
    for i in range(line.size):
        total += exp(line[i] - top)
    return np.float32(1.0) / total


@njit(**OPTIONS)
def open_guesses(slots, nodes, temperature, pending, judged, moved, drawn):
    """Keep the bins of drafts that have just been verified, and fill in which of the next drafts are sampled."""
    for g in range(len(slots)):
        slot = slots[g]
        moved[slot], drawn[g] = nodes[g] > 0, temperature[slot] > 0
        if moved[slot]:
            judged[slot] = pending[slot]


@njit(**OPTIONS)
def note_guesses(logits, i, slots, budget, drawn, records, lean, pending, reached, kept, ahead, follows, prices):
    """Judge token i of every draft that has kept all before it; returns whether one more token promises to pay."""
    bins, gain = records.shape[2], 0.0
    for g in range(len(slots)):
        if kept[g] != i or i >= budget[g]:
            continue
        probability = _top_probability(logits[g])
        place, kind = min(int(probability * bins), bins - 1), drawn[g]
        tried, accepted = records[kind, 0, place], records[kind, 1, place]
        chance = (accepted + lean * probability) / (tried + lean)
        pending[slots[g], i] = kind * bins + place
        ahead[i] += follows * (chance - ahead[i])
        reached[g] *= chance
        if reached[g] < prices[0]:
            continue
        kept[g] = i + 1
        if i + 1 < budget[g]:
            gain += max(reached[g] * ahead[i + 1] - prices[0], 0.0)
    return gain > prices[1]


@njit(**OPTIONS)
def enter_guesses(slots, depths, accepted, pending, records, fades):
    """Enter how draft tokens fared: for every slot, all up to the first that was rejected."""
    records *= fades
    bins = records.shape[2]
    for n in range(len(slots)):
        for i in range(min(accepted[n] + 1, depths[n])):
            kind, place = pending[slots[n], i] // bins, pending[slots[n], i] % bins
            records[kind, 0, place] += 1
            records[kind, 1, place] += i < accepted[n]
