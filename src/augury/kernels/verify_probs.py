"""The target's processed distribution at every line, for rules that need probabilities: the reference face, in torch.

Same transforms and same kept tokens as kernels/verify.py's draw, so that a token drawn from this distribution is a
token draw could have drawn. The mass of a row is a sum of integers, which has no order: a line's distribution does not
depend on other lines.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from augury.kernels.faces import face
from augury.kernels.verify import MASS_UNIT, NEVER, edited, last_resort, lowest_allowed, ordered
from augury.verify.sampling import Draws, SlotSampling


def choose(device: torch.device | str) -> Callable[[Tensor, Draws, SlotSampling], Tensor]:
    """The fastest face for a device."""
    kind = face(torch.device(device))
    if kind == "numba":
        from augury.kernels import verify_probs_numba  # numba is imported where it is used

        return verify_probs_numba.probabilities
    if kind == "triton":
        from augury.kernels import probs_triton  # so is Triton

        return probs_triton.probabilities
    return probabilities


def probabilities(logits: Tensor, draws: Draws, sampling: SlotSampling) -> Tensor:
    """The distribution of the target's token at every line of float32 [L, V] logits, float32 [L, V], each row summing
    to 1.

    A greedy slot has all its mass on the argmax after the bars; where everything is barred, on the last resort.
    """
    scores = ordered(logits if draws.plain else edited(logits, draws, sampling))
    top = scores.amax(1, keepdim=True)
    possible = (top > NEVER)[:, 0]
    token = torch.where(possible, scores.argmax(1), last_resort(logits, draws, sampling))
    certain = torch.zeros_like(scores).scatter(1, token[:, None], 1.0)
    if draws.greedy:
        return certain
    temperature = sampling.temperature[draws.slots]
    sampled = possible & (temperature > 0)
    z = (scores - torch.where(possible[:, None], top, 0.0)) / torch.where(sampled, temperature, 1.0)[:, None]
    weight = torch.where(z >= lowest_allowed(z, draws.slots, sampling), z.exp(), 0.0)
    mass = (weight.double() * MASS_UNIT).to(torch.int64).sum(1, keepdim=True)
    probs = weight * (MASS_UNIT / mass.clamp(min=1).double()).to(torch.float32)
    return torch.where(sampled[:, None], probs, certain)
