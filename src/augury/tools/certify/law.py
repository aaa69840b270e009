"""The law (distribution) that plain sampling draws from, recomputed from raw logits in float64.

The engine has its own code for this, in float32 and fused; a certificate must not trust what it certifies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from augury.config.sampling import SamplingParams

EDGE = 0.01  # share of the mass around a top-p cut: rounding may move tokens there across it


def possible(
    logits: NDArray[np.float32], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> dict[int, float]:
    """The law by token; tokens that rounding may let in at the edge of a top-p cut are listed with probability 0."""
    law = plain_law(logits, params, prompt, output)
    wider = plain_law(logits, params.clone(top_p=min(1.0, params.top_p + EDGE)), prompt, output)
    return {int(token): float(law[token]) for token in wider.nonzero()[0]}


def plain_law(
    logits: NDArray[np.float32], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> NDArray[np.float64]:
    """Probabilities of the next token after a prompt and the output generated so far."""
    scores = _penalized(logits.astype(np.float64), params, prompt, output)
    if params.greedy:
        return np.asarray(np.arange(len(scores)) == scores.argmax(), np.float64)
    z = (scores - scores.max()) / params.temperature
    mass = np.exp(z)
    mass[mass < params.min_p] = 0
    if 0 < params.top_k < len(mass):
        mass[mass < np.sort(mass)[-params.top_k]] = 0
    if params.top_p < 1:
        falling = np.sort(mass)[::-1]
        reached = falling.cumsum()
        last = int(np.searchsorted(reached, params.top_p * reached[-1]))
        mass[mass < falling[min(last, len(falling) - 1)]] = 0
    law: NDArray[np.float64] = mass / mass.sum()
    return law


def _penalized(
    scores: NDArray[np.float64], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> NDArray[np.float64]:
    counts = Counter(output)
    for token in {*prompt, *output}:
        scores[token] *= 1 / params.repetition_penalty if scores[token] > 0 else params.repetition_penalty
    for token, count in counts.items():
        scores[token] -= params.frequency_penalty * count + params.presence_penalty
    return scores
